//! `runtime-only PACK KEY REQUEST.json`: plans with a pack, in a host without a compiler.
//!
//! **Job.** To represent a phone in the tests: prints the plan's canonical bytes, or prints the
//! error and exits with 1.
//!
//! **Not its job.** The needs of real applications.

use std::path::Path;
use std::process::ExitCode;

use shardwright_build::PlannerTools;
use shardwright_planning::registry::PlannerEntry;
use shardwright_planning::request::RecordedRequest;
use shardwright_planning::session::PlanningSession;
use shardwright_trust::{Policy, Trust};

fn main() -> ExitCode {
    match run() {
        Ok(plan) => {
            println!("{plan}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pack, key, request] = arguments.as_slice() else {
        return Err("usage: runtime-only PACK KEY REQUEST.json".into());
    };
    let RecordedRequest { request, .. } = serde_json::from_slice(&std::fs::read(Path::new(request))?)?;
    let trust = Trust::new(Policy::Off, [key.parse()?]);
    let planner = PlannerTools::new(None, &trust)?.load(&PlannerEntry::from_path(pack));
    let planned = PlanningSession::with_planner(planner, None).strict(true).plan(&request)?;
    Ok(String::from_utf8(planned.plan.plan().canonical_bytes())?)
}
