//! The cases of the comparison: the model and its weights, our bundle, the peer's file, the work.

use super::losses::Losses;

pub const SMALLEST: &str = "gemma3-270m";
pub const USUAL_CONTEXT: &str = "1024";
pub const INT8: &str = "w8-per-channel/a8-dynamic";
pub const INT4: &str = "w4-block32/a8-dynamic";

/// Formats that keep the weights of a file and round activations and KV cache like llama.cpp.
pub const ROUNDED: &str = "as-stored/a8-dynamic-block32/f16";

/// Prompts and generation, as `llama-bench` measures by default. Generation requests only the
/// largest logit.
pub const USUAL: &[&str] = &["-p", "512,128", "-n", "128"];
/// Generation with all logits, as `llama-bench` computes them. A four-bit head is read completely
/// in both cases.
const WHOLE: &[&str] = &["-n", "128", "--all-logits"];
/// Generation with the largest logit alone.
const GREEDY: &[&str] = &["-n", "128"];
/// Generation after few and after many tokens.
const LONG: &[&str] = &["-n", "32", "-d", "128,8192"];
const LONG_PROMPT: &[&str] = &["-p", "512,8192"];

const TWO: &[usize] = &[2];
const ONE_AND_TWO: &[usize] = &[1, 2];

/// Word that selects [`PUBLISHED`].
pub const PUBLISHED_NAME: &str = "published";

/// The weights that the files of a case are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Random numbers in the shape of a model.
    Random,
    /// The published file of a model, decoded to floats.
    Published,
}

/// A file of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Made by `llama-quantize`, of this type.
    Quantised(&'static str),
    /// The published file itself.
    AsPublished,
}

/// What is measured alternately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Our bundle in these formats, a value of the planner's option, and a file of the peer.
    Formats(&'static str, File),
    /// A bundle compiled from the peer's file in [`ROUNDED`], and that file.
    SameFile(File),
    /// Our bundle in these formats twice: with the largest logit alone, and with all of them.
    Logits(&'static str),
}

/// One comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub model: &'static str,
    pub weights: Weights,
    pub pairing: Pairing,
    /// Arguments other than the repetitions and threads.
    pub work: &'static [&'static str],
    /// Context of the bundle.
    pub context: &'static str,
    /// Numbers of threads, each of which is measured.
    pub threads: &'static [usize],
}

const fn random(
    model: &'static str,
    formats: &'static str,
    kind: &'static str,
    work: &'static [&'static str],
) -> Case {
    let pairing = Pairing::Formats(formats, File::Quantised(kind));
    Case { model, weights: Weights::Random, pairing, work, context: USUAL_CONTEXT, threads: TWO }
}

/// Cases with random weights, in the order of measurement, small ones first.
pub const RANDOM: [Case; 14] = [
    random(SMALLEST, INT8, "Q8_0", USUAL),
    random(SMALLEST, INT8, "Q8_0", WHOLE),
    random(SMALLEST, INT4, "Q4_0", USUAL),
    random("qwen3-0.6b", INT8, "Q8_0", USUAL),
    random("qwen3-0.6b", INT8, "Q8_0", WHOLE),
    random("qwen3-0.6b", INT4, "Q4_0", USUAL),
    random("gemma3-1b", INT8, "Q8_0", USUAL),
    random("gemma3-1b", INT8, "Q8_0", WHOLE),
    random("gemma3-1b", INT4, "Q4_0", USUAL),
    Case { context: "8448", ..random("gemma3-1b", INT8, "Q8_0", LONG) },
    random("gemma4-e2b", INT4, "Q4_0", USUAL),
    random("gemma4-e2b", INT8, "Q8_0", USUAL),
    random("gemma4-e2b", INT8, "Q8_0", WHOLE),
    random("gemma4-e4b", INT4, "Q4_0", USUAL),
];

const fn published(model: &'static str, pairing: Pairing, work: &'static [&'static str]) -> Case {
    let weights = Weights::Published;
    Case { model, weights, pairing, work, context: USUAL_CONTEXT, threads: ONE_AND_TWO }
}

const fn qwen(kind: &'static str) -> Case {
    let pairing = Pairing::SameFile(File::Quantised(kind));
    Case { weights: Weights::Random, ..published("qwen3-0.6b", pairing, USUAL) }
}

/// Cases on published weights, then files of K-quants, whose blocks need rows of a multiple of 256
/// values, then long prompts and a large model.
pub const PUBLISHED: [Case; 13] = [
    published(SMALLEST, Pairing::SameFile(File::Quantised("Q8_0")), USUAL),
    published(SMALLEST, Pairing::SameFile(File::Quantised("Q4_0")), USUAL),
    published(SMALLEST, Pairing::SameFile(File::AsPublished), USUAL),
    published("smollm2-135m", Pairing::SameFile(File::AsPublished), USUAL),
    published(SMALLEST, Pairing::Formats("w8-block32/a8-dynamic-block32", File::Quantised("Q8_0")), USUAL),
    published(SMALLEST, Pairing::Formats(INT8, File::Quantised("Q8_0")), USUAL),
    published(SMALLEST, Pairing::Logits(INT8), GREEDY),
    published("smollm2-135m", Pairing::Logits(INT8), GREEDY),
    qwen("Q4_K_M"),
    qwen("Q5_K_M"),
    qwen("Q6_K"),
    Case { context: "8448", threads: ONE_AND_TWO, ..random(SMALLEST, INT8, "Q8_0", LONG_PROMPT) },
    Case { threads: ONE_AND_TWO, ..random("gemma4-e2b", INT4, "Q4_0", USUAL) },
];

/// Returns the cases that names select: [`PUBLISHED`] by its name, others by a part of the model's
/// name. No names select all.
pub fn wanted(names: &[String]) -> Vec<Case> {
    let all = RANDOM.iter().map(|case| (case, false)).chain(PUBLISHED.iter().map(|case| (case, true)));
    let is_wanted = |&(case, is_published): &(&Case, bool)| {
        let selects =
            |name: &String| case.model.contains(name.as_str()) || (is_published && name == PUBLISHED_NAME);
        names.is_empty() || names.iter().any(selects)
    };
    all.filter(is_wanted).map(|(case, _)| *case).collect()
}

/// Returns the types of the files that cases make from the random weights of a model.
pub fn random_types(model: &str) -> impl Iterator<Item = &'static str> {
    let made = RANDOM
        .iter()
        .chain(&PUBLISHED)
        .filter(move |case| case.model == model && case.weights == Weights::Random);
    made.filter_map(|case| match case.pairing {
        Pairing::Formats(_, File::Quantised(kind)) | Pairing::SameFile(File::Quantised(kind)) => Some(kind),
        _ => None,
    })
}

impl File {
    /// Returns the name of the file, as `bench quality` lists it.
    pub const fn name(self) -> &'static str {
        match self {
            File::Quantised(kind) => kind,
            File::AsPublished => "as published",
        }
    }
}

impl Case {
    /// Returns a name such as `gemma3-270m, w8-per-channel/a8-dynamic`.
    pub fn name(&self) -> String {
        let weights = match self.weights {
            Weights::Random => "",
            Weights::Published => ", published weights",
        };
        let ours = match self.pairing {
            Pairing::Formats(formats, _) | Pairing::Logits(formats) => formats,
            Pairing::SameFile(_) => "the same file",
        };
        format!("{}{weights}, {ours}", self.model)
    }

    /// Returns the name of the other side of its pairs.
    pub const fn peer(&self) -> &'static str {
        match self.pairing {
            Pairing::Formats(_, file) | Pairing::SameFile(file) => file.name(),
            Pairing::Logits(_) => "all logits",
        }
    }

    /// Returns the losses of both sides. `formats` are the formats of our bundle. Random weights
    /// have the losses of Gemma 3 270M.
    pub fn losses(&self, losses: &Losses, formats: &str) -> [Option<f64>; 2] {
        let model = match self.weights {
            Weights::Random => SMALLEST,
            Weights::Published => self.model,
        };
        match self.pairing {
            Pairing::Formats(_, file) => [losses.ours(model, None, formats), losses.peer(model, file.name())],
            Pairing::SameFile(file) => {
                [losses.ours(model, Some(file.name()), formats), losses.peer(model, file.name())]
            }
            Pairing::Logits(_) => [losses.ours(model, None, formats); 2],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_select_cases() {
        let count =
            |names: &[&str]| wanted(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).len();
        assert_eq!(count(&[]), RANDOM.len() + PUBLISHED.len());
        assert_eq!(wanted(&[PUBLISHED_NAME.to_owned()]), PUBLISHED);
        assert_eq!((count(&["gemma4-e4b"]), count(&["smollm2"]), count(&["llama"])), (1, 2, 0));
        assert_eq!(count(&["gemma4-e4b", PUBLISHED_NAME]), 1 + PUBLISHED.len());
    }

    #[test]
    fn the_float_file_is_needed_for_every_type_of_a_model() {
        let types: Vec<_> = random_types("qwen3-0.6b").collect();
        for kind in ["Q8_0", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K"] {
            assert!(types.contains(&kind), "{kind}: {types:?}");
        }
        assert_eq!(random_types("smollm2-135m").count(), 0);
    }

    #[test]
    fn cases_have_the_losses_of_their_weights() {
        let losses = Losses::of(json!({ "rows": [
            { "model": SMALLEST, "by": "llama.cpp", "format": "Q8_0", "millinats": 2.5 },
            { "model": SMALLEST, "by": "shardwright", "format": "f/a/s", "millinats": 36.0 },
            { "model": SMALLEST, "by": "shardwright", "file": "Q8_0", "format": ROUNDED, "millinats": 2.0 },
            { "model": "smollm2-135m", "by": "llama.cpp", "format": "as published", "millinats": 4.0 },
        ] }));
        assert_eq!(RANDOM[3].losses(&losses, "f/a/s"), [Some(36.0), Some(2.5)]);
        assert_eq!(PUBLISHED[0].losses(&losses, ROUNDED), [Some(2.0), Some(2.5)]);
        assert_eq!(PUBLISHED[3].losses(&losses, ROUNDED), [None, Some(4.0)]);
        assert_eq!(PUBLISHED[6].losses(&losses, "f/a/s"), [Some(36.0); 2]);
        assert_eq!(PUBLISHED[7].losses(&losses, "f/a/s"), [None; 2]);
        let names = [(PUBLISHED[0].name(), PUBLISHED[0].peer()), (RANDOM[0].name(), RANDOM[0].peer())];
        let [file, formats] =
            ["gemma3-270m, published weights, the same file", "gemma3-270m, w8-per-channel/a8-dynamic"];
        assert_eq!(names, [file, formats].map(|name| (name.to_owned(), "Q8_0")));
    }
}
