//! Memory nodes on which pages of this process are. A processor core reads the memory of its own
//! node faster than the memory of another one.

use std::ops::Range;

use crate::Pages;

impl Pages {
    /// Returns the bytes of `bytes` that are on each memory node, or `None` if the system has only
    /// one node or does not report them. The result has a number for each node up to the last. It
    /// may include pages of other parts of the same file.
    ///
    /// Source: `numa(7)`, and the kernel's documentation, `stable/sysfs-devices-node`.
    pub fn by_node(bytes: &[u8]) -> Option<Vec<u64>> {
        let nodes = last_node(&std::fs::read_to_string("/sys/devices/system/node/has_memory").ok()?)? + 1;
        if nodes == 1 {
            return None;
        }
        let report = std::fs::read("/proc/self/numa_maps").ok()?;
        let first = bytes.as_ptr() as u64;
        within(&String::from_utf8_lossy(&report), first..first + bytes.len() as u64, nodes)
    }
}

/// Returns the last node of a list such as `0-1,3`.
fn last_node(list: &str) -> Option<usize> {
    let last: usize = list.trim().rsplit([',', '-']).next()?.parse().ok()?;
    // More nodes than any system has.
    (last < 1 << 16).then_some(last)
}

/// Adds up the pages of mappings that overlap a range of addresses. The kernel's report has the
/// start of each mapping, in ascending order, but not its end.
fn within(report: &str, range: Range<u64>, nodes: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0u64; nodes];
    let start = |line: &str| u64::from_str_radix(line.split_ascii_whitespace().next()?, 16).ok();
    let mut lines = report.lines().peekable();
    while let Some(line) = lines.next() {
        let next = lines.peek().map_or(Some(u64::MAX), |next| start(next))?;
        if start(line)? >= range.end || next <= range.start {
            continue;
        }
        let mut page = None;
        let mut counts = Vec::new();
        for word in line.split_ascii_whitespace() {
            let Some((name, value)) = word.split_once('=') else { continue };
            if name == "kernelpagesize_kB" {
                page = Some(value.parse::<u64>().ok()?);
            } else if let Some(node) = name.strip_prefix('N').and_then(|node| node.parse::<usize>().ok()) {
                counts.push((node, value.parse::<u64>().ok()?));
            }
        }
        for (node, pages) in counts {
            let sum = bytes.get_mut(node)?;
            *sum = sum.checked_add(pages.checked_mul(page?)?.checked_mul(1024)?)?;
        }
    }
    (bytes.iter().any(|bytes| *bytes > 0)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mappings of a program, of two models, and of memory without pages.
    const REPORT: &str = "\
55d0c0000000 default file=/usr/bin/N9=1 mapped=2 N0=2 kernelpagesize_kB=4
7f0000000000 default file=/first\\040model mapped=1536 N0=1024 N1=512 kernelpagesize_kB=4
7f0000800000 default file=/second mapped=2048 active=0 N1=4 kernelpagesize_kB=2048
7f0000c00000 default
";

    #[test]
    fn pages_are_counted_by_node() {
        const MIB: u64 = 1 << 20;
        let start = 0x7f00_0000_0000;
        let of = |from: u64, to: u64| within(REPORT, start + from..start + to, 2);
        assert_eq!(of(0, 8 * MIB), Some(vec![4 * MIB, 2 * MIB]));
        assert_eq!(of(8 * MIB, 12 * MIB), Some(vec![0, 8 * MIB]));
        assert_eq!(of(0, 12 * MIB), Some(vec![4 * MIB, 10 * MIB]));
        assert_eq!(of(12 * MIB, 13 * MIB), None, "no pages");
        assert_eq!(within(REPORT, start..start + MIB, 1), None, "a node that does not exist");
        for wrong in ["", "no address\n", "7f00 default N0=many\n", "7f00 default N0=1\n"] {
            assert_eq!(within(wrong, 0x7f00..0x7f01, 2), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_last_node_of_a_list() {
        let lists = ["0\n", "0-1\n", "0,2-3", "", "a", "0-", "99999999"].map(last_node);
        assert_eq!(lists, [Some(0), Some(1), Some(3), None, None, None, None]);
    }

    #[test]
    fn bytes_of_this_process_are_on_some_node_or_on_the_only_one() {
        let bytes = vec![1u8; 1 << 20];
        let found = Pages::by_node(&bytes);
        assert!(found.is_none_or(|found| found.len() > 1 && found.iter().sum::<u64>() > 0));
    }
}
