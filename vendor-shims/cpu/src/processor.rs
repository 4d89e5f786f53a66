//! The processor's name, which is part of the device description.

use std::collections::BTreeSet;

/// Returns the model as Linux reports it, or `None` if it does not. Several kinds of core are
/// joined.
pub fn model() -> Option<String> {
    named(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
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
