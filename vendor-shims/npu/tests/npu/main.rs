//! Tests of the code that the NPU shims share: entries and artefacts.

mod artefacts;
mod entries;
