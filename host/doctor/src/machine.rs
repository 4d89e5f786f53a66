//! Describes this machine, based on files of Linux or Android.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;
use shardwright_files::Memory;
use shardwright_planning::profile::FoundProfile;
use shardwright_planning::profile::fact_names::SYSTEM_PROPERTIES;
use shardwright_vocabulary::TargetKind;

/// Maximum number of bytes to read from any of these files. The longest, `/proc/cpuinfo` of a
/// machine with hundreds of cores, is shorter.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a value in characters.
const VALUE_CHARS_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MachineReport {
    /// Operating system and architecture, such as `linux x86_64`.
    pub system: String,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Model of the processor, or its core types.
    pub cpu: Option<String>,
    /// Number of threads that can run at the same time.
    pub cores: usize,
    /// The machine's instruction sets that the CPU shim checks.
    pub features: Vec<String>,
    /// Total memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Memory in bytes that programs can still allocate.
    pub memory_available_bytes: Option<u64>,
    /// Size of a memory page in bytes.
    pub page_bytes: Option<u64>,
    /// Names of the chip or the device.
    pub identities: Vec<Identity>,
    /// Profiles of chips that match one of these names.
    pub profiles: Vec<String>,
}

/// A name of the chip or the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// The file or property that contains the name.
    pub source: String,
    /// The name as written there.
    pub value: String,
}

/// Properties in which any Android may name its chip. Properties of one vendor are in its profiles.
const PROPERTIES: [&str; 6] = [
    "ro.soc.manufacturer",
    "ro.soc.model",
    "ro.hardware",
    "ro.board.platform",
    "ro.chipname",
    "ro.hardware.chipname",
];

/// Files with properties, if they are readable. They do not include properties set by the boot
/// loader.
const PROPERTY_FILES: [&str; 6] = [
    "vendor/build.prop",
    "vendor/odm/etc/build.prop",
    "odm/etc/build.prop",
    "odm/build.prop",
    "system/build.prop",
    "default.prop",
];

impl MachineReport {
    /// Reads the files below `root`, which is `/` except in tests. Profiles name further
    /// properties.
    pub(crate) fn read(root: &Path, profiles: &[FoundProfile]) -> MachineReport {
        let of_profiles = profiles.iter().filter_map(|found| found.profile.fact(SYSTEM_PROPERTIES));
        let of_profiles = of_profiles.flat_map(|fact| fact.value.split(',').map(str::trim));
        let mut properties = PROPERTIES.to_vec();
        for name in of_profiles.filter(|name| !name.is_empty()) {
            if !properties.contains(&name) {
                properties.push(name);
            }
        }
        let cpu = text(&root.join("proc/cpuinfo")).unwrap_or_default();
        let memory = Memory::read(root);
        MachineReport {
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            kernel: text(&root.join("proc/sys/kernel/osrelease")).map(|kernel| short(&kernel)),
            cpu: processor(&cpu),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            features: features(),
            memory_bytes: memory.total,
            memory_available_bytes: memory.available,
            page_bytes: page_bytes(root),
            identities: identities(root, &cpu, &properties),
            profiles: Vec::new(),
        }
    }

    /// Finds the profiles of chips that match an identity, as a whole or by one of its words.
    pub(crate) fn match_profiles(&mut self, profiles: &[FoundProfile]) {
        let words: Vec<String> =
            self.identities.iter().flat_map(|identity| names_in(&identity.value)).collect();
        let chips = profiles.iter().map(|found| &found.profile).filter(|chip| chip.kind != TargetKind::Cpu);
        let named = chips.filter(|chip| {
            let mut names = chip.aliases.iter().chain([&chip.name]);
            names.any(|name| words.contains(&plain(name)))
        });
        self.profiles = named.map(|chip| chip.name.clone()).collect();
    }
}

/// Returns the file as trimmed text, or `None` if it cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    // Files of a device tree use zero bytes as terminators and separators.
    let text = String::from_utf8_lossy(&bytes).replace('\0', "\n");
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Converts a value to one line that is safe for a terminal.
fn short(value: &str) -> String {
    let printable = value.chars().map(|c| if c.is_control() { ' ' } else { c });
    printable.take(VALUE_CHARS_MAX).collect::<String>().trim().to_owned()
}

/// Returns `model name` if present, or else the number of cores of each type.
fn processor(cpuinfo: &str) -> Option<String> {
    let values = |key: &'static str| {
        cpuinfo.lines().filter_map(move |line| {
            let (existing, value) = line.split_once(':')?;
            (existing.trim() == key).then(|| short(value))
        })
    };
    if let Some(model) = values("model name").next() {
        return Some(model);
    }
    let mut types: BTreeMap<(String, String), usize> = BTreeMap::new();
    for pair in values("CPU implementer").zip(values("CPU part")) {
        *types.entry(pair).or_default() += 1;
    }
    let types = types.iter().map(|((maker, part), count)| format!("{count} x {maker}/{part}"));
    let types = types.collect::<Vec<_>>().join(", ");
    (!types.is_empty()).then_some(types)
}

/// Returns the page size from the auxiliary vector that the kernel passes to every process: pairs
/// of a key and a value, with key 6 for the page size.
fn page_bytes(root: &Path) -> Option<u64> {
    const PAGE_SIZE: u64 = 6;
    let bytes = std::fs::read(root.join("proc/self/auxv")).ok()?;
    let numbers: Vec<u64> =
        bytes.as_chunks::<8>().0.iter().map(|&number| u64::from_ne_bytes(number)).collect();
    numbers.as_chunks::<2>().0.iter().find(|pair| pair[0] == PAGE_SIZE).map(|pair| pair[1])
}

fn identities(root: &Path, cpuinfo: &str, properties: &[&str]) -> Vec<Identity> {
    let mut found: Vec<Identity> = Vec::new();
    let mut add = |source: String, value: String| {
        if !value.is_empty() && !found.iter().any(|existing| existing.source == source) {
            found.push(Identity { source, value });
        }
    };
    for name in ["machine", "soc_id", "family", "vendor", "revision"] {
        let path = format!("sys/devices/soc0/{name}");
        if let Some(value) = text(&root.join(&path)) {
            add(format!("/{path}"), short(&value));
        }
    }
    for name in ["model", "compatible"] {
        let path = format!("proc/device-tree/{name}");
        if let Some(value) = text(&root.join(&path)) {
            add(format!("/{path}"), short(&value));
        }
    }
    if let Some(value) = cpuinfo.lines().find_map(|line| line.strip_prefix("Hardware")?.split_once(':')) {
        add("/proc/cpuinfo Hardware".to_owned(), short(value.1));
    }
    let asked = root == Path::new("/") && root.join("system/bin/getprop").is_file();
    if asked {
        for &property in properties {
            let answer = Command::new("/system/bin/getprop").arg(property).stdin(Stdio::null()).output();
            if let Ok(answer) = answer {
                add(property.to_owned(), short(&String::from_utf8_lossy(&answer.stdout)));
            }
        }
    }
    for file in PROPERTY_FILES {
        let said = text(&root.join(file)).unwrap_or_default();
        for line in said.lines() {
            if let Some((name, value)) = line.split_once('=')
                && properties.contains(&name.trim())
            {
                add(name.trim().to_owned(), short(value));
            }
        }
    }
    found
}

/// Returns a value as a whole, and its words: `qcom,sm8850-mtp` also includes `sm8850`.
fn names_in(value: &str) -> Vec<String> {
    let words = value.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_' && c != '+');
    let pieces = value.split(|c: char| !c.is_ascii_alphanumeric());
    let mut names: Vec<String> = words.chain(pieces).chain([value]).map(plain).collect();
    // A bare number is the name of a chip only if it is the whole text, as in `soc_id`.
    let whole = plain(value);
    names.retain(|name| !name.is_empty() && (*name == whole || !name.bytes().all(|b| b.is_ascii_digit())));
    names
}

/// Normalises a name for comparison, as for names of profiles. Case, blanks, hyphens and
/// underscores are ignored.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).flat_map(char::to_lowercase).collect()
}

macro_rules! detected {
    ($detect:ident: $($feature:tt)+) => {
        [$(($feature, std::arch::$detect!($feature))),+]
    };
}

/// Returns the instruction sets that the CPU shim has kernels for, or could use.
fn features() -> Vec<String> {
    #[cfg(target_arch = "x86_64")]
    let known = detected!(is_x86_feature_detected:
        "avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512dq" "avx512vl" "avx512vnni" "avx512bf16" "avxvnni");
    #[cfg(target_arch = "aarch64")]
    let known = detected!(is_aarch64_feature_detected: "neon" "dotprod" "fp16" "bf16" "i8mm" "sve" "sve2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let known: [(&str, bool); 0] = [];
    known.iter().filter(|(_, there)| *there).map(|(name, _)| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use shardwright_planning::profile::ProfileRegistry;

    use super::*;

    /// Returns a machine described by these files.
    fn machine(files: &[(&str, &[u8])]) -> MachineReport {
        let root = tempfile::tempdir().unwrap();
        for (path, bytes) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let profiles = ProfileRegistry::new().list().unwrap().found;
        let mut machine = MachineReport::read(root.path(), &profiles);
        machine.match_profiles(&profiles);
        machine
    }

    #[test]
    fn chips_are_known_by_any_of_their_names() {
        let cases: [(&str, &[u8], &[&str]); 10] = [
            ("sys/devices/soc0/machine", b"SM8850\n", &["sm8850"]),
            ("sys/devices/soc0/family", b"Snapdragon\n", &[]),
            ("proc/device-tree/compatible", b"qcom,kaanapali-mtp\0qcom,kaanapali\0", &["sm8850"]),
            ("proc/cpuinfo", b"Hardware\t: MT6989W/TCZA\n", &["mt6989"]),
            ("vendor/build.prop", b"# x\nro.board.platform=mt6989\n", &["mt6989"]),
            ("vendor/build.prop", b"ro.build.id=mt6989\n", &[]),
            ("vendor/build.prop", b"ro.vendor.mediatek.platform=MT6993\n", &["mt6993"]),
            ("system/build.prop", b"ro.soc.model=SM8850-AC\n", &["sm8850"]),
            ("proc/device-tree/model", b"Some phone of 2026\0", &[]),
            ("sys/devices/soc0/machine", b"generic\n", &[]),
        ];
        for (path, bytes, profiles) in cases {
            let found = machine(&[(path, bytes)]);
            assert_eq!(found.profiles, profiles, "{path}: {:?}", found.identities);
        }
    }

    #[test]
    fn the_memory_is_that_of_the_control_group() {
        let limited = machine(&[
            ("proc/meminfo", b"MemTotal: 4096 kB\nMemAvailable: 2048 kB\n"),
            ("proc/self/cgroup", b"0::/app\n"),
            ("sys/fs/cgroup/app/memory.max", b"1048576\n"),
            ("sys/fs/cgroup/app/memory.current", b"524288\n"),
        ]);
        let memory = (limited.memory_bytes, limited.memory_available_bytes);
        assert_eq!(memory, (Some(1 << 20), Some(1 << 19)));
    }

    #[test]
    fn nothing_is_asked_of_a_machine_that_says_nothing() {
        let bare = machine(&[]);
        assert_eq!((bare.kernel, bare.cpu, bare.memory_bytes, bare.page_bytes), (None, None, None, None));
        assert!(bare.identities.is_empty() && bare.profiles.is_empty() && bare.cores >= 1);
    }

    #[test]
    fn odd_files_are_read_as_far_as_they_make_sense() {
        let mut auxiliary = Vec::new();
        for number in [3_u64, 64, 6, 16384, 0, 0] {
            auxiliary.extend(number.to_ne_bytes());
        }
        let long = vec![b'x'; 4 << 20];
        let odd = machine(&[
            (
                "proc/cpuinfo",
                b"CPU implementer : 0x41\nCPU part : 0xd81\nCPU implementer : 0x41\nCPU part : 0xd81\n",
            ),
            ("proc/meminfo", b"MemTotal:   1024 kB\nMemAvailable: 99999999999999999999 kB\n"),
            ("proc/self/auxv", &auxiliary),
            ("sys/devices/soc0/machine", b"\x1b[31mred\x07\n"),
            ("sys/devices/soc0/soc_id", &long),
            ("sys/devices/soc0/vendor", b"\xff\xfe\n"),
        ]);
        assert_eq!(odd.cpu.as_deref(), Some("2 x 0x41/0xd81"));
        assert_eq!((odd.memory_bytes, odd.memory_available_bytes), (Some(1 << 20), None));
        assert_eq!(odd.page_bytes, Some(16384));
        for identity in &odd.identities {
            assert!(identity.value.chars().count() <= VALUE_CHARS_MAX, "{identity:?}");
            assert!(!identity.value.chars().any(char::is_control), "{identity:?}");
        }
    }

    #[test]
    fn the_first_to_name_a_property_counts() {
        let found = machine(&[
            ("vendor/build.prop", b"ro.soc.model=A\nro.soc.model=B\n"),
            ("system/build.prop", b"ro.soc.model=C\nro.hardware=d\n"),
        ]);
        let values: Vec<_> =
            found.identities.iter().map(|id| (id.source.as_str(), id.value.as_str())).collect();
        assert_eq!(values, [("ro.soc.model", "A"), ("ro.hardware", "d")]);
    }

    #[test]
    fn this_machine_says_something() {
        let this = MachineReport::read(Path::new("/"), &[]);
        assert!(!this.system.is_empty() && this.cores >= 1);
        if cfg!(target_os = "linux") {
            assert!(this.kernel.is_some() && this.page_bytes.is_some_and(|bytes| bytes.is_power_of_two()));
        }
    }
}
