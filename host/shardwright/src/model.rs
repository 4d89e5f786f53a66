use std::sync::Arc;
use std::time::Duration;

use shardwright_bundle::Bundle;
use shardwright_runtime::{Acceptance, Chain, Draft, ModelDraft, NextChain};
use shardwright_selection::Selection;
use shardwright_text::{Message, RenderOptions, Tokenizer};
use shardwright_vocabulary::{ChosenSpeculation, Notice, Pass};

use crate::policy::FallbackPolicy;
use crate::session::check_modality;
use crate::text_side::TextSide;
#[cfg(feature = "build")]
use crate::text_side::TokenizerStart;
use crate::towers::Towers;
use crate::verified::Verified;
use crate::{Error, ErrorKind, Result, Session};

/// A loaded model: from a checkpoint, planned and compiled for it, or from a bundle. Cloning shares
/// it.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    chain: Chain,
    next: Option<Arc<NextChainMaker>>,
    text: Arc<TextSide>,
    towers: Arc<Towers>,
    origin: Origin,
    times: OpeningTimes,
}

/// Time taken to open a model, by step. Work done in parallel, such as loading the tokenizer, is
/// not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpeningTimes {
    /// Reading the checkpoint, or opening the bundle.
    pub reading: Duration,
    /// Querying shims and the planner, including for refused plans; zero for a bundle.
    pub planning: Duration,
    /// Quantising weights to the formats of the plan, or finding them in the cache; zero for a
    /// bundle.
    pub quantising: Duration,
    /// Compiling shards; zero for a bundle, whose loading includes shards that are compiled again.
    pub compiling: Duration,
    /// Loading shards and joining them.
    pub loading: Duration,
}

/// Makes the fallback chains of each session.
pub(crate) type NextChainMaker = dyn Fn() -> Box<dyn NextChain> + Send + Sync;

/// Where a model comes from.
pub(crate) enum Origin {
    /// A checkpoint that was planned and compiled just now.
    #[cfg(feature = "build")]
    Built(Box<BuiltOrigin>),
    /// A bundle.
    Bundle(Arc<BundleOrigin>),
}

/// Details of a model that was just built.
#[cfg(feature = "build")]
pub(crate) struct BuiltOrigin {
    pub(crate) plan: shardwright_build::PlanReport,
    /// Hash of the plan.
    pub(crate) plan_id: String,
    /// What each shard was compiled from, where there are taps.
    pub(crate) compiled: Vec<shardwright_build::CompiledGraphs>,
}

/// Details of a model from a bundle.
pub(crate) struct BundleOrigin {
    pub(crate) bundle: Arc<Bundle>,
    /// Index of the chain that runs, in the variant that is meant.
    pub(crate) chain: usize,
    /// What was asked of the shims about all variants; `None` if nothing was.
    pub(crate) selection: Option<Selection>,
    /// What opening it hashed.
    pub(crate) verified: Verified,
    /// Which chains may run in the place of the first.
    pub(crate) policy: FallbackPolicy,
    /// Notices: the bundle's own, then deviations on this machine.
    pub(crate) notices: Vec<Notice>,
    /// How many of them are the bundle's own.
    pub(crate) made: usize,
    #[cfg(feature = "build")]
    pub(crate) plan: Option<shardwright_build::PlanReport>,
}

/// How to compute a sentence vector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// A prompt of the checkpoint (`query`, `document`, …) to put in front of the text.
    pub prompt_name: Option<String>,
    /// Keep only this many values and renormalise; these models are trained for that.
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

    /// A chain that was loaded separately, with the texts of `bundle`. For tools that accompany
    /// this crate.
    #[cfg(feature = "build")]
    pub fn of_chain(
        chain: Chain,
        bundle: &Arc<Bundle>,
        plan: shardwright_build::PlanReport,
        plan_id: String,
    ) -> Result<Self> {
        let text = TextSide::of_bundle(bundle, TokenizerStart::Beside, None)?;
        let origin = Origin::Built(Box::new(BuiltOrigin { plan, plan_id, compiled: Vec::new() }));
        let towers = Towers::absent(Arc::clone(bundle));
        Ok(Model::new(chain, None, text, towers, origin, OpeningTimes::default()))
    }

    /// Time taken to open it.
    pub fn opening_times(&self) -> OpeningTimes {
        self.inner.times
    }

    /// Hash of the plan it runs by: the same for a checkpoint that is opened and a bundle that is
    /// compiled from it in the same way. Of a chain that was compiled anew here, of the plan in the
    /// bundle.
    pub fn plan_id(&self) -> String {
        match &self.inner.origin {
            #[cfg(feature = "build")]
            Origin::Built(built) => built.plan_id.clone(),
            Origin::Bundle(bundled) => bundled.bundle.variant().chains[bundled.chain].plan.sha256.to_string(),
        }
    }

    /// A session at position 0. If its device is lost, it fails over to the next target of the
    /// plan, if there is one.
    pub fn session(&self) -> Result<Session> {
        // Requested here, so that a damaged tokenizer is an error of the first call that needs it.
        self.tokenizer()?;
        let session = match &self.inner.next {
            Some(next) => self.inner.chain.session_with(next())?,
            None => self.inner.chain.session()?,
        };
        Ok(Session::new(session, Arc::clone(&self.inner.text), Arc::clone(&self.inner.towers)))
    }

    /// How the plan that runs verifies what a draft proposes; `None` where it does not. A session
    /// has prompt lookup by itself, and a smaller model with
    /// [`Session::set_speculation`].
    pub fn speculation(&self) -> Option<&ChosenSpeculation> {
        match &self.inner.origin {
            #[cfg(feature = "build")]
            Origin::Built(built) => built.plan.speculation.as_ref(),
            Origin::Bundle(bundled) => {
                bundled.bundle.variant().chains.get(bundled.chain)?.speculation.as_ref()
            }
        }
    }

    /// This model, on a session of its own, as a draft of replies of `model`, from which what the
    /// plan of that says is expected.
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
    /// id that differs, with this model as its subject: "`small` has another vocabulary than
    /// `large`: 7 is `a` and not `b`". `None` if they are the same.
    ///
    /// # Errors
    ///
    /// A damaged tokenizer.
    pub fn vocabulary_difference(&self, model: &Model) -> Result<Option<String>> {
        let (own, other) = (self.tokenizer()?, model.tokenizer()?);
        let token = |token: Option<String>| token.map_or("no token".to_owned(), |text| format!("`{text}`"));
        Ok(other.first_difference(own).map(|difference| {
            format!(
                "`{}` has another vocabulary than `{}`: {} is {} and not {}",
                self.inner.chain.description().model,
                model.inner.chain.description().model,
                difference.id,
                token(difference.others),
                token(difference.own),
            )
        }))
    }

    /// The sentence vector of `text`, of length 1; for embedding models. A vector with a NaN or
    /// infinite value is an error that names the first shard that produced one.
    pub fn embed(&self, text: &str, options: &EmbedOptions) -> Result<Vec<f32>> {
        if self.inner.chain.is_generative() {
            return Err(Error::new(ErrorKind::Unsupported, "this model generates text and cannot embed")
                .with_help(
                    "`shardwright run` generates; embed with an embedding model such as EmbeddingGemma",
                ));
        }
        let mut prompt = match &options.prompt_name {
            Some(name) => self.inner.text.sentence_prompt(name)?,
            None => String::new(),
        };
        prompt.push_str(text);
        let ids = self.tokenizer()?.encode(&prompt, true)?;
        check_modality(&self.inner.chain, self.tokenizer()?, &ids.clone().into())?;
        let mut session = match &self.inner.next {
            Some(next) => self.inner.chain.session_with(next())?,
            None => self.inner.chain.session()?,
        };
        let mut vector = session.encode(&ids)?;
        if let Some(dimensions) = options.dimensions {
            if dimensions == 0 || dimensions > vector.len() {
                return Err(Error::new(
                    ErrorKind::Argument,
                    format!("{dimensions} of {} values cannot be kept", vector.len()),
                ));
            }
            vector.truncate(dimensions);
            let norm = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt().max(1e-12);
            vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
        }
        Ok(vector)
    }

    /// The plan it was built by, with every deviation from the request; `None` for a bundle that
    /// carries no report.
    #[cfg(feature = "build")]
    pub fn plan(&self) -> Option<&shardwright_build::PlanReport> {
        match &self.inner.origin {
            Origin::Built(built) => Some(&built.plan),
            Origin::Bundle(bundled) => bundled.plan.as_ref(),
        }
    }

    /// The bundle it came from, if it did.
    pub fn bundle(&self) -> Option<&Bundle> {
        self.origin().map(|bundled| &*bundled.bundle)
    }

    /// What opening its bundle hashed, at what speed, and whether the next opening has to; `None`
    /// for a checkpoint. Towers are opened later, as [`verified_towers`](Self::verified_towers)
    /// says.
    pub fn verified(&self) -> Option<&Verified> {
        self.origin().map(|bundled| &bundled.verified)
    }

    /// Which chains of its bundle may run in the place of the first; `None` for a checkpoint.
    pub fn fallback_policy(&self) -> Option<&FallbackPolicy> {
        self.origin().map(|bundled| &bundled.policy)
    }

    fn origin(&self) -> Option<&BundleOrigin> {
        match &self.inner.origin {
            #[cfg(feature = "build")]
            Origin::Built(_) => None,
            Origin::Bundle(bundled) => Some(bundled),
        }
    }

    /// The chip of the bundle's variant that runs.
    pub fn bundle_variant(&self) -> Option<&str> {
        self.bundle().map(|bundle| bundle.variant().soc.as_str())
    }

    /// How the chains of a bundle stand on this machine, the best first; `None` for a checkpoint,
    /// and for a bundle for one chip that was opened without naming one.
    pub fn selection(&self) -> Option<&Selection> {
        self.origin().and_then(|bundled| bundled.selection.as_ref())
    }

    /// Name of the bundle's chain that runs.
    pub fn bundle_chain(&self) -> Option<&str> {
        let bundled = self.origin()?;
        bundled.bundle.variant().chains.get(bundled.chain).map(|chain| chain.name.as_str())
    }

    /// Notices of a bundle: those from its compilation, then deviations on this machine, such as
    /// running its second chain. Empty for a checkpoint, whose plan has them.
    pub fn bundle_notices(&self) -> &[Notice] {
        self.origin().map_or(&[], |bundled| &bundled.notices)
    }

    /// Those of [`Model::bundle_notices`] from the bundle's compilation: they are the same at every
    /// opening, and are meant for the author of the bundle.
    pub fn notices_of_making(&self) -> &[Notice] {
        self.split_notices().0
    }

    /// Those of [`Model::bundle_notices`] that concern this opening on this machine: suitable for a
    /// user.
    pub fn notices_of_opening(&self) -> &[Notice] {
        self.split_notices().1
    }

    /// What is to be said of the towers for pictures and sounds that were opened so far: they are
    /// opened when the first part of a turn needs them.
    pub fn notices_of_towers(&self) -> Vec<Notice> {
        self.inner.towers.notices()
    }

    /// The same as [`verified`](Self::verified) of each tower of its bundle that was opened so far,
    /// in that order; empty for a checkpoint.
    pub fn verified_towers(&self) -> Vec<(Pass, Verified)> {
        self.inner.towers.verified()
    }

    fn split_notices(&self) -> (&[Notice], &[Notice]) {
        self.origin().map_or((&[], &[]), |bundled| bundled.notices.split_at(bundled.made))
    }

    /// The loaded shards.
    pub fn chain(&self) -> &Chain {
        &self.inner.chain
    }

    /// The tokenizer. Waits until it is loaded.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.inner.text.tokenizer()
    }

    /// Whether there is a chat template, so that the model takes conversations.
    pub fn has_chat_template(&self) -> bool {
        self.inner.text.has_template()
    }

    /// A conversation through the checkpoint's chat template, as text. Control tokens that a
    /// message spells out look like the template's own in it; [`Model::encode_chat`] tells them
    /// apart.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        self.inner.text.render(messages, options)
    }

    /// The ids of a conversation through the checkpoint's chat template. Control tokens that a
    /// message spells out stay text, unless [`RenderOptions::control_tokens_in_text`] is set.
    pub fn encode_chat(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>> {
        self.inner.text.encode(messages, options)
    }

    /// What each shard was compiled from, where it was opened with its layers shown
    /// ([`OpenOptions::taps`](crate::OpenOptions::taps)); else nothing.
    #[cfg(feature = "build")]
    pub fn compiled(&self) -> &[shardwright_build::CompiledGraphs] {
        match &self.inner.origin {
            Origin::Built(built) => &built.compiled,
            Origin::Bundle(_) => &[],
        }
    }
}
