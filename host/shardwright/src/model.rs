use std::sync::Arc;
use std::time::Duration;

use shardwright_bundle::Bundle;
use shardwright_runtime::{Acceptance, CancelHandle, Chain, Draft, ModelDraft};
use shardwright_selection::Selection;
use shardwright_text::{Message, RenderOptions, Tokenizer};
use shardwright_vocabulary::{ChosenSpeculation, Notice};

use crate::policy::{FallbackPolicy, NextChainMaker};
use crate::reopening::Chains;
use crate::session::check_modality;
use crate::text_side::TextSide;
use crate::towers::Towers;
use crate::verified_files::Verified;
use crate::{Error, ErrorKind, Result, Session};

/// A loaded model: planned and compiled from a checkpoint, or opened from a bundle. Clones share
/// the loaded model.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) chain: Chain,
    pub(crate) next: Option<Arc<NextChainMaker>>,
    pub(crate) text: Arc<TextSide>,
    pub(crate) towers: Arc<Towers>,
    pub(crate) origin: Origin,
    pub(crate) times: OpeningTimes,
}

/// Time spent to open a model, by step. Work done in parallel, such as loading the tokenizer, is
/// not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpeningTimes {
    /// Reading the checkpoint, or opening the bundle.
    pub reading: Duration,
    /// Querying shims and the planner, including for refused plans. Zero for a bundle.
    pub planning: Duration,
    /// Quantising weights to the formats of the plan, or finding them in the cache. Zero for a
    /// bundle.
    pub quantising: Duration,
    /// Compiling shards. Zero for a bundle, for which `loading` includes shards that are compiled
    /// again.
    pub compiling: Duration,
    /// Loading shards and joining them.
    pub loading: Duration,
}

/// Source of a model.
pub(crate) enum Origin {
    /// A checkpoint that was planned and compiled by this process.
    #[cfg(feature = "build")]
    Built(Box<BuiltOrigin>),
    /// A bundle that was opened.
    Bundle(Arc<BundleOrigin>),
}

/// Details of a model that was built by this process.
#[cfg(feature = "build")]
pub(crate) struct BuiltOrigin {
    pub(crate) plan: shardwright_build::PlanReport,
    pub(crate) plan_id: String,
    /// The graphs that each shard was compiled from, if taps are enabled.
    pub(crate) compiled: Vec<shardwright_build::CompiledGraphs>,
}

/// Details of a model from a bundle.
pub(crate) struct BundleOrigin {
    pub(crate) bundle: Arc<Bundle>,
    /// Index of the running chain within the selected variant.
    pub(crate) chain: usize,
    /// Result of querying the shims about all variants. `None` if they were not queried.
    pub(crate) selection: Option<Selection>,
    /// Files that were hashed to open the bundle.
    pub(crate) verified: Verified,
    /// Policy for running a chain other than the first.
    pub(crate) policy: FallbackPolicy,
    /// Notices of the bundle itself, followed by deviations on this machine.
    pub(crate) notices: Vec<Notice>,
    /// Number of `notices` that belong to the bundle itself.
    pub(crate) made: usize,
    #[cfg(feature = "build")]
    pub(crate) plan: Option<shardwright_build::PlanReport>,
}

/// Options to compute a sentence vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// Name of a prompt of the checkpoint (`query`, `document`, …) to prepend to the text. `None`
    /// for the checkpoint's default prompt, if it has one. An empty name for no prompt.
    pub prompt_name: Option<String>,
    /// Number of leading values to keep. The rest is cut and the vector normalised again, which
    /// these models are trained for.
    pub dimensions: Option<usize>,
}

impl Model {
    pub(crate) fn new(
        chain: Chain,
        next: Option<Arc<NextChainMaker>>,
        text: TextSide,
        towers: Towers,
        origin: Origin,
        times: OpeningTimes,
    ) -> Self {
        let (text, towers) = (Arc::new(text), Arc::new(towers));
        Model { inner: Arc::new(Inner { chain, next, text, towers, origin, times }) }
    }

    /// Returns the hash of the plan that the model runs by. It is equal for an opened checkpoint
    /// and a bundle that is compiled from it in the same way. For a chain that was compiled again
    /// on this machine, it is the hash of the plan in the bundle.
    pub fn plan_id(&self) -> String {
        match &self.inner.origin {
            #[cfg(feature = "build")]
            Origin::Built(built) => built.plan_id.clone(),
            Origin::Bundle(bundled) => bundled.bundle.variant().chains[bundled.chain].plan.sha256.to_string(),
        }
    }

    /// Starts a session at position 0. If its device is lost, it fails over to the next target of
    /// the plan, if there is one.
    pub fn session(&self) -> Result<Session> {
        // Loaded here, so that a damaged tokenizer is an error of the first call that needs it.
        self.tokenizer()?;
        let session = match &self.inner.next {
            Some(next) => self.inner.chain.session_with(next())?,
            None => self.inner.chain.session()?,
        };
        let (text, towers) = (Arc::clone(&self.inner.text), Arc::clone(&self.inner.towers));
        Ok(Session::new(session, text, towers, self.inner.next.clone(), self.plan_id()))
    }

    /// Returns the compiled shards of this model and of its fallbacks, on which a session of the
    /// same model can continue ([`Session::set_reopen`]).
    pub fn chains(&self) -> Chains {
        Chains { chain: self.inner.chain.clone(), next: self.inner.next.clone() }
    }

    /// Returns how the running plan verifies the tokens of a draft, or `None` if it does not. A
    /// session uses prompt lookup by default. Use [`Session::set_speculation`] to add a smaller
    /// model.
    pub fn speculation(&self) -> Option<&ChosenSpeculation> {
        match &self.inner.origin {
            #[cfg(feature = "build")]
            Origin::Built(built) => built.plan.speculation.as_ref(),
            Origin::Bundle(bundled) => {
                bundled.bundle.variant().chains.get(bundled.chain)?.speculation.as_ref()
            }
        }
    }

    /// Creates a draft for replies of `model` from this model, with its own session. The expected
    /// acceptance comes from `model`'s plan.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incompatible`] if their vocabularies differ, compared token by token.
    pub fn draft_for(&self, model: &Model) -> Result<ModelDraft> {
        if let Some(difference) = self.vocabulary_difference(model)? {
            return Err(Error::new(ErrorKind::Incompatible, format!("the draft {difference}"))
                .with_help("use a smaller model of the same family as draft, or `lookup`"));
        }
        let session = match &self.inner.next {
            Some(next) => self.inner.chain.session_with(next())?,
            None => self.inner.chain.session()?,
        };
        let draft = ModelDraft::new(self.inner.chain.description().model.clone(), session)?;
        let planned = model.speculation().filter(|planned| planned.draft == draft.name());
        Ok(match planned.filter(|planned| !planned.accepted_steps.is_empty()) {
            Some(planned) => draft.expecting(Acceptance::of_steps(&planned.accepted_steps)),
            None => draft,
        })
    }

    /// Compares the vocabularies of two models token by token. Returns a sentence about the lowest
    /// id that differs, with this model as its subject, such as "`small` has a different vocabulary
    /// than `large`: id 7 is `a`, expected `b`". Returns `None` if they are equal.
    ///
    /// # Errors
    ///
    /// Fails if a tokenizer is damaged.
    pub fn vocabulary_difference(&self, model: &Model) -> Result<Option<String>> {
        let (own, other) = (self.tokenizer()?, model.tokenizer()?);
        let token = |token: Option<String>| token.map_or("no token".to_owned(), |text| format!("`{text}`"));
        Ok(other.first_difference(own).map(|difference| {
            format!(
                "`{}` has a different vocabulary than `{}`: id {} is {}, expected {}",
                self.inner.chain.description().model,
                model.inner.chain.description().model,
                difference.id,
                token(difference.others),
                token(difference.own),
            )
        }))
    }

    /// Computes the sentence vector of `text`, of length 1, with an embedding model. A NaN or
    /// infinite value in the vector is an error that names the first shard that produced one.
    pub fn embed(&self, text: &str, options: &EmbedOptions) -> Result<Vec<f32>> {
        self.embed_until(text, options, &CancelHandle::default())
    }

    /// Like [`embed`](Self::embed), but `cancel` can stop it from any thread, also while a long
    /// text is encoded.
    ///
    /// # Errors
    ///
    /// The errors of [`embed`](Self::embed), and [`ErrorKind::Cancelled`], which clears the request
    /// of `cancel`.
    pub fn embed_until(&self, text: &str, options: &EmbedOptions, cancel: &CancelHandle) -> Result<Vec<f32>> {
        let ids = self.embedding_ids(text, options, cancel)?;
        check_modality(&self.inner.chain, self.tokenizer()?, &ids.clone().into())?;
        let mut session = match &self.inner.next {
            Some(next) => self.inner.chain.session_with(next())?,
            None => self.inner.chain.session()?,
        };
        session.set_cancel_handle(cancel.clone());
        let mut vector = session.encode(&ids)?;
        if let Some(dimensions) = options.dimensions {
            if dimensions == 0 || dimensions > vector.len() {
                return Err(Error::new(
                    ErrorKind::Argument,
                    format!("cannot keep {dimensions} of {} values", vector.len()),
                ));
            }
            vector.truncate(dimensions);
            let norm = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt().max(1e-12);
            vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
        }
        Ok(vector)
    }

    /// Returns the number of tokens that [`embed_until`](Self::embed_until) runs for `text`, its
    /// prompt included.
    ///
    /// # Errors
    ///
    /// The errors of [`embed_until`](Self::embed_until) about the text.
    pub fn embedding_tokens(
        &self,
        text: &str,
        options: &EmbedOptions,
        cancel: &CancelHandle,
    ) -> Result<usize> {
        Ok(self.embedding_ids(text, options, cancel)?.len())
    }

    fn embedding_ids(&self, text: &str, options: &EmbedOptions, cancel: &CancelHandle) -> Result<Vec<u32>> {
        if self.inner.chain.is_generative() {
            return Err(Error::new(ErrorKind::Unsupported, "this model generates text and cannot embed")
                .with_help(
                    "`shardwright run` generates; embed with an embedding model such as EmbeddingGemma",
                ));
        }
        let prompt = self.inner.text.sentence_prompt(options.prompt_name.as_deref())?;
        self.inner.text.encode_text_until(&format!("{prompt}{text}"), cancel)
    }

    /// Returns the report of the plan that the model was built by, with every deviation from the
    /// request. Returns `None` for a bundle without a report.
    #[cfg(feature = "build")]
    pub fn plan(&self) -> Option<&shardwright_build::PlanReport> {
        match &self.inner.origin {
            Origin::Built(built) => Some(&built.plan),
            Origin::Bundle(bundled) => bundled.plan.as_ref(),
        }
    }

    pub(crate) fn origin(&self) -> Option<&BundleOrigin> {
        match &self.inner.origin {
            #[cfg(feature = "build")]
            Origin::Built(_) => None,
            Origin::Bundle(bundled) => Some(bundled),
        }
    }

    /// Returns the tokenizer. Waits until it is loaded.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.inner.text.tokenizer()
    }

    /// Returns whether there is a chat template, so that the model supports conversations.
    pub fn has_chat_template(&self) -> bool {
        self.inner.text.has_template()
    }

    /// Renders a conversation through the checkpoint's chat template, as text. Control tokens that
    /// a message spells out cannot be told apart from the template's own in this text. Use
    /// [`Model::encode_chat`] to keep them apart.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        self.inner.text.render(messages, options)
    }

    /// Encodes a conversation through the checkpoint's chat template, as token ids. Control tokens
    /// that a message spells out stay text, unless [`RenderOptions::control_tokens_in_text`] is
    /// set.
    pub fn encode_chat(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        self.inner.text.encode(messages, options)
    }

    /// Encodes a text as token ids like [`Tokenizer::encode`], until `cancelled` returns true. The
    /// callback runs several times a second while a long text is encoded, and not for a short one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`], and errors of the tokenizer.
    pub fn encode_until(
        &self,
        text: &str,
        add_special: bool,
        cancelled: impl Fn() -> bool,
    ) -> Result<Vec<u32>> {
        self.inner.text.encode_plain(text, add_special, cancelled)
    }
}
