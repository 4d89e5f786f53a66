//! Goals, pairs and triples of goals on every chip: easy, tight and impossible ones.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use shardwright_planning::profile::ProfileRegistry;
use shardwright_test_checkpoints::{Random, cases};

use super::{Answer, Case, Quantity};

const MODELS: [&str; 4] = ["gemma4-e2b", "gemma4-e4b", "gemma3-270m", "gemma3-1b"];

/// Largest number of goals of a plan.
const MOST: usize = 3;

/// How hard a goal is, compared with the plan without goals.
#[derive(Clone, Copy, Debug)]
enum Level {
    /// Four times the amount of that plan.
    Easy,
    /// A random part of that amount, or somewhat more.
    Tight,
    /// The smallest bound.
    Impossible,
}

impl Level {
    const ALL: [Level; 3] = [Level::Easy, Level::Tight, Level::Impossible];

    /// Returns the bound for a quantity of which the plan without goals has `amount`.
    fn bound(self, quantity: Quantity, amount: u64, random: &mut Random) -> u64 {
        match self {
            Level::Easy => amount.max(1000) * 4,
            Level::Tight => amount * (30 + random.below(91)) / 100,
            Level::Impossible => u64::from(quantity != Quantity::Quality),
        }
    }
}

/// Goals of a plan.
type Goals = Vec<(Quantity, Level)>;

/// Returns every combination of up to [`MOST`] goals.
fn combinations() -> Vec<Goals> {
    let mut all: Vec<Goals> = vec![Vec::new()];
    for quantity in Quantity::ALL {
        let with = |goals: &Goals| Level::ALL.map(|level| [&goals[..], &[(quantity, level)]].concat());
        let longer: Vec<Goals> = all.iter().filter(|goals| goals.len() < MOST).flat_map(with).collect();
        all.extend(longer);
    }
    all
}

fn chips() -> Vec<String> {
    let profiles = ProfileRegistry::new().list().expect("the built-in profiles");
    profiles.found.into_iter().map(|found| found.profile.name).collect()
}

/// Returns the seed of random numbers, which `GOALS_SEED` sets.
fn seed() -> u64 {
    let seed = std::env::var("GOALS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(52);
    println!("GOALS_SEED={seed}");
    seed
}

/// Goals for a model on a chip.
struct Work {
    chip: String,
    model: &'static str,
    goals: Vec<Goals>,
    seed: u64,
}

impl Work {
    fn run(&self) {
        let case = Case::new(&self.chip, self.model);
        let mut random = Random::new(self.seed, &case.name);
        let Answer::Plan(free) = case.verify(&[]) else { panic!("{}: no plan without goals", case.name) };
        for goals in &self.goals {
            let bound = |(quantity, level): &(Quantity, Level)| {
                let amount = quantity.of(&case.free, &free);
                (*quantity, level.bound(*quantity, amount, &mut random))
            };
            let bounds: Vec<(Quantity, u64)> = goals.iter().map(bound).collect();
            case.verify(&bounds);
        }
    }
}

/// Runs all work on all cores.
fn run(work: &[Work]) {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads.min(work.len()) {
            scope.spawn(|| {
                while let Some(own) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    own.run();
                }
            });
        }
    });
}

#[test]
fn a_sample_of_goals_is_answered() {
    let (chips, all, seed) = (chips(), combinations(), seed());
    let mut random = Random::new(seed, "sample");
    let work = MODELS.map(|model| {
        let chip = chips[random.below(chips.len() as u64) as usize].clone();
        let goals = (0..cases(10, 100)).map(|index| {
            let alike: Vec<&Goals> = all.iter().filter(|goals| goals.len() == 1 + index % MOST).collect();
            alike[random.below(alike.len() as u64) as usize].clone()
        });
        Work { chip, model, goals: goals.collect(), seed }
    });
    run(&work);
}

#[test]
#[ignore = "takes hours; the command in CONTRIBUTING.md runs it"]
fn every_combination_of_goals_is_answered() {
    let (chips, all, seed) = (chips(), combinations(), seed());
    // No goal, and one to three of five goals in three levels.
    assert_eq!((chips.len(), all.len()), (15, 1 + 5 * 3 + 10 * 9 + 10 * 27));
    let pairs = chips.iter().flat_map(|chip| MODELS.map(|model| (chip.clone(), model)));
    let work: Vec<Work> = pairs.map(|(chip, model)| Work { chip, model, goals: all.clone(), seed }).collect();
    run(&work);
}
