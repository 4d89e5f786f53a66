//! The processor's name and its memory nodes, which are part of the device description.

use std::collections::BTreeSet;

/// Returns the model as Linux reports it, or `None` if it does not. Several kinds of core are
/// joined.
pub fn model() -> Option<String> {
    named(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// Returns the number of nodes that have memory, or 1 if the system does not report it. Cores read
/// the memory of their own node faster than the memory of another one.
///
/// Source: the kernel's documentation, `stable/sysfs-devices-node`.
pub fn memory_nodes() -> usize {
    std::fs::read_to_string("/sys/devices/system/node/has_memory")
        .ok()
        .and_then(|list| count(&list))
        .unwrap_or(1)
}

/// Counts a list such as `0-1,3`. Returns `None` if it is malformed or empty.
fn count(list: &str) -> Option<usize> {
    let of = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').try_fold(0usize, |sum, part| sum.checked_add(of(part)?))
}

/// Returns `model name` on x86, and the sorted numbers of implementers and parts on ARM.
fn named(cpuinfo: &str) -> Option<String> {
    let field = |line: &str, name: &str| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == name).then(|| value.trim().to_owned())
    };
    let models =
        |name: &str| -> BTreeSet<String> { cpuinfo.lines().filter_map(|line| field(line, name)).collect() };
    let names = models("model name");
    let found: Vec<String> = match names.is_empty() {
        false => names.into_iter().collect(),
        true => {
            let join = |one: &str| models(one).into_iter().collect::<Vec<_>>().join(" ");
            let (implementer, part) = (join("CPU implementer"), join("CPU part"));
            (!part.is_empty()).then(|| format!("implementer {implementer} part {part}")).into_iter().collect()
        }
    };
    // The text comes from the system, but a report must not contain long or odd text.
    let text: String = found.join(", ").chars().filter(|c| !c.is_control()).take(96).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_nodes_are_counted() {
        assert_eq!([count("0\n"), count("0-1\n"), count("0-1,4,6-7")], [Some(1), Some(2), Some(5)]);
        for wrong in ["", "\n", "a", "1-", "3-1", "0-99999999999999999999", "0,,1"] {
            assert_eq!(count(wrong), None, "{wrong:?}");
        }
        assert!(memory_nodes() >= 1);
    }

    #[test]
    fn processors_are_named_as_the_system_does() {
        let x86 = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(named(x86).as_deref(), Some("Some CPU @ 2 GHz"));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd80\n\nprocessor\t: 7\nCPU implementer\t: 0x41\nCPU part\t: 0xd82\n";
        assert_eq!(named(arm).as_deref(), Some("implementer 0x41 part 0xd80 0xd82"));
        assert_eq!(named("processor\t: 0\n"), None);
        let long = format!("model name\t: a\u{7}{}\n", "b".repeat(500));
        assert_eq!(named(&long).map(|name| name.len()), Some(96));
    }
}
