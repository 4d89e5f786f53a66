//! Counts and times of the server, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwright::GenerationStatistics;

/// Upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Upper bounds of the buckets of speeds, in tokens per second.
const SPEEDS: [f64; 12] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0];

/// A distribution over fixed buckets.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    inner: Mutex<Counts>,
}

#[derive(Debug, Clone)]
struct Counts {
    buckets: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Histogram { bounds, inner: Mutex::new(Counts { buckets: vec![0; bounds.len() + 1], sum: 0.0 }) }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn observe(&self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        let mut counts = self.counts();
        counts.buckets[bucket] += 1;
        counts.sum += value;
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let counts = self.counts().clone();
        let mut total = 0;
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&counts.buckets) {
            total += count;
            sample(out, &format!("{name}_bucket"), &format!("{labels},le=\"{bound}\""), total);
        }
        sample(out, &format!("{name}_sum"), labels, counts.sum);
        sample(out, &format!("{name}_count"), labels, total);
    }
}

/// Counts and times of one model.
#[derive(Debug)]
pub(crate) struct ModelMetrics {
    pub prompt_tokens: AtomicU64,
    pub reused_tokens: AtomicU64,
    pub generated_tokens: AtomicU64,
    pub drafted_tokens: AtomicU64,
    pub accepted_tokens: AtomicU64,
    pub cancelled: AtomicU64,
    pub moves: AtomicU64,
    pub openings: AtomicU64,
    pub losses: AtomicU64,
    recoveries: AtomicU64,
    first_token: Histogram,
    speed: Histogram,
}

impl Default for ModelMetrics {
    fn default() -> Self {
        ModelMetrics {
            prompt_tokens: AtomicU64::new(0),
            reused_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            drafted_tokens: AtomicU64::new(0),
            accepted_tokens: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            openings: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            first_token: Histogram::new(&SECONDS),
            speed: Histogram::new(&SPEEDS),
        }
    }
}

impl ModelMetrics {
    /// Counts a request that continues or is repeated after a loss.
    pub fn recovered(&self) {
        self.recoveries.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a reply. `first_token` includes the time in which the request waited.
    pub fn replied(&self, statistics: &GenerationStatistics, first_token: Option<Duration>) {
        let add = |counter: &AtomicU64, count: usize| {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        };
        add(&self.prompt_tokens, statistics.prompt_tokens);
        add(&self.reused_tokens, statistics.reused_tokens);
        add(&self.generated_tokens, statistics.generated_tokens);
        add(&self.drafted_tokens, statistics.speculation.drafted as usize);
        add(&self.accepted_tokens, statistics.speculation.accepted as usize);
        if let Some(time) = first_token {
            self.first_token.observe(time.as_secs_f64());
        }
        let speed = statistics.decode_tokens_per_second();
        if speed > 0.0 {
            self.speed.observe(speed);
        }
    }
}

/// State of a model at the time of a report.
#[derive(Debug, Default)]
pub(crate) struct ModelState {
    pub is_loaded: bool,
    pub waiting: usize,
    pub memory_bytes: u64,
    pub prefix_cache_bytes: u64,
    pub prefix_cache_hits: u64,
    pub prefix_cache_misses: u64,
    pub fallbacks: usize,
}

/// Counts of the server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Responses by endpoint and status.
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Metrics {
    pub fn responded(&self, endpoint: &'static str, status: u16) {
        let mut responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner);
        *responses.entry((endpoint, status)).or_default() += 1;
    }

    /// Writes all metrics.
    pub fn text(
        &self,
        open_requests: usize,
        budget: Option<u64>,
        models: &[(&str, &ModelMetrics, ModelState)],
    ) -> String {
        let mut out = String::new();
        family(&mut out, "responses_total", "counter", "Responses by endpoint and HTTP status.");
        let responses = self.responses.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((endpoint, status), count) in responses {
            let labels = format!("endpoint=\"{endpoint}\",status=\"{status}\"");
            sample(&mut out, "shardwright_responses_total", &labels, count);
        }
        family(&mut out, "open_requests", "gauge", "Requests that generate or embed now.");
        sample(&mut out, "shardwright_open_requests", "", open_requests);
        if let Some(budget) = budget {
            family(&mut out, "memory_budget_bytes", "gauge", "Memory budget of all models.");
            sample(&mut out, "shardwright_memory_budget_bytes", "", budget);
        }
        write_states(&mut out, models);
        write_counters(&mut out, models);
        for (name, help, of) in HISTOGRAMS {
            family(&mut out, name, "histogram", help);
            for (id, metrics, _) in models {
                of(metrics).write(&mut out, &format!("shardwright_{name}"), &label(id));
            }
        }
        out
    }
}

type HistogramRow = (&'static str, &'static str, fn(&ModelMetrics) -> &Histogram);

const HISTOGRAMS: [HistogramRow; 2] = [
    (
        "time_to_first_token_seconds",
        "Time from the request to its first token, waiting included.",
        |metrics| &metrics.first_token,
    ),
    ("tokens_per_second", "Speed of a reply after its first token.", |metrics| &metrics.speed),
];

fn write_states(out: &mut String, models: &[(&str, &ModelMetrics, ModelState)]) {
    type Row = (&'static str, &'static str, &'static str, fn(&ModelState) -> u64);
    let rows: [Row; 7] = [
        ("model_loaded", "gauge", "1 for a loaded model.", |state| u64::from(state.is_loaded)),
        ("queue_length", "gauge", "Requests that wait for their next turn.", |state| state.waiting as u64),
        ("memory_bytes", "gauge", "Memory of weights and sessions.", |state| state.memory_bytes),
        ("prefix_cache_bytes", "gauge", "Memory of prefix caches.", |state| state.prefix_cache_bytes),
        ("prefix_cache_hits", "gauge", "Prompts with a cached prefix.", |state| state.prefix_cache_hits),
        ("prefix_cache_misses", "gauge", "Prompts without one.", |state| state.prefix_cache_misses),
        ("fallbacks", "gauge", "Deviations from the plan since opening.", |state| state.fallbacks as u64),
    ];
    for (name, kind, help, of) in rows {
        family(out, name, kind, help);
        for (id, _, state) in models {
            sample(out, &format!("shardwright_{name}"), &label(id), of(state));
        }
    }
}

fn write_counters(out: &mut String, models: &[(&str, &ModelMetrics, ModelState)]) {
    type Row = (&'static str, &'static str, fn(&ModelMetrics) -> &AtomicU64);
    let rows: [Row; 10] = [
        ("prompt_tokens_total", "Tokens of prompts.", |metrics| &metrics.prompt_tokens),
        ("reused_tokens_total", "Tokens of prompts that were not run again.", |metrics| {
            &metrics.reused_tokens
        }),
        ("generated_tokens_total", "Generated tokens.", |metrics| &metrics.generated_tokens),
        ("drafted_tokens_total", "Drafted tokens that were verified.", |metrics| &metrics.drafted_tokens),
        ("accepted_tokens_total", "Drafted tokens that were accepted.", |metrics| &metrics.accepted_tokens),
        ("cancelled_replies_total", "Replies whose client left.", |metrics| &metrics.cancelled),
        ("moves_total", "Sessions that moved to another chain.", |metrics| &metrics.moves),
        ("openings_total", "How often a model was opened.", |metrics| &metrics.openings),
        ("losses_total", "How often the device or the worker of a model was lost.", |metrics| {
            &metrics.losses
        }),
        ("recoveries_total", "How often a request continued or was repeated after a loss.", |metrics| {
            &metrics.recoveries
        }),
    ];
    for (name, help, of) in rows {
        family(out, name, "counter", help);
        for (id, metrics, _) in models {
            let count = of(metrics).load(Ordering::Relaxed);
            sample(out, &format!("shardwright_{name}"), &label(id), count);
        }
    }
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP shardwright_{name} {help}\n# TYPE shardwright_{name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = match labels {
        "" => writeln!(out, "{name} {value}"),
        labels => writeln!(out, "{name}{{{labels}}} {value}"),
    };
}

fn label(id: &str) -> String {
    let escaped = id.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("model=\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_in_the_text_format() {
        let (metrics, model) = (Metrics::default(), ModelMetrics::default());
        metrics.responded("chat", 200);
        metrics.responded("chat", 200);
        metrics.responded("chat", 429);
        let mut statistics = GenerationStatistics {
            prompt_tokens: 10,
            reused_tokens: 4,
            generated_tokens: 5,
            decode_time: Duration::from_millis(100),
            ..GenerationStatistics::default()
        };
        statistics.speculation.drafted = 6;
        statistics.speculation.accepted = 1;
        model.replied(&statistics, Some(Duration::from_millis(30)));
        model.recovered();
        let state = ModelState {
            waiting: 3,
            memory_bytes: 7,
            fallbacks: 2,
            prefix_cache_bytes: 5,
            is_loaded: true,
            ..ModelState::default()
        };
        let text = metrics.text(2, Some(9), &[("a\"b", &model, state)]);
        for line in [
            "shardwright_responses_total{endpoint=\"chat\",status=\"200\"} 2",
            "shardwright_responses_total{endpoint=\"chat\",status=\"429\"} 1",
            "shardwright_open_requests 2",
            "shardwright_memory_budget_bytes 9",
            "shardwright_queue_length{model=\"a\\\"b\"} 3",
            "shardwright_reused_tokens_total{model=\"a\\\"b\"} 4",
            "shardwright_generated_tokens_total{model=\"a\\\"b\"} 5",
            "shardwright_drafted_tokens_total{model=\"a\\\"b\"} 6",
            "shardwright_accepted_tokens_total{model=\"a\\\"b\"} 1",
            "shardwright_memory_bytes{model=\"a\\\"b\"} 7",
            "shardwright_prefix_cache_bytes{model=\"a\\\"b\"} 5",
            "shardwright_fallbacks{model=\"a\\\"b\"} 2",
            "shardwright_model_loaded{model=\"a\\\"b\"} 1",
            "shardwright_losses_total{model=\"a\\\"b\"} 0",
            "shardwright_recoveries_total{model=\"a\\\"b\"} 1",
            "shardwright_time_to_first_token_seconds_bucket{model=\"a\\\"b\",le=\"0.025\"} 0",
            "shardwright_time_to_first_token_seconds_bucket{model=\"a\\\"b\",le=\"0.05\"} 1",
            "shardwright_time_to_first_token_seconds_bucket{model=\"a\\\"b\",le=\"+Inf\"} 1",
            "shardwright_tokens_per_second_sum{model=\"a\\\"b\"} 40",
            "# TYPE shardwright_tokens_per_second histogram",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let families = text.lines().filter(|line| line.starts_with("# TYPE")).count();
        assert_eq!(families, text.lines().filter(|line| line.starts_with("# HELP")).count());
    }
}
