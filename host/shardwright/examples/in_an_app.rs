//! `in_an_app BUNDLE MEGABYTES PROOFS`: an application that shares a phone with other apps. Each
//! line of standard input is a turn. The session is released after each turn, as when the app goes
//! to the background. `docs/how-to/integrate.md` explains the code.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use shardwright::{
    BundleOptions, CancelHandle, Error, ErrorKind, FallbackPolicy, GenerationEvent, Model, Watch,
};

/// Prints progress on standard error, where an app would show a progress bar.
#[derive(Default)]
struct Shown {
    stage: String,
}

impl Watch for Shown {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        if self.stage != stage {
            stage.clone_into(&mut self.stage);
            eprintln!("{:>3} % {stage}", per_mille / 10);
        }
    }

    fn cancelled(&self) -> bool {
        // Returns true once the user has left the screen.
        false
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [bundle, megabytes, proofs] => run(bundle, megabytes, proofs),
        _ => Err(Error::new(ErrorKind::Argument, "usage: in_an_app BUNDLE MEGABYTES PROOFS")),
    };
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    error.help().into_iter().for_each(|help| eprintln!("help: {help}"));
    match error.kind() {
        // An app can offer its smaller model here.
        ErrorKind::Memory => ExitCode::from(11),
        _ => ExitCode::FAILURE,
    }
}

fn open(bundle: &str, megabytes: &str, proofs: &str) -> shardwright::Result<Model> {
    let megabytes: u64 = megabytes
        .parse()
        .map_err(|_| Error::new(ErrorKind::Argument, format!("{megabytes} is no number of megabytes")))?;
    let options = BundleOptions::new()
        .memory_budget(megabytes.saturating_mul(1_000_000))
        .fallback(FallbackPolicy::AtOpening)
        .remember_proofs(proofs);
    options.open_watched(bundle, &mut Shown::default())
}

fn run(bundle: &str, megabytes: &str, proofs: &str) -> shardwright::Result<()> {
    let model = open(bundle, megabytes, proofs)?;
    let report = model.report();
    report.verified.into_iter().for_each(|verified| eprintln!("{verified}"));
    report.notices_of_opening.iter().for_each(|notice| eprintln!("{}", notice.text));
    let memory = model.memory();
    eprintln!("{} bytes of weights, {} of a session", memory.weights, memory.session.bytes());

    // An app does this while the user types. Until it ends, the budget must have room for one more
    // session.
    let (warmed, cancel) = (model.clone(), CancelHandle::default());
    let warm = std::thread::spawn(move || warmed.prewarm(&cancel));
    match warm.join() {
        Ok(Ok(time)) => eprintln!("warm after {time:?}"),
        Ok(Err(error)) => eprintln!("not warm: {error}"),
        Err(_) => eprintln!("not warm"),
    }

    let mut session = model.session()?;
    session.options.sampling.do_sample = false;
    session.options.max_tokens = Some(48);
    for line in std::io::stdin().lock().lines() {
        let Ok(turn) = line else { break };
        let mut reply = session.chat(turn)?;
        for event in reply.by_ref() {
            if let GenerationEvent::TextDelta { text } = event? {
                print!("{text}");
                let _ = std::io::stdout().flush();
            }
        }
        println!();
        let again = reply.statistics().recomputed_tokens;
        drop(reply);
        // The app stays in the background until the next line.
        session.release();
        eprintln!("{again} tokens were run again; {} bytes are in use now", model.memory().used);
    }
    Ok(())
}
