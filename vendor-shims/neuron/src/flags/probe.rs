//! Determines the effect of a flag: the same graph is compiled with and without it, and the
//! resulting code is compared.
//!
//! A compiler repeats its option string in its output whether it used it or not, so the code is
//! compared without this string. Compiling the same input twice may result in different bytes. In
//! that case each variant is compiled several times. A flag then counts as applied only if every
//! result with it differs from every result without it by more than equal inputs differ among
//! themselves.

use std::collections::HashMap;
use std::sync::Arc;

use shardwright_neuron_files::blob::code_of;
use shardwright_neuron_files::options::{CompilerOption, OptionString};
use shardwright_shim_abi::FlagOutcome;

use super::{Flags, Reach};
use crate::priority;

/// Compilations of each variant if equal inputs give different bytes.
const REPEATED: usize = 3;
/// Maximum number of results that are kept for later flags and orders. [`MAX_KEPT_BYTES`] limits
/// their bytes.
const MAX_KEPT: usize = 256;
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Factor on the noise. A number has up to four bytes, of which usually one changes from one
/// compilation to the next.
const NUMBERS_FACTOR: usize = 4;
/// Bytes that may differ in addition.
const NUMBERS_SLACK: usize = 64;

/// A graph to compile with and without a flag.
pub struct Subject<'a> {
    /// Description for the evidence, for example `a small graph`.
    pub what: &'a str,
    /// Identifies graph, chip and library. Results are cached under this key.
    pub key: &'a str,
    /// Compiles the graph with an option string. Returns the bytes that the library stored, or the
    /// reason why compiling failed.
    pub compile: &'a mut dyn FnMut(&str) -> Result<Vec<u8>, String>,
}

/// Outcome of a flag, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    pub name: String,
    pub outcome: FlagOutcome,
    /// How the outcome is known.
    pub evidence: String,
}

/// Cache of code that was compiled for probes.
#[derive(Default)]
pub struct Trials {
    kept: HashMap<(String, String), Vec<Arc<[u8]>>>,
    bytes: usize,
}

impl Trials {
    /// Returns at least `count` compilations of a subject with an option string.
    fn made(
        &mut self,
        subject: &mut Subject<'_>,
        options: &str,
        count: usize,
    ) -> Result<Vec<Arc<[u8]>>, String> {
        let key = (subject.key.to_owned(), options.to_owned());
        if self.kept.len() >= MAX_KEPT || self.bytes > MAX_KEPT_BYTES {
            self.kept.clear();
            self.bytes = 0;
        }
        let mut made = self.kept.get(&key).cloned().unwrap_or_default();
        while made.len() < count {
            let stored = (subject.compile)(options)?;
            let code = code_of(&stored);
            if code.is_empty() {
                return Err("its code cannot be told apart from its trailer".to_owned());
            }
            self.bytes += code.len();
            made.push(code.into());
        }
        self.kept.insert(key, made.clone());
        Ok(made)
    }
}

/// Counts the bytes that differ, including the bytes by which one side is longer.
fn differing(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len())
}

/// Returns the largest difference between compilations of the same input.
fn noise(made: &[Arc<[u8]>]) -> usize {
    let pairs = made.iter().enumerate().flat_map(|(index, a)| made[..index].iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| differing(a, b)).max().unwrap_or(0)
}

/// Result of a comparison.
enum Shown {
    /// All results differ, by at least this many bytes.
    Differs(usize),
    Same,
    /// Compilations of equal inputs differ by this many bytes, which may explain the difference
    /// between the variants.
    Unclear(usize),
}

fn compare(
    trials: &mut Trials,
    subject: &mut Subject<'_>,
    (with, without): (&str, &str),
) -> Result<Shown, String> {
    // Each variant is compiled twice, because a single pair that differs is not evidence.
    let (mut flagged, mut bare) = (trials.made(subject, with, 2)?, trials.made(subject, without, 2)?);
    let mut most = noise(&flagged).max(noise(&bare));
    if most == 0 {
        let bytes = differing(&flagged[0], &bare[0]);
        return Ok(if bytes == 0 { Shown::Same } else { Shown::Differs(bytes) });
    }
    flagged = trials.made(subject, with, REPEATED)?;
    bare = trials.made(subject, without, REPEATED)?;
    most = noise(&flagged).max(noise(&bare)).max(most);
    let pairs = flagged.iter().flat_map(|a| bare.iter().map(move |b| differing(a, b)));
    let (least, worst) = pairs.fold((usize::MAX, 0), |(low, high), bytes| (low.min(bytes), high.max(bytes)));
    Ok(if least > NUMBERS_FACTOR * most + NUMBERS_SLACK {
        Shown::Differs(least)
    } else if worst <= most {
        Shown::Same
    } else {
        Shown::Unclear(most)
    })
}

impl Flags {
    /// Determines the outcomes of the order's flags, in order. `echoed` is the option string that
    /// the artefact repeats, if it does.
    ///
    /// A flag is tried on each subject until one shows an effect. If no subject can be compiled, a
    /// flag that the artefact repeats is only *recorded*. A priority does not change the code, so
    /// no graph is compiled for it.
    pub fn judge(
        &self,
        subjects: &mut [Subject<'_>],
        echoed: Option<&str>,
        is_simulated: bool,
        trials: &mut Trials,
    ) -> Vec<Judged> {
        let echoed = echoed.and_then(|echoed| OptionString::parse(echoed).ok());
        let with = self.option_string(None);
        let one = |(index, asked): (usize, &super::Asked)| {
            let (outcome, mut evidence) = match &asked.reach {
                Reach::Refused(reason) => (FlagOutcome::Refused, reason.clone()),
                Reach::Priority(asked) => priority::judged(*asked, is_simulated),
                Reach::Compiler(options) => {
                    let without = self.option_string(Some(index));
                    judge_one(options, (&with, &without), subjects, echoed.as_ref(), trials)
                }
            };
            if let Some(remark) = self.remark(index) {
                evidence = format!("{evidence}; {remark}");
            }
            Judged { name: asked.name.clone(), outcome, evidence }
        };
        self.asked.iter().enumerate().map(one).collect()
    }
}

fn judge_one(
    options: &[CompilerOption],
    (with, without): (&str, &str),
    subjects: &mut [Subject<'_>],
    echoed: Option<&OptionString>,
    trials: &mut Trials,
) -> (FlagOutcome, String) {
    if with == without {
        return (FlagOutcome::Inert, "it requests the default".to_owned());
    }
    let is_echoed = |option: &CompilerOption| {
        echoed.is_some_and(|echoed| echoed.get(&option.name) == Some(option.value.as_str()))
    };
    let is_echoed = !options.is_empty() && options.iter().all(is_echoed);
    let echo = match (echoed, is_echoed) {
        (_, true) => "; the artefact repeats it, which does not prove an effect",
        (Some(_), false) => "; the artefact's options do not repeat it",
        (None, _) => "",
    };
    let (mut same, mut unclear) = (Vec::new(), Vec::new());
    for subject in subjects {
        let what = subject.what;
        // A subject that cannot be compiled without the flag is not evidence about the flag.
        if let Err(error) = trials.made(subject, without, 1) {
            unclear.push(format!("{what} cannot be compiled without it: {error}"));
            continue;
        }
        if let Err(error) = trials.made(subject, with, 1) {
            return (FlagOutcome::Refused, format!("{what} compiles without it but not with it: {error}"));
        }
        match compare(trials, subject, (with, without)) {
            Ok(Shown::Differs(bytes)) => {
                return (
                    FlagOutcome::Applied,
                    format!("{what} compiled with and without it: {bytes} bytes of code differ"),
                );
            }
            Ok(Shown::Same) => same.push(format!("{what} compiled with and without it: the same code")),
            Ok(Shown::Unclear(noise)) => {
                unclear.push(format!("equal compilations of {what} differ too, by {noise} bytes"));
            }
            Err(error) => unclear.push(format!("{what} cannot be compiled again: {error}")),
        }
    }
    let outcome = match (same.is_empty(), unclear.is_empty(), is_echoed) {
        (false, true, _) => FlagOutcome::Inert,
        (.., true) => FlagOutcome::Recorded,
        _ => FlagOutcome::Unknown,
    };
    same.extend(unclear);
    if same.is_empty() {
        same.push("no comparison was compiled".to_owned());
    }
    (outcome, format!("{}{echo}", same.join("; ")))
}

#[cfg(test)]
mod tests {
    use shardwright_neuron_adapter::RuntimeVersion;

    use super::*;

    /// Wraps generated code in the records that surround compiled code, with the two texts near its
    /// end.
    fn stored(code: &[u8], options: &str) -> Vec<u8> {
        let record = r#"{"Compiler": "adapter 8.2.28", "Neuron SHA1": "00"}"#;
        let trailer = shardwright_neuron_files::record::texts(&[record, options]);
        let length = (16 + code.len() + trailer.len() - 4) as u32;
        let words = [length, 12, 8, 0x3852_fd1a];
        [words.iter().flat_map(|word| word.to_le_bytes()).collect(), code.to_vec(), trailer].concat()
    }

    fn flags(pairs: &[(&str, &str)]) -> Flags {
        let soc = crate::soc::tests::of_profile("mt6989");
        Flags::of(pairs.iter().copied(), &soc, Some(RuntimeVersion::new(8, 2, 28)))
    }

    fn judged(
        flags: &Flags,
        compile: &mut dyn FnMut(&str) -> Result<Vec<u8>, String>,
        echoed: Option<&str>,
    ) -> Vec<Judged> {
        let mut subjects = [Subject { what: "a small graph", key: "small", compile }];
        flags.judge(&mut subjects, echoed, true, &mut Trials::default())
    }

    fn outcomes(judged: &[Judged]) -> Vec<FlagOutcome> {
        judged.iter().map(|judged| judged.outcome).collect()
    }

    #[test]
    fn only_other_code_shows_an_effect_however_loud_the_echo() {
        let all = flags(&[("opt", "3"), ("relax-fp32", "true"), ("warp", "1"), ("opt-size", "false")]);
        let mut compile = |options: &str| {
            let code = if options.contains("--opt 3") { [1; 32] } else { [2; 32] };
            Ok(stored(&code, options))
        };
        let reported = judged(&all, &mut compile, Some("--opt 3 --relax-fp32"));
        use FlagOutcome::{Applied, Inert, Refused};
        assert_eq!(outcomes(&reported), [Applied, Inert, Refused, Inert], "{reported:?}");
        assert!(reported[0].evidence.contains("32 bytes of code differ"));
        assert!(reported[1].evidence.contains("the same code") && reported[1].evidence.contains("not prove"));
        assert!(reported[3].evidence.contains("it requests the default"));
    }

    #[test]
    fn a_compiler_that_repeats_everything_and_uses_nothing_is_inert_throughout() {
        let all = flags(&[("opt", "3"), ("gno", "LTS"), ("num-mdla", "4"), ("mlo", "true")]);
        let reported =
            judged(&all, &mut |options| Ok(stored(&[7; 100], options)), Some(&all.option_string(None)));
        assert!(outcomes(&reported).iter().all(|outcome| *outcome == FlagOutcome::Inert), "{reported:?}");
    }

    #[test]
    fn equal_compilations_that_differ_are_told_from_an_effect() {
        let mut count = 0u8;
        let mut noisy = |options: &str, effect: usize| {
            count = count.wrapping_add(1);
            let mut code = vec![0; 4096];
            code[7] = count;
            if options.contains("--opt 3") {
                code[100..100 + effect].fill(9);
            }
            Ok(stored(&code, options))
        };
        let all = flags(&[("opt", "3"), ("relax-fp32", "true")]);
        let large = judged(&all, &mut |options| noisy(options, 1000), None);
        assert_eq!(outcomes(&large), [FlagOutcome::Applied, FlagOutcome::Inert], "{large:?}");
        // An effect that is not larger than chance is not evidence.
        let small = judged(&all, &mut |options| noisy(options, 10), None);
        assert_eq!(small[0].outcome, FlagOutcome::Unknown, "{small:?}");
        assert!(small[0].evidence.contains("differ too"));
    }

    #[test]
    fn a_flag_the_compiler_fails_on_is_refused_and_one_that_cannot_be_tried_is_at_most_recorded() {
        let all = flags(&[("opt", "3"), ("relax-fp32", "true")]);
        let mut fails = |options: &str| match options.contains("--opt 3") {
            true => Err("code 4".to_owned()),
            false => Ok(stored(&[1; 8], options)),
        };
        let reported = judged(&all, &mut fails, None);
        assert_eq!(reported[0].outcome, FlagOutcome::Refused);
        assert!(reported[0].evidence.contains("code 4"));
        // Compiling without this flag still includes the other flag, which makes the compilation
        // fail.
        assert_eq!(reported[1].outcome, FlagOutcome::Unknown);
        let reported = judged(&all, &mut |_| Err("no library".to_owned()), Some("--opt 3"));
        assert_eq!(outcomes(&reported), [FlagOutcome::Recorded, FlagOutcome::Unknown]);
        assert!(reported[1].evidence.contains("do not repeat it"));
        let none = all.judge(&mut [], None, true, &mut Trials::default());
        assert_eq!(outcomes(&none), [FlagOutcome::Unknown; 2]);
        let empty = judged(&all, &mut |_| Ok(Vec::new()), None);
        assert!(empty[0].evidence.contains("cannot be told apart"), "{empty:?}");
    }

    #[test]
    fn results_are_kept_for_the_next_order() {
        let all = flags(&[("opt", "3"), ("relax-fp32", "true")]);
        let mut trials = Trials::default();
        let mut count = 0;
        for _ in 0..3 {
            let mut compile = |options: &str| {
                count += 1;
                Ok(stored(&[1; 8], options))
            };
            let mut subjects = [Subject { what: "x", key: "x", compile: &mut compile }];
            all.judge(&mut subjects, None, true, &mut trials);
        }
        assert_eq!(count, 2 * 3, "with all, without each, twice");
    }
}
