//! Judges from an artefact's head alone whether it can be used. The library itself checks neither
//! chip nor architecture.

use std::cmp::Ordering;

use shardwright_shim_abi::Compatibility;

use crate::artefact::{Head, Versions};
use crate::soc::Soc;

/// The target on which an artefact would be loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadTarget<'a> {
    pub soc: &'a Soc,
    /// Whether it is the simulation of the x86-64 library, which cannot load contexts whose entry
    /// points share weights.
    pub is_simulated: bool,
    /// The library that would load it. Without a library, versions are not compared.
    pub library: Option<&'a Versions>,
}

pub fn judge(head: &Head, place: LoadTarget<'_>) -> Compatibility {
    let LoadTarget { soc, is_simulated, library } = place;
    if head.arch != soc.arch {
        return Compatibility::Unsupported(format!(
            "made for {} (v{}), {} is v{}",
            head.soc_name, head.arch, soc.name, soc.arch
        ));
    }
    if head.is_shared && is_simulated {
        return Compatibility::Unsupported(format!(
            "its {} entry points share their weights, which the x86-64 library cannot load; compile the work order for `{}.simulated`",
            head.entries, soc.name
        ));
    }
    if let Some(library) = library
        && head.made_by.core[0] != library.core[0]
    {
        return Compatibility::Unsupported(format!(
            "made with QNN interface {}, the library here has {}",
            head.made_by.core[0], library.core[0]
        ));
    }
    if head.asked != soc.id {
        return Compatibility::Recompile(format!(
            "made for {} (id {}), this is {} of the same architecture",
            head.soc_name,
            head.soc,
            soc.described()
        ));
    }
    if head.entries > 1 && !head.is_shared && !is_simulated {
        return Compatibility::Recompile(format!(
            "each of its {} entry points contains the weights; here they can share them",
            head.entries
        ));
    }
    match library.map(|library| (library, compare_builds(&head.made_by.build, &library.build))) {
        Some((library, Ordering::Less)) => Compatibility::Recompile(format!(
            "compiled by build {}, the library here is build {}",
            head.made_by.build, library.build
        )),
        Some((library, Ordering::Greater)) => Compatibility::Recompile(format!(
            "compiled by the newer build {}, the library here is build {} and may not load it",
            head.made_by.build, library.build
        )),
        _ => Compatibility::Optimal,
    }
}

/// Compares build numbers numerically. If they are equal, compares the text.
fn compare_builds(left: &str, right: &str) -> Ordering {
    let numbers = |build: &str| -> Vec<u64> {
        build.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    numbers(left).cmp(&numbers(right)).then_with(|| left.cmp(right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artefact::tests::sample;
    use crate::soc::tests::{of_profile, soc};

    #[test]
    fn builds_are_compared_by_number() {
        assert_eq!(compare_builds("v2.9.0.1", "v2.51.0.1"), Ordering::Less);
        assert_eq!(compare_builds("v2.51.0.260929181845", "v2.51.0.260929181845"), Ordering::Equal);
        assert_eq!(compare_builds("v2.51.1", "v2.51.0.9"), Ordering::Greater);
        assert_ne!(compare_builds("v2.51.0_a", "v2.51.0_b"), Ordering::Equal);
    }

    #[test]
    fn three_answers_from_a_known_head_alone() {
        let here = sample(&[1]).head;
        let phone = &of_profile("sm8850");
        let answer = |change: fn(&mut Head), place: LoadTarget<'_>| {
            let mut head = here.clone();
            change(&mut head);
            judge(&head, place)
        };
        let device = LoadTarget { soc: phone, is_simulated: false, library: Some(&here.made_by) };
        let simulator = LoadTarget { is_simulated: true, ..device };
        let other = &of_profile("sm8750");
        let sibling = &soc("sm8850l", &[("hexagon-arch", "v81"), ("soc-id", "92")]).expect("a chip");
        assert_eq!(answer(|_| (), device), Compatibility::Optimal);
        assert_eq!(answer(|_| (), simulator), Compatibility::Optimal);
        let many: fn(&mut Head) = |head| head.entries = 3;
        let shared: fn(&mut Head) = |head| (head.entries, head.is_shared) = (3, true);
        assert_eq!(answer(many, simulator), Compatibility::Optimal);
        assert_eq!(answer(shared, device), Compatibility::Optimal);
        assert_eq!(answer(shared, LoadTarget { library: None, ..device }), Compatibility::Optimal);
        type Change = fn(&mut Head);
        let recompile: [(Change, LoadTarget<'_>, &str); 4] = [
            (many, device, "share"),
            (|_| (), LoadTarget { soc: sibling, ..device }, "id 92"),
            (|head| head.made_by.build = "v2.9.0.1".to_owned(), device, "v2.9.0.1"),
            (|head| head.made_by.build = "v2.60.0.1".to_owned(), device, "newer"),
        ];
        for (change, place, part) in recompile {
            match answer(change, place) {
                Compatibility::Recompile(reason) if reason.contains(part) => {}
                other => panic!("{part}: {other:?}"),
            }
        }
        let unsupported: [(Change, LoadTarget<'_>, &str); 4] = [
            (shared, simulator, "sm8850.simulated"),
            (|_| (), LoadTarget { soc: other, ..device }, "v79"),
            (|head| head.arch = 73, device, "v73"),
            (|head| head.made_by.core[0] = 3, device, "interface 3"),
        ];
        for (change, place, part) in unsupported {
            match answer(change, place) {
                Compatibility::Unsupported(reason) if reason.contains(part) => {}
                other => panic!("{part}: {other:?}"),
            }
        }
    }
}
