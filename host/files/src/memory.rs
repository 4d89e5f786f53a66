//! The memory that a process may use: that of the machine, or less if a control group sets a limit.

use std::path::{Path, PathBuf};

/// Most bytes to read from a file of the kernel.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Memory of the machine that this process may use. Fields are `None` where the system does not
/// report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All bytes, used or not.
    pub total: Option<u64>,
    /// Bytes that are available now.
    pub available: Option<u64>,
}

/// Names of a control group's files: its limit, its usage, and the line of `memory.stat` for memory
/// that the kernel reclaims when memory is short.
struct Names {
    limit: &'static str,
    used: &'static str,
    reclaimable: &'static str,
}

const FIRST: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const SECOND: Names = Names { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };

impl Memory {
    /// Reads the kernel's reports below `root`, which is `/` except in tests.
    ///
    /// Source: `proc(5)` for `/proc/meminfo`, `cgroups(7)` and the kernel's documentation of both
    /// versions of the memory controller.
    pub fn read(root: &Path) -> Memory {
        let said = text(&root.join("proc/meminfo")).unwrap_or_default();
        let mut memory =
            Memory { total: kibibytes(&said, "MemTotal"), available: kibibytes(&said, "MemAvailable") };
        let groups = text(&root.join("proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let mounts = root.join("sys/fs/cgroup");
            if controllers.is_empty() {
                memory.limit(&mounts, path, &SECOND);
                memory.limit(&mounts.join("unified"), path, &SECOND);
            } else if controllers.split(',').any(|name| name == "memory") {
                memory.limit(&mounts.join("memory"), path, &FIRST);
            }
        }
        memory
    }

    /// Applies the limits of a group and of its parent groups. In a container, the folders of outer
    /// groups are missing, and the mount itself is the container's.
    fn limit(&mut self, mount: &Path, path: &str, names: &Names) {
        let mut folder: PathBuf = mount.join(path.trim_start_matches('/'));
        while folder.starts_with(mount) {
            let number = |name: &str| text(&folder.join(name))?.parse::<u64>().ok();
            if let Some(limit) = number(names.limit) {
                let stat = text(&folder.join("memory.stat")).unwrap_or_default();
                let reclaimable = stat.lines().find_map(|line| {
                    line.strip_prefix(names.reclaimable)?.strip_prefix(' ')?.trim().parse::<u64>().ok()
                });
                let used = number(names.used).unwrap_or(0).saturating_sub(reclaimable.unwrap_or(0));
                let least =
                    |known: Option<u64>, bytes: u64| Some(known.map_or(bytes, |known| known.min(bytes)));
                self.total = least(self.total, limit);
                self.available = least(self.available, limit.saturating_sub(used));
            }
            if !folder.pop() {
                break;
            }
        }
    }
}

fn text(path: &Path) -> Option<String> {
    let bytes = super::read(path, FILE_BYTES_MAX).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Returns the bytes of a line such as `MemTotal: 32780256 kB`.
fn kibibytes(said: &str, key: &str) -> Option<u64> {
    let value = said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Memory {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        Memory::read(root.path())
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  4096 kB\nMemAvailable:   2048 kB\n");

    #[test]
    fn limits_of_control_groups_count() {
        let kib = |total: u64, available: u64| Memory {
            total: Some(total << 10),
            available: Some(available << 10),
        };
        assert_eq!(machine(&[MEMINFO]), kib(4096, 2048));
        assert_eq!(machine(&[]), Memory::default());
        let second = [
            MEMINFO,
            ("proc/self/cgroup", "0::/user/app\n"),
            ("sys/fs/cgroup/user/app/memory.max", "max\n"),
            ("sys/fs/cgroup/user/memory.max", "1048576\n"),
            ("sys/fs/cgroup/user/memory.current", "786432\n"),
            ("sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 262144\n"),
        ];
        assert_eq!(machine(&second), kib(1024, 512));
        let first = [
            MEMINFO,
            ("proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/job\n0::/\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1048576\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(machine(&first), kib(2048, 1024));
        // The folders of groups outside of a container are missing in it.
        let contained = [
            MEMINFO,
            ("proc/self/cgroup", "0::/docker/abc\n"),
            ("sys/fs/cgroup/memory.max", "524288\n"),
            ("sys/fs/cgroup/memory.current", "1048576\n"),
        ];
        assert_eq!(machine(&contained), kib(512, 0));
    }

    #[test]
    fn numbers_that_make_no_sense_are_unknown() {
        for said in ["", "MemAvailable: 1 MB", "MemAvailable: x kB", "MemAvailable: 18446744073709551615 kB"]
        {
            assert_eq!(machine(&[("proc/meminfo", said)]), Memory::default(), "{said}");
        }
        if cfg!(target_os = "linux") {
            assert!(Memory::read(Path::new("/")).available.is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
