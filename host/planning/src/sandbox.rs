//! The sandbox: compiles or loads one planner and calls it, each call in a new store.
//!
//! The only import of a planner is `log`, so it has no clock, files or random numbers. The engine
//! settings rule out all other differences between machines, so the same request gives the same
//! plan natively and under Pulley. Fuel bounds its time, a limiter its memory, hostcall fuel the
//! data that is copied out of it, and a budget its log.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use shardwright_vocabulary::{At, Error, ErrorKind};
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Config, Engine, ResourceLimiter, Store, Trap};

use crate::bindings::{self, guest_log, wit};
use crate::convert::host_lessons;
use crate::error::{PlannerError, PlannerErrorKind, RefusalKind};
use crate::feedback::Attempt;
use crate::plan::Plan;
use crate::request::Request;

#[cfg(feature = "compiler")]
pub mod admission;
#[cfg(feature = "compiler")]
mod compile;
mod settings;

#[cfg(feature = "compiler")]
pub use compile::CompiledCache;
pub(crate) use settings::WASMTIME_VERSION;

/// Returns the settings identity of every pack.
pub(crate) fn pulley_settings_id() -> String {
    settings::id(EngineKind::Pulley)
}

/// The interface that a planner exports.
pub const INTERFACE: &str = "shardwright:planner/api@0.2.0-draft";
/// The interface that a planner may import.
pub const LOG_INTERFACE: &str = "shardwright:planner/host@0.2.0-draft";

/// Execution engines for planners. Both give the same answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Machine code of this processor, compiled on this machine.
    #[cfg(feature = "compiler")]
    Native,
    /// Wasmtime's portable interpreter. It is about ten times slower, which does not matter for
    /// planning.
    Pulley,
}

impl EngineKind {
    /// Returns the name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "compiler")]
            EngineKind::Native => "native",
            EngineKind::Pulley => "pulley",
        }
    }
}

/// Bounds of one planner. The defaults are far above the needs of a real planner on a model of 8
/// billion parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Size of a `.wasm` in bytes. A Rust planner has about 0.1 MB, a Python one 18 MB.
    pub wasm_bytes: u64,
    /// Maximum time to compile.
    pub compile_time: Duration,
    /// Fuel of one call, about one unit per instruction: half a second natively, some seconds under
    /// Pulley.
    pub fuel: u64,
    /// Total bytes of all linear memories.
    pub memory_bytes: usize,
    /// Total elements of all tables.
    pub table_elements: usize,
    /// Bytes copied out of the planner in one call. Strings of a guest may overlap, so they can
    /// exceed its memory bound.
    pub output_bytes: usize,
    /// Log lines of one call.
    pub log_lines: usize,
    /// Log bytes of one call.
    pub log_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            wasm_bytes: 32 << 20,
            compile_time: Duration::from_secs(60),
            fuel: 2_000_000_000,
            memory_bytes: settings::MEMORY_BYTES,
            table_elements: 100_000,
            output_bytes: 4 << 20,
            log_lines: 1000,
            log_bytes: 256 << 10,
        }
    }
}

/// One line of a planner's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub level: LogLevel,
    pub message: String,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Details for the planner's author.
    Debug,
    Info,
    /// An input was ignored or approximated.
    Warn,
    Error,
}

/// An option of a planner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionDescription {
    pub name: String,
    /// Description of the legal values.
    pub values: String,
    /// Effect of the option.
    pub summary: String,
}

/// A planner's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannerDescription {
    pub name: String,
    pub version: String,
    /// Summary in one sentence.
    pub summary: String,
    /// Options that the planner supports.
    pub options: Vec<OptionDescription>,
}

/// An engine with our settings. Cheap to clone, because clones share the engine.
#[derive(Debug, Clone)]
pub struct Sandbox {
    engine: Engine,
    kind: EngineKind,
    bounds: Arc<Bounds>,
}

impl Sandbox {
    /// Creates a sandbox with the default bounds.
    pub fn new(kind: EngineKind) -> Result<Self, PlannerError> {
        Self::with_bounds(kind, Bounds::default())
    }

    /// Creates a sandbox with the given bounds.
    pub fn with_bounds(kind: EngineKind, bounds: Bounds) -> Result<Self, PlannerError> {
        let failed = |error: wasmtime::Error| named("sandbox", sandbox_failed(&error));
        let config: Config = settings::config(kind).map_err(failed)?;
        let engine = Engine::new(&config).map_err(failed)?;
        Ok(Self { engine, kind, bounds: Arc::new(bounds) })
    }

    /// Returns the engine that executes planners.
    pub fn kind(&self) -> EngineKind {
        self.kind
    }

    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Returns the identity of the settings that compiled code depends on, 64 hexadecimal digits.
    /// Code compiled with another identity cannot run here.
    pub fn settings_id(&self) -> String {
        settings::id(self.kind)
    }

    /// Loads a planner from compiled code.
    ///
    /// # Safety
    ///
    /// `code` must be the unaltered output of [`Component::serialize`] or `precompile_component`.
    /// Wasmtime does not check it, and altered code can do anything to this process.
    pub(crate) unsafe fn deserialize(&self, origin: &str, code: &[u8]) -> Result<Planner, PlannerError> {
        // SAFETY: passed on to the caller.
        let component = unsafe { Component::deserialize(&self.engine, code) };
        self.planner(origin, component.map_err(|error| named(origin, garbage(format!("{error:#}"))))?)
    }

    /// Checks the imports and exports of a component, links it, and reads its description.
    fn planner(&self, origin: &str, component: Component) -> Result<Planner, PlannerError> {
        check_interface(&self.engine, &component).map_err(|error| named(origin, error))?;
        let mut linker = Linker::<Guest>::new(&self.engine);
        guest_log::add_to_linker::<_, HasSelf<Guest>>(&mut linker, |guest| guest)
            .map_err(|error| named(origin, sandbox_failed(&error)))?;
        let misfit = |error: wasmtime::Error| {
            named(origin, wrong_world(format!("{INTERFACE} as this host defines it ({error:#})")))
        };
        let instance = linker.instantiate_pre(&component).map_err(misfit)?;
        let instance = bindings::PlannerPre::new(instance).map_err(misfit)?;
        let mut planner = Planner {
            sandbox: self.clone(),
            component,
            instance,
            description: PlannerDescription {
                name: origin.to_owned(),
                version: String::new(),
                summary: String::new(),
                options: vec![],
            },
            load_notice: None,
        };
        planner.description = planner.describe(origin)?;
        Ok(planner)
    }
}

fn named(planner: &str, kind: impl Into<PlannerErrorKind>) -> PlannerError {
    PlannerError { planner: planner.to_owned(), version: None, kind: kind.into() }
}

/// Creates the error of a planner that is too large to compile.
#[cfg(feature = "compiler")]
fn too_large(message: String) -> Error {
    Error::new(ErrorKind::Planning, message).with_help("build it with optimisation, or make it smaller")
}

/// Creates the error of a failure of the sandbox itself.
fn sandbox_failed(error: &wasmtime::Error) -> Error {
    Error::internal(format!("the sandbox failed: {error:#}"))
}

fn garbage(reason: impl Display) -> Error {
    Error::invalid(format!("not a WebAssembly component: {reason}"))
        .with_help("name a planner's component or pack; `shardwright planner new` begins a planner")
}

fn wrong_world(expected: impl Display) -> Error {
    Error::invalid(format!("the component does not export {expected}"))
        .with_help("the crate must call `export_planner!`")
}

/// Checks imports against the allow-list and finds the interface among the exports. Linking would
/// refuse the same components, but with less helpful messages.
fn check_interface(engine: &Engine, component: &Component) -> Result<(), Error> {
    let component_type = component.component_type();
    for (import, item) in component_type.imports(engine) {
        // An import that has only types, as some toolchains add, is harmless: a planner cannot call
        // it.
        let types_only = match &item.ty {
            ComponentItem::ComponentInstance(instance) => instance
                .exports(engine)
                .all(|(_, export)| matches!(export.ty, ComponentItem::Type(_) | ComponentItem::Resource(_))),
            ComponentItem::Type(_) => true,
            _ => false,
        };
        if !is_ours(import) || !types_only && !same_line(import, LOG_INTERFACE) {
            return Err(forbidden(import));
        }
    }
    check_exports(component_type.exports(engine).map(|(export, _)| export))
}

/// Returns whether an import belongs to our interfaces.
fn is_ours(import: &str) -> bool {
    import.starts_with("shardwright:planner/")
}

fn forbidden(import: &str) -> Error {
    Error::invalid(format!("the planner imports `{import}`; a planner may import only {LOG_INTERFACE}"))
        .with_help("build the planner for wasm32-unknown-unknown; wasip1 and wasip2 add imports of their own")
}

/// Finds the interface among the exports.
fn check_exports<'a>(exports: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let base = base(INTERFACE);
    let mut other = None;
    for export in exports {
        if same_line(export, INTERFACE) {
            return Ok(());
        }
        if crate::sandbox::base(export) == base {
            other = Some(export);
        }
    }
    Err(match other {
        Some(found) => {
            Error::incompatible(format!("the planner exports {found}, this host supports {INTERFACE}"))
                .with_help("build the planner against the SDK of this release")
        }
        None => wrong_world(INTERFACE),
    })
}

/// Returns the name of an interface without its version.
fn base(interface: &str) -> &str {
    interface.split_once('@').map_or(interface, |(base, _)| base)
}

/// Returns whether two interface names differ at most in the patch version. Before 1.0, a new minor
/// version is a breaking change.
fn same_line(left: &str, right: &str) -> bool {
    let line = |name: &str| {
        let (base, version) = name.split_once('@')?;
        let (line, _patch) = version.rsplit_once('.')?;
        Some((base.to_owned(), line.to_owned()))
    };
    // A draft version is only compatible with itself.
    let is_draft = |name: &str| name.split_once('@').is_some_and(|(_, version)| version.contains('-'));
    match is_draft(left) || is_draft(right) {
        true => left == right,
        false => line(left).is_some() && line(left) == line(right),
    }
}

/// A planner that is ready to be called. Every call runs in a new instance.
pub struct Planner {
    sandbox: Sandbox,
    #[cfg_attr(not(feature = "compiler"), allow(dead_code, reason = "kept for writing packs and caches"))]
    component: Component,
    instance: bindings::PlannerPre<Guest>,
    description: PlannerDescription,
    load_notice: Option<String>,
}

impl std::fmt::Debug for Planner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Planner")
            .field("description", &self.description)
            .field("engine", &self.sandbox.kind)
            .finish_non_exhaustive()
    }
}

/// The log and the result of a call.
#[derive(Debug)]
pub struct Answer {
    /// The unchecked plan, or the error.
    pub plan: Result<Plan, PlannerError>,
    /// Log of the call.
    pub log: Vec<LogLine>,
    /// Fuel used by the call, out of [`Bounds::fuel`].
    pub fuel: u64,
    /// Bytes of linear memory at the end of the call, out of [`Bounds::memory_bytes`].
    pub memory: usize,
}

impl Planner {
    /// Multiplies the fuel of each call by `shares`.
    pub(crate) fn with_fuel_shares(mut self, shares: u64) -> Self {
        let bounds = &*self.sandbox.bounds;
        let bounds = Bounds { fuel: bounds.fuel.saturating_mul(shares), ..bounds.clone() };
        self.sandbox.bounds = Arc::new(bounds);
        self
    }

    /// Returns the planner's description of itself.
    pub fn description(&self) -> &PlannerDescription {
        &self.description
    }

    /// Returns a notice about loading that the caller must report: that the compiled form in the
    /// cache was not trusted and the planner was compiled again, or that it could not be compiled
    /// and is interpreted.
    pub fn load_notice(&self) -> Option<&str> {
        self.load_notice.as_deref()
    }

    /// Sets the notice about loading.
    #[must_use]
    pub fn loaded_with(mut self, notice: String) -> Self {
        self.load_notice = Some(notice);
        self
    }

    /// Returns the bounds of its calls.
    pub fn bounds(&self) -> &Bounds {
        &self.sandbox.bounds
    }

    /// Returns the engine that runs it.
    pub fn engine(&self) -> EngineKind {
        self.sandbox.kind
    }

    /// Creates an error of this planner.
    pub(crate) fn error(&self, kind: impl Into<PlannerErrorKind>) -> PlannerError {
        let PlannerDescription { name, version, .. } = &self.description;
        let version = (!version.is_empty()).then(|| version.clone());
        PlannerError { planner: name.clone(), version, kind: kind.into() }
    }

    /// Requests a plan. The plan is the guest's unchecked output: [`check`](crate::check::check)
    /// it.
    pub fn make_plan(&self, request: &Request) -> Answer {
        let request = wit::Request::from(request);
        self.answer("make-plan", |api, store| api.call_make_plan(store, &request))
    }

    /// Requests another plan after failed attempts. `history` must not be empty, and its last plan
    /// is the previous one.
    pub fn revise(&self, request: &Request, history: &[Attempt]) -> Answer {
        let request = wit::Request::from(request);
        let history: Vec<wit::Attempt> = match history.iter().map(wit::Attempt::try_from).collect() {
            Ok(history) => history,
            Err(fault) => {
                let error = self.error(fault.at("plan"));
                return Answer { plan: Err(error), log: Vec::new(), fuel: 0, memory: 0 };
            }
        };
        let none = wit::Plan {
            shards: vec![],
            tables: vec![],
            fallback: vec![],
            speculation: None,
            reasons: vec![],
            lessons: vec![],
            extensions: vec![],
        };
        let previous = history.last().map_or(&none, |attempt| &attempt.plan);
        self.answer("revise", |api, store| api.call_revise(store, &request, previous, &history))
    }

    fn answer(
        &self,
        function: &'static str,
        call: impl FnOnce(&wit::Guest, &mut Store<Guest>) -> wasmtime::Result<Result<wit::Plan, wit::Refusal>>,
    ) -> Answer {
        let (result, spent) = self.call(function, call);
        let Spent { log, fuel, memory } = spent;
        let plan = result.map_err(|kind| self.error(kind)).and_then(|plan| match plan {
            Ok(plan) => Plan::try_from(plan).at("plan").map_err(|fault| self.error(fault)),
            Err(refusal) => Err(self.error(refused(refusal))),
        });
        Answer { plan, log, fuel, memory }
    }

    fn describe(&self, origin: &str) -> Result<PlannerDescription, PlannerError> {
        let (result, _) = self.call("describe", |api, store| api.call_describe(store));
        let description = result.map_err(|kind| named(origin, kind))?;
        // Names are used in messages and file headers.
        let short = |text: String, bytes: usize| {
            let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
            let printable = |character: char| if character.is_control() { ' ' } else { character };
            text[..end].chars().map(printable).collect::<String>()
        };
        let option = |option: wit::OptionDescription| OptionDescription {
            name: short(option.name, NAME_BYTES),
            values: short(option.values, TEXT_BYTES),
            summary: short(option.summary, TEXT_BYTES),
        };
        Ok(PlannerDescription {
            name: short(description.name, NAME_BYTES),
            version: short(description.version, NAME_BYTES),
            summary: short(description.summary, TEXT_BYTES),
            options: description.options.into_iter().take(OPTIONS).map(option).collect(),
        })
    }

    /// Makes one call in a new store. Returns the use of resources even if the call fails.
    fn call<T>(
        &self,
        function: &'static str,
        call: impl FnOnce(&wit::Guest, &mut Store<Guest>) -> wasmtime::Result<T>,
    ) -> (Result<T, PlannerErrorKind>, Spent) {
        let bounds = &self.sandbox.bounds;
        let guest = Guest { bounds: Arc::clone(bounds), log: vec![], log_bytes: 0, memory: 0, tables: 0 };
        let mut store = Store::new(&self.sandbox.engine, guest);
        store.limiter(|guest| guest);
        store.set_hostcall_fuel(bounds.output_bytes);
        let result = store
            .set_fuel(bounds.fuel)
            .and_then(|()| self.instance.instantiate(&mut store))
            .and_then(|planner| call(planner.shardwright_planner_api(), &mut store))
            .map_err(|error| classify(&error, function, bounds));
        // If setting fuel fails, that is the error, and no fuel was used.
        let fuel = bounds.fuel.saturating_sub(store.get_fuel().unwrap_or(bounds.fuel));
        let Guest { log, memory, .. } = store.into_data();
        (result, Spent { log, fuel, memory: memory.min(bounds.memory_bytes) })
    }
}

/// Log and resource use of a call.
struct Spent {
    log: Vec<LogLine>,
    fuel: u64,
    memory: usize,
}

/// Maximum bytes kept of a planner's names.
const NAME_BYTES: usize = 128;
/// Maximum bytes kept of a planner's texts.
const TEXT_BYTES: usize = 4096;
/// Maximum options kept of a description.
const OPTIONS: usize = 64;

fn refused(refusal: wit::Refusal) -> PlannerErrorKind {
    let kind = match refusal.kind {
        wit::RefusalKind::Unsupported => RefusalKind::Unsupported,
        wit::RefusalKind::OverLimit => RefusalKind::OverLimit,
        wit::RefusalKind::OverMemory => RefusalKind::OverMemory,
        wit::RefusalKind::OverSize => RefusalKind::OverSize,
        wit::RefusalKind::TooSlow => RefusalKind::TooSlow,
        wit::RefusalKind::OverQuality => RefusalKind::OverQuality,
        wit::RefusalKind::StateNotShareable => RefusalKind::StateNotShareable,
        wit::RefusalKind::Exhausted => RefusalKind::Exhausted,
        wit::RefusalKind::InvalidRequest => RefusalKind::InvalidRequest,
    };
    let mut message = refusal.message;
    let end = (0..=TEXT_BYTES.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
    message.truncate(end.unwrap_or(0));
    let mut details = refusal.details;
    details.truncate(OPTIONS);
    PlannerErrorKind::Refused { kind, message, details, lessons: host_lessons(refusal.lessons).into() }
}

/// Returns why a call ended. The host's own stops are checked first: they are the actual cause,
/// whichever trap carries them.
fn classify(error: &wasmtime::Error, function: &'static str, bounds: &Bounds) -> PlannerErrorKind {
    let over_bound = |message: String| PlannerErrorKind::OverBound(Error::new(ErrorKind::Planning, message));
    let trapped = |reason: &str| {
        let error = Error::new(ErrorKind::Planning, format!("stopped in `{function}`: {reason}"));
        let help = "a panic in the planner has this effect; return a refusal instead of panicking";
        PlannerErrorKind::Trapped(error.with_help(help))
    };
    match error.downcast_ref::<Stop>() {
        Some(Stop::Memory) => {
            let cap = bounds.memory_bytes;
            return over_bound(format!("requested more than {cap} bytes of memory in `{function}`"));
        }
        Some(Stop::Log) => {
            let (lines, bytes) = (bounds.log_lines, bounds.log_bytes);
            return over_bound(format!("logged more than {lines} lines or {bytes} bytes in `{function}`"));
        }
        None => {}
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => {
            return over_bound(format!("used up its {} units of fuel in `{function}`", bounds.fuel));
        }
        Some(Trap::StackOverflow) => {
            let message = format!("overflowed its stack in `{function}`");
            return PlannerErrorKind::Trapped(Error::new(ErrorKind::Planning, message));
        }
        Some(trap) => return trapped(&trap.to_string()),
        None => {}
    }
    let reason = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    if is_out_of_memory(error) {
        let message = format!("the system has too little memory for `{function}`: {reason}");
        let help = "free memory, or raise the limit of the process: a planner reserves 64 MiB of address \
                    space";
        return Error::new(ErrorKind::Memory, message).with_help(help).into();
    }
    // Wasmtime has no public type for this error.
    if error
        .chain()
        .any(|cause| cause.to_string().contains("fuel allocated for hostcalls has been exhausted"))
    {
        return over_bound(format!("returned more than {} bytes from `{function}`", bounds.output_bytes));
    }
    // The remaining case is a value that violates the interface, such as an unknown case of a
    // variant.
    trapped(&reason)
}

/// Returns whether the system refused to allocate memory. Wasmtime passes on the system's error in
/// a type of a library, which can only be recognised by its text.
fn is_out_of_memory(error: &wasmtime::Error) -> bool {
    let system = std::io::Error::from_raw_os_error(ENOMEM).to_string();
    error.is::<wasmtime::OutOfMemory>() || error.chain().any(|cause| cause.to_string().contains(&system))
}

/// The error number for insufficient memory on every Unix.
const ENOMEM: i32 = 12;

/// Host state of one instance.
struct Guest {
    bounds: Arc<Bounds>,
    log: Vec<LogLine>,
    log_bytes: usize,
    memory: usize,
    tables: usize,
}

/// Why the host stopped a guest.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("the memory bound is reached")]
    Memory,
    #[error("the log budget is used up")]
    Log,
}

impl guest_log::Host for Guest {
    fn log(&mut self, level: guest_log::Level, message: String) -> wasmtime::Result<()> {
        self.log_bytes = self.log_bytes.saturating_add(message.len());
        if self.log.len() >= self.bounds.log_lines || self.log_bytes > self.bounds.log_bytes {
            return Err(Stop::Log.into());
        }
        let level = match level {
            guest_log::Level::Debug => LogLevel::Debug,
            guest_log::Level::Info => LogLevel::Info,
            guest_log::Level::Warn => LogLevel::Warn,
            guest_log::Level::Error => LogLevel::Error,
        };
        self.log.push(LogLine { level, message });
        Ok(())
    }
}

impl ResourceLimiter for Guest {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _max: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.memory = self.memory.saturating_add(desired.saturating_sub(current));
        if self.memory > self.bounds.memory_bytes { Err(Stop::Memory.into()) } else { Ok(true) }
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _max: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.tables = self.tables.saturating_add(desired.saturating_sub(current));
        if self.tables > self.bounds.table_elements { Err(Stop::Memory.into()) } else { Ok(true) }
    }

    /// A Python planner has 17 core instances, and no planner needs more than a few dozen.
    fn instances(&self) -> usize {
        200
    }

    fn tables(&self) -> usize {
        200
    }

    fn memories(&self) -> usize {
        20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A planner that the system has no memory for is not at fault. Then a plan is made without
    /// one, as for every planner that is stopped.
    #[test]
    fn a_lack_of_memory_is_named_and_not_the_planner() {
        let kind = |message: String| classify(&wasmtime::Error::msg(message), "describe", &Bounds::default());
        let system = std::io::Error::from_raw_os_error(ENOMEM);
        let PlannerErrorKind::Other(error) = kind(format!("failed to map a memory: {system}")) else {
            panic!("another kind of error");
        };
        assert_eq!(error.kind(), ErrorKind::Memory);
        assert!(error.message().starts_with("the system has too little memory for `describe`"), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("64 MiB of address space")), "{error:?}");
        assert!(matches!(kind("odd".to_owned()), PlannerErrorKind::Trapped(_)));
    }
}
