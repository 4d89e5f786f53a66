//! Text views of reports. The serialisation of each report is its JSON form.

mod bench;
mod bundle;
mod compare;
mod deliver;
mod difference;
mod doctor;
mod document;
mod explain;
mod flow;
mod forecast;
mod html;
mod layout;
mod perplexity;
mod plan;
mod planner;
mod progress;
#[cfg(feature = "hub")]
mod pull;
mod repair;
mod sensitivity;
mod shims;
mod show;
mod thoughts;
mod trust;
mod tune;
mod verify;

pub use bench::bench;
pub use bundle::{compiled, dry_run, inspected, packed};
pub use compare::compared;
pub use deliver::{adb, ai_packs, hub, needs};
pub use difference::difference;
pub use doctor::doctor;
pub use document::document;
pub use explain::explained;
pub use flow::Flow;
pub use html::{is_page, page};
pub use perplexity::perplexity;
pub use plan::{plan, plan_without_notices};
pub use planner::{checked, planner, replayed};
pub use progress::ProgressLine;
#[cfg(feature = "hub")]
pub use pull::pulled;
pub use repair::repair;
pub use sensitivity::sensitivity;
pub use shims::shims;
pub use show::show;
pub use thoughts::Thoughts;
pub use trust::signature;
pub use tune::tune;
pub use verify::{self_test, verify};

use std::io::Write;

use layout::{Table, wrapped};
use shardwright::Ignored;
pub use shardwright_build::units::bytes;
use shardwright_doctor::Fault;

/// How much of a report is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The parts that fit on a screen: the available items, and the next steps.
    Screen,
    /// The whole report, with `-v`.
    Full,
}

impl Detail {
    /// Returns the level for this number of `-v`.
    pub fn of(verbose: u8) -> Self {
        if verbose == 0 { Detail::Screen } else { Detail::Full }
    }

    /// Returns whether the whole report is shown.
    pub fn is_full(self) -> bool {
        self == Detail::Full
    }
}

fn table(header: &[&str]) -> Table {
    Table::new(header)
}

/// Lists fields and files without effect, and the fault of a text file that could not be read.
fn ignored(fields: &[Ignored], unread: Option<&Fault>) -> String {
    let lines = fields.iter().map(Ignored::to_string);
    let lines: String = lines.map(|line| format!("  {}\n", printable(&line))).collect();
    let damaged = unread.map_or_else(String::new, |fault| format!("damaged: {}\n", printable(&fault.error)));
    if lines.is_empty() { damaged } else { format!("\nwithout effect\n{lines}{damaged}") }
}

/// Formats numbers as ranges: `0-3, 5`.
fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part =
        |(first, last): (u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.into_iter().map(part).collect::<Vec<_>>().join(", ")
}

/// Prints a line on standard error. Text from files, shims and planners goes through it: control
/// characters are replaced, so that it cannot control the terminal or imitate a line of this
/// program. An error on a closed or full standard error is ignored. On a terminal the line is
/// wrapped between words.
pub fn say(line: &str) {
    let line = printable(line);
    let line = layout::wrapped_at(&line, 2, layout::width_of_notes());
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Replaces every character that a terminal interprets, including line ends.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if acts_on_a_terminal(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Replaces characters like [`printable`], but keeps line ends and indents lines after the first.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n  ")
}

/// Replaces characters like [`printable`], but keeps line ends, for a view whose lines and columns
/// this program made.
pub fn printable_view(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Checks for control characters, and characters that change text direction.
fn acts_on_a_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Lets a visible bar move by itself. Its library panics if no thread can be started, so that is
/// checked first.
fn tick(bar: &indicatif::ProgressBar) {
    if !bar.is_hidden() && std::thread::Builder::new().spawn(|| ()).is_ok() {
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
    }
}

/// A progress line on standard error, if that is a terminal. It is removed when dropped.
pub struct Busy(indicatif::ProgressBar);

impl Busy {
    /// Shows that `what` is in progress.
    pub fn new(what: &'static str) -> Self {
        let bar = indicatif::ProgressBar::new_spinner().with_message(what);
        tick(&bar);
        Busy(bar)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbours_become_ranges() {
        for (numbers, text) in
            [(&[0, 1, 2, 5][..], "0-2, 5"), (&[], ""), (&[7], "7"), (&[1, 3, 5], "1, 3, 5")]
        {
            assert_eq!(super::ranges(numbers), text);
        }
    }

    #[test]
    fn a_terminal_obeys_nothing_that_is_shown() {
        let text = "fine\r\u{1b}[2Jnote: \u{9b}31m\nerror: \u{202e}x é\t";
        let shown = "fine\u{fffd}\u{fffd}[2Jnote: \u{fffd}31m";
        let rest = "error: \u{fffd}x é\u{fffd}";
        assert_eq!(super::printable(text), format!("{shown}\u{fffd}{rest}"));
        assert_eq!(super::printable_lines(text), format!("{shown}\n  {rest}"));
        assert_eq!(super::printable_view(text), format!("{shown}\n{rest}"));
    }
}
