//! A chip, described by the facts of its profile that this shim reads.
//!
//! Facts about a chip belong in its profile. This file contains only facts about architectures:
//! which have a tensor processor, and for which the library cannot prepare graphs.

use std::fmt;

use shardwright_shim_abi::{Chip, Error, Fact, FlagKind};
use shardwright_shim_npu::error::{unprepared, wrong_fact};
use shardwright_shim_npu::facts::{fact, number};

/// Upper bound on the fast memory, larger than any chip's.
pub(crate) const MAX_VTCM_MEGABYTES: i64 = 64;

/// Names in a profile of the facts that are read.
pub mod facts {
    /// The vendor's number of the chip.
    pub const SOC_ID: &str = "soc-id";
    /// Version of its architecture, such as `v81`.
    pub const ARCHITECTURE: &str = "hexagon-arch";
    /// Fast memory of its tensor processor, megabytes.
    pub const VTCM_MEGABYTES: &str = "vtcm-megabytes";
    /// The chip whose cycles the library computes instead of this one's.
    pub const STAND_IN: &str = "performance-estimate-soc-id";
    /// Finalize mode, unless a flag overrides it.
    pub const FINALIZE_MODE: &str = "finalize-mode";
}

/// The vendor's number of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SocId(pub u32);

impl fmt::Display for SocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The target requested from the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFor {
    /// The chip of this phone, which the library finds.
    Own,
    Chip(SocId),
    /// The library chooses a chip of the architecture.
    Architecture(u32),
}

/// A chip as described by its profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Soc {
    /// Name of its profile, such as `sm8850`.
    pub name: String,
    /// The vendor's number, if the profile has it.
    pub id: Option<SocId>,
    /// Version of the Hexagon architecture, such as 81 for v81.
    pub arch: u32,
    /// Fast memory of the tensor processor in megabytes, if known.
    pub vtcm_megabytes: Option<u32>,
    /// The stand-in chip for this chip's cycles, if the profile has one.
    pub stand_in: Option<SocId>,
    /// The profile's finalize mode for compiling and estimating. Flags override it. `None` leaves
    /// the choice to the library.
    pub finalize_mode: Option<u32>,
}

/// The library's default.
pub const DEFAULT_VTCM_MEGABYTES: u32 = 4;

/// The oldest architecture with a tensor processor.
const OLDEST: u32 = 68;

/// Architectures that the library accepts but generates no code for, and the symptom.
const UNPREPARED: &[(u32, &str)] =
    &[(89, "the library of QNN 2.51 cannot compile for it: finalize fails with 1002")];

/// Lists the facts that this shim reads.
pub fn read_facts() -> Vec<Fact> {
    let within = |minimum, maximum| FlagKind::Integer { minimum, maximum };
    vec![
        fact(
            facts::ARCHITECTURE,
            FlagKind::Text,
            true,
            "version of the Hexagon architecture, such as `v81`, which decides which code runs",
        ),
        fact(
            facts::SOC_ID,
            within(1, u32::MAX.into()),
            false,
            "the vendor's number of the chip; without it code is made for the architecture",
        ),
        fact(
            facts::VTCM_MEGABYTES,
            within(1, MAX_VTCM_MEGABYTES),
            false,
            "fast memory (VTCM) in megabytes, all of which a graph may use; 4 if missing",
        ),
        fact(
            facts::STAND_IN,
            within(1, u32::MAX.into()),
            false,
            "the chip whose simulated cycles are used for this one; without it no times are estimated",
        ),
        fact(
            facts::FINALIZE_MODE,
            within(0, 3),
            false,
            "optimisation mode of finalize; 0 or missing: the library's own choice",
        ),
    ]
}

impl Soc {
    /// Reads a chip from its profile.
    ///
    /// # Errors
    /// `ErrorClass::InvalidArgument` for an invalid value. For an architecture without code
    /// generation, the error also has the detail `unsupported`.
    pub fn read(chip: &Chip<'_>) -> Result<Soc, Error> {
        let wrong = |fact: &'static str, reason: String| wrong_fact(chip.name, fact, &reason);
        let number = |name: &str| number::<u32>(chip, name, "it is not a number in range");
        let said = chip.facts.get(facts::ARCHITECTURE).unwrap_or_default();
        let arch: u32 = said.strip_prefix('v').and_then(|digits| digits.parse().ok()).ok_or_else(|| {
            wrong(facts::ARCHITECTURE, format!("`{said}` is not an architecture such as `v81`"))
        })?;
        let unprepared = |reason: String| unprepared(chip.name, facts::ARCHITECTURE, &reason);
        if arch < OLDEST {
            let reason = format!("{said} has no tensor processor; v{OLDEST} is the first with one");
            return Err(unprepared(reason));
        }
        if let Some((_, reason)) = UNPREPARED.iter().find(|(unprepared, _)| *unprepared == arch) {
            return Err(unprepared(format!("no code is made for {said}: {reason}")));
        }
        Ok(Soc {
            name: chip.name.to_owned(),
            id: number(facts::SOC_ID)?.map(SocId),
            arch,
            vtcm_megabytes: number(facts::VTCM_MEGABYTES)?,
            stand_in: number(facts::STAND_IN)?.map(SocId),
            finalize_mode: number(facts::FINALIZE_MODE)?.filter(|mode| *mode > 0),
        })
    }

    /// Returns the megabytes of fast memory to request: all the chip has, or the library's default
    /// if that is unknown.
    pub fn vtcm(&self) -> u32 {
        self.vtcm_megabytes.unwrap_or(DEFAULT_VTCM_MEGABYTES)
    }

    /// Describes the chip by name, number (if known) and architecture.
    pub fn described(&self) -> String {
        match self.id {
            Some(id) => format!("{} (id {id}, v{})", self.name, self.arch),
            None => format!("{} (v{})", self.name, self.arch),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a chip with these facts.
    pub(crate) fn soc(name: &str, facts: &[(&str, &str)]) -> Result<Soc, Error> {
        let facts = facts.iter().copied().collect();
        Soc::read(&Chip { name, aliases: Vec::new(), facts })
    }

    /// Reads the chip of a shipped profile.
    pub(crate) fn of_profile(name: &str) -> Soc {
        let facts = shardwright_shim_testing::profile(name, &read_facts()).facts;
        soc(name, &facts).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn facts_of_a_profile_control_compilation() {
        for (name, id, arch) in [
            ("sm8550", 43, 73),
            ("sm8650", 57, 75),
            ("sm8750", 69, 79),
            ("sm8850", 87, 81),
            ("sa8295", 39, 68),
        ] {
            let soc = of_profile(name);
            assert_eq!((soc.id, soc.arch, soc.vtcm()), (Some(SocId(id)), arch, 8), "{name}");
            assert_eq!(soc.finalize_mode, (arch >= 81).then_some(3), "{name}");
        }
        assert_eq!(of_profile("soc-72").stand_in, Some(SocId(72)));
    }

    #[test]
    fn what_a_profile_does_not_say_is_left_to_the_library() {
        for arch in ["v73", "v81", "v85"] {
            let bare = soc("chip", &[("hexagon-arch", arch)]).expect("an architecture");
            assert_eq!((bare.id, bare.stand_in, bare.vtcm(), bare.finalize_mode), (None, None, 4, None));
            assert_eq!(bare.described(), format!("chip ({arch})"));
        }
        let mode = |mode| soc("chip", &[("hexagon-arch", "v73"), ("finalize-mode", mode)]);
        for (said, expected) in [("0", None), ("2", Some(2)), ("3", Some(3))] {
            assert_eq!(mode(said).expect("a mode").finalize_mode, expected);
        }
    }

    #[test]
    fn an_invalid_architecture_is_refused_by_name() {
        for (arch, says) in [
            ("81", "`81` is not an architecture"),
            ("vx", "`vx`"),
            ("v66", "no tensor processor"),
            ("v89", "1002"),
        ] {
            let error = soc("chip", &[("hexagon-arch", arch)]).expect_err(arch);
            assert_eq!(
                error.detail_of("chip").zip(error.detail_of("fact")),
                Some(("chip", facts::ARCHITECTURE))
            );
            assert!(error.message.contains(says), "{error}");
        }
        let number = soc("chip", &[("hexagon-arch", "v81"), ("soc-id", "many")]).expect_err("no number");
        assert_eq!(number.detail_of("fact"), Some(facts::SOC_ID), "{number}");
    }
}
