//! Shows how well a model predicts a text.

use std::fmt::Write;

use shardwright_perplexity::{
    AgainstReport, Divergence, Estimate, Likelihood, ModelReport, PerplexityReport, TextReport,
};

use super::wrapped;

/// Shows a line for each figure with its error.
pub fn perplexity(report: &PerplexityReport) -> String {
    let mut text = String::new();
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "{}", wrapped(&format!("{name:<11} {what}"), 12));
    };
    line("model", model(&report.model));
    if let Some(against) = &report.against {
        line("reference", model(&against.model));
    }
    let TextReport { path, tokens, window, stride, windows, resumed, scored, left, bos, .. } = &report.text;
    line("text", format!("{path}, {tokens} tokens, {left} after the last window"));
    let each = match stride {
        Some(stride) => format!("{stride} apart"),
        None => "without overlap".to_owned(),
    };
    let bos = if *bos { ", each begins with the BOS token" } else { "" };
    line("windows", format!("{windows} of {window} tokens, {each}{bos}"));
    if *resumed > 0 {
        line("", format!("{resumed} of them measured by an interrupted run"));
    }
    line("scored", format!("{scored} tokens, {} of each window", scored / windows));
    line("perplexity", likelihood(&report.likelihood));
    if let Some(against) = &report.against {
        compared(against, &mut line);
    }
    let errors = &report.errors;
    line(
        "errors",
        format!(
            "{} resamples of {}, seed {}: tokens of one window are not independent. In brackets: \
             the error of llama-perplexity, which assumes that they are",
            errors.resamples, errors.unit, errors.seed
        ),
    );
    text
}

fn compared(against: &AgainstReport, line: &mut impl FnMut(&str, String)) {
    let Divergence { mean, median, p95, p99, max } = &against.kl;
    line("", format!("{} for the reference", likelihood(&against.likelihood)));
    line("difference", format!("{} nats per token", shown(&against.nll_difference, 5)));
    line("KL", format!("mean {} millinats per token", shown(mean, 3)));
    line(
        "",
        format!("median {}, 95 % {}, 99 % {}, max {max:.3}", shown(median, 3), shown(p95, 3), shown(p99, 3)),
    );
    let Estimate { value, error } = against.same_top;
    let percent = Estimate { value: 100.0 * value, error: error.map(|error| 100.0 * error) };
    line("top token", format!("the same for {} %", shown(&percent, 2)));
}

fn model(model: &ModelReport) -> String {
    let mut text = model.name.clone();
    if let Some(soc) = &model.soc {
        text += &format!(" for {soc}");
    }
    if let Some(executor) = &model.emulated_on {
        text += &format!(", *emulated on {executor}*");
    }
    if !model.formats.is_empty() {
        text += &format!(", {}", model.formats.join(", "));
    }
    text + &format!(", plan {}", model.plan_id.get(..8).unwrap_or(&model.plan_id))
}

/// Formats `9.8765 (± 0.12345), 2.29014 ± 0.01234 nats per token`.
fn likelihood(likelihood: &Likelihood) -> String {
    let Likelihood { nll, perplexity, perplexity_error } = likelihood;
    let error = perplexity_error.map_or_else(String::new, |error| format!(" (± {error:.5})"));
    format!("{perplexity:.4}{error}, {} nats per token", shown(nll, 5))
}

fn shown(estimate: &Estimate, digits: usize) -> String {
    let Estimate { value, error } = estimate;
    let error = error.map_or_else(String::new, |error| format!(" ± {error:.digits$}"));
    format!("{value:.digits$}{error}")
}
