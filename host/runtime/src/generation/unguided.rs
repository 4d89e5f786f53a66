//! Replies without a grammar, for builds without the feature `constraint`. It has the interface of
//! the module for grammars, allows all tokens and forces none.

use shardwright_text::TokenMask;
use shardwright_vocabulary::Result;

use super::GenerationOptions;

/// The absence of a grammar.
pub(super) struct Guide;

#[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the interface of the other module")]
impl Guide {
    pub(super) const fn new(_: &GenerationOptions, _: &[u32]) -> Result<Guide> {
        Ok(Guide)
    }

    pub(super) const fn release(&mut self) {}

    pub(super) const fn is_active(&self) -> bool {
        false
    }

    pub(super) const fn trusts_largest(&self) -> bool {
        true
    }

    pub(super) const fn stepped(&mut self, _: Option<bool>) {}

    pub(super) const fn begin_mask(&mut self) {}

    pub(super) const fn forced(&mut self, _: usize) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    pub(super) const fn allowed(&mut self, drafted: &[u32]) -> Result<usize> {
        Ok(drafted.len())
    }

    pub(super) const fn mask(&mut self, _: &[f32]) -> Result<Option<TokenMask>> {
        Ok(None)
    }

    pub(super) const fn accept(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    pub(super) const fn must_stop(&mut self) -> Result<bool> {
        Ok(false)
    }

    pub(super) const fn is_complete(&mut self) -> bool {
        true
    }
}
