//! Decides from an artefact's head alone whether it can be used. The library itself returns one
//! code for every reason, and only when it restores.

use shardwright_shim_abi::Compatibility;

use crate::artefact::{Head, Maker};

/// Returns the compatibility answer for a head, given the chip's name and the library that would
/// restore the artefact.
pub fn judge(head: &Head, soc: &str, library: &Maker) -> Compatibility {
    let (made, here) = (head.made_by.version(), library.version());
    match (&head.made_by.simulator, &library.simulator) {
        (Some(simulator), None) => {
            return Compatibility::Unsupported(format!(
                "made by the simulator {simulator} ({made}), which is not code for a chip; the library here is MediaTek's ({here})"
            ));
        }
        (None, Some(simulator)) => {
            return Compatibility::Unsupported(format!(
                "made by MediaTek's adapter {made}, the library here is the simulator {simulator} ({here})"
            ));
        }
        _ => {}
    }
    if head.soc != soc {
        return Compatibility::Unsupported(format!("made for {}, this is {soc}", head.soc));
    }
    if made.major != here.major {
        return Compatibility::Unsupported(format!(
            "compiled by adapter {made}, the adapter here is {here}: an adapter refuses networks of another major version"
        ));
    }
    if made > here {
        return Compatibility::Recompile(format!(
            "compiled by the newer adapter {made}, the one here is {here} and may not restore it"
        ));
    }
    if made < here {
        return Compatibility::Recompile(format!("compiled by adapter {made}, the one here is {here}"));
    }
    Compatibility::Optimal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artefact::tests::sample;

    #[test]
    fn three_answers_from_a_known_head_alone() {
        let sample = sample(1).head;
        let here = sample.made_by.clone();
        let with = |change: fn(&mut Head)| {
            let mut head = sample.clone();
            change(&mut head);
            judge(&head, "mt6989", &here)
        };
        assert_eq!(with(|_| ()), Compatibility::Optimal);
        type Change = fn(&mut Head);
        let recompile: [(Change, &[&str]); 2] = [
            (|head| head.made_by.version = [8, 2, 20], &["8.2.20", "8.2.28"]),
            (|head| head.made_by.version = [8, 3, 0], &["8.3.0", "8.2.28", "newer"]),
        ];
        for (change, parts) in recompile {
            match with(change) {
                Compatibility::Recompile(reason) => {
                    assert!(parts.iter().all(|part| reason.contains(part)), "{reason}")
                }
                other => panic!("{other:?}"),
            }
        }
        let unsupported: [(Change, &[&str]); 4] = [
            (|head| head.made_by.version = [9, 0, 3], &["9.0.3", "8.2.28", "another major version"]),
            (|head| head.made_by.version = [7, 3, 19], &["7.3.19", "8.2.28"]),
            (|head| head.soc = "mt6991".to_owned(), &["mt6991", "mt6989"]),
            (|head| head.made_by.simulator = None, &["MediaTek", "simulator"]),
        ];
        for (change, parts) in unsupported {
            match with(change) {
                Compatibility::Unsupported(reason) => {
                    assert!(parts.iter().all(|part| reason.contains(part)), "{reason}")
                }
                other => panic!("{other:?}"),
            }
        }
        let vendor = Maker { simulator: None, ..here.clone() };
        match judge(&sample, "mt6989", &vendor) {
            Compatibility::Unsupported(reason) => assert!(reason.contains("not code for a chip"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}
