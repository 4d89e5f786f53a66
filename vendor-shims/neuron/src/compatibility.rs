//! Decides from an artefact's head alone whether it can be used. The library itself returns one
//! code for every reason, and only when it restores.

use shardwright_shim_abi::Compatibility;
use shardwright_shim_npu::artefact::ReadHead;

use crate::artefact::{FORMAT, Head, Maker};

/// The chip and the library with which an artefact would be used.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Name of the chip.
    pub soc: &'a str,
    /// The library that would restore it.
    pub library: &'a Maker,
}

/// Returns the compatibility answer for a head.
pub fn judge(head: &ReadHead<Head>, place: Place<'_>) -> Compatibility {
    head.known(&FORMAT).map_or_else(|answer| answer, |head| judge_known(head, place))
}

fn judge_known(head: &Head, place: Place<'_>) -> Compatibility {
    let Place { soc, library } = place;
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
            "compiled by adapter {made}, the adapter here is {here}: majors refuse each other's networks"
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
    fn four_answers_from_the_head_alone() {
        let sample = sample(1).head;
        let here = sample.made_by.clone();
        let place = Place { soc: "mt6989", library: &here };
        let with = |change: fn(&mut Head)| {
            let mut head = sample.clone();
            change(&mut head);
            judge(&ReadHead::Known(Box::new(head)), place)
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
            (|head| head.made_by.version = [9, 0, 3], &["9.0.3", "8.2.28", "majors"]),
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
        match judge(&ReadHead::Known(Box::new(sample.clone())), Place { library: &vendor, ..place }) {
            Compatibility::Unsupported(reason) => assert!(reason.contains("not code for a chip"), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(judge(&ReadHead::Foreign, place), Compatibility::NotMine(_)));
        assert!(matches!(judge(&ReadHead::OtherFormat(2), place), Compatibility::Unsupported(_)));
    }
}
