//! Compares an artefact's compiler flags with the flags that its chip's profile recommends. Reports
//! missing flags, and the measured cost of missing flags in other cases.
//!
//! Shims report the flags of a file in the member `compilations` of their document: a list of
//! objects with `name`, `soc` and `flags`, a list of `name` and `value`. `vendor-shims/README.md`
//! describes it. The host compares these flags with a profile.

use serde::Serialize;
use serde_json::Value;
use shardwright_bundle::ShardEntry;
use shardwright_planning::profile::{Profile, ProfileRegistry, fact_names};
use shardwright_trust::Trust;
use shardwright_vocabulary::{Flag, FlagVerdict, Provenance};

use crate::profiles::profiles_in;
use shardwright::SearchPath;
use shardwright_vocabulary::Result;

/// The member of a shim's document that is read.
const COMPILATIONS: &str = "compilations";
/// Maximum number of compilations to compare in one document. The document itself counts the rest.
const MAX_COMPILATIONS: usize = 256;

/// Flags of one compilation, compared with its chip's profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlagAdvice {
    /// Name of the compiled part, such as `Partition_0` or a shard.
    pub name: String,
    /// The chip of the compilation, if known.
    pub soc: Option<String>,
    /// The profile used for the comparison.
    pub profile: Option<String>,
    /// Number of flags that the profile recommends.
    pub advised: usize,
    /// Recommended flags that were not set.
    pub missing: Vec<AdvisedFlag>,
    /// Recommended flags that were set to another value.
    pub different: Vec<AdvisedFlag>,
    /// Recommended flags that were requested but had no effect.
    pub without_effect: Vec<AdvisedFlag>,
    /// The measured cost of missing flags in other cases. Set if some flags are missing or had no
    /// effect, and the profile has a measurement.
    pub cost: Option<String>,
    /// The reason why the flags could not be compared.
    pub unknown: Option<String>,
}

/// A flag that a profile recommends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdvisedFlag {
    /// The flag, with the profile's value.
    pub flag: Flag,
    /// Source of the recommendation.
    pub provenance: Provenance,
    /// The observation behind the recommendation.
    pub note: String,
    /// The actual value, or the reason why the flag had no effect.
    pub held: Option<String>,
}

impl FlagAdvice {
    /// Returns whether there is anything to report.
    pub fn is_wanting(&self) -> bool {
        !self.missing.is_empty() || !self.different.is_empty() || !self.without_effect.is_empty()
    }

    /// Returns a summary in one sentence.
    pub fn summary(&self) -> String {
        if let Some(unknown) = &self.unknown {
            return format!("flags were not compared: {unknown}");
        }
        let profile = self.profile.as_deref().unwrap_or_default();
        if !self.is_wanting() {
            return format!("all {} flags worth setting on {profile} were set", self.advised);
        }
        let mut parts = Vec::new();
        let names = |flags: &[AdvisedFlag]| {
            let names = flags.iter().map(|advised| match &advised.held {
                Some(held) => format!("{} ({held})", advised.flag),
                None => advised.flag.to_string(),
            });
            names.collect::<Vec<_>>().join(", ")
        };
        for (what, flags) in [
            ("missing", &self.missing),
            ("other values", &self.different),
            ("requested without effect", &self.without_effect),
        ] {
            if !flags.is_empty() {
                parts.push(format!("{what}: {}", names(flags)));
            }
        }
        let wanting = self.missing.len() + self.different.len() + self.without_effect.len();
        format!(
            "{wanting} of {} flags worth setting on {profile} are not in effect; {}",
            self.advised,
            parts.join("; ")
        )
    }

    fn unknown(name: &str, soc: Option<&str>, why: &str) -> FlagAdvice {
        FlagAdvice {
            name: name.to_owned(),
            soc: soc.map(str::to_owned),
            profile: None,
            advised: 0,
            missing: Vec::new(),
            different: Vec::new(),
            without_effect: Vec::new(),
            cost: None,
            unknown: Some(why.to_owned()),
        }
    }
}

/// Profiles of chips, found by any of their names.
pub(crate) struct Advisers {
    registry: ProfileRegistry,
}

impl Advisers {
    /// Loads the built-in profiles and the profiles in directories, as far as their signatures
    /// comply with the rules.
    ///
    /// # Errors
    ///
    /// If a directory cannot be read.
    pub(crate) fn of(search: &SearchPath, trust: &Trust) -> Result<Advisers> {
        let registry = profiles_in(search, trust);
        registry.list()?;
        Ok(Advisers { registry })
    }

    /// Loads only the built-in profiles.
    pub(crate) fn built_in() -> Advisers {
        Advisers { registry: ProfileRegistry::new() }
    }

    /// Compares the flags in a shim's document. `soc` is the chip if the document does not name
    /// one.
    pub(crate) fn on_document(&self, document: &Value, soc: Option<&str>) -> Vec<FlagAdvice> {
        let compilations = document.get(COMPILATIONS).and_then(Value::as_array).map(Vec::as_slice);
        let one = |compilation: &Value| {
            let text = |name: &str| compilation.get(name).and_then(Value::as_str);
            let name = text("name").unwrap_or_default();
            let soc = text("soc").or(soc);
            let Some(flags) = compilation.get("flags").and_then(Value::as_array) else {
                return FlagAdvice::unknown(name, soc, "the file does not list its flags");
            };
            let flag = |flag: &Value| {
                let text = |name: &str| flag.get(name).and_then(Value::as_str).map(str::to_owned);
                Some((Flag { name: text("name")?, value: text("value")? }, None))
            };
            let actual: Vec<_> = flags.iter().filter_map(flag).collect();
            self.compare(name, soc, &actual)
        };
        compilations.unwrap_or_default().iter().take(MAX_COMPILATIONS).map(one).collect()
    }

    /// Compares the flags of a bundle's shard. Returns `None` if the shard was not compiled by the
    /// compiler of the chip that its target is named after.
    pub(crate) fn on_shard(&self, shard: &ShardEntry) -> Option<FlagAdvice> {
        let soc = &shard.target.name;
        let profile = self.registry.find(soc).ok()?.profile;
        if shard.compiled_by.shim != profile.shim || profile.flags.is_empty() {
            return None;
        }
        let verdict = |verdict: &FlagVerdict| match verdict {
            FlagVerdict::Inert | FlagVerdict::Refused => Some(verdict.name().to_owned()),
            _ => None,
        };
        let compiled = shard.flags.iter().map(|entry| (entry.flag.clone(), verdict(&entry.verdict)));
        let loaded = shard.load_flags.iter().map(|flag| (flag.clone(), None));
        let actual: Vec<_> = compiled.chain(loaded).collect();
        Some(self.compare(&shard.name, Some(soc), &actual))
    }

    /// Compares flags, each with the reason if it had no effect, with the recommendations of the
    /// chip's profile.
    fn compare(&self, name: &str, soc: Option<&str>, actual: &[(Flag, Option<String>)]) -> FlagAdvice {
        let Some(soc) = soc else {
            return FlagAdvice::unknown(name, None, "the file does not name its chip");
        };
        match self.registry.find(soc) {
            Ok(found) => compare(name, soc, &found.profile, actual),
            Err(_) => FlagAdvice::unknown(name, Some(soc), "there is no profile for this chip"),
        }
    }
}

fn compare(name: &str, soc: &str, profile: &Profile, actual: &[(Flag, Option<String>)]) -> FlagAdvice {
    let mut advice = FlagAdvice {
        soc: Some(soc.to_owned()),
        profile: Some(profile.name.clone()),
        advised: profile.flags.len(),
        unknown: None,
        ..FlagAdvice::unknown(name, None, "")
    };
    for advised in &profile.flags {
        let reported = |held: Option<String>| AdvisedFlag {
            flag: advised.flag(),
            provenance: advised.provenance,
            note: advised.note.clone(),
            held,
        };
        // If a flag is repeated, compare the last one. It is unknown which one a compiler uses.
        match actual.iter().rev().find(|(flag, _)| flag.name == advised.name) {
            None => advice.missing.push(reported(None)),
            Some((flag, _)) if flag.value != advised.value => {
                advice.different.push(reported(Some(flag.value.clone())));
            }
            Some((_, Some(became))) => advice.without_effect.push(reported(Some(became.clone()))),
            Some((_, None)) => {}
        }
    }
    if !advice.missing.is_empty() || !advice.without_effect.is_empty() {
        let fact = profile.fact(fact_names::COST_OF_MISSING_FLAGS);
        advice.cost = fact.map(|fact| format!("{} ({}): {}", fact.value, fact.provenance, fact.note));
    }
    advice
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn advice(document: &Value, soc: Option<&str>) -> FlagAdvice {
        let mut reported = Advisers::built_in().on_document(document, soc);
        assert_eq!(reported.len(), 1, "{reported:?}");
        reported.remove(0)
    }

    fn compiled(soc: Value, flags: Value) -> Value {
        json!({"compilations": [{"name": "Partition_0", "soc": soc, "flags": flags}]})
    }

    #[test]
    fn one_flag_of_twenty_lacks_nineteen_and_says_what_that_cost() {
        let document = compiled(json!("MT6993"), json!([{"name": "relax-fp32", "value": "true"}]));
        let reported = advice(&document, None);
        assert_eq!((reported.advised, reported.missing.len(), reported.different.len()), (20, 19, 0));
        assert_eq!(reported.profile.as_deref(), Some("mt6993"));
        assert!(
            reported.is_wanting() && reported.cost.as_deref().is_some_and(|cost| cost.contains("153 times"))
        );
        assert!(reported.missing.iter().any(|missing| missing.flag.to_string() == "num-mdla=4"));
        let summary = reported.summary();
        assert!(
            summary.starts_with("19 of 20 flags worth setting on mt6993 are not in effect; missing: "),
            "{summary}"
        );
        assert!(summary.contains("num-mdla=4") && !summary.contains("relax-fp32"), "{summary}");
    }

    #[test]
    fn all_flags_lack_nothing_and_another_value_is_another_value() {
        let profile = ProfileRegistry::new().find("mt6989").unwrap().profile;
        let mut flags: Vec<Value> = profile
            .flags
            .iter()
            .map(|flag| json!({"name": flag.name, "value": flag.value}))
            .chain([json!({"name": "show-exec-plan", "value": "true"})])
            .collect();
        let reported = advice(&compiled(json!("mt6989"), json!(flags)), None);
        assert!(
            !reported.is_wanting() && reported.cost.is_none() && reported.unknown.is_none(),
            "{reported:?}"
        );
        flags[0]["value"] = json!("2");
        let reported = advice(&compiled(Value::Null, json!(flags)), Some("mt6989"));
        assert_eq!((reported.missing.len(), reported.different.len()), (0, 1));
        assert_eq!(
            (reported.different[0].flag.to_string(), reported.different[0].held.as_deref()),
            ("opt=3".to_owned(), Some("2"))
        );
        // Another value may be as fast, so its cost is unknown.
        assert_eq!(reported.cost, None);
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        let cases = [
            (compiled(Value::Null, json!([])), "not name its chip"),
            (compiled(json!("mt9999"), json!([])), "no profile for this chip"),
            (compiled(json!("mt6989"), Value::Null), "not list its flags"),
        ];
        for (document, why) in cases {
            let reported = advice(&document, None);
            assert!(reported.unknown.as_deref().is_some_and(|unknown| unknown.contains(why)), "{reported:?}");
            assert!(!reported.is_wanting());
        }
        for nothing in [json!({}), json!({"compilations": 3}), json!({"compilations": []}), json!(null)] {
            assert!(Advisers::built_in().on_document(&nothing, None).is_empty());
        }
        let odd = json!({"compilations": [3, {"flags": [1, {"name": 2}]}]});
        assert_eq!(Advisers::built_in().on_document(&odd, Some("mt6993")).len(), 2);
    }
}
