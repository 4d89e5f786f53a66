//! The emulated library and its failures, configured by a JSON file that an environment variable
//! names. The file is checked on every call, and read again if it changed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::Deserialize;
use shardwright_neuron_adapter::setting::PLATFORM_VARIABLE;
use shardwright_neuron_adapter::{FUNCTIONS, RuntimeVersion};
use shardwright_neuron_files::known_options::KnownOption;

use crate::target::Target;

/// The environment variable that names the file. Without it, [`Configuration::default`] applies.
pub const VARIABLE: &str = "SHARDWRIGHT_NEURON_SIMULATOR";

/// The version, unless the file or a client names one.
const USUAL_VERSION: RuntimeVersion = RuntimeVersion::new(8, 2, 28);
/// The processor, unless the file or a client names one.
const USUAL_SOC: &str = "mt6989";

/// Options that only select file locations, printed output or the driver. They are accepted and do
/// not change code.
const WITHOUT_EFFECT_ON_CODE: &[&str] =
    &["dla-file", "gen-debug-info", "mdla-mlo-match-info", "show-exec-plan", "show-memory-summary"];

/// The emulated library: its limits, rules and failures.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Configuration {
    /// Emulated version. If it is `None`, the version that a client requests applies, otherwise
    /// `[8, 2, 28]`.
    pub version: Option<[u8; 3]>,
    /// Emulated processor in lower case, unless the client's variable `MTKNN_ADAPTER_DLA_PLATFORM`
    /// names one. If it is `None`, the processor that a client requests applies, otherwise
    /// `mt6989`.
    pub soc: Option<String>,
    /// Result of `Neuron_getL1MemorySizeKb`.
    pub l1_kilobytes: u32,
    /// Result of `Neuron_getNeuroPilotMagicNumber`.
    pub magic_number: i32,
    /// Maximum number of operations of a model. Compilations of larger models are refused as
    /// unmappable. `None` means no limit.
    pub most_operations: Option<u64>,
    /// Maximum rank of a tensor.
    pub most_dimensions: usize,
    /// Options that change the code. All others are stored in the blob without effect.
    pub honoured: Honoured,
    /// Options that `createWithOptions` and `setOptimizationString` refuse.
    pub refused_options: BTreeSet<String>,
    /// Refused operations, in addition to all that the library does not support.
    pub denied_operations: Vec<i32>,
    /// Refused operand types, in addition to all that the version does not support.
    pub denied_types: Vec<i32>,
    /// Whether two additional rules are enforced. Constants in the client's memory are summed when
    /// they are set and again when a compilation finishes, and a change is refused. Storing a blob
    /// is refused once the compilation was executed.
    pub strict: bool,
    /// Size of the device address space in bytes, used by memories and by code that is imported
    /// permanently. `None` means no limit.
    pub most_device_bytes: Option<u64>,
    /// The last dimension of inputs and outputs is padded to a multiple of this.
    pub padded_to: u32,
    /// File to which every call appends a line.
    pub trace: Option<PathBuf>,
    /// Whether refusals are printed to stderr.
    pub messages: bool,
    /// Injected failures.
    pub failures: Vec<InjectedFailure>,
}

impl Default for Configuration {
    fn default() -> Configuration {
        Configuration {
            version: None,
            soc: None,
            l1_kilobytes: 7168,
            magic_number: 0,
            most_operations: None,
            most_dimensions: 4,
            honoured: Honoured::default(),
            refused_options: BTreeSet::new(),
            denied_operations: Vec::new(),
            denied_types: Vec::new(),
            strict: false,
            most_device_bytes: None,
            padded_to: 1,
            trace: None,
            messages: false,
            failures: Vec::new(),
        }
    }
}

/// Which options change the code.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Honoured {
    /// `known`, `all` or `none`.
    Group(Group),
    /// Exactly the options with these names.
    Names(BTreeSet<String>),
}

/// Groups of options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Options that public sources name, except the options that cannot change code.
    Known,
    /// All options, except the options that cannot change code.
    All,
    /// No options.
    None,
}

impl Default for Honoured {
    fn default() -> Honoured {
        Honoured::Group(Group::Known)
    }
}

impl Honoured {
    /// Reports whether an option changes the code.
    pub fn has(&self, name: &str) -> bool {
        let can = !WITHOUT_EFFECT_ON_CODE.contains(&name);
        match self {
            Honoured::Group(Group::Known) => can && KnownOption::named(name).is_some(),
            Honoured::Group(Group::All) => can,
            Honoured::Group(Group::None) => false,
            Honoured::Names(names) => names.contains(name),
        }
    }
}

/// A failure injected into a function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InjectedFailure {
    /// Name of the function.
    pub function: String,
    /// Number of calls that succeed before the failure, counted over the life of the process.
    #[serde(default)]
    pub skip: u64,
    pub how: How,
}

/// The effect of an injected failure, in most cases instead of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum How {
    /// The call returns this code without doing anything.
    Result(i32),
    /// The process receives this signal.
    Signal(i32),
    /// The process exits with this status.
    Exit(i32),
    /// The call never returns.
    Hang,
    /// The process aborts.
    Abort,
    /// `getCompiledNetworkSize` reports size 0 and `NO_ERROR`.
    Empty,
    /// `getSupportedOperations` reports true for every operation.
    AllTrue,
    /// `getSupportedOperations` reports false for every operation.
    AllFalse,
}

impl Configuration {
    /// Reads the JSON of a configuration.
    pub fn parse(text: &[u8]) -> Result<Configuration, String> {
        let found: Configuration = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        for failure in &found.failures {
            let known = FUNCTIONS.iter().any(|function| function.name == failure.function);
            if !known {
                return Err(format!("there is no function `{}`", failure.function));
            }
        }
        if found.padded_to == 0 || found.padded_to > 1 << 16 {
            return Err("`padded_to` is not in 1 to 65536".to_owned());
        }
        Ok(found)
    }

    /// Returns the emulated version.
    pub fn runtime_version(&self) -> RuntimeVersion {
        let said = self.version.map(|[major, minor, patch]| RuntimeVersion::new(major, minor, patch));
        said.or_else(|| played()?.version).unwrap_or(USUAL_VERSION)
    }

    /// Returns the emulated processor and version. The client's variable overrides the processor in
    /// the file.
    pub fn target(&self) -> Target {
        let said = std::env::var(PLATFORM_VARIABLE).ok().filter(|soc| !soc.is_empty());
        Target {
            version: self.runtime_version(),
            soc: said
                .or_else(|| self.soc.clone())
                .or_else(|| Some(played()?.soc))
                .unwrap_or_else(|| USUAL_SOC.to_owned())
                .to_lowercase(),
            rank: self.most_dimensions,
            denied_operations: self.denied_operations.clone(),
            denied_types: self.denied_types.clone(),
        }
    }
}

struct Read {
    path: PathBuf,
    stamp: (SystemTime, u64),
    configuration: Arc<Configuration>,
}

static LAST: Mutex<Option<Read>> = Mutex::new(None);

/// The library that a client requests from the simulator.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Played {
    soc: String,
    version: Option<RuntimeVersion>,
}

/// The last request of any thread. It applies to threads without a request of their own.
static PLAYED: Mutex<Option<Played>> = Mutex::new(None);

thread_local! {
    /// The request of this thread. Two threads of one process may work for two processors.
    static PLAYED_HERE: RefCell<Option<Played>> = const { RefCell::new(None) };
}

/// Emulates a processor and a version of the library from now on, unless the file names others. If
/// `version` is `None`, the default version applies.
pub fn play(soc: &str, version: Option<RuntimeVersion>) {
    let asked = Played { soc: soc.to_owned(), version };
    PLAYED_HERE.set(Some(asked.clone()));
    *PLAYED.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked);
}

fn played() -> Option<Played> {
    let here = PLAYED_HERE.with_borrow(Clone::clone);
    here.or_else(|| PLAYED.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Returns the current configuration, or the problem with its file.
pub fn current() -> Result<Arc<Configuration>, String> {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) else {
        return Ok(Arc::default());
    };
    let wrong = |problem: String| format!("{VARIABLE}: {}: {problem}", path.display());
    let metadata = std::fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
    let stamp = (metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(last) = last.as_ref().filter(|last| last.path == path && last.stamp == stamp) {
        return Ok(last.configuration.clone());
    }
    let text = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
    let configuration = Arc::new(Configuration::parse(&text).map_err(wrong)?);
    *last = Some(Read { path, stamp, configuration: configuration.clone() });
    Ok(configuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_read_and_typing_errors_are_told() {
        assert_eq!(Configuration::parse(b"{}"), Ok(Configuration::default()));
        let text = br#"{"version": [9, 0, 3], "honoured": ["opt"], "failures": [{"function": "NeuronModel_create", "how": {"result": 4}},
            {"function": "NeuronModel_finish", "skip": 1, "how": "hang"}]}"#;
        let found = Configuration::parse(text).expect("well formed");
        assert_eq!(found.runtime_version(), RuntimeVersion::new(9, 0, 3));
        assert!(found.honoured.has("opt") && !found.honoured.has("gno"));
        assert_eq!(
            (found.failures[0].how, found.failures[1].how, found.failures[1].skip),
            (How::Result(4), How::Hang, 1)
        );
        for (text, problem) in [
            (&br#"{"verison": [9, 0, 3]}"#[..], "verison"),
            (br#"{"failures": [{"function": "NeuronModel_crate", "how": "hang"}]}"#, "NeuronModel_crate"),
            (br#"{"padded_to": 0}"#, "padded_to"),
            (b"[", "EOF"),
        ] {
            let error = Configuration::parse(text).expect_err(problem);
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn two_threads_play_two_processors() {
        let nine = RuntimeVersion::new(9, 2, 0);
        play("mt6991", None);
        let (other, none) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                play("mt6993", Some(nine));
                (played(), Configuration::default().runtime_version())
            });
            let other = other.join().expect("no panic");
            (other, scope.spawn(played).join().expect("no panic"))
        });
        let asked = [played(), other.0, none].map(|asked| asked.expect("one was asked for").soc);
        assert_eq!(asked, ["mt6991", "mt6993", "mt6993"]);
        assert_eq!((other.1, Configuration::default().runtime_version()), (nine, USUAL_VERSION));
        // The file overrides a client's request.
        play("mt6991", Some(nine));
        let file = Configuration::parse(br#"{"version": [8, 2, 20], "soc": "mt6897"}"#).expect("well formed");
        let target = file.target();
        assert_eq!((target.version, target.soc.as_str()), (RuntimeVersion::new(8, 2, 20), "mt6897"));
        let target = Configuration::default().target();
        assert_eq!((target.version, target.soc.as_str()), (nine, "mt6991"));
    }

    #[test]
    fn options_that_print_change_no_code() {
        let known = Honoured::default();
        assert!(known.has("num-mdla") && !known.has("show-exec-plan") && !known.has("invented"));
        assert!(Honoured::Group(Group::All).has("invented") && !Honoured::Group(Group::None).has("opt"));
    }
}
