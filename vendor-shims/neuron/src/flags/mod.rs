//! Compiler flags: builds an order's option string, and determines the outcome of each flag.
//!
//! An unknown flag or an invalid value is refused and left out of the option string. All other
//! outcomes are determined in [`probe`]. If a compiler merely repeats a flag in its output, this
//! does not prove an effect.

mod probe;
mod schema;

use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_neuron_files::known_options::KnownOption;
use shardwright_neuron_files::options::{CompilerOption, OptionString};
use shardwright_shim_abi::Options;
use shardwright_shim_npu::power::POWER;
use shardwright_shim_npu::priority::PRIORITY;
use shardwright_shim_npu::{Choice as _, Priority};

pub use probe::{Judged, Subject, Trials};
pub use schema::schema;

use schema::{FORCED, accepts};

use crate::soc::Soc;

/// Switch that is always in effect for graphs with f32 values.
const RELAXED: &str = "relax-fp32";

/// A flag of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub name: String,
    pub value: String,
    pub reach: Reach,
}

/// The part of a compilation that a flag affects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The compiler, through these options. The list is empty for a switch that is off.
    Compiler(Vec<CompilerOption>),
    /// The compilation, through a function of the library.
    Priority(Priority),
    /// None. The flag is refused for this reason.
    Refused(String),
}

/// All flags of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Flags in the order in which the work order lists them.
    pub asked: Vec<Asked>,
    /// Remarks on outdated or unknown flags that are passed on, with the index of the flag.
    remarks: Vec<(usize, String)>,
}

impl Flags {
    /// Reads the flags of an order for a chip and an adapter. An invalid flag is not an error, but
    /// gets a verdict.
    pub fn read(options: &Options<'_>, soc: &Soc, adapter: Option<RuntimeVersion>) -> Flags {
        Flags::of(options.iter(), soc, adapter)
    }

    fn of<'a>(
        pairs: impl Iterator<Item = (&'a str, &'a str)>,
        soc: &Soc,
        adapter: Option<RuntimeVersion>,
    ) -> Flags {
        let mut flags = Flags::default();
        for (index, (name, value)) in pairs.enumerate() {
            let reach = match name {
                FORCED => forced(value).map(Reach::Compiler),
                POWER => Err("it takes effect when a shard is loaded".to_owned()),
                PRIORITY => Priority::named(value)
                    .map(Reach::Priority)
                    .ok_or_else(|| format!("`{value}` is not one of {}", Priority::names())),
                _ => {
                    one(name, value, soc, adapter).map(|option| Reach::Compiler(option.into_iter().collect()))
                }
            };
            if let Some(instead) = KnownOption::named(name).and_then(|known| known.outdated_in(adapter)) {
                flags.remarks.push((index, format!("outdated in this adapter, replaced by `{instead}`")));
            }
            if name == FORCED
                && let Ok(Reach::Compiler(options)) = &reach
            {
                let strange = options.iter().filter(|option| KnownOption::named(&option.name).is_none());
                let strange: Vec<&str> = strange.map(|option| option.name.as_str()).collect();
                if !strange.is_empty() {
                    flags.remarks.push((index, format!("not known to this shim: {}", strange.join(", "))));
                }
            }
            let reach = reach.unwrap_or_else(Reach::Refused);
            flags.asked.push(Asked { name: name.to_owned(), value: value.to_owned(), reach });
        }
        flags.let_forced_win();
        flags
    }

    /// Lets options of [`FORCED`] replace flags of the same name, because it is unknown which of
    /// two options the compiler would use.
    fn let_forced_win(&mut self) {
        let mut forced: Vec<CompilerOption> = Vec::new();
        for asked in self.asked.iter().filter(|asked| asked.name == FORCED) {
            if let Reach::Compiler(options) = &asked.reach {
                forced.extend(options.iter().cloned());
            }
        }
        for asked in self.asked.iter_mut().filter(|asked| asked.name != FORCED) {
            if let Some(wins) = forced.iter().find(|option| option.name == asked.name) {
                asked.reach = Reach::Refused(format!("`{FORCED}` says {} {}", wins.name, wins.value));
            }
        }
    }

    /// Returns the option string of all flags that reach the compiler, except for the flag at
    /// `left_out`.
    pub fn option_string(&self, left_out: Option<usize>) -> String {
        let reached = self.asked.iter().enumerate().filter(|(index, _)| Some(*index) != left_out);
        let options = reached.flat_map(|(_, asked)| match &asked.reach {
            Reach::Compiler(options) => options.clone(),
            Reach::Priority(_) | Reach::Refused(_) => Vec::new(),
        });
        OptionString(options.collect()).to_string()
    }

    /// Returns the value of a flag that reaches the compiler. If it is set several times, the last
    /// value counts.
    pub fn value(&self, name: &str) -> Option<&str> {
        let options = self.asked.iter().filter_map(|asked| match &asked.reach {
            Reach::Compiler(options) => Some(options),
            Reach::Priority(_) | Reach::Refused(_) => None,
        });
        options.flatten().rfind(|option| option.name == name).map(|option| option.value.as_str())
    }

    /// Returns the requested priority. If it is set several times, the last one counts.
    pub fn priority(&self) -> Option<Priority> {
        self.asked.iter().rev().find_map(|asked| match asked.reach {
            Reach::Priority(priority) => Some(priority),
            Reach::Compiler(_) | Reach::Refused(_) => None,
        })
    }

    /// Returns the remark on the flag at `index`, which is added to its verdict.
    fn remark(&self, index: usize) -> Option<&str> {
        self.remarks.iter().find(|(of, _)| *of == index).map(|(_, remark)| remark.as_str())
    }
}

/// Converts a flag to an option. Returns `None` for a switch that is off.
fn one(
    name: &str,
    value: &str,
    soc: &Soc,
    adapter: Option<RuntimeVersion>,
) -> Result<Option<CompilerOption>, String> {
    let unknown = |what: String| format!("{what}; `{FORCED}` passes options on unchanged");
    let Some(known) = KnownOption::named(name) else {
        return Err(unknown("unknown option".to_owned()));
    };
    if !known.is_in(adapter) {
        let since = known.since.unwrap_or_default();
        let adapter = adapter.map_or_else(|| "this one".to_owned(), |adapter| adapter.to_string());
        return Err(unknown(format!("known from adapter {since} on, but this is {adapter}")));
    }
    accepts(known, soc, value)?;
    if name == RELAXED && value == "false" {
        return Err(
            "the processor has no 32-bit floats: what is f32 is computed as f16, asked for or not".to_owned()
        );
    }
    Ok((value != "false").then(|| CompilerOption::new(name, value)))
}

/// Parses an option string that is passed on unchanged.
fn forced(text: &str) -> Result<Vec<CompilerOption>, String> {
    OptionString::parse(text).map(|options| options.0).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Option<RuntimeVersion> = Some(RuntimeVersion::new(9, 0, 3));
    const OLD: Option<RuntimeVersion> = Some(RuntimeVersion::new(8, 2, 28));

    fn flags(pairs: &[(&str, &str)], adapter: Option<RuntimeVersion>) -> Flags {
        Flags::of(pairs.iter().copied(), &crate::soc::tests::of_profile("mt6989"), adapter)
    }

    fn refusal(flags: &Flags, index: usize) -> &str {
        match &flags.asked[index].reach {
            Reach::Refused(reason) => reason,
            reached => panic!("{reached:?}"),
        }
    }

    #[test]
    fn flags_become_one_string_in_their_order() {
        let all = flags(
            &[
                ("opt", "3"),
                ("relax-fp32", "true"),
                ("opt-size", "false"),
                ("gno", "LTS,Inception"),
                ("apusys-config", r#"{ "high_addr": true }"#),
            ],
            NEW,
        );
        assert_eq!(
            all.option_string(None),
            r#"--opt 3 --relax-fp32 --gno LTS,Inception --apusys-config "{ \"high_addr\": true }""#
        );
        assert_eq!(
            all.option_string(Some(0)),
            r#"--relax-fp32 --gno LTS,Inception --apusys-config "{ \"high_addr\": true }""#
        );
        // A switch that is off is not in the string, so leaving it out makes no difference.
        assert_eq!(all.option_string(Some(2)), all.option_string(None));
        assert_eq!((all.value("opt"), all.value("opt-size"), all.value("mlo")), (Some("3"), None, None));
    }

    #[test]
    fn what_no_schema_knows_is_refused_by_name_and_reaches_nothing() {
        let all = flags(&[("opt", "9"), ("warp", "9"), ("mem-opt", "3"), ("opt-bw", "true")], OLD);
        assert!(refusal(&all, 0).contains("not within 0 to 3"));
        assert!(refusal(&all, 1).contains("unknown option") && refusal(&all, 1).contains("`options`"));
        assert!(refusal(&all, 2).contains("from adapter 9 on, but this is 8.2.28"));
        assert_eq!(all.option_string(None), "--opt-bw");
        let exact = flags(&[(RELAXED, "false")], OLD);
        assert!(refusal(&exact, 0).contains("computed as f16"));
    }

    #[test]
    fn what_is_forced_is_handed_on_and_wins() {
        let all = flags(&[("opt", "3"), ("opt-bw", "true"), (FORCED, "--opt=2 --warp 9")], OLD);
        assert_eq!(all.option_string(None), "--opt-bw --opt 2 --warp 9");
        assert!(refusal(&all, 0).contains("`options` says opt 2"));
        assert_eq!(all.remark(2), Some("not known to this shim: warp"));
        let broken = flags(&[(FORCED, "--opt \"3")], OLD);
        assert!(refusal(&broken, 0).contains("does not end"));
        assert_eq!(broken.option_string(None), "");
    }

    #[test]
    fn an_outdated_flag_is_handed_on_and_said() {
        let all = flags(&[("arch", "mdla5.1")], NEW);
        assert_eq!(all.option_string(None), "--arch mdla5.1");
        assert!(all.remark(0).expect("said").contains("`platform-config`"));
        assert_eq!(flags(&[("arch", "mdla5.1")], OLD).remark(0), None);
    }
}
