//! The server in this process, on a free port: endpoints with real replies, limits, guards, clients
//! that leave, stall or attack, and devices that are lost.

pub(crate) mod client;
mod endpoints;
mod guards;
mod hostile;
mod losses;
mod sharing;

use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;

use serde_json::{Value, json};
use shardwright::{OpenOptions, Result};
use shardwright_serve::{Limits, ServedModel, Server, ServerBuilder, Stopper};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE};
use shardwright_tests::program::search_path;
use shardwright_tests::tree;

/// A running server, which is stopped with this value.
struct Running {
    address: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Running {
    /// Starts a server with this change of its settings.
    fn with(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Running {
        let server = change(Server::builder()).bind().unwrap_or_else(|error| panic!("{error:?}"));
        let (address, stopper) = (server.address(), server.stopper());
        let thread = Some(std::thread::spawn(move || server.run()));
        Running { address, stopper, thread }
    }

    /// Starts a server of the demo model.
    fn demo() -> Running {
        Running::with(|builder| builder.model(model("demo", DEMO_MODEL)))
    }

    /// Starts a server of the demo model with these limits.
    fn limited(change: impl FnOnce(&mut Limits)) -> Running {
        let mut limits = Limits::default();
        change(&mut limits);
        Running::with(|builder| builder.model(model("demo", DEMO_MODEL)).limits(limits))
    }

    /// Stops the server and waits for its end.
    fn end(mut self) {
        self.stopper.stop();
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic").unwrap_or_else(|error| panic!("{error:?}"));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the test is reported already.
            let _ = thread.join();
        }
    }
}

/// Returns a model that is opened from a checkpoint of the tree.
fn model(id: &str, checkpoint: &str) -> ServedModel {
    let path = tree::root().join(checkpoint);
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    ServedModel::new(id, move |_| options.open(&path))
}

/// Returns a model that sees and hears.
fn seeing() -> ServedModel {
    let path = tree::root().join(MULTIMODAL_FIXTURE);
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    ServedModel::new("sees", move |_| options.open(&path))
}

/// Returns the demo model with a template that has tools, and the folder that it is in.
fn calling() -> (ServedModel, Copy) {
    let template = tree::read(Path::new("tests/clients/tools.jinja"));
    let copy = Copy::of(DEMO_MODEL).with("chat_template.jinja", template);
    let path = copy.path().to_owned();
    let options = OpenOptions::new().search_path(search_path()).threads(1);
    (ServedModel::new("calls", move |_| options.open(&path)), copy)
}

fn embedding() -> ServedModel {
    model("embeds", EMBEDDING_FIXTURE)
}

/// Returns a request for a greedy chat completion of the demo model, with further fields.
fn chat(question: &str, more: &Value) -> Value {
    let mut request = json!({
        "model": "demo",
        "messages": [{ "role": "user", "content": question }],
        "temperature": 0,
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    request
}

/// Returns a request for a streamed reply of at least hundreds of tokens: a text of 900 characters,
/// before whose end the schema does not let the model stop.
pub(crate) fn long(model: &str) -> Value {
    let schema = json!({ "type": "string", "minLength": 900, "maxLength": 3000 });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "long", "schema": schema } });
    json!({
        "model": model,
        "messages": [{ "role": "user", "content": "Tell a long story." }],
        "response_format": format,
        "stream": true,
        "seed": 3,
    })
}

const CHAT: &str = "/v1/chat/completions";
