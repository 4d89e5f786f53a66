//! Notices about the chosen chain of a bundle.

use shardwright_bundle::Bundle;
use shardwright_selection::{Candidate, Passed, Tier};
use shardwright_vocabulary::Notice;

/// Returns the notice about artefacts that are copied instead of mapped.
pub(super) fn copied_notice(bundle: &Bundle, bytes: u64) -> Option<Notice> {
    (bytes > 0).then(|| {
        Notice::note(format!(
            "{bytes} bytes of artefacts were copied into memory, because {} does not start at a multiple of \
             4096 bytes in its file; align it, as `zipalign -p 4` does, to map them instead",
            bundle.path().display()
        ))
    })
}

/// Returns the notice about a chain that is not the first one of the chip's own variant.
pub(super) fn why_not_better(chosen: &Candidate, passed: &[&Passed]) -> Option<Notice> {
    let Candidate { soc, name, tier, .. } = chosen;
    let because = |passed: &mut dyn Iterator<Item = &Passed>| {
        let reasons: Vec<String> = passed
            .map(|passed| {
                let reason = passed.standing.reason.as_deref().unwrap_or("no reason is given");
                format!("{} {} shard {}: {reason}", passed.soc, passed.name, passed.shard)
            })
            .collect();
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
    };
    let mut hindered = passed.iter().copied().filter(|passed| passed.standing.hindered).peekable();
    match tier {
        Tier::Own | Tier::OwnRecompile | Tier::StandIn if chosen.chain > 0 => {
            let own = &mut passed.iter().copied().filter(|passed| passed.soc == *soc);
            Some(Notice::fallback(format!("chain `{name}` of the variant for {soc} runs{}", because(own))))
        }
        Tier::Own | Tier::OwnRecompile | Tier::StandIn => None,
        // A chain for a chip was skipped for a reason other than a missing chip.
        Tier::General if hindered.peek().is_some() => {
            Some(Notice::fallback(format!("the variant for {soc} runs{}", because(&mut hindered))))
        }
        Tier::General => None,
        Tier::Sibling => {
            Some(Notice::note(format!("this chip has no variant of its own; the one for {soc} runs on it")))
        }
        Tier::Fallback => {
            let own = &mut passed.iter().copied().filter(|passed| passed.soc == *soc);
            Some(Notice::fallback(format!("chain `{name}` of the variant for {soc} runs{}", because(own))))
        }
        Tier::Elsewhere => Some(Notice::fallback(format!(
            "there is no variant for this machine; chain `{name}` of the one for {soc} runs{}",
            because(&mut passed.iter().copied())
        ))),
    }
}
