//! The [known options](KNOWN) of the compiler as flags: the values that a chip accepts.
//!
//! An option that is not listed is refused by name, unless it is passed on with the flag
//! [`FORCED`].

use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_neuron_files::known_options::Values::{
    Chip, Cores, List, Memory, Number, Switch, Text, Words,
};
use shardwright_neuron_files::known_options::{KNOWN, KnownOption, MANY_CORES};
use shardwright_shim_abi::{Flag, FlagKind, FlagStage};
use shardwright_shim_npu::{Choice as _, Power, Priority};

use crate::power;
use crate::priority;
use crate::soc::Soc;

/// The flag whose value is an option string that is passed on unchanged.
pub const FORCED: &str = "options";

/// Maximum fast memory in KiB, more than any chip has.
const MUCH_MEMORY: i64 = 64 << 10;

/// The reason why a value is not passed on.
pub type Reason = String;

/// Returns the kind of values as reported to the host.
fn kind(known: &KnownOption, soc: &Soc) -> FlagKind {
    let most = most(known, soc);
    let words = |words: &[&str]| FlagKind::Choice(words.iter().map(|word| (*word).to_owned()).collect());
    match known.values {
        Switch => FlagKind::Boolean,
        Number(minimum, maximum) => FlagKind::Integer { minimum, maximum },
        Cores => FlagKind::Integer { minimum: 1, maximum: most },
        Memory => FlagKind::Integer { minimum: 0, maximum: most },
        Words(among) => words(among),
        Chip => words(&[&soc.platform]),
        // A list has more values than can be enumerated.
        List(_) | Text => FlagKind::Text,
    }
}

/// Returns the largest number of cores or KiB.
fn most(known: &KnownOption, soc: &Soc) -> i64 {
    match known.values {
        Cores => soc.cores.unwrap_or(MANY_CORES),
        Memory if known.name == "l1-size-kb" => soc.l1_kilobytes.unwrap_or(MUCH_MEMORY),
        _ => MUCH_MEMORY,
    }
}

/// Checks a value.
///
/// # Errors
///
/// The reason why it is invalid, with the valid values.
pub fn accepts(known: &KnownOption, soc: &Soc, value: &str) -> Result<(), Reason> {
    let within = |least: i64, most: i64| match value.parse::<i64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(()),
        _ => Err(format!("`{value}` is not within {least} to {most}")),
    };
    let among = |words: &[&str], value: &str| match words.contains(&value) {
        true => Ok(()),
        false => Err(format!("`{value}` is not one of {}", words.join(", "))),
    };
    match known.values {
        Switch => among(&["true", "false"], value),
        Number(least, most) => within(least, most),
        Cores => within(1, most(known, soc)),
        Memory => within(0, most(known, soc)),
        Words(words) => among(words, value),
        Chip => among(&[&soc.platform], value),
        List(words) => value.split(',').try_for_each(|word| among(words, word)),
        Text if value.is_empty() => Err("it needs a value".to_owned()),
        Text => Ok(()),
    }
}

/// Returns the flags of a chip with an adapter. For an adapter of unknown version, returns all
/// flags.
pub fn schema(soc: &Soc, adapter: Option<RuntimeVersion>) -> Vec<Flag> {
    let flag = |known: &KnownOption| Flag {
        name: known.name.to_owned(),
        description: match known.outdated_in(adapter) {
            Some(instead) => {
                format!("{} ({}); outdated, replaced by `{instead}`", known.description, known.source.words())
            }
            None => format!("{} ({})", known.description, known.source.words()),
        },
        kind: kind(known, soc),
        default: known.default.map(str::to_owned),
        stage: FlagStage::Compile,
    };
    let mut flags: Vec<Flag> = KNOWN.iter().filter(|known| known.is_in(adapter)).map(flag).collect();
    flags.push(Flag {
        name: FORCED.to_owned(),
        description: "an option string that is passed on unchanged, including unknown options".to_owned(),
        kind: FlagKind::Text,
        default: None,
        stage: FlagStage::Compile,
    });
    flags.push(Power::schema(
        FlagStage::Load,
        Some(power::UNASKED),
        "power mode of a session: the boost hint of its executions, in percent",
    ));
    flags.push(Priority::schema(
        FlagStage::Compile,
        Some(priority::UNASKED),
        "priority of compiled networks among the processor's users",
    ));
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soc::tests::{of_profile, profiles};

    #[test]
    fn names_are_unique_and_plain() {
        for (index, known) in KNOWN.iter().enumerate() {
            assert!(KNOWN[..index].iter().all(|other| other.name != known.name), "{} twice", known.name);
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(known.name.bytes().all(plain) && known.name != FORCED, "{}", known.name);
            assert!(!known.description.is_empty());
            if let Some(default) = known.default {
                assert_eq!(accepts(known, &of_profile("mt6989"), default), Ok(()), "{}", known.name);
            }
        }
    }

    #[test]
    fn an_adapter_has_what_was_seen_with_its_major() {
        let names = |adapter| -> Vec<String> {
            schema(&of_profile("mt6993"), adapter).into_iter().map(|flag| flag.name).collect()
        };
        let (v8, v9) = (RuntimeVersion::new(8, 2, 28), RuntimeVersion::new(9, 0, 3));
        let [old, new, any] = [Some(v8), Some(v9), None].map(names);
        assert!(!old.contains(&"mem-opt".to_owned()) && new.contains(&"mem-opt".to_owned()));
        assert!(old.contains(&"opt".to_owned()) && old.contains(&FORCED.to_owned()));
        assert_eq!(new, any);
        let arch = |adapter| {
            let flags = schema(&of_profile("mt6989"), adapter);
            flags.into_iter().find(|flag| flag.name == "arch").expect("there").description
        };
        assert!(arch(Some(v9)).contains("replaced by `platform-config`"));
        assert!(!arch(Some(v8)).contains("outdated"));
    }

    /// A default that the emulated library does not know would be left out of every plan.
    #[test]
    fn the_library_that_is_played_for_a_chip_takes_all_defaults() {
        let profiles = profiles();
        assert!(profiles.len() >= 7, "{:?}", profiles.keys());
        for (name, profile) in &profiles {
            let soc = of_profile(name);
            let played = soc.simulated_adapter.unwrap_or(RuntimeVersion::new(8, 2, 28));
            for flag in profile["flags"].as_array().expect("flags") {
                let (flag, value) = (flag["name"].as_str().expect("text"), flag["value"].as_str());
                let known = KnownOption::named(flag).unwrap_or_else(|| panic!("{name}: {flag}"));
                assert!(known.is_in(Some(played)), "{name}: {flag} with adapter {played}");
                assert_eq!(accepts(known, &soc, value.expect("text")), Ok(()), "{name}: {flag}");
            }
        }
    }

    #[test]
    fn values_follow_the_chip() {
        let cases = [
            ("num-mdla", "mt6989", "4", true),
            ("num-mdla", "mt6897", "4", false),
            ("num-mdla", "mt6985", "4", true),
            ("num-mdla", "mt6989", "0", false),
            ("l1-size-kb", "mt6989", "7168", true),
            ("l1-size-kb", "mt6897", "7168", false),
            ("opt", "mt6989", "4", false),
            ("opt", "mt6989", "three", false),
            ("relax-fp32", "mt6989", "true", true),
            ("relax-fp32", "mt6989", "1", false),
            ("gno", "mt6989", "LTS,Inception", true),
            ("gno", "mt6989", "LTS,Perception", false),
            ("gno", "mt6989", "", false),
            ("platform-config", "mt6989", "mt6989", true),
            ("platform-config", "mt6989", "mt6991", false),
            ("mdla-conv-exp", "mt6989", "1", true),
            ("apusys-config", "mt6989", "", false),
        ];
        for (name, soc, value, legal) in cases {
            let known = KnownOption::named(name).expect("known");
            assert_eq!(accepts(known, &of_profile(soc), value).is_ok(), legal, "{name}={value} on {soc}");
        }
        assert_eq!(KnownOption::named("no-such-option"), None);
        let most = kind(KnownOption::named("num-mdla").expect("known"), &of_profile("mt6897"));
        assert_eq!(most, FlagKind::Integer { minimum: 1, maximum: 2 });
    }
}
