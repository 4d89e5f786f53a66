//! Whole models across every boundary: cuts, formats, fallbacks, revisions.

mod chat_parts;
mod drafts;
mod exactness;
mod failover;
mod formats;
mod forward;
mod gguf_blocks;
mod goals;
mod gradient;
mod largest;
mod legalise;
mod losses;
mod overflow;
mod perplexity;
mod public_crate;
mod published;
mod quantised;
mod recorded_parts;
mod released;
mod revision;
mod softcap;
mod thoughts;
mod tower_repair;
mod towers;
