//! A chip as its profile describes it, as far as this shim reads the profile. Also determines
//! whether it is the chip of this phone.

use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_shim_abi::{Chip, Error, Fact, FlagKind};
use shardwright_shim_npu::error::wrong_fact;
use shardwright_shim_npu::facts::{fact, number};

use crate::roofline::{self, Roofline};

/// Names of the facts in a profile, except for the facts of the [roofline].
pub mod facts {
    /// Name of the chip in the vendor's tools.
    pub const PLATFORM: &str = "platform";
    /// Whether 4-bit weights with a scale per channel may be sent.
    pub const FOUR_BITS_PER_CHANNEL: &str = "four-bits-per-channel";
    /// Number of cores of the processor.
    pub const CORES: &str = "mdla-cores";
    /// KiB of fast memory of the processor.
    pub const L1_KILOBYTES: &str = "l1-kilobytes";
    /// Version of the library that a simulator emulates for the chip.
    pub const SIMULATED_ADAPTER: &str = "simulated-adapter";
    /// System properties in which a phone names its chip.
    pub const SYSTEM_PROPERTIES: &str = "system-properties";
}

const REFUSED: &str = "refused";
const BY_VERSION: &str = "by-version";

/// The facts of a chip that this shim uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Soc {
    /// Name of its profile.
    pub name: String,
    /// Name in the vendor's tools, in lower case, for example `mt6989`.
    pub platform: String,
    aliases: Vec<String>,
    /// Support for 4-bit per-channel weights on this chip.
    pub four_bits_per_channel: FourBits,
    /// Number of cores, if known.
    pub cores: Option<i64>,
    /// KiB of fast memory, if known.
    pub l1_kilobytes: Option<i64>,
    /// Speed, if the profile declares it.
    pub roofline: Option<Roofline>,
    /// Version of the library that a simulator emulates for the chip.
    pub simulated_adapter: Option<RuntimeVersion>,
    /// System properties that name the chip, the most specific first.
    properties: Vec<String>,
}

/// Whether 4-bit weights with a scale per channel may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourBits {
    /// Supported from the first adapter version that has a type for them.
    ByVersion,
    /// Refused at any size and with any adapter.
    Refused,
}

/// Returns the facts that this shim reads.
pub fn read_facts() -> Vec<Fact> {
    let up_to = |maximum| FlagKind::Integer { minimum: 1, maximum };
    let words = [REFUSED, BY_VERSION].map(str::to_owned).to_vec();
    let mut read = vec![
        fact(
            facts::PLATFORM,
            FlagKind::Text,
            true,
            "name of the chip in the vendor's tools, such as `mt6989`, which is passed to the compiler",
        ),
        fact(
            facts::FOUR_BITS_PER_CHANNEL,
            FlagKind::Choice(words),
            false,
            "whether the chip refuses 4-bit weights with a scale per channel with every adapter; \
             by-version if missing",
        ),
        fact(facts::CORES, up_to(64), false, "cores of the processor, the maximum of `num-mdla`"),
        fact(
            facts::L1_KILOBYTES,
            up_to(64 << 10),
            false,
            "fast memory of the processor in kilobytes, the maximum of `l1-size-kb`",
        ),
        fact(
            facts::SIMULATED_ADAPTER,
            FlagKind::Text,
            false,
            "version of the adapter that a simulator imitates for the chip, such as `9.2.0`; the simulator's \
             own if missing",
        ),
        fact(
            facts::SYSTEM_PROPERTIES,
            FlagKind::Text,
            false,
            "system properties in which a phone names its chip, the most specific first, with commas",
        ),
    ];
    read.extend(roofline::read_facts());
    read
}

/// Extracts the platform from a chip's name: `MT6989W/CZA` is an `mt6989`. Returns `None` for other
/// kinds of names.
fn platform(name: &str) -> Option<String> {
    let lower = name.trim().to_ascii_lowercase();
    let digits = lower.strip_prefix("mt")?.bytes().take(4).take_while(u8::is_ascii_digit).count();
    (digits == 4).then(|| lower[..6].to_owned())
}

impl Soc {
    /// Reads the chip of a profile.
    ///
    /// # Errors
    /// `ErrorClass::InvalidArgument` for an invalid platform name, version or number.
    pub fn read(chip: &Chip<'_>) -> Result<Soc, Error> {
        let wrong = |fact: &'static str, reason: String| wrong_fact(chip.name, fact, &reason);
        let number = |name: &str| number::<i64>(chip, name, "it is not a number");
        let said = chip.facts.get(facts::PLATFORM).unwrap_or_default();
        if platform(said).as_deref() != Some(said) {
            let reason = format!("`{said}` is not a chip name of the vendor's tools, such as `mt6989`");
            return Err(wrong(facts::PLATFORM, reason));
        }
        let properties = chip.facts.get(facts::SYSTEM_PROPERTIES).unwrap_or_default().split(',');
        Ok(Soc {
            name: chip.name.to_owned(),
            platform: said.to_owned(),
            aliases: chip.aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            four_bits_per_channel: match chip.facts.get(facts::FOUR_BITS_PER_CHANNEL) {
                Some(REFUSED) => FourBits::Refused,
                None | Some(BY_VERSION) => FourBits::ByVersion,
                Some(other) => {
                    let reason = format!("`{other}` is neither {REFUSED} nor {BY_VERSION}");
                    return Err(wrong(facts::FOUR_BITS_PER_CHANNEL, reason));
                }
            },
            cores: number(facts::CORES)?,
            l1_kilobytes: number(facts::L1_KILOBYTES)?,
            simulated_adapter: match chip.facts.get(facts::SIMULATED_ADAPTER) {
                None => None,
                Some(value) => Some(RuntimeVersion::parse(value).ok_or_else(|| {
                    let reason = format!("`{value}` is not three numbers up to 255, as in `8.2.28`");
                    wrong(facts::SIMULATED_ADAPTER, reason)
                })?),
            },
            roofline: Roofline::read(chip)?,
            properties: properties
                .map(|name| name.trim().to_owned())
                .filter(|name| !name.is_empty())
                .collect(),
        })
    }

    /// Returns whether a phone with these system properties has this chip. A property may be
    /// missing or contain an alias.
    pub fn is_of(&self, property: impl Fn(&str) -> Option<String>) -> bool {
        let names = |value: &str| {
            let value = value.trim();
            platform(value).is_some_and(|found| {
                found == self.platform
                    || self.aliases.iter().any(|alias| platform(alias).as_ref() == Some(&found))
            })
        };
        // The first property that names a chip of this vendor decides.
        let telling = self.properties.iter().filter_map(|name| property(name));
        telling.into_iter().find(|value| platform(value).is_some()).is_some_and(|value| names(&value))
    }

    /// Returns whether this phone has this chip. **Untested**, because no phone was available.
    pub fn is_of_this_machine(&self) -> bool {
        self.is_of(system_property)
    }
}

#[cfg(target_os = "android")]
fn system_property(name: &str) -> Option<String> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut value = [0u8; libc::PROP_VALUE_MAX as usize];
    // SAFETY: the name ends with a zero byte, and there is room for the longest value with its zero
    // byte.
    let length = unsafe { libc::__system_property_get(name.as_ptr(), value.as_mut_ptr().cast()) };
    let value = value.get(..usize::try_from(length).ok()?)?;
    (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned())
}

#[cfg(not(target_os = "android"))]
fn system_property(_name: &str) -> Option<String> {
    None
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Reads a chip with these facts.
    fn soc(facts: &[(&str, &str)]) -> Result<Soc, Error> {
        let facts = facts.iter().copied().collect();
        Soc::read(&Chip { name: "chip", aliases: vec!["Dimensity 8300", "MT8792"], facts })
    }

    /// Returns the shipped profiles of this shim's chips, by name.
    pub(crate) fn profiles() -> std::collections::BTreeMap<String, serde_json::Value> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/profiles");
        let files = std::fs::read_dir(folder).expect("profiles").map(|file| file.expect("a file").path());
        let read = |path| serde_json::from_slice(&std::fs::read(path).expect("a profile")).expect("JSON");
        let all = files.map(read).filter(|profile: &serde_json::Value| profile["shim"] == "neuron");
        all.map(|profile| (profile["name"].as_str().expect("a name").to_owned(), profile)).collect()
    }

    /// Reads the chip of a shipped profile.
    pub(crate) fn of_profile(name: &str) -> Soc {
        let profile = shardwright_shim_testing::profile(name, &read_facts());
        let chip = Chip { name, aliases: profile.aliases, facts: profile.facts.into_iter().collect() };
        Soc::read(&chip).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn what_a_profile_says_is_what_is_compiled() {
        for (name, cores, memory) in
            [("mt6897", Some(2), Some(3072)), ("mt6989", Some(4), Some(7168)), ("mt6985", None, None)]
        {
            let soc = of_profile(name);
            assert_eq!((soc.platform.as_str(), soc.cores, soc.l1_kilobytes), (name, cores, memory));
            assert_eq!(soc.roofline.is_some(), name == "mt6989", "{name}");
            assert_eq!(soc.simulated_adapter, Some(RuntimeVersion::new(8, 2, 28)), "{name}");
            let refused = soc.four_bits_per_channel == FourBits::Refused;
            assert_eq!(refused, name == "mt6989", "{name}");
            assert!(soc.is_of(|property| (property == "ro.board.platform").then(|| name.to_owned())));
        }
    }

    #[test]
    fn facts_that_are_none_are_refused_by_name() {
        for (facts, fact, says) in [
            (&[][..], facts::PLATFORM, "``"),
            (&[("platform", "MT6989")], facts::PLATFORM, "`MT6989`"),
            (&[("platform", "mt6989w")], facts::PLATFORM, "`mt6989w` is not a chip name"),
            (&[("platform", "sm8850")], facts::PLATFORM, "`sm8850`"),
            (&[("platform", "mt69\u{e9}9")], facts::PLATFORM, "`mt6989`"),
            (&[("platform", "mt6989"), ("mdla-cores", "four")], facts::CORES, "number"),
            (
                &[("platform", "mt6989"), ("four-bits-per-channel", "sometimes")],
                facts::FOUR_BITS_PER_CHANNEL,
                "`sometimes`",
            ),
            (&[("platform", "mt6989"), ("simulated-adapter", "9.2")], facts::SIMULATED_ADAPTER, "`9.2`"),
            (&[("platform", "mt6989"), ("simulated-adapter", "9.2.256")], facts::SIMULATED_ADAPTER, "255"),
        ] {
            let error = soc(facts).expect_err(fact);
            assert_eq!(error.detail_of("fact"), Some(fact), "{facts:?}: {error}");
            assert!(error.message.contains(says), "{error}");
        }
    }

    #[test]
    fn a_phone_is_known_by_whichever_property_it_has() {
        let properties = "ro.board.platform, ro.soc.model,ro.hardware";
        let known = soc(&[("platform", "mt6897"), ("system-properties", properties)]).expect("a chip");
        let of = |pairs: &[(&str, &str)]| {
            known.is_of(|name| {
                pairs.iter().find(|(existing, _)| *existing == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(of(&[("ro.soc.model", "MT8792"), ("ro.board.platform", "mt6897")]));
        assert!(of(&[("ro.soc.model", "MT8792/CZA ")]));
        assert!(of(&[("ro.board.platform", ""), ("ro.hardware", "mt6897")]));
        assert!(!of(&[("ro.board.platform", "mt6989"), ("ro.hardware", "mt6897")]));
        assert!(!of(&[("ro.board.platform", "qcom"), ("ro.other", "mt6897")]));
        assert!(!of(&[]) && !known.is_of_this_machine());
    }
}
