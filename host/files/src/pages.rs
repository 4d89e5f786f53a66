//! Sizes of the pages in which memory of this process is mapped.

use std::ops::Range;

/// Pages of some memory of this process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Bytes that the process has mapped to memory.
    pub resident: u64,
    /// Bytes of them in huge pages.
    pub huge: u64,
}

impl Pages {
    /// Returns the pages of `bytes`, or `None` where the system does not report them.
    ///
    /// Source: `proc_pid_smaps(5)`.
    pub fn of(bytes: &[u8]) -> Option<Pages> {
        let report = std::fs::read("/proc/self/smaps").ok()?;
        let first = bytes.as_ptr() as u64;
        Pages::within(&String::from_utf8_lossy(&report), first..first + bytes.len() as u64)
    }

    /// Reads the pages within a range of addresses from the kernel's report. The kernel may report
    /// adjacent mappings of a file as one. Then each part counts in proportion to its size.
    fn within(report: &str, range: Range<u64>) -> Option<Pages> {
        let mut pages: Option<Pages> = None;
        // Size of the mapping whose lines follow, and bytes of it within the range.
        let (mut size, mut inside) = (0, 0);
        for line in report.lines() {
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            let Some(name) = first.strip_suffix(':') else {
                let (start, end) = first.split_once('-')?;
                let address = |text: &str| u64::from_str_radix(text, 16).ok();
                let (start, end) = (address(start)?, address(end)?);
                size = end.saturating_sub(start);
                inside = end.min(range.end).saturating_sub(start.max(range.start));
                continue;
            };
            if inside == 0 {
                continue;
            }
            let pages = pages.get_or_insert_default();
            let count = match name {
                "Rss" => &mut pages.resident,
                "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => &mut pages.huge,
                _ => continue,
            };
            let kibibytes: u64 = words.next()?.parse().ok()?;
            let bytes = u128::from(kibibytes) * 1024 * u128::from(inside) / u128::from(size);
            *count += u64::try_from(bytes).ok()?;
        }
        pages
    }
}

/// Returns the size of a huge page in bytes, or `None` if the system has none or they are disabled.
///
/// Source: the kernel's documentation, `admin-guide/mm/transhuge.rst`.
#[cfg(target_os = "linux")]
pub(crate) fn huge_page_bytes() -> Option<usize> {
    use std::path::Path;

    let text = |name: &str| {
        let folder = Path::new("/sys/kernel/mm/transparent_hugepage");
        std::fs::read_to_string(folder.join(name)).ok()
    };
    let is_enabled = !text("enabled")?.contains("[never]");
    let bytes: usize = text("hpage_pmd_size")?.trim().parse().ok()?;
    (is_enabled && bytes.is_power_of_two()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mappings of two files, with the lines that count and some others.
    const REPORT: &str = "\
7f0000000000-7f0000800000 r--p 00004000 08:01 77                         /first model (deleted)
Size:               8192 kB
Rss:                4096 kB
AnonHugePages:         0 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:      2048 kB
VmFlags: rd mr mw me hg
7f0000800000-7f0000c00000 r--p 00000000 08:01 78                         /second
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:      1024 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:         0 kB
VmFlags: rd mr
";

    #[test]
    fn huge_pages_of_a_range_are_counted() {
        const MIB: u64 = 1 << 20;
        let start = 0x7f00_0000_0000;
        let within = |from: u64, to: u64| Pages::within(REPORT, start + from..start + to);
        let pages = |resident: u64, huge: u64| Some(Pages { resident, huge });
        assert_eq!(within(0, 8 * MIB), pages(4 * MIB, 2 * MIB));
        assert_eq!(within(4 * MIB, 8 * MIB), pages(2 * MIB, MIB));
        assert_eq!(within(8 * MIB, 12 * MIB), pages(4 * MIB, 3 * MIB));
        assert_eq!(within(0, 12 * MIB), pages(8 * MIB, 5 * MIB));
        assert_eq!(within(12 * MIB, 13 * MIB), None);
        assert_eq!(Pages::within("", 0..1), None);
        assert_eq!(Pages::within("7f00-7fff r--p\nRss: many kB\n", 0x7f00..0x7f01), None);
    }
}
