//! `run_bundle DIR PROMPT`: runs a bundle as an application does. Needs only the feature `runtime`:
//! no compiler, no checkpoint reader and no planner.

use std::io::Write;
use std::process::ExitCode;

use shardwright::{GenerationEvent, Model};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, prompt] = arguments.as_slice() else {
        eprintln!("usage: run_bundle DIR PROMPT");
        return ExitCode::from(2);
    };
    match run(directory, prompt) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(help) = error.help() {
                eprintln!("help: {help}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(directory: &str, prompt: &str) -> shardwright::Result<()> {
    let model = Model::open(directory)?;
    for notice in model.report().notices_of_opening {
        eprintln!("{}", notice.text);
    }
    let mut session = model.session()?;
    session.options.sampling.do_sample = false;
    session.options.max_tokens = Some(64);
    for event in session.complete(prompt)? {
        if let GenerationEvent::TextDelta { text } = event? {
            print!("{text}");
            // Ignore the error: the reader of the output may be gone.
            let _ = std::io::stdout().flush();
        }
    }
    println!();
    Ok(())
}
