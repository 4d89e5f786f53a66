//! The server: built, bound, run.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use shardwright::{Error, ErrorKind, Result};
use tokio::sync::watch;

use crate::app::App;
use crate::guard::Hosts;
use crate::keys::Keys;
use crate::limits::Limits;
use crate::models::{Models, ServedModel};
use crate::{connection, freed_memory, ids, routes};

/// Threads that move bytes. Replies have threads of their own.
const THREADS: usize = 2;

/// A server for models. See [`Server::builder`].
#[derive(Debug)]
pub struct Server(());

impl Server {
    /// Creates a builder of a server on the loopback address and a free port, without models.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            models: Vec::new(),
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            keys: None,
            is_open: false,
            hosts: Vec::new(),
            budget: None,
            limits: Limits::default(),
        }
    }
}

/// Settings of a server.
#[derive(Debug)]
pub struct ServerBuilder {
    models: Vec<ServedModel>,
    address: SocketAddr,
    keys: Option<Keys>,
    is_open: bool,
    hosts: Vec<String>,
    budget: Option<u64>,
    limits: Limits,
}

impl ServerBuilder {
    /// Adds a model.
    #[must_use]
    pub fn model(mut self, model: ServedModel) -> Self {
        self.models.push(model);
        self
    }

    /// Sets the address. Port 0 is any free port.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Requires one of these keys in each request.
    #[must_use]
    pub fn keys(mut self, keys: Keys) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Allows requests without a key on addresses other than loopback ones.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        self.is_open = true;
        self
    }

    /// Adds a name by which clients may call the server, in addition to `localhost` and addresses.
    #[must_use]
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// Bounds the memory of all models together, in bytes.
    #[must_use]
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Sets the limits of requests and connections.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Binds the address and opens each model once. Requests wait until [`BoundServer::run`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] for settings that exclude each other, for an address other than a
    /// loopback one without keys, and without models. Errors of binding, and of opening a model.
    pub fn bind(self) -> Result<BoundServer> {
        self.check()?;
        let at = |error: std::io::Error| {
            let help = "use another address or port, or stop the program that uses it";
            Error::from(error).at(format!("address {}", self.address)).or_help(help)
        };
        let listener = TcpListener::bind(self.address).map_err(at)?;
        listener.set_nonblocking(true).map_err(at)?;
        let address = listener.local_addr().map_err(at)?;
        let keys = self.keys.as_ref().map_or(1, Keys::len).max(1);
        let cache_bytes = self.limits.prefix_cache_bytes / keys;
        let models = Models::new(self.models, self.budget, cache_bytes as u64, ids::now());
        models.open_all()?;
        let hosts = Hosts::new(&address, self.hosts);
        let app = Arc::new(App::new(models, self.limits, self.keys, hosts));
        let (stop, stopped) = watch::channel(false);
        Ok(BoundServer { app, listener, address, stopper: Stopper(Arc::new(stop)), stopped })
    }

    fn check(&self) -> Result<()> {
        let refused = |what: String, help: &str| Err(Error::new(ErrorKind::Argument, what).with_help(help));
        if self.keys.is_some() && self.is_open {
            return refused(
                "API keys and no authentication exclude each other".to_owned(),
                "drop one of them",
            );
        }
        if !self.address.ip().is_loopback() && self.keys.is_none() && !self.is_open {
            let what =
                format!("{} can be reached from other machines, and there is no API key", self.address);
            return refused(what, "set `--api-key`, or allow all clients with `--no-auth`");
        }
        if self.models.is_empty() {
            return refused("there is no model to serve".to_owned(), "name at least one model");
        }
        if self.limits.open_requests == 0 || self.limits.connections == 0 {
            return refused(
                "a server needs at least one request and connection".to_owned(),
                "raise the limit",
            );
        }
        let mut ids: Vec<&str> = self.models.iter().map(ServedModel::id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => {
                refused(format!("two models have the id `{}`", pair[0]), "rename one of their folders")
            }
        }
    }
}

/// A server that has an address and does not answer yet.
pub struct BoundServer {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
    stopper: Stopper,
    stopped: watch::Receiver<bool>,
}

impl std::fmt::Debug for BoundServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundServer").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Stops a server from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<watch::Sender<bool>>);

impl Stopper {
    /// Requests the server to stop. It accepts no further connection, finishes open requests, and
    /// cancels the ones that take longer than [`Limits::drain_time`].
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl BoundServer {
    /// Returns the address, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the ids of the models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.app.models.entries().iter().map(|entry| entry.id.as_str())
    }

    /// Returns a handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Answers requests until the server is stopped.
    ///
    /// # Errors
    ///
    /// Fails if the system has too few threads or files.
    pub fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("server")
            .enable_all()
            .build()?;
        let router = routes::router(&self.app);
        runtime.spawn(freed_memory::give_back(Arc::clone(&self.app)));
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            connection::serve(listener, router, self.app, self.stopped).await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(id: &str) -> ServedModel {
        ServedModel::new(id, |_| Err(Error::new(ErrorKind::Missing, "no such model")))
    }

    fn error(builder: ServerBuilder) -> Error {
        builder.bind().expect_err("an error")
    }

    #[test]
    fn other_addresses_need_a_key_or_the_will_to_do_without() {
        let public: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let refused = error(Server::builder().model(model("a")).address(public));
        assert_eq!(refused.kind(), ErrorKind::Argument);
        assert!(refused.help().is_some_and(|help| help.contains("--api-key")), "{refused}");
        let keys = Keys::from_text("0123456789abcdef").unwrap();
        for builder in [Server::builder().keys(keys.clone()), Server::builder().without_keys()] {
            // The guard passes, and the model is the next error.
            assert_eq!(error(builder.model(model("a")).address(public)).kind(), ErrorKind::Missing);
        }
        let both = error(Server::builder().model(model("a")).keys(keys).without_keys());
        assert!(both.to_string().contains("exclude each other"), "{both}");
    }

    #[test]
    fn models_have_ids_of_their_own() {
        assert!(error(Server::builder()).to_string().contains("no model"));
        let twice = error(Server::builder().model(model("a")).model(model("a")));
        assert!(twice.to_string().contains("two models have the id `a`"), "{twice}");
        let limits = Limits { open_requests: 0, ..Limits::default() };
        let none = error(Server::builder().model(model("a")).limits(limits));
        assert!(none.to_string().contains("at least one request"), "{none}");
    }

    #[test]
    fn a_taken_port_is_reported_with_its_address() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let refused = error(Server::builder().model(model("a")).address(address));
        assert!(refused.to_string().contains(&address.to_string()) && refused.help().is_some(), "{refused}");
    }
}
