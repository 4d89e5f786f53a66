//! The log on standard error. By default it contains only warnings, printed as notes. `-v` or a
//! variable shows it in full.

use std::fmt::{self, Debug, Write as _};
use std::io::Write;

use shardwright::ErrorKind;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::outcome::Failure;
use crate::views;

/// The variable that sets the log filter unless the command line does.
const VARIABLE: &str = "SHARDWRIGHT_LOG";

/// The default filter, without `-v` or the variable. Vendors' libraries log hundreds of warnings
/// about themselves. Relevant ones are part of an error.
const USUAL: &str = "warn,shim=off";

/// Starts the log, by how often `-v` was given or by the variable.
///
/// # Errors
///
/// Fails if the variable is not a filter.
pub fn begin(verbose: u8) -> Result<(), Failure> {
    let asked = std::env::var(VARIABLE).ok().filter(|asked| verbose == 0 && !asked.is_empty());
    let level = match (verbose, &asked) {
        (0, Some(asked)) => asked,
        (0, None) => USUAL,
        (1, _) => "info,shim=warn",
        (2, _) => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::builder().parse(level).map_err(|error| Failure::Refused {
        kind: ErrorKind::Argument,
        message: format!("invalid {VARIABLE} `{level}`: {error}"),
        help: "set it to levels such as `info` or `warn,shim=info`, or unset it".to_owned(),
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter);
    let log = log.with_writer(|| Log).with_ansi(false).without_time();
    match level == USUAL {
        true => log.event_format(AsNotes).init(),
        false => log.init(),
    }
    Ok(())
}

/// Standard error for the log, which includes names of files and messages of shims.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let shown = views::printable_lines(text.trim_end_matches('\n'));
        // The subscriber would report an error on standard error too, with a macro that panics.
        let _ = writeln!(std::io::stderr().lock(), "{shown}");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Formats an event as a note, with its message only.
struct AsNotes;

impl<S, N> FormatEvent<S, N> for AsNotes
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = Message(String::new());
        event.record(&mut message);
        writeln!(writer, "note: {}", message.0)
    }
}

/// The message among an event's fields.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
