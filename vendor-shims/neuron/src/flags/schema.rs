//! Known options of the Neuron compiler: name, values, first adapter version, and source. The
//! vendor does not publish a list. These options were collected from a help text from the time of
//! adapter 6, from published bundles, and from third-party scripts.
//!
//! An option that is not listed is refused by name, unless it is passed on with the flag
//! [`FORCED`].

use shardwright_neuron_containers::Version;
use shardwright_shim_abi::{Flag, FlagKind, FlagStage};
use shardwright_shim_npu::{Power, Priority};

use crate::power;
use crate::priority;
use crate::soc::Soc;

/// The flag whose value is an option string that is passed on unchanged.
pub const FORCED: &str = "options";

/// Largest value of an option whose range is unknown.
const ANY: i64 = u32::MAX as i64;
/// Maximum number of cores, more than any chip has.
const MANY_CORES: i64 = 8;
/// Maximum fast memory in KiB, more than any chip has.
const MUCH_MEMORY: i64 = 64 << 10;

/// Source of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A help text of the tool `ncc-tflite`, from an SDK from the time of adapter 6, published by a
    /// maker of boards.
    Help,
    /// Options with which a published bundle for MT6993 was compiled by adapter 9.2, as quoted in a
    /// public report.
    Bundle,
    /// A third-party script that compiles language models.
    Script,
    /// Google's plugin or the ExecuTorch tools pass it on.
    Client,
}

impl Source {
    /// Describes the source in words.
    pub const fn words(self) -> &'static str {
        match self {
            Source::Help => "in a help text of an older SDK",
            Source::Bundle => "in a published bundle for MT6993",
            Source::Script => "in a published script",
            Source::Client => "handed on by a public client",
        }
    }
}

/// Values of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A switch without a value. `false` leaves it out.
    Switch,
    /// A whole number within this inclusive range.
    Number(i64, i64),
    /// A number up to the chip's number of cores.
    Cores,
    /// A size in KiB up to the chip's fast memory.
    Memory,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Some of these words, separated by commas.
    List(&'static [&'static str]),
    /// The chip's own name.
    Chip,
    Text,
}

/// A known option of the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Name without the leading hyphens.
    pub name: &'static str,
    pub values: Values,
    /// The compiler's default, if known.
    pub default: Option<&'static str>,
    /// First adapter major version with which it was observed. `None` if it may exist in all
    /// versions.
    pub since: Option<u8>,
    /// First major version that reports it as outdated, and the replacement.
    pub outdated: Option<(u8, &'static str)>,
    pub source: Source,
    /// Effect, as far as it is known.
    pub description: &'static str,
}

const fn known(name: &'static str, values: Values, source: Source, description: &'static str) -> Known {
    Known { name, values, default: None, since: None, outdated: None, source, description }
}

/// Description of an option whose effect is not documented publicly.
const UNTOLD: &str = "not described in public";

use Source::{Bundle, Client, Help, Script};
use Values::{Chip, Cores, List, Memory, Number, Switch, Text, Words};

/// All known options, grouped by source.
const KNOWN: &[Known] = &[
    Known {
        default: Some("2"),
        ..known("opt", Number(0, 3), Help, "how hard the compiler tries; 3 takes longer")
    },
    known("opt-accuracy", Switch, Help, "prefers accuracy; reported to run 16-bit integers as 16-bit floats"),
    known("opt-aggressive", Switch, Help, "prefers speed, and may lose accuracy"),
    known("opt-bw", Switch, Help, "prefers little traffic to memory"),
    known("opt-footprint", Switch, Help, "prefers little memory"),
    known("opt-size", Switch, Help, "prefers small code"),
    known("relax-fp32", Switch, Help, "runs 32-bit floats as 16-bit ones"),
    Known {
        default: Some("0"),
        ..known("l1-size-kb", Memory, Help, "fast memory the compiler may plan with, in KiB")
    },
    Known { default: Some("0"), ..known("l2-size-kb", Memory, Help, "second-level memory, in KiB") },
    Known { default: Some("1"), ..known("num-mdla", Cores, Help, "cores to compile for") },
    known("num-mvpu", Number(0, MANY_CORES), Help, "vector processors to compile for"),
    Known {
        outdated: Some((9, "platform-config")),
        ..known("arch", Text, Help, "list of architectures to compile for")
    },
    Known { since: Some(8), ..known("platform-config", Chip, Client, "the chip to compile for") },
    Known { since: Some(9), ..known("subsys", Words(&["npu"]), Script, "which processor of the chip") },
    known("suppress-input", Switch, Help, "leaves out the conversion of inputs: the caller lays them out"),
    known("suppress-output", Switch, Help, "leaves out the conversion of outputs"),
    known("gen-debug-info", Switch, Help, "adds what a debugger reads"),
    known("show-exec-plan", Switch, Help, "prints what runs where"),
    known("show-memory-summary", Switch, Help, "prints what memory is used"),
    known("disallow-bridge", Switch, Help, "fails where the CPU would have to step in"),
    known("avoid-reorder", Switch, Help, "keeps the order of data"),
    known("extract-static-data", Switch, Help, "makes inputs of constants"),
    known("fc-to-conv", Switch, Help, "runs fully connected layers as convolutions"),
    known("stable-linearize", Switch, Help, "keeps the order of operations as given"),
    known("rewrite-pattern", Switch, Help, "rewrites patterns of operations"),
    known("reshape-to-4d", Switch, Help, "makes every tensor of rank 4"),
    known(
        "gno",
        List(&["NDF", "SMP", "BMP", "LTS", "Inception"]),
        Help,
        "optimisations of the graph; the last two were seen in newer bundles only",
    ),
    known("gno-exp", Switch, Bundle, UNTOLD),
    known("gno-non-4d-tiling", Switch, Bundle, UNTOLD),
    known("mdla-bw", Number(0, ANY), Help, "bandwidth the compiler assumes"),
    known("mdla-freq", Number(0, ANY), Help, "clock the compiler assumes"),
    known("mdla-wt-to-l1", Switch, Help, "keeps weights in fast memory"),
    known("prefer-large-acc", Text, Help, "accumulates in more bits"),
    known("use-sw-dilated-conv", Switch, Help, "spells dilated convolutions as others"),
    known("use-sw-deconv", Switch, Help, "spells transposed convolutions as others"),
    known("req-per-ch-conv", Switch, Help, "requantises convolutions channel by channel"),
    known("trim-io-alignment", Switch, Help, "leaves out padding of inputs and outputs"),
    known("mlo", Switch, Script, UNTOLD),
    known("mdla-mlo", Switch, Bundle, UNTOLD),
    Known { since: Some(9), ..known("mdla-mlo-match-info", Switch, Bundle, UNTOLD) },
    Known { since: Some(9), ..known("mdla-flash-attention-mode", Number(0, ANY), Bundle, UNTOLD) },
    known(
        "mdla-conv-exp",
        Words(&["true", "1", "0"]),
        Bundle,
        "not described in public; seen alone and with 1",
    ),
    known("mdla-int16-lut", Switch, Script, UNTOLD),
    Known { since: Some(9), ..known("mdla-broadcast-act-wgt", Number(0, ANY), Bundle, UNTOLD) },
    Known { since: Some(9), ..known("mdla-set-conv-xy-split-ic-threshold", Number(0, ANY), Bundle, UNTOLD) },
    known("broadcast-act-wgt", Switch, Script, UNTOLD),
    known("broadcast-flow-distance", Number(0, ANY), Bundle, UNTOLD),
    known("split-large-conv-ic", Number(0, ANY), Script, UNTOLD),
    known("split-16a4w-conv-oc", Switch, Script, UNTOLD),
    Known { since: Some(9), ..known("mem-opt", Number(0, ANY), Bundle, UNTOLD) },
    known("dla-opt", Number(0, ANY), Client, UNTOLD),
    known("option-bundle", Text, Client, "a named set of options; two of Google's begin with `gemma-`"),
    known("apusys-config", Text, Client, "settings of the driver, as JSON"),
    known("adapter-disable-map-fd", Switch, Client, UNTOLD),
    known("disable-apusys", Switch, Client, UNTOLD),
];

/// The reason why a value is not passed on.
pub type Reason = String;

impl Known {
    /// Returns the option with this name.
    pub fn named(name: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Returns whether an adapter is known to have the option. Returns true for an adapter of
    /// unknown version.
    pub fn is_in(&self, adapter: Option<Version>) -> bool {
        match (self.since, adapter) {
            (Some(since), Some(adapter)) => adapter.major >= since,
            _ => true,
        }
    }

    /// Returns the replacement if an adapter reports the option as outdated.
    pub fn outdated_in(&self, adapter: Option<Version>) -> Option<&'static str> {
        let (major, instead) = self.outdated?;
        adapter.filter(|adapter| adapter.major >= major).map(|_| instead)
    }

    /// Returns the kind of values as reported to the host.
    pub fn kind(&self, soc: &Soc) -> FlagKind {
        let most = self.most(soc);
        let words = |words: &[&str]| FlagKind::Choice(words.iter().map(|word| (*word).to_owned()).collect());
        match self.values {
            Switch => FlagKind::Boolean,
            Number(minimum, maximum) => FlagKind::Integer { minimum, maximum },
            Cores => FlagKind::Integer { minimum: 1, maximum: most },
            Memory => FlagKind::Integer { minimum: 0, maximum: most },
            Words(known) => words(known),
            Chip => words(&[&soc.platform]),
            // A list has more values than can be enumerated.
            List(_) | Text => FlagKind::Text,
        }
    }

    /// Returns the largest number of cores or KiB.
    fn most(&self, soc: &Soc) -> i64 {
        match self.values {
            Cores => soc.cores.unwrap_or(MANY_CORES),
            Memory if self.name == "l1-size-kb" => soc.l1_kilobytes.unwrap_or(MUCH_MEMORY),
            _ => MUCH_MEMORY,
        }
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// The reason why it is invalid, with the valid values.
    pub fn accepts(&self, soc: &Soc, value: &str) -> Result<(), Reason> {
        let within = |least: i64, most: i64| match value.parse::<i64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(()),
            _ => Err(format!("`{value}` is not within {least} to {most}")),
        };
        let among = |words: &[&str], value: &str| match words.contains(&value) {
            true => Ok(()),
            false => Err(format!("`{value}` is not one of {}", words.join(", "))),
        };
        match self.values {
            Switch => among(&["true", "false"], value),
            Number(least, most) => within(least, most),
            Cores => within(1, self.most(soc)),
            Memory => within(0, self.most(soc)),
            Words(words) => among(words, value),
            Chip => among(&[&soc.platform], value),
            List(words) => value.split(',').try_for_each(|word| among(words, word)),
            Text if value.is_empty() => Err("it needs a value".to_owned()),
            Text => Ok(()),
        }
    }
}

/// Returns the flags of a chip with an adapter. For an adapter of unknown version, returns all
/// flags.
pub fn schema(soc: &Soc, adapter: Option<Version>) -> Vec<Flag> {
    let flag = |known: &Known| Flag {
        name: known.name.to_owned(),
        description: match known.outdated_in(adapter) {
            Some(instead) => {
                format!(
                    "{} ({}); outdated, `{instead}` takes its place",
                    known.description,
                    known.source.words()
                )
            }
            None => format!("{} ({})", known.description, known.source.words()),
        },
        kind: known.kind(soc),
        default: known.default.map(str::to_owned),
        stage: FlagStage::Compile,
    };
    let mut flags: Vec<Flag> = KNOWN.iter().filter(|known| known.is_in(adapter)).map(flag).collect();
    flags.push(Flag {
        name: FORCED.to_owned(),
        description: "an option string that is handed on as it is, known options or not".to_owned(),
        kind: FlagKind::Text,
        default: None,
        stage: FlagStage::Compile,
    });
    flags.push(Power::schema(
        Some(power::UNASKED),
        "how much power a session asks for: the boost hint of its executions, in per cent",
    ));
    flags.push(Priority::schema(
        FlagStage::Compile,
        priority::UNASKED,
        "priority of what is compiled among the processor's users",
    ));
    flags
}

#[cfg(test)]
mod tests {
    use shardwright_neuron_adapter::RuntimeVersion;

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
                assert_eq!(known.accepts(&of_profile("mt6989"), default), Ok(()), "{}", known.name);
            }
        }
    }

    #[test]
    fn an_adapter_has_what_was_seen_with_its_major() {
        let names = |adapter| -> Vec<String> {
            schema(&of_profile("mt6993"), adapter).into_iter().map(|flag| flag.name).collect()
        };
        let [old, new, any] = [Some(Version::new(8, 2, 28)), Some(Version::new(9, 0, 3)), None].map(names);
        assert!(!old.contains(&"mem-opt".to_owned()) && new.contains(&"mem-opt".to_owned()));
        assert!(old.contains(&"opt".to_owned()) && old.contains(&FORCED.to_owned()));
        assert_eq!(new, any);
        let arch = |adapter| {
            let flags = schema(&of_profile("mt6989"), adapter);
            flags.into_iter().find(|flag| flag.name == "arch").expect("there").description
        };
        assert!(arch(Some(Version::new(9, 0, 3))).contains("`platform-config` takes its place"));
        assert!(!arch(Some(Version::new(8, 2, 28))).contains("outdated"));
    }

    /// A default that the emulated library does not know would be left out of every plan.
    #[test]
    fn the_library_that_is_played_for_a_chip_takes_all_defaults() {
        let profiles = profiles();
        assert!(profiles.len() >= 7, "{:?}", profiles.keys());
        for (name, profile) in &profiles {
            let soc = of_profile(name);
            let played = soc.simulated_adapter.unwrap_or(RuntimeVersion::new(8, 2, 28));
            let played = Version::new(played.major, played.minor, played.patch);
            for flag in profile["flags"].as_array().expect("flags") {
                let (flag, value) = (flag["name"].as_str().expect("text"), flag["value"].as_str());
                let known = Known::named(flag).unwrap_or_else(|| panic!("{name}: {flag}"));
                assert!(known.is_in(Some(played)), "{name}: {flag} with adapter {played}");
                assert_eq!(known.accepts(&soc, value.expect("text")), Ok(()), "{name}: {flag}");
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
            let known = Known::named(name).expect("known");
            assert_eq!(known.accepts(&of_profile(soc), value).is_ok(), legal, "{name}={value} on {soc}");
        }
        assert_eq!(Known::named("no-such-option"), None);
        let most = Known::named("num-mdla").expect("known").kind(&of_profile("mt6897"));
        assert_eq!(most, FlagKind::Integer { minimum: 1, maximum: 2 });
    }
}
