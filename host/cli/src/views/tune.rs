//! Shows the results of tuning as text.

use std::fmt::Write;

use shardwright_build::LossReport;
use shardwright_build::units;
use shardwright_checkpoints::MeasuredDraft;
use shardwright_tune::{Outcome, Spread, TimedPlan, TuneReport};

use super::{Detail, difference, printable, table, wrapped};

/// Shows how tuning ended, both plans with their times, the plans that were tried, and what
/// changed.
pub fn tune(report: &TuneReport, detail: Detail) -> String {
    let mut text = String::new();
    let mut line = |what: String| {
        let _ = writeln!(text, "{}", wrapped(&printable(&what), 10));
    };
    let TuneReport { model, soc, prompt_tokens, .. } = report;
    line(format!("model     {model} for {soc}"));
    if let Some(executor) = &report.emulated_on {
        line(format!("          *emulated on {executor}*: its times, not the chip's"));
    }
    line(format!("outcome   {}", outcome(report)));
    line(format!("before    {}", timed(&report.before, *prompt_tokens)));
    line(format!("after     {}", timed(&report.after, *prompt_tokens)));
    if let Some(ratio) = &report.ratio {
        line(format!("ratio     {}, alternating with the default plan", quotient(ratio)));
    }
    if let Some(advice) = &report.advice {
        let ratio = advice.ratio.map_or_else(String::new, |ratio| format!(", {}", quotient(&ratio)));
        line(format!("advice    `{}` is faster still{ratio}: pass it to later commands", advice.asked));
    }
    if let Some(trade) = &report.trade {
        let ratio = trade.ratio.map_or_else(String::new, |ratio| format!(", {}", quotient(&ratio)));
        let lost = trade.loss.map_or("an unknown loss".to_owned(), loss);
        line(format!("trade     `{}` is faster at {lost}{ratio}", trade.asked));
    }
    let (measured, rows) = (report.measured_rows, report.rows);
    line(match &report.kept {
        Some(folder) => format!("kept      {measured} of {rows} times, for later plans, in {folder}"),
        None => "kept      no times for later plans".to_owned(),
    });
    for draft in &report.drafts {
        line(format!("draft     {}", expected(draft, soc)));
    }
    let mut tried = table(&["plan", "options", "time / default", "result"]);
    for trial in &report.tried {
        let plan = trial.plan.as_deref().and_then(|plan| plan.get(..8)).unwrap_or("-");
        let ratio = trial.ratio.as_ref().map_or_else(|| "-".to_owned(), quotient);
        tried.add_row([plan.to_owned(), trial.asked.clone(), ratio, printable(&trial.result)]);
    }
    let _ = writeln!(text, "\n{tried}\n");
    text.push_str(&difference(&report.change, detail));
    text
}

/// Shows the measurements of a draft.
fn expected(draft: &MeasuredDraft, soc: &str) -> String {
    let MeasuredDraft { accepted_steps, silent_steps, text, .. } = draft;
    let steps: u64 = accepted_steps.iter().map(|steps| u64::from(*steps)).sum();
    let right: u64 = (0..).zip(accepted_steps).map(|(right, steps)| right * u64::from(*steps)).sum();
    let each = right as f64 / (steps as f64).max(1.0);
    let time = |nanoseconds: u64| units::seconds(nanoseconds as f64 / 1e9);
    let time = match draft.times.get(soc) {
        Some(times) => format!(
            "{} per token, while the model needs {}",
            time(times.proposed_nanoseconds),
            time(times.model_nanoseconds)
        ),
        None => format!("its time with {soc} is not known"),
    };
    let all = steps + u64::from(*silent_steps);
    let name = &draft.draft.name;
    format!(
        "{name}: {each:.1} correct tokens per step, of at most 15, over {all} steps ({text}); {time}; for plans that name it"
    )
}

fn outcome(report: &TuneReport) -> &'static str {
    match report.outcome {
        Outcome::Faster => "faster by more than the spread",
        Outcome::FasterWithSetting => "a planner setting is faster by more than the spread; see the advice",
        Outcome::NothingToWin => "no gain: no plan of this planner is faster by more than the spread",
        Outcome::Unfinished => "the time ran out before all plans were timed; the next run continues",
    }
}

/// Formats the loss of formats, for a line with a time.
fn loss(loss: LossReport) -> String {
    match loss {
        LossReport::None => "no loss".to_owned(),
        LossReport::Measured { micronats } => format!("{} lost", units::micronats(micronats)),
        LossReport::Expected { micronats, .. } => format!("about {} lost", units::micronats(micronats)),
        LossReport::NotMeasured { .. } => "an unknown loss".to_owned(),
    }
}

/// Formats shards and times of a plan.
fn timed(plan: &TimedPlan, prompt_tokens: u32) -> String {
    let name = plan.plan.get(..8).unwrap_or(&plan.plan);
    let shards = plan.shards.join(", ");
    let times = match (&plan.token_seconds, &plan.prompt_seconds) {
        (Some(token), Some(prompt)) => format!(
            "{} per token, {} to the first token after a prompt of {prompt_tokens}",
            spread(token),
            spread(prompt)
        ),
        _ => "not timed".to_owned(),
    };
    format!("{name}: {times}; {}; {shards}", loss(plan.loss))
}

/// Formats `12.1 ms (11.9 ms to 12.6 ms)`.
fn spread(spread: &Spread) -> String {
    let [median, low, high] = [spread.median, spread.low, spread.high].map(units::seconds);
    format!("{median} ({low} to {high})")
}

/// Formats `0.912 (0.905 to 0.921)`.
fn quotient(spread: &Spread) -> String {
    format!("{:.3} ({:.3} to {:.3})", spread.median, spread.low, spread.high)
}
