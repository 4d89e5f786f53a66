//! Replies, each generated on a thread of its own. Async code only moves their pieces.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shardwright::tools::ModelTools;
use shardwright::{
    CancelHandle, DoneReason, GenerationEvent, GenerationStatistics, Reply, Session, StopRules,
    TokenLikelihood, ToolCall,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::app::App;
use crate::ids;
use crate::keys::KeyIndex;
use crate::models::Entry;
use crate::recovery::{Fault, Held};
use crate::refusal::Refusal;
use crate::reply_request::{Input, Names, ReplyRequest, Settings};
use crate::step_queue::Seat;

/// Most tokens of a reply if neither the request nor the checkpoint has a limit.
const TOKENS: usize = 2048;

/// Most pieces that wait for a slow client before the generation waits too.
const PIECES: usize = 64;

/// Stack of a generating thread.
const STACK_BYTES: usize = 8 << 20;

/// A piece of a reply.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The request is valid, and the reply begins.
    Begun,
    Text(String),
    Thought(String),
    /// A complete call of a tool. A call that is cut or invalid becomes text, so that no client
    /// acts on a part of it.
    Call(ToolCall),
    /// Likelihoods of the tokens of the answer.
    Likely(Vec<Likely>),
    /// The end of the reply.
    Done(Box<End>),
    Failed(Refusal),
}

/// A token with its likelihood and its text.
#[derive(Clone, Debug)]
pub(crate) struct Likely {
    pub bytes: Vec<u8>,
    pub log_probability: f32,
    pub likeliest: Vec<(Vec<u8>, f32)>,
}

/// The end of a reply.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub reason: DoneReason,
    pub statistics: GenerationStatistics,
}

/// A reply in progress. Dropping it ends the generation within one token.
#[derive(Debug)]
pub(crate) struct Generating {
    /// Dropped before the pieces: a thread that finds their channel closed must find the request
    /// cancelled too.
    _cancel: CancelOnDrop,
    pub pieces: mpsc::Receiver<Piece>,
}

#[derive(Debug)]
struct CancelOnDrop(Arc<Canceller>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Cancels work of a thread that may not have begun yet.
#[derive(Debug, Default)]
pub(crate) struct Canceller {
    is_cancelled: AtomicBool,
    handle: Mutex<Option<CancelHandle>>,
}

impl Canceller {
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        if let Some(handle) = &*self.handle.lock().unwrap_or_else(PoisonError::into_inner) {
            handle.cancel();
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    /// Passes a cancellation on to this handle, also an earlier one.
    pub fn watch(&self, handle: CancelHandle) {
        let mut slot = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_cancelled() {
            handle.cancel();
        }
        *slot = Some(handle);
    }
}

/// Starts a reply. The permit is returned before the client gets the end.
pub(crate) fn begin(
    app: &Arc<App>,
    ask: ReplyRequest,
    key: KeyIndex,
    permit: OwnedSemaphorePermit,
) -> Result<Generating, Refusal> {
    let entry = Arc::clone(app.models.find(&ask.model)?);
    let (sender, pieces) = mpsc::channel(PIECES);
    let canceller = Arc::new(Canceller::default());
    let registered = app.open.register(&canceller);
    let work = Work { app: Arc::clone(app), entry, key, sender, canceller: Arc::clone(&canceller) };
    spawn(move || work.run(ask, (registered, permit)))?;
    Ok(Generating { _cancel: CancelOnDrop(canceller), pieces })
}

/// Starts a thread for work of a request.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Refusal> {
    let thread = std::thread::Builder::new().name("request".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(work).map(drop).map_err(|error| Refusal::of_server(&error.into()))
}

/// The surroundings of a reply.
struct Context<'c> {
    settings: &'c Settings,
    held: &'c Held,
    seat: &'c Seat,
    started: Instant,
    stop: StopRules,
}

/// The work of one thread.
struct Work {
    app: Arc<App>,
    entry: Arc<Entry>,
    key: KeyIndex,
    sender: mpsc::Sender<Piece>,
    canceller: Arc<Canceller>,
}

impl Work {
    /// Generates the reply. Its session, its lease and `held` are free before the client gets the
    /// end, because the next request may follow at once.
    fn run(self, ask: ReplyRequest, held: impl Sized) {
        let done = catch_unwind(AssertUnwindSafe(|| self.reply(ask)));
        let is_left = self.canceller.is_cancelled() && !self.app.is_stopping();
        let piece = match done {
            Ok(Ok(None)) => return,
            Ok(Ok(Some(end))) => Piece::Done(end),
            Ok(Err(refusal)) => Piece::Failed(refusal),
            Err(_) => Piece::Failed(Refusal::internal("the thread of the request panicked")),
        };
        if is_left && matches!(piece, Piece::Failed(_)) {
            self.entry.metrics.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        drop(held);
        self.send(piece);
    }

    /// Sends a piece. Returns `false` if the client is gone.
    fn send(&self, piece: Piece) -> bool {
        self.sender.blocking_send(piece).is_ok()
    }

    /// Sends the pieces of a reply, and returns its end unless the client is gone. If the model is
    /// lost before the reply begins, it is begun again. Later, its session recovers by itself.
    fn reply(&self, ask: ReplyRequest) -> Result<Option<Box<End>>, Refusal> {
        let started = Instant::now();
        let ReplyRequest { mut input, settings, names, .. } = ask;
        let held = Held::new(&self.app, &self.entry);
        let is_chat = matches!(input, Input::Conversation(_));
        held.retry(|| {
            let seat = Seat::new(&self.entry.turns);
            let mut session = self.session(&held, &seat, (&settings, names), is_chat)?;
            let stop = session.options.stop.clone();
            let context = Context { settings: &settings, held: &held, seat: &seat, started, stop };
            let reply = begin_reply(&mut session, input.clone(), names)?;
            // A reply that has begun is not begun again, so its pictures and sounds need no copy.
            input = Input::Ids(Vec::new());
            let said = self.pass_on(reply, context);
            seat.leave();
            let moves = session.placement().moves;
            self.entry.moved(moves.iter().map(|moved| {
                serde_json::json!({
                    "shard": moved.shard, "from": moved.from.to_string(), "error": moved.error,
                    "to": moved.to.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "tokens": moved.tokens,
                })
            }));
            said.map_err(Fault::from)
        })
    }

    /// Creates the session of a reply.
    fn session(
        &self,
        held: &Arc<Held>,
        seat: &Arc<Seat>,
        (settings, names): (&Settings, Names),
        is_chat: bool,
    ) -> Result<Session, Fault> {
        let lease = held.lease().map_err(Fault::of_server)?;
        let model = &lease.loaded.model;
        if !model.chain().is_generative() {
            let what = format!("model `{}` computes vectors and generates no text", self.entry.id);
            return Err(Refusal::invalid("unsupported", what, "use `/v1/embeddings`").at("model").into());
        }
        if is_chat && !model.has_chat_template() {
            return Err(no_template(&self.entry.id).into());
        }
        let mut session = self.app.models.session(&lease).map_err(Fault::of_server)?;
        session.set_prefix_cache(self.app.models.cache(&lease, self.key));
        session.set_reopen(Some(held.reopen(seat)));
        self.canceller.watch(session.cancel_handle());
        let turn = Arc::clone(seat);
        session.set_before_step(Some(Arc::new(move || turn.next())));
        configure(&mut session, settings, names)?;
        Ok(session)
    }

    /// Passes the events of a reply on, and returns its end unless the client is gone.
    fn pass_on(&self, mut reply: Reply<'_>, context: Context<'_>) -> Result<Option<Box<End>>, Refusal> {
        let Context { settings, held, seat, started, .. } = context;
        if !self.send(Piece::Begun) {
            return Err(Refusal::stopping());
        }
        let mut first_token = None;
        let mut end = None;
        let mut likely = LikelyTokens { tokens: Vec::new(), stop: context.stop };
        while let Some(event) = reply.next() {
            seat.leave();
            let event = event.map_err(|error| Refusal::of_server(&error))?;
            likely.add(reply.take_likelihoods());
            let piece = match event {
                GenerationEvent::Token { .. } => {
                    first_token.get_or_insert_with(|| started.elapsed());
                    continue;
                }
                GenerationEvent::TextDelta { text } => Piece::Text(text),
                GenerationEvent::ThoughtDelta { text } => Piece::Thought(text),
                GenerationEvent::ToolCall { call, .. } => Piece::Call(call),
                GenerationEvent::ToolCallBegin { .. }
                | GenerationEvent::ToolCallArguments { .. }
                | GenerationEvent::ToolCallDropped { .. } => continue,
                GenerationEvent::DraftDropped { draft } => {
                    tracing::warn!(model = self.entry.id, "a draft was dropped: {}", draft.because);
                    continue;
                }
                GenerationEvent::Done { reason, statistics } => {
                    end = Some(End { reason, statistics });
                    continue;
                }
            };
            let is_call = matches!(piece, Piece::Call(_));
            if is_call {
                // Tokens of the text before the call were sent with it. A call has no likelihoods.
                likely.tokens.clear();
            }
            let is_read = self.send_likely(&mut likely, settings, held)? && self.send(piece);
            if !is_read || (is_call && settings.one_call) {
                break;
            }
        }
        let statistics = reply.statistics();
        self.entry.metrics.replied(&statistics, first_token);
        // After its only call, a reply ends like one that ended by itself.
        let reason = DoneReason::StopToken { id: 0 };
        let end = end.unwrap_or(End { reason, statistics });
        if end.reason == DoneReason::Cancelled || self.sender.is_closed() {
            return Err(Refusal::stopping());
        }
        Ok(self.send_likely(&mut likely, settings, held)?.then(|| Box::new(end)))
    }

    /// Sends the likelihoods of the tokens so far. Returns `false` if the client is gone.
    fn send_likely(
        &self,
        likely: &mut LikelyTokens,
        settings: &Settings,
        held: &Held,
    ) -> Result<bool, Refusal> {
        let tokens = std::mem::take(&mut likely.tokens);
        if settings.likelihoods.is_none() || tokens.is_empty() {
            return Ok(true);
        }
        let lease = held.lease().map_err(|error| Refusal::of_server(&error))?;
        let bytes = lease.loaded.token_bytes().map_err(|error| Refusal::of_server(&error))?;
        let bytes_of = |id: u32| bytes.get(id as usize).cloned().unwrap_or_default();
        let named = |token: TokenLikelihood| Likely {
            bytes: bytes_of(token.id),
            log_probability: token.log_probability,
            likeliest: token.likeliest.into_iter().map(|(id, log)| (bytes_of(id), log)).collect(),
        };
        Ok(self.send(Piece::Likely(tokens.into_iter().map(named).collect())))
    }
}

/// Starts the reply of a session. Pictures and sounds are read here, and no token runs yet.
fn begin_reply(session: &mut Session, input: Input, names: Names) -> Result<Reply<'_>, Fault> {
    let reply = match input {
        Input::Conversation(conversation) => {
            let tools = session.set_tools(conversation.tools);
            tools.map_err(|error| Fault::of_request(error, "tools"))?;
            session.set_tool_choice(conversation.choice);
            session.reply_to(conversation.turns)
        }
        Input::Text(text) => session.complete(&text),
        Input::Ids(ids) => session.complete_ids(ids),
    };
    reply.map_err(|error| Fault::of_request(error, names.input))
}

/// Likelihoods of tokens that were not sent yet.
struct LikelyTokens {
    tokens: Vec<TokenLikelihood>,
    /// Tokens that end a reply and are not part of its text.
    stop: StopRules,
}

impl LikelyTokens {
    /// Adds the tokens of the answer.
    fn add(&mut self, tokens: Vec<TokenLikelihood>) {
        let is_shown = |token: &TokenLikelihood| !token.is_of_thought && !self.stop.is_stop_id(token.id);
        self.tokens.extend(tokens.into_iter().filter(is_shown));
    }
}

fn no_template(id: &str) -> Refusal {
    let what = format!("model `{id}` has no chat template");
    Refusal::invalid("unsupported", what, "use `/v1/completions`").at("model")
}

/// Applies the settings of a request to a session.
fn configure(session: &mut Session, settings: &Settings, names: Names) -> Result<(), Refusal> {
    let sampling = &mut session.options.sampling;
    if let Some(temperature) = settings.temperature {
        sampling.do_sample = temperature > 0.0;
        sampling.temperature = if temperature > 0.0 { temperature } else { 1.0 };
    }
    let narrows = settings.top_p.is_some() || settings.top_k.is_some() || settings.min_p.is_some();
    if narrows && settings.temperature.is_none() {
        sampling.do_sample = true;
    }
    let set = |field: &mut f32, value: Option<f32>| *field = value.unwrap_or(*field);
    set(&mut sampling.top_p, settings.top_p);
    set(&mut sampling.min_p, settings.min_p);
    set(&mut sampling.repetition_penalty, settings.repetition_penalty);
    sampling.top_k = settings.top_k.unwrap_or(sampling.top_k);
    sampling.seed = settings.seed.unwrap_or_else(ids::random);
    let usual = (!session.has_length_limit()).then_some(TOKENS);
    session.options.max_tokens = settings.max_tokens.or(session.options.max_tokens).or(usual);
    session.options.likelihoods = settings.likelihoods;
    session.add_stop_strings(&settings.stop).map_err(|error| Refusal::of_request(&error).at("stop"))?;
    for (name, value) in &settings.variables {
        if !session.template_takes(name) {
            let what = format!("the chat template reads no variable `{}`", crate::fields::shortened(name));
            return Err(Refusal::value("chat_template_kwargs", what, "remove the variable"));
        }
        session.set_template_variable(name, *value);
    }
    if let Some(on) = settings.thinking {
        let set = session.set_thinking(on);
        set.map_err(|error| Refusal::of_request(&error).at(names.effort))?;
    }
    let set = session.constrain(settings.grammar.as_ref());
    set.map_err(|error| Refusal::of_request(&error).at(names.format))
}

/// Requests in progress, to cancel them when the server stops.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    all: Mutex<Vec<std::sync::Weak<Canceller>>>,
}

impl OpenRequests {
    /// Adds a request. It is removed when the result is dropped.
    pub fn register(&self, canceller: &Arc<Canceller>) -> Arc<Canceller> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(canceller));
        Arc::clone(canceller)
    }

    /// Cancels all requests.
    pub fn cancel(&self) {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(std::sync::Weak::upgrade).for_each(|canceller| canceller.cancel());
    }
}

/// Returns milliseconds for reports.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
