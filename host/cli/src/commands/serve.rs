//! `serve`: models over HTTP, until the program is interrupted or terminated.

use std::net::SocketAddr;

use shardwright::{Error, Model};
use shardwright_serve::{Keys, Limits, ServedModel, Server, Stopper};

use super::{expect_applicable, json, open, say_notices_and_of_text, write};
use crate::arguments::{
    BundledArguments, Format, KeySource, ServeArguments, ServedArgument, TargetArguments,
};
use crate::outcome::{Failure, Outcome};
use crate::{interrupt, views};

/// Serves models until the program is interrupted or terminated. Open requests are finished.
pub fn serve(arguments: &ServeArguments, format: Format) -> Result<Outcome, Failure> {
    let mut builder = Server::builder()
        .address(SocketAddr::new(arguments.address, arguments.port))
        .limits(limits(arguments));
    if let Some(source) = &arguments.api_key {
        builder = builder.keys(match source {
            KeySource::File(path) => Keys::from_file(path)?,
            KeySource::Variable(name) => Keys::from_variable(name)?,
        });
    }
    if arguments.no_auth {
        builder = builder.without_keys();
    }
    if let Some(bytes) = arguments.memory_budget {
        builder = builder.memory_budget(bytes);
    }
    for name in &arguments.host_name {
        builder = builder.host(name);
    }
    for model in &arguments.models {
        builder = builder.model(opener(model, arguments)?);
    }
    let server = builder.bind()?;
    let stopper = server.stopper();
    stop_by_signals(&stopper);
    announce(&format!("http://{}", server.address()), &server.models().collect::<Vec<_>>(), format)?;
    server.run()?;
    views::say("stopped");
    Ok(Outcome::Done)
}

fn limits(arguments: &ServeArguments) -> Limits {
    let mut limits = Limits::default();
    if let Some(count) = arguments.open_requests {
        limits.open_requests = count as usize;
        // Pages and reports need connections too.
        limits.connections = limits.connections.max(2 * limits.open_requests);
    }
    if let Some(bytes) = arguments.prefix_cache {
        limits.prefix_cache_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    limits.drain_time = arguments.drain.unwrap_or(limits.drain_time);
    limits
}

/// Returns a model that is opened on demand, as other commands open it.
fn opener(model: &ServedArgument, arguments: &ServeArguments) -> Result<ServedModel, Failure> {
    let bundled =
        BundledArguments { compiled_from: None, memory_budget: None, expected: arguments.expected.clone() };
    let (target, execution) = (arguments.target.clone(), arguments.execution.clone());
    // Options that do not apply are refused before any model is opened.
    let is_bundle = expect_applicable(&target, &execution, &model.path, &bundled)?;
    let path = model.path.clone();
    let open_within = move |budget: Option<u64>| -> Result<Model, Failure> {
        let memory_budget = budget.filter(|_| is_bundle);
        let bundled = BundledArguments { memory_budget, ..bundled.clone() };
        let target: &TargetArguments = &target;
        let model = open(target, &execution, &path, &bundled, &[])?;
        say_notices_and_of_text(&model, false)?;
        Ok(model)
    };
    Ok(ServedModel::new(&model.id, move |budget| open_within(budget).map_err(error_of)))
}

/// Converts a failure to open a model. The server answers requests with it.
fn error_of(failure: Failure) -> Error {
    match failure {
        Failure::Library(error) => error,
        Failure::Arguments(message) => Error::argument(message),
        Failure::Refused { kind, message, help } => Error::new(kind, message).with_help(help),
        Failure::Io { what, source } => Error::from(source).at(what),
        Failure::ReaderGone => Error::missing("standard output is closed"),
    }
}

/// Prints the address on standard output, for people and for programs that start the server.
fn announce(address: &str, models: &[&str], format: Format) -> Result<(), Failure> {
    let text = match format {
        Format::Text => format!("listening on {address}, serving {}\n", models.join(", ")),
        Format::Json => json(&serde_json::json!({ "listening": address, "models": models }))?,
    };
    write(views::printable_view(&text).as_bytes()).map(drop)
}

/// Stops the server at an interrupt or a termination. The second one ends the program at once.
fn stop_by_signals(stopper: &Stopper) {
    let interrupted = stopper.clone();
    interrupt::call(move || interrupted.stop());
    #[cfg(unix)]
    stop_at_termination(stopper.clone());
}

#[cfg(unix)]
fn stop_at_termination(stopper: Stopper) {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use signal_hook::consts::SIGTERM;

    /// Exit code of a program that a termination ended: 128 and the number of the signal.
    const TERMINATED: i32 = 128 + SIGTERM;

    let listen = || -> std::io::Result<()> {
        let (mut read, written) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(SIGTERM, written)?;
        let wait = move || {
            let mut byte = [0];
            if read.read_exact(&mut byte).is_ok() {
                stopper.stop();
            }
            if read.read_exact(&mut byte).is_ok() {
                std::process::exit(TERMINATED);
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
    };
    if let Err(error) = listen() {
        tracing::warn!("cannot handle terminations, so the first one ends the program at once: {error}");
    }
}
