//! Names of tensors that the text models of all families share.

/// Prefixes of the text model's tensor names in published files, most specific first. The last is
/// empty.
pub(crate) const PREFIXES: [&str; 5] =
    ["model.language_model.", "language_model.model.", "language_model.", "model.", ""];

/// The prefix of a text model that is not part of a larger model.
pub(crate) const USUAL_PREFIX: &str = "model.";

/// Names of a separate output matrix in published files, the usual name first.
pub(crate) const HEADS: [&str; 3] =
    ["lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"];

/// Name of the embedding, without its prefix.
pub(crate) const EMBEDDING: &str = "embed_tokens.weight";

/// Checks whether a tensor of a name exists. Returns `None` if no file lists names.
pub(crate) type Has<'h> = dyn Fn(&str) -> Option<bool> + 'h;

/// Returns the prefix of the text model's tensors, which is found by the name of the embedding. If
/// no file lists names, it is the usual prefix. `None` if there is no embedding.
pub(crate) fn prefix_of(has: &Has<'_>) -> Option<&'static str> {
    let is_known = |prefix: &&str| match has(&format!("{prefix}{EMBEDDING}")) {
        Some(found) => found,
        None => *prefix == USUAL_PREFIX,
    };
    PREFIXES.into_iter().find(is_known)
}
