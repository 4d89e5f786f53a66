//! Detection of cores that are fast enough for a thread. Reads files under `/sys` and `/proc` on
//! Linux, and uses the standard library's count on other systems.

use std::collections::BTreeSet;
use std::path::Path;

/// Returns the number of physical cores that this process may use, without cores that are much
/// slower than the fastest. A job ends with its slowest thread.
pub fn performance_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    // Quotas also limit the count, and only the standard library reads them.
    fast_cores().map_or(available, |fast| fast.cores).clamp(1, available)
}

/// Returns the fast cores among those available to the calling thread, or `None` if the system does
/// not report them.
fn fast_cores() -> Option<Fast> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    fast(allowed, |cpu, what| {
        let path = Path::new("/sys/devices/system/cpu").join(format!("cpu{cpu}")).join(what);
        std::fs::read_to_string(path).ok()
    })
}

/// A set of processors in the format of the system's affinity mask, with one bit for each.
pub struct Processors(Vec<u64>);

impl Processors {
    fn of(processors: &[usize]) -> Processors {
        const WORD: usize = u64::BITS as usize;
        let mut mask = vec![0u64; processors.iter().max().map_or(0, |most| most / WORD + 1)];
        processors.iter().for_each(|processor| mask[processor / WORD] |= 1 << (processor % WORD));
        Processors(mask)
    }

    /// Returns the fast cores if the calling thread may also use slow ones and the fast cores are
    /// enough for `threads` threads. A scheduler that sees a thread sleep between kernels may move
    /// it to a small core.
    pub fn fast_among_slow(threads: usize) -> Option<Processors> {
        fast_cores().filter(|fast| fast.are_enough(threads)).map(|fast| Processors::of(&fast.processors))
    }

    /// Restricts the calling thread to this set. A failure is ignored, since no result depends on
    /// it. The thread may move within the set: if two threads were pinned to one core each, they
    /// would wait for any other thread that runs there.
    pub fn keep(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            unsafe extern "C" {
                fn sched_setaffinity(thread: i32, bytes: usize, mask: *const u64) -> i32;
            }
            // SAFETY: the mask is readable for as many bytes, and thread 0 is the calling thread.
            let _ = unsafe { sched_setaffinity(0, self.0.len() * 8, self.0.as_ptr()) };
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = &self.0;
    }
}

/// A core below this percentage of the fastest core's capacity (of 1024) is slow.
const SLOW: u64 = 60;

/// The cores of a list of processors that are about as fast as the fastest.
#[derive(Debug, PartialEq, Eq)]
struct Fast {
    /// Number of cores. The hardware threads of a core count once.
    cores: usize,
    /// All processors of these cores.
    processors: Vec<usize>,
    /// Whether other cores are slow.
    left_out: bool,
}

impl Fast {
    /// Checks whether to restrict this many threads to the fast cores. More threads were requested
    /// for the slow cores too.
    fn are_enough(&self, threads: usize) -> bool {
        self.left_out && threads <= self.processors.len()
    }
}

/// Finds the fast cores of an allowed list. `read` returns the contents of a file in a processor's
/// folder. Returns `None` if the list is malformed.
fn fast(allowed: &str, read: impl Fn(usize, &str) -> Option<String>) -> Option<Fast> {
    let mut all = Vec::new();
    let mut fastest = 0;
    for cpu in processors(allowed)? {
        // Without this information, every processor counts as a core, and all cores as equally
        // fast.
        let siblings = read(cpu, "topology/thread_siblings_list").and_then(|list| processors(&list));
        let first = siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(cpu);
        let number = |file| read(cpu, file)?.trim().parse::<u64>().ok();
        let speed = number("cpu_capacity").or_else(|| number("cpufreq/cpuinfo_max_freq")).unwrap_or(0);
        fastest = fastest.max(speed);
        all.push((cpu, first, speed));
    }
    let is_fast = |(.., speed): &&(usize, usize, u64)| speed * 100 >= fastest * SLOW;
    let cores: BTreeSet<usize> = all.iter().filter(is_fast).map(|(_, first, _)| *first).collect();
    let processors: Vec<usize> = all.iter().filter(is_fast).map(|(cpu, ..)| *cpu).collect();
    Some(Fast { cores: cores.len(), left_out: processors.len() < all.len(), processors })
}

/// Parses a list of processors such as `0-3,8`. Returns `None` if it is malformed.
fn processors(list: &str) -> Option<Vec<usize>> {
    /// More processors than any system has.
    const MOST: usize = 1 << 16;
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        if last >= MOST || all.len() > MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_of(files: &[(usize, &str, &str)]) -> impl Fn(usize, &str) -> Option<String> {
        move |cpu, file| {
            files
                .iter()
                .find(|(of, name, _)| (*of, *name) == (cpu, file))
                .map(|(.., text)| (*text).to_owned())
        }
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(processors("\t0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(processors("5"), Some(vec![5]));
        assert_eq!(processors("4-2"), Some(vec![]));
        for wrong in ["", "a", "1-", "0-99999999", "1,,2", "-3"] {
            assert_eq!(processors(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn threads_of_a_core_count_once_and_slow_cores_do_not_count() {
        const SIBLINGS: &str = "topology/thread_siblings_list";
        let count =
            |list: &str, files: &[(usize, &str, &str)]| fast(list, files_of(files)).map(|fast| fast.cores);
        assert_eq!(count("0-3", &[]), Some(4));
        let two = [(0, SIBLINGS, "0,2"), (2, SIBLINGS, "0,2"), (1, SIBLINGS, "1,3"), (3, SIBLINGS, "1,3")];
        assert_eq!(count("0-3", &two), Some(2));
        assert_eq!(count("2-3", &two), Some(2));
        // One big, three middle, four little cores.
        let capacities = [1024, 800, 800, 800, 300, 300, 300, 300].map(|speed: u64| format!("{speed}\n"));
        let phone: Vec<_> = (0..8).map(|cpu| (cpu, "cpu_capacity", capacities[cpu].as_str())).collect();
        assert_eq!(count("0-7", &phone), Some(4));
        assert_eq!(count("4-7", &phone), Some(4));
        let big = fast("0-7", files_of(&phone)).expect("a list");
        assert_eq!([1, 4, 5, 8].map(|threads| big.are_enough(threads)), [true, true, false, false]);
        assert_eq!((big.processors, big.left_out), (vec![0, 1, 2, 3], true));
        assert!(!fast("4-7", files_of(&phone)).expect("a list").left_out);
        let hybrid = [(0, "cpufreq/cpuinfo_max_freq", "5000000"), (1, "cpufreq/cpuinfo_max_freq", "2900000")];
        assert_eq!(count("0-1", &hybrid), Some(1));
        assert_eq!(count("none", &[]), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_stays_on_the_processors_it_is_restricted_to() {
        let allowed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("readable");
            let list =
                status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("reported");
            processors(list).expect("a list")
        };
        let thread = std::thread::spawn(move || {
            let last = *allowed().last().expect("one");
            Processors::of(&[last]).keep();
            (vec![last], allowed())
        });
        let (requested, found) = thread.join().expect("ended");
        assert_eq!(requested, found);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(performance_cores() >= 1);
    }
}
