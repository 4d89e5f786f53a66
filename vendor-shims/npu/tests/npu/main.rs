//! What the shims of neural processors share: entries and artefacts.

mod artefacts;
mod entries;
