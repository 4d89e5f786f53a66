//! The compiler flags of this shim: their schema, and what a given value sets.
//!
//! What became of a flag is found out in [`probe`](crate::probe); this file only says what was asked for.

use serde::de::DeserializeOwned;
use shardwright_shim_abi::{Flag, FlagKind, Options};

use crate::lower::{Heads, KeyRows, Product, Rotary, Variants};
use crate::session::{FinalizeValue, GraphOptions};
use crate::soc::Soc;

/// Prefix of keys that are handed to finalize as they are.
pub const FINALIZE_PREFIX: &str = "finalize.";
/// The library's number of the option that packs weights.
const WEIGHTS_PACKING: u32 = 12;
/// Fast memory beyond any chip's.
const MAX_VTCM_MEGABYTES: i64 = 16;
/// Vector threads beyond any chip's.
const MAX_HVX_THREADS: i64 = 16;
/// Longest key or value handed to finalize.
const MAX_KEY: usize = 256;

const ROTARY: &[&str] = &["fused", "pairs", "exchanged", "by-width"];
const KEYS: &[&str] = &["joined", "split"];
const HEADS: &[&str] = &["before-norm", "after-norm", "after-rotary", "never", "grouped", "by-width"];
const TURNED: &[&str] = &["true", "false"];
const PRODUCT: &[&str] = &["fully-connected", "convolution", "mat-mul"];
const SEARCH: &[&str] = &["off", "layers", "all"];
const AUTO: &str = "auto";

/// How much is compared before compiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Search {
    /// Nothing: the lowering's rules decide.
    #[default]
    Off,
    /// One layer of each kind.
    Layers,
    /// Every entry as a whole.
    All,
}

/// What a flag reaches.
#[derive(Clone, Debug, PartialEq)]
pub enum Reach {
    /// The vendor's compiler.
    Compiler(CompilerFlag),
    /// The graph the compiler is given.
    Lowering,
    /// The comparison of variants before compiling.
    Search,
    /// Nothing: not a legal value.
    Refused(String),
    /// Nothing: this shim has no such flag.
    Unknown,
}

/// A flag of the vendor's compiler.
#[derive(Clone, Debug, PartialEq)]
pub enum CompilerFlag {
    /// Fast memory.
    Vtcm(u32),
    /// How hard finalize tries; 0 is the library's own choice.
    FinalizeMode(u32),
    /// Vector threads.
    HvxThreads(u64),
    /// Packing of weights.
    WeightsPacking(bool),
    /// A key nobody documents.
    Key(String, FinalizeValue),
}

impl CompilerFlag {
    /// Sets it.
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

/// A flag as it was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What it reaches.
    pub reach: Reach,
}

/// All flags of a work order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flags {
    /// In the given order.
    pub asked: Vec<Asked>,
    /// How much to compare.
    pub search: Search,
    rotary: Option<Rotary>,
    keys: Option<KeyRows>,
    turned: Option<bool>,
    heads: Option<Heads>,
    product: Option<Product>,
}

/// A word as one of an enumeration's.
fn word<T: DeserializeOwned>(value: &str, words: &[&str]) -> Result<T, String> {
    serde_json::from_value(value.into()).map_err(|_| format!("`{value}` is none of {}", words.join(", ")))
}

/// A word, or none for `auto`.
fn choice<T: DeserializeOwned>(value: &str, words: &[&str]) -> Result<Option<T>, String> {
    if value == AUTO {
        return Ok(None);
    }
    word(value, words).map(Some).map_err(|reason| format!("{reason}, {AUTO}"))
}

fn number<T: TryFrom<i64>>(value: &str, most: i64, least: i64) -> Result<T, String> {
    let legal = value.parse::<i64>().ok().filter(|number| (least..=most).contains(number));
    legal
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("`{value}` is not within {least} to {most}"))
}

/// A finalize key's value: a switch, a whole number, a number, or text.
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
    /// Reads the flags of a work order. A wrong value is no error: it becomes a verdict.
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
                _ => return Err(format!("`{value}` is none of true, false")),
            },
            "search" => {
                self.search = word(value, SEARCH)?;
                Reach::Search
            }
            "rotary" => {
                self.rotary = choice(value, ROTARY)?;
                Reach::Lowering
            }
            "keys" => {
                self.keys = choice(value, KEYS)?;
                Reach::Lowering
            }
            "turned-keys" => {
                self.turned = match value {
                    "true" | "false" => Some(value == "true"),
                    AUTO => None,
                    _ => return Err(format!("`{value}` is none of true, false, {AUTO}")),
                };
                Reach::Lowering
            }
            "heads" => {
                self.heads = choice(value, HEADS)?;
                Reach::Lowering
            }
            "product" => {
                self.product = choice(value, PRODUCT)?;
                Reach::Lowering
            }
            _ => match name.strip_prefix(FINALIZE_PREFIX) {
                Some(key) if key.is_empty() || key.len() > MAX_KEY || value.len() > MAX_KEY => {
                    return Err(format!("keys and values have 1 to {MAX_KEY} bytes"));
                }
                // Text that ends early at a zero would be another key.
                Some(key) if key.contains('\0') || value.contains('\0') => {
                    return Err("keys and values are text".to_owned());
                }
                Some(key) => Reach::Compiler(CompilerFlag::Key(key.to_owned(), finalize_value(value))),
                None => Reach::Unknown,
            },
        })
    }

    /// Options for a chip, with the flags that reach the compiler; without the one at `left_out`.
    pub fn graph_options(&self, soc: &Soc, left_out: Option<usize>) -> GraphOptions {
        let mut options = GraphOptions { vtcm_megabytes: Some(soc.vtcm()), ..GraphOptions::default() };
        for (index, asked) in self.asked.iter().enumerate() {
            if let Reach::Compiler(flag) = &asked.reach
                && Some(index) != left_out
            {
                flag.apply(&mut options);
            }
        }
        options
    }

    /// Whether a mode of finalize was asked for.
    pub fn has_finalize_mode(&self) -> bool {
        let is_mode = |asked: &Asked| matches!(asked.reach, Reach::Compiler(CompilerFlag::FinalizeMode(_)));
        self.asked.iter().any(is_mode)
    }

    /// What would have been chosen without the flag of the lowering at `index`, all else equal; none when it leaves the choice open itself.
    pub fn without(&self, index: usize, chosen: Variants, rule: Variants) -> Option<Variants> {
        let asked = self.asked.get(index).filter(|asked| asked.value != AUTO)?;
        Some(match asked.name.as_str() {
            "rotary" => Variants { rotary: rule.rotary, ..chosen },
            "keys" => Variants { keys: rule.keys, ..chosen },
            "turned-keys" => Variants { turned: rule.turned, ..chosen },
            "heads" => Variants { heads: rule.heads, ..chosen },
            "product" => Variants { product: rule.product, ..chosen },
            _ => return None,
        })
    }

    /// Variants with what was asked for in place of what a rule or a search chose.
    pub fn apply(&self, chosen: Variants) -> Variants {
        Variants {
            rotary: self.rotary.unwrap_or(chosen.rotary),
            keys: self.keys.unwrap_or(chosen.keys),
            turned: self.turned.unwrap_or(chosen.turned),
            heads: self.heads.unwrap_or(chosen.heads),
            product: self.product.unwrap_or(chosen.product),
            ..chosen
        }
    }
}

/// What can be set.
pub fn schema(soc: &Soc) -> Vec<Flag> {
    let flag = |name: &str, description: &str, kind: FlagKind, default: Option<&str>| Flag {
        name: name.to_owned(),
        description: description.to_owned(),
        kind,
        default: default.map(str::to_owned),
    };
    let words = |words: &[&str], extra: &[&str]| {
        FlagKind::Choice(extra.iter().chain(words).map(|word| (*word).to_owned()).collect())
    };
    let vtcm = soc.vtcm().to_string();
    vec![
        flag(
            "vtcm-megabytes",
            "fast memory the graph may use; what the library takes unasked is 4",
            FlagKind::Integer { minimum: 1, maximum: MAX_VTCM_MEGABYTES },
            Some(&vtcm),
        ),
        flag(
            "finalize-mode",
            "how hard the compiler tries, 1 to 3; 0 is its own choice",
            FlagKind::Integer { minimum: 0, maximum: 3 },
            Some("0"),
        ),
        flag(
            "hvx-threads",
            "vector threads the graph may use",
            FlagKind::Integer { minimum: 1, maximum: MAX_HVX_THREADS },
            None,
        ),
        flag("weights-packing", "the library's own packing of weights", FlagKind::Boolean, None),
        flag(
            "search",
            "what is ranked by simulated cycles before compiling: nothing, a layer of each kind, or whole entries",
            words(SEARCH, &[]),
            Some("off"),
        ),
        flag("rotary", "how rotary embedding is written", words(ROTARY, &[AUTO]), Some(AUTO)),
        flag("keys", "how new rows stand beside a state", words(KEYS, &[AUTO]), Some(AUTO)),
        flag(
            "turned-keys",
            "whether keys are turned by an operation of their own or by the product",
            words(TURNED, &[AUTO]),
            Some(AUTO),
        ),
        flag("heads", "where queries go from rows to heads", words(HEADS, &[AUTO]), Some(AUTO)),
        flag("product", "how a product with weights is written", words(PRODUCT, &[AUTO]), Some(AUTO)),
    ]
}
