//! Known options of the Neuron compiler: name, values, first adapter version, and source. The
//! vendor does not publish a list. These options were collected from a help text from the time of
//! adapter 6, from published bundles, and from third-party scripts.

use shardwright_neuron_adapter::RuntimeVersion;

/// Largest value of an option whose range is unknown.
const ANY: i64 = u32::MAX as i64;
/// Maximum number of cores, more than any chip has.
pub const MANY_CORES: i64 = 8;

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
            Source::Client => "passed by a public client",
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
pub struct KnownOption {
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

const fn known(name: &'static str, values: Values, source: Source, description: &'static str) -> KnownOption {
    KnownOption { name, values, default: None, since: None, outdated: None, source, description }
}

/// Description of an option whose effect is not documented publicly.
const UNTOLD: &str = "not publicly documented";

use Source::{Bundle, Client, Help, Script};
use Values::{Chip, Cores, List, Memory, Number, Switch, Text, Words};

/// All known options, grouped by source.
pub const KNOWN: &[KnownOption] = &[
    KnownOption {
        default: Some("2"),
        ..known("opt", Number(0, 3), Help, "optimisation level; 3 needs longer")
    },
    known("opt-accuracy", Switch, Help, "prefers accuracy; reported to run 16-bit integers as 16-bit floats"),
    known("opt-aggressive", Switch, Help, "prefers speed, and may lose accuracy"),
    known("opt-bw", Switch, Help, "prefers little traffic to memory"),
    known("opt-footprint", Switch, Help, "prefers little memory"),
    known("opt-size", Switch, Help, "prefers small code"),
    known("relax-fp32", Switch, Help, "runs 32-bit floats as 16-bit floats"),
    KnownOption {
        default: Some("0"),
        ..known("l1-size-kb", Memory, Help, "fast memory that the compiler may use, in KiB")
    },
    KnownOption { default: Some("0"), ..known("l2-size-kb", Memory, Help, "second-level memory, in KiB") },
    KnownOption { default: Some("1"), ..known("num-mdla", Cores, Help, "cores to compile for") },
    known("num-mvpu", Number(0, MANY_CORES), Help, "vector processors to compile for"),
    KnownOption {
        outdated: Some((9, "platform-config")),
        ..known("arch", Text, Help, "list of architectures to compile for")
    },
    KnownOption { since: Some(8), ..known("platform-config", Chip, Client, "the chip to compile for") },
    KnownOption { since: Some(9), ..known("subsys", Words(&["npu"]), Script, "processor of the chip") },
    known("suppress-input", Switch, Help, "omits the conversion of inputs: the caller lays them out"),
    known("suppress-output", Switch, Help, "omits the conversion of outputs"),
    known("gen-debug-info", Switch, Help, "adds debug information"),
    known("show-exec-plan", Switch, Help, "prints where each operation runs"),
    known("show-memory-summary", Switch, Help, "prints the memory usage"),
    known("disallow-bridge", Switch, Help, "fails if an operation would need the CPU"),
    known("avoid-reorder", Switch, Help, "keeps the order of data"),
    known("extract-static-data", Switch, Help, "turns constants into inputs"),
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
    known("use-sw-dilated-conv", Switch, Help, "rewrites dilated convolutions as other operations"),
    known("use-sw-deconv", Switch, Help, "rewrites transposed convolutions as other operations"),
    known("req-per-ch-conv", Switch, Help, "requantises convolutions channel by channel"),
    known("trim-io-alignment", Switch, Help, "omits padding of inputs and outputs"),
    known("mlo", Switch, Script, UNTOLD),
    known("mdla-mlo", Switch, Bundle, UNTOLD),
    KnownOption { since: Some(9), ..known("mdla-mlo-match-info", Switch, Bundle, UNTOLD) },
    KnownOption { since: Some(9), ..known("mdla-flash-attention-mode", Number(0, ANY), Bundle, UNTOLD) },
    known(
        "mdla-conv-exp",
        Words(&["true", "1", "0"]),
        Bundle,
        "not publicly documented; seen without a value and with 1",
    ),
    known("mdla-int16-lut", Switch, Script, UNTOLD),
    KnownOption { since: Some(9), ..known("mdla-broadcast-act-wgt", Number(0, ANY), Bundle, UNTOLD) },
    KnownOption {
        since: Some(9),
        ..known("mdla-set-conv-xy-split-ic-threshold", Number(0, ANY), Bundle, UNTOLD)
    },
    known("broadcast-act-wgt", Switch, Script, UNTOLD),
    known("broadcast-flow-distance", Number(0, ANY), Bundle, UNTOLD),
    known("split-large-conv-ic", Number(0, ANY), Script, UNTOLD),
    known("split-16a4w-conv-oc", Switch, Script, UNTOLD),
    KnownOption { since: Some(9), ..known("mem-opt", Number(0, ANY), Bundle, UNTOLD) },
    known("dla-opt", Number(0, ANY), Client, UNTOLD),
    known("option-bundle", Text, Client, "a named set of options; two of Google's begin with `gemma-`"),
    known("apusys-config", Text, Client, "settings of the driver, as JSON"),
    known("adapter-disable-map-fd", Switch, Client, UNTOLD),
    known("disable-apusys", Switch, Client, UNTOLD),
];

impl KnownOption {
    /// Returns the option with this name.
    pub fn named(name: &str) -> Option<&'static KnownOption> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Returns whether an adapter is known to have the option. Returns true for an adapter of
    /// unknown version.
    pub fn is_in(&self, adapter: Option<RuntimeVersion>) -> bool {
        match (self.since, adapter) {
            (Some(since), Some(adapter)) => adapter.major >= since,
            _ => true,
        }
    }

    /// Returns the replacement if an adapter reports the option as outdated.
    pub fn outdated_in(&self, adapter: Option<RuntimeVersion>) -> Option<&'static str> {
        let (major, instead) = self.outdated?;
        adapter.filter(|adapter| adapter.major >= major).map(|_| instead)
    }
}
