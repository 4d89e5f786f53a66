//! The compiler flags of this shim: their schema, and the settings selected by their values.
//!
//! This file describes only the request. [`probe`](crate::probe) finds out the actual effect of a
//! flag.

use std::collections::BTreeMap;

use serde_json::Value;
use shardwright_shim_abi::{Flag, FlagKind, FlagStage, Options};
use shardwright_shim_npu::power::POWER;
use shardwright_shim_npu::priority::PRIORITY;
use shardwright_shim_npu::{Choice as _, Power, Priority};

use crate::lower::Variants;
use crate::session::{FinalizeValue, GraphOptions};
use crate::soc::{MAX_VTCM_MEGABYTES, Soc};

/// Prefix of keys that are passed to finalize unchanged.
pub const FINALIZE_PREFIX: &str = "finalize.";
/// The library's number of the option that packs weights.
const WEIGHTS_PACKING: u32 = 12;
/// Upper bound on vector threads, larger than any chip's number.
const MAX_HVX_THREADS: i64 = 16;
/// Longest key or value passed to finalize.
const MAX_KEY: usize = 256;

/// Bounds on the width of products. Narrower products would be cut into thousands, wider ones
/// compile for hours.
const WIDEST_RANGE: (i64, i64) = (256, 1 << 20);

/// Bounds on the rows of products. Fewer rows would mean thousands of products.
const TALLEST_RANGE: (i64, i64) = (16, 1 << 20);

const SWITCH: &[&str] = &["true", "false"];
const AUTO: &str = "auto";

/// A flag of the lowering: it sets one field of [`Variants`].
struct Way {
    flag: &'static str,
    /// The field, as serialised in [`Variants`].
    field: &'static str,
    values: Values,
    description: &'static str,
}

/// The values of a field.
enum Values {
    Words(&'static [&'static str]),
    Switch,
    /// A whole number from the first to the second value.
    Number(i64, i64),
}

/// One flag for each field of [`Variants`].
const WAYS: &[Way] = &[
    Way {
        flag: "rotary",
        field: "rotary",
        values: Values::Words(&["fused", "pairs", "exchanged", "negated", "by-width"]),
        description: "form of rotary embedding",
    },
    Way {
        flag: "keys",
        field: "keys",
        values: Values::Words(&["joined", "split"]),
        description: "how new rows are combined with a state",
    },
    Way {
        flag: "turned-keys",
        field: "turned",
        values: Values::Switch,
        description: "whether a separate operation or the product transposes keys",
    },
    Way {
        flag: "heads",
        field: "heads",
        values: Values::Words(&["before-norm", "after-norm", "after-rotary", "never", "grouped"]),
        description: "where queries are rearranged from rows to heads",
    },
    Way {
        flag: "mask",
        field: "mask",
        values: Values::Words(&["broadcast", "repeated"]),
        description: "how a mask shared by heads is added to their scores; a mask above 1 MiB is broadcast",
    },
    Way {
        flag: "product",
        field: "product",
        values: Values::Words(&["fully-connected", "convolution", "mat-mul"]),
        description: "form of a product with weights",
    },
    Way {
        flag: "leaving",
        field: "leaving",
        values: Values::Words(&["whole", "rows", "columns"]),
        description: "number of blocks of the last operation of an output",
    },
    Way {
        flag: "widest",
        field: "widest",
        values: Values::Number(WIDEST_RANGE.0, WIDEST_RANGE.1),
        description: "maximum outputs of one product with weights; a wider product is split",
    },
    Way {
        flag: "tallest",
        field: "tallest",
        values: Values::Number(TALLEST_RANGE.0, TALLEST_RANGE.1),
        description: "maximum rows of one product with weights; a longer product is split",
    },
];

impl Way {
    fn named(flag: &str) -> Option<&'static Way> {
        WAYS.iter().find(|way| way.flag == flag)
    }

    /// Parses a value. Returns `None` for `auto`.
    fn read(&self, value: &str) -> Result<Option<Value>, String> {
        if value == AUTO {
            return Ok(None);
        }
        let words = |words: &[&str]| format!("`{value}` is not one of {}, {AUTO}", words.join(", "));
        let read = match self.values {
            Values::Words(legal) if legal.contains(&value) => Value::from(value),
            Values::Words(legal) => return Err(words(legal)),
            Values::Switch if SWITCH.contains(&value) => Value::from(value == "true"),
            Values::Switch => return Err(words(SWITCH)),
            Values::Number(least, most) => Value::from(
                number::<u64>(value, most, least).map_err(|reason| format!("{reason}, nor {AUTO}"))?,
            ),
        };
        match with_fields(Variants::default(), [(self.field, &read)]) {
            Some(_) => Ok(Some(read)),
            None => Err(format!("`{value}` is not a value of `{}`", self.flag)),
        }
    }

    fn schema(&self) -> Flag {
        let words = |words: &[&str]| {
            FlagKind::Choice([AUTO].iter().chain(words).map(|word| (*word).to_owned()).collect())
        };
        let (kind, default) = match self.values {
            Values::Words(legal) => (words(legal), AUTO.to_owned()),
            Values::Switch => (words(SWITCH), AUTO.to_owned()),
            Values::Number(minimum, maximum) => {
                (FlagKind::Integer { minimum, maximum }, field(&Variants::default(), self.field).to_string())
            }
        };
        flag(self.flag, self.description, kind, Some(&default))
    }
}

/// Returns a field of `variants` in serialised form.
fn field(variants: &Variants, name: &str) -> Value {
    serde_json::to_value(variants).ok().and_then(|all| all.get(name).cloned()).unwrap_or_default()
}

/// Returns the variants with some fields replaced, or `None` if a value is invalid for its field.
fn with_fields<'v>(
    variants: Variants,
    fields: impl IntoIterator<Item = (&'v str, &'v Value)>,
) -> Option<Variants> {
    let mut all = serde_json::to_value(variants).ok()?;
    for (name, value) in fields {
        *all.get_mut(name)? = value.clone();
    }
    serde_json::from_value(all).ok()
}

/// The part of the compilation that a flag controls.
#[derive(Clone, Debug, PartialEq)]
pub enum Reach {
    /// The vendor's compiler.
    Compiler(CompilerFlag),
    /// The graph passed to the compiler.
    Lowering,
    /// No effect: the value is invalid.
    Refused(String),
    /// No effect: this shim does not have the flag.
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub enum CompilerFlag {
    /// Fast memory, megabytes.
    Vtcm(u32),
    /// Finalize's optimisation effort. 0 is the library's default.
    FinalizeMode(u32),
    HvxThreads(u64),
    WeightsPacking(bool),
    /// An undocumented key.
    Key(String, FinalizeValue),
}

impl CompilerFlag {
    pub fn apply(&self, options: &mut GraphOptions) {
        match self {
            CompilerFlag::Vtcm(megabytes) => options.vtcm_megabytes = Some(*megabytes),
            CompilerFlag::FinalizeMode(mode) => options.finalize_mode = (*mode > 0).then_some(*mode),
            CompilerFlag::HvxThreads(threads) => options.hvx_threads = Some(*threads),
            CompilerFlag::WeightsPacking(packed) => {
                options.numbers.retain(|(number, _)| *number != WEIGHTS_PACKING);
                options.numbers.push((WEIGHTS_PACKING, u32::from(*packed)));
            }
            CompilerFlag::Key(key, value) => options.keys.push((key.clone(), value.clone())),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub name: String,
    pub value: String,
    /// The part that the flag controls.
    pub reach: Reach,
}

/// All flags of a work order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flags {
    /// In the requested order.
    pub asked: Vec<Asked>,
    /// Fields of [`Variants`] that are set explicitly, not by the rules.
    ways: BTreeMap<&'static str, Value>,
}

fn number<T: TryFrom<i64>>(value: &str, most: i64, least: i64) -> Result<T, String> {
    let legal = value.parse::<i64>().ok().filter(|number| (least..=most).contains(number));
    legal
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("`{value}` is not within {least} to {most}"))
}

/// Parses the value of a finalize key: a switch, an integer, a float, or text.
fn finalize_value(value: &str) -> FinalizeValue {
    match value {
        "true" => FinalizeValue::Bool(true),
        "false" => FinalizeValue::Bool(false),
        _ => match (value.parse::<u32>(), value.parse::<i32>(), value.parse::<f32>()) {
            (Ok(number), ..) => FinalizeValue::U32(number),
            (_, Ok(number), _) => FinalizeValue::I32(number),
            (.., Ok(number)) if number.is_finite() => FinalizeValue::F32(number),
            _ => FinalizeValue::Text(value.to_owned()),
        },
    }
}

impl Flags {
    /// Reads the flags of a work order. An invalid value is not an error but becomes a verdict.
    pub fn read(options: &Options<'_>) -> Flags {
        let mut flags = Flags::default();
        for (name, value) in options.iter() {
            let reach = flags.reach(name, value).unwrap_or_else(Reach::Refused);
            flags.asked.push(Asked { name: name.to_owned(), value: value.to_owned(), reach });
        }
        flags
    }

    fn reach(&mut self, name: &str, value: &str) -> Result<Reach, String> {
        Ok(match name {
            "vtcm-megabytes" => Reach::Compiler(CompilerFlag::Vtcm(number(value, MAX_VTCM_MEGABYTES, 1)?)),
            "finalize-mode" => Reach::Compiler(CompilerFlag::FinalizeMode(number(value, 3, 0)?)),
            "hvx-threads" => Reach::Compiler(CompilerFlag::HvxThreads(number(value, MAX_HVX_THREADS, 1)?)),
            "weights-packing" => match value {
                "true" | "false" => Reach::Compiler(CompilerFlag::WeightsPacking(value == "true")),
                _ => return Err(format!("`{value}` is not one of true, false")),
            },
            POWER | PRIORITY => return Err("it takes effect when a shard is loaded".to_owned()),
            _ => match name.strip_prefix(FINALIZE_PREFIX) {
                Some(key) if key.is_empty() || key.len() > MAX_KEY || value.len() > MAX_KEY => {
                    return Err(format!("keys and values must have 1 to {MAX_KEY} bytes"));
                }
                // The library would read a text up to the first NUL, which would be another key.
                Some(key) if key.contains('\0') || value.contains('\0') => {
                    return Err("keys and values must be text".to_owned());
                }
                Some(key) => Reach::Compiler(CompilerFlag::Key(key.to_owned(), finalize_value(value))),
                None => match Way::named(name) {
                    Some(way) => {
                        match way.read(value)? {
                            Some(value) => drop(self.ways.insert(way.field, value)),
                            None => drop(self.ways.remove(way.field)),
                        }
                        Reach::Lowering
                    }
                    None => Reach::Unknown,
                },
            },
        })
    }

    /// Returns the options for a chip, including all flags for the compiler except the one at
    /// `left_out`.
    pub fn graph_options(&self, soc: &Soc, left_out: Option<usize>) -> GraphOptions {
        let mut options = GraphOptions {
            vtcm_megabytes: Some(soc.vtcm()),
            finalize_mode: soc.finalize_mode,
            ..GraphOptions::default()
        };
        for (index, asked) in self.asked.iter().enumerate() {
            if let Reach::Compiler(flag) = &asked.reach
                && Some(index) != left_out
            {
                flag.apply(&mut options);
            }
        }
        options
    }

    /// Returns the chosen variants without the lowering flag at `index`, all else equal. Returns
    /// `None` if the flag leaves the choice to the rules.
    pub fn without(&self, index: usize, chosen: Variants, rule: Variants) -> Option<Variants> {
        let asked = self.asked.get(index).filter(|asked| asked.value != AUTO)?;
        let way = Way::named(&asked.name)?;
        with_fields(chosen, [(way.field, &field(&rule, way.field))])
    }

    /// Replaces the rules' choices by the requested ones.
    pub fn apply(&self, chosen: Variants) -> Variants {
        // Every value was validated when it was read.
        with_fields(chosen, self.ways.iter().map(|(field, value)| (*field, value))).unwrap_or(chosen)
    }
}

/// Checks whether the flag requests masks repeated for their heads.
pub fn asks_for_repeated_masks(asked: &Asked) -> bool {
    (asked.name.as_str(), asked.value.as_str()) == ("mask", "repeated")
}

fn flag(name: &str, description: &str, kind: FlagKind, default: Option<&str>) -> Flag {
    Flag {
        name: name.to_owned(),
        description: description.to_owned(),
        kind,
        default: default.map(str::to_owned),
        stage: FlagStage::Compile,
    }
}

/// Lists the available flags for a chip.
pub fn schema(soc: &Soc) -> Vec<Flag> {
    let vtcm = soc.vtcm().to_string();
    let mut flags = vec![
        flag(
            "vtcm-megabytes",
            "fast memory (VTCM) in megabytes that the graph may use; the library's default is 4",
            FlagKind::Integer { minimum: 1, maximum: MAX_VTCM_MEGABYTES },
            Some(&vtcm),
        ),
        flag(
            "finalize-mode",
            "optimisation effort of the compiler, 1 to 3; 0: the library's own choice",
            FlagKind::Integer { minimum: 0, maximum: 3 },
            Some(&soc.finalize_mode.unwrap_or(0).to_string()),
        ),
        flag(
            "hvx-threads",
            "number of vector threads that the graph may use",
            FlagKind::Integer { minimum: 1, maximum: MAX_HVX_THREADS },
            None,
        ),
        flag("weights-packing", "the library's own packing of weights", FlagKind::Boolean, None),
    ];
    flags.extend(WAYS.iter().map(Way::schema));
    flags.push(Power::schema(
        FlagStage::Load,
        None,
        "power mode that a session votes for: clocks of processor and bus, and whether the caller polls; \
         not set: no vote",
    ));
    flags.push(Priority::schema(
        FlagStage::Load,
        Some(Priority::Normal),
        "priority of a session's graphs among the processor's users; the library may treat high as normal",
    ));
    flags
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn fields() -> Map<String, Value> {
        match serde_json::to_value(Variants::default()) {
            Ok(Value::Object(fields)) => fields,
            other => panic!("variants are written as {other:?}"),
        }
    }

    /// Returns the values accepted by a field's type, extracted from the error message for an
    /// invalid value.
    fn accepted(name: &str) -> Vec<String> {
        let mut all = fields();
        all[name] = "there is no such word".into();
        let error = serde_json::from_value::<Variants>(all.into()).expect_err("no such word").to_string();
        let (_, listed) = error.split_once("expected ").unwrap_or_else(|| panic!("{error}"));
        listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn every_way_to_write_an_entry_has_a_flag_and_every_word_of_it() {
        for (name, default) in fields() {
            let way = WAYS.iter().find(|way| way.field == name);
            let way = way.unwrap_or_else(|| panic!("no flag sets `{name}` of the variants"));
            let legal: Vec<String> = match (&way.values, default) {
                (Values::Words(words), Value::String(_)) => {
                    words.iter().map(|word| (*word).to_owned()).collect()
                }
                (Values::Switch, Value::Bool(_)) => SWITCH.iter().map(|word| (*word).to_owned()).collect(),
                (Values::Number(least, most), Value::Number(_)) => vec![least.to_string(), most.to_string()],
                (_, default) => panic!("`{name}` is {default}, its flag takes something else"),
            };
            if let Values::Words(_) = way.values {
                assert_eq!(legal, accepted(&name), "words of `{name}`");
            }
            let schema = schema(&crate::soc::tests::of_profile("sm8850"));
            let reported = schema.iter().find(|flag| flag.name == way.flag).expect("in the schema");
            for value in &legal {
                if let FlagKind::Choice(words) = &reported.kind {
                    assert!(words.contains(value), "`{value}` of `{name}` is not in the schema");
                }
                let set = way.read(value).expect("legal").expect("set");
                let written = with_fields(Variants::default(), [(way.field, &set)]).expect("accepted");
                let found = field(&written, way.field);
                assert_eq!(found.as_str().map_or(found.to_string(), str::to_owned), *value);
                let flags = Flags { ways: BTreeMap::from([(way.field, set)]), ..Flags::default() };
                assert_eq!(flags.apply(Variants::default()), written);
            }
            assert!(way.read("there is no such word").is_err());
            assert_eq!(way.read(AUTO), Ok(None));
        }
        assert_eq!(WAYS.len(), fields().len(), "a flag of a field that is none");
    }

    #[test]
    fn numbers_beyond_their_range_are_refused() {
        let widest = Way::named("widest").expect("a flag");
        for value in ["255", "1048577", "-1", "many"] {
            assert!(widest.read(value).is_err_and(|reason| reason.contains("256 to 1048576")), "{value}");
        }
    }
}
