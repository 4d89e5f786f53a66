//! The chips the compiler knows: the number that decides what code it makes, the processor's architecture, its fast memory.
//!
//! Numbers and architectures are as the vendor library of QNN 2.51 names them in its own log; sizes of fast memory (VTCM) are those of
//! ExecuTorch's public table. A chip that is not listed here is refused before the library is asked, because the library makes code for
//! architecture 68 of anything it does not recognise, without a word.

use shardwright_shim_npu::ShimError;
use std::fmt;

/// The vendor's number of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SocId(pub u32);

impl fmt::Display for SocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soc {
    /// The vendor's number.
    pub id: SocId,
    /// Lower case, `sm8850`; `soc-72` where the number is all that is known.
    pub name: &'static str,
    /// Version of the Hexagon architecture, 81 for v81.
    pub arch: u32,
    /// Fast memory of the tensor processor, where it is known.
    pub vtcm_megabytes: Option<u32>,
    /// Whether the library computes cycles for it.
    pub is_costed: bool,
}

/// What the library takes when nothing is said.
pub const DEFAULT_VTCM_MEGABYTES: u32 = 4;

/// The chip whose simulated cycles stand for those of a phone: v81, and the base of its simulator is SM8850's.
pub const STAND_IN: SocId = SocId(72);

const fn soc(id: u32, name: &'static str, arch: u32, vtcm_megabytes: Option<u32>) -> Soc {
    let is_costed = matches!(id, 52 | 72 | 77 | 95 | 114);
    Soc { id: SocId(id), name, arch, vtcm_megabytes, is_costed }
}

/// By number.
const SOCS: &[Soc] = &[
    soc(30, "sm8350", 68, Some(4)),
    soc(36, "sm8450", 69, Some(8)),
    soc(42, "sm8475", 69, Some(8)),
    soc(43, "sm8550", 73, Some(8)),
    soc(52, "sa8255", 73, Some(8)),
    soc(57, "sm8650", 75, Some(8)),
    soc(60, "sc8380xp", 73, Some(8)),
    soc(66, "qcs8550", 73, Some(8)),
    soc(68, "sm8635", 73, None),
    soc(69, "sm8750", 79, Some(8)),
    soc(70, "sm7675", 73, None),
    soc(72, "soc-72", 81, Some(8)),
    soc(77, "qcs9100", 73, Some(8)),
    soc(85, "sm8735", 73, None),
    soc(86, "sm7750", 73, None),
    soc(87, "sm8850", 81, Some(8)),
    soc(88, "sc8480xp", 81, None),
    soc(91, "sm7775", 73, None),
    soc(92, "sm8850l", 81, None),
    soc(94, "sc8440xp", 81, None),
    soc(95, "sar2230p", 81, Some(4)),
    soc(97, "sm8845", 81, None),
    soc(103, "sm8975", 85, None),
    soc(104, "cq8725s", 79, None),
    soc(105, "cq8750s", 79, None),
    soc(112, "sm8975l", 85, None),
    soc(113, "sm8950", 85, None),
    soc(114, "soc-114", 85, Some(8)),
    soc(123, "sm7950", 81, None),
];

/// Other words for the same chip.
const ALIASES: &[(&str, u32)] = &[
    ("sm8550-ab", 43),
    ("sm8550-ac", 43),
    ("sm8650-ab", 57),
    ("sm8650-ac", 57),
    ("sm8750-ab", 69),
    ("sm8750-ac", 69),
    ("sm8850-ac", 87),
    ("x-elite", 60),
    ("x1e", 60),
];

/// Known to the library, and not to be compiled for: name, number, reason.
const REFUSED: &[(&str, u32, &str)] =
    &[("cpn3050", 122, "the library of QNN 2.51 prepares no graph for its architecture, v89")];

impl Soc {
    /// Every chip that can be compiled for, by number.
    pub fn all() -> &'static [Soc] {
        SOCS
    }

    /// The chip of a number.
    ///
    /// # Errors
    ///
    /// [`ShimError::UnsupportedSoc`] for a number the library takes and makes nothing good of, or does not know.
    pub fn by_id(id: SocId) -> Result<&'static Soc, ShimError> {
        if let Some(found) = SOCS.iter().find(|soc| soc.id == id) {
            return Ok(found);
        }
        let reason = match REFUSED.iter().find(|(_, number, _)| *number == id.0) {
            Some((_, _, reason)) => (*reason).to_owned(),
            None => "no tensor processor of architecture 68 or newer is known under that number".to_owned(),
        };
        Err(ShimError::UnsupportedSoc {
            soc: id.to_string(),
            reason,
            help: "chips are named as Qualcomm prints them, `sm8850`; a newer vendor library may know more",
        })
    }

    /// The chip of a name, an alias or `soc-<number>`, in any case; none when the name is not one of this vendor's.
    ///
    /// # Errors
    ///
    /// As [`Soc::by_id`].
    pub fn by_name(name: &str) -> Result<Option<&'static Soc>, ShimError> {
        let name = name.trim().to_ascii_lowercase();
        if let Some(found) = SOCS.iter().find(|soc| soc.name == name) {
            return Ok(Some(found));
        }
        let number = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, number)| *number);
        let refused = REFUSED.iter().find(|(refused, ..)| *refused == name).map(|(_, number, _)| *number);
        let spelled = name.strip_prefix("soc-").and_then(|number| number.parse().ok());
        number.or(refused).or(spelled).map(|number| Soc::by_id(SocId(number))).transpose()
    }

    /// The chip whose cycles are computed in place of this one's, and whether they are of the same architecture.
    pub fn stand_in(&self) -> (SocId, bool) {
        if self.is_costed { (self.id, true) } else { (STAND_IN, self.arch == 81) }
    }

    /// The mode of finalize that is compiled, and estimated, unless a flag says otherwise; none for the library's own choice.
    ///
    /// In the decoder layers of Gemma 4 E2B, sliding and full, 1, 64 and 128 rows, 8 and 4 bits, as the rules write them, mode 3 takes these simulated
    /// cycles beside the library's own choice: on v81 (id 72) 0.6 to 2.3 % fewer at one row and up to 9 % fewer at more, in one of twelve cells 2.5 %
    /// more; on v85 (id 114) the same at one row and 2 to 47 % fewer at more; on v73 (id 77) 0.3 to 5.2 % **more** at one row. Of the others nothing is known.
    pub fn finalize_mode(&self) -> Option<u32> {
        (self.arch >= 81).then_some(3)
    }

    /// Fast memory to ask for: all there is, or where that is not known what the library would take.
    pub fn vtcm(&self) -> u32 {
        self.vtcm_megabytes.unwrap_or(DEFAULT_VTCM_MEGABYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_in_order() {
        assert!(SOCS.windows(2).all(|pair| pair[0].id < pair[1].id));
        for soc in SOCS {
            assert_eq!(Soc::by_name(soc.name).expect("known"), Some(soc));
            assert_eq!(Soc::by_id(soc.id).expect("known"), soc);
            assert_eq!(Soc::by_name(&format!("SOC-{}", soc.id)).expect("known"), Some(soc));
            assert!(
                soc.name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            );
        }
        for (alias, id) in ALIASES {
            assert_eq!(Soc::by_name(alias).expect("known").map(|soc| soc.id), Some(SocId(*id)));
        }
    }

    #[test]
    fn phones_have_the_numbers_the_library_prints() {
        for (name, id, arch) in [
            ("SM8550", 43, 73),
            ("sm8650", 57, 75),
            ("SM8750", 69, 79),
            (" sm8850 ", 87, 81),
            ("x-elite", 60, 73),
        ] {
            let soc = Soc::by_name(name).expect("known").expect("listed");
            assert_eq!((soc.id, soc.arch, soc.vtcm()), (SocId(id), arch, 8));
            assert_eq!(soc.stand_in(), (STAND_IN, arch == 81));
        }
        assert_eq!(Soc::by_id(STAND_IN).expect("listed").stand_in(), (STAND_IN, true));
        let mode = |name| Soc::by_name(name).expect("known").expect("listed").finalize_mode();
        assert_eq!((mode("sm8550"), mode("sm8850"), mode("soc-114")), (None, Some(3), Some(3)));
    }

    /// What profiles tell of a chip is what is compiled for it.
    #[test]
    fn profiles_say_what_is_done_here() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/profiles");
        for name in ["sm8550", "sm8650", "sm8750", "sm8850", "sc8380xp", "soc-72"] {
            let text = std::fs::read(folder.join(format!("{name}.json"))).expect("a profile");
            let profile: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            let facts = profile["facts"].as_array().expect("facts");
            let fact = |wanted: &str| {
                let found = facts.iter().find(|fact| fact["name"] == wanted);
                found.and_then(|fact| fact["value"].as_str()).unwrap_or_else(|| panic!("{name}: {wanted}"))
            };
            let soc = Soc::by_name(name).expect("known").expect("listed");
            assert_eq!(fact("soc-id"), soc.id.to_string(), "{name}");
            assert_eq!(fact("hexagon-arch"), format!("v{}", soc.arch), "{name}");
            assert_eq!(fact("vtcm-megabytes"), soc.vtcm().to_string(), "{name}");
            assert_eq!(fact("finalize-mode"), soc.finalize_mode().unwrap_or(0).to_string(), "{name}");
        }
    }

    #[test]
    fn what_is_not_this_vendors_is_no_error_and_what_cannot_be_made_is() {
        assert_eq!(Soc::by_name("mt6989").expect("no error"), None);
        assert_eq!(Soc::by_name("soc-many").expect("no error"), None);
        for id in [0, 1, 29, 65, 122, u32::MAX] {
            let refused = Soc::by_id(SocId(id)).expect_err("refused");
            assert!(matches!(&refused, ShimError::UnsupportedSoc { soc, .. } if *soc == id.to_string()));
        }
        assert!(Soc::by_name("CPN3050").expect_err("refused").to_string().contains("v89"));
    }
}
