//! Makes HTTP requests: follows redirects by the rules of a hub, retries, and converts statuses to
//! errors.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use shardwright_vocabulary::{Error, Result};
use ureq::http::uri::Authority;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy, ProxyProtocol};

use super::{INTERVAL, PullWatch};
use crate::{HubId, Settings, Token};

/// Maximum number of redirects per request. A hub needs two: a renamed repository and the store of
/// its files.
const REDIRECTS: usize = 5;

/// Number of consecutive failed requests without progress before the error is reported.
const ATTEMPTS: u32 = 5;

/// Maximum wait that a hub may request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Maximum time for connecting, including TLS.
const CONNECT: Duration = Duration::from_secs(20);

/// Characters that are not encoded in a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// An error, its cause, and whether to retry the same request.
#[derive(Debug)]
pub(super) struct Failed {
    pub error: Error,
    pub cause: Cause,
    pub again: bool,
}

/// The causes that lead to different reactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The model, revision or file does not exist.
    NotFound,
    /// The server did not answer, or the answer was cut off.
    Network,
    /// The hub requests a wait of this many seconds.
    Busy(u64),
    /// The server returned an unexpected status.
    Status(u16),
    Other,
}

impl Failed {
    /// Creates the error for a broken connection.
    pub fn cut(url: &str, reason: impl fmt::Display) -> Failed {
        let error = Error::missing(reason.to_string()).at(url).with_help(
            "check the connection, HF_ENDPOINT and HTTPS_PROXY, and pull again; fetched bytes are kept",
        );
        Failed { error, cause: Cause::Network, again: true }
    }
}

/// Creates a permanent error.
impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, cause: Cause::Other, again: false }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        failed.error
    }
}

/// Returns the error for an answer that hubs do not give.
pub(super) fn unlike_a_hub(what: impl Into<String>) -> Error {
    Error::invalid(what).with_help("check HF_ENDPOINT: the server does not behave like a hub")
}

/// An answer that is not a redirect.
pub(super) struct Answer {
    pub response: Response<Body>,
    /// The headers of the hub itself, if another server sends the body.
    pub hub: HeaderMap,
}

impl Answer {
    /// Returns a header of the last server as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        text(self.response.headers(), name)
    }
}

/// Returns a header as text.
pub(super) fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The type of a request.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    /// Requests the body from this byte on.
    Body { from: u64 },
    /// Requests only the headers of the hub.
    Head,
}

/// A connection to one hub.
#[derive(Clone, Debug)]
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
    backoff: Duration,
    /// Whether any server has answered. If none has, there is probably no network, and retrying is
    /// useless.
    answered: Arc<AtomicBool>,
}

impl Client {
    /// Creates a client for the hub of `settings`.
    ///
    /// # Errors
    /// If the address is not that of a hub, if there are no certificates, or if the proxy is not
    /// supported.
    pub fn new(settings: &Settings) -> Result<Client, Failed> {
        let endpoint = settings.endpoint.trim_end_matches('/').to_owned();
        let refused = |reason: &str| {
            let what = format!("`{}` is not the address of a hub: {reason}", settings.endpoint);
            let help = "write https://HOST; http:// is for a hub on this machine, or one that needs no token";
            Failed::from(Error::argument(what).with_help(help))
        };
        let uri: Uri = endpoint.parse().map_err(|_| refused("not a URL"))?;
        let origin = Origin::of(&uri).ok_or_else(|| refused("expected https://HOST"))?;
        if uri.query().is_some() {
            return Err(refused("it has a query"));
        }
        if settings.token.is_some() && !origin.tls && !origin.is_this_machine() {
            return Err(refused("a token would be sent over a connection that is not encrypted"));
        }
        let mut config = Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("shardwright/", env!("CARGO_PKG_VERSION")))
            // Bytes are counted and hashed on arrival.
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT))
            .timeout_resolve(Some(CONNECT))
            .timeout_per_read(Some(settings.patience))
            .timeout_per_write(Some(settings.patience))
            // Limits headers that arrive byte by byte.
            .timeout_recv_response(Some(settings.patience.saturating_mul(2)));
        if origin.tls {
            config = config.tls_config(tls()?);
        }
        let config = config.build();
        let http = |proxy: &Proxy| matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https);
        if config.proxy().is_some_and(|proxy| !http(proxy)) {
            let reason = "SOCKS proxies are not supported; set HTTPS_PROXY to an HTTP proxy";
            return Err(Failed::cut(&endpoint, reason));
        }
        let (token, backoff) = (settings.token.clone(), settings.backoff);
        Ok(Client { agent: config.new_agent(), endpoint, origin, token, backoff, answered: Arc::default() })
    }

    /// Ends all requests, including waiting ones.
    pub fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Returns the URL of the list of a model's files.
    pub fn list(&self, id: &HubId) -> String {
        let revision = utf8_percent_encode(id.revision(), PLAIN);
        format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, id.repository())
    }

    /// Returns the URL of a file.
    pub fn file(&self, id: &HubId, commit: &str, name: &str) -> String {
        let name: Vec<String> =
            name.split('/').map(|part| utf8_percent_encode(part, PLAIN).to_string()).collect();
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, id.repository(), name.join("/"))
    }

    /// Returns the URL of the model's web page.
    fn page(&self, url: &str) -> String {
        let path = url.strip_prefix(&self.endpoint).unwrap_or_default();
        let path = path.strip_prefix("/api/models").unwrap_or(path);
        let id: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).take(2).collect();
        format!("{}/{}", self.endpoint, id.join("/"))
    }

    /// Repeats work until it succeeds, fails permanently, or fails several times without progress.
    /// `progress` returns the amount of work done so far.
    pub fn persist<T>(
        &self,
        watch: &dyn PullWatch,
        mut progress: impl FnMut() -> u64,
        mut work: impl FnMut() -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let (mut failures, mut reached) = (0, progress());
        loop {
            let failed = match work() {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            if std::mem::replace(&mut reached, progress()) < reached {
                failures = 0;
            }
            failures += 1;
            let wait = match failed.cause {
                Cause::Busy(seconds) => Duration::from_secs(seconds),
                _ => self.backoff.saturating_mul(1 << (failures - 1)),
            };
            if !failed.again || failures >= ATTEMPTS || wait > LONGEST_WAIT || watch.cancelled() {
                return Err(failed);
            }
            watch.note(&format!("{}; trying again in {:.0} s", failed.error, wait.as_secs_f64().ceil()));
            let begun = Instant::now();
            while begun.elapsed() < wait && !watch.cancelled() {
                thread::sleep(INTERVAL.min(wait));
            }
        }
    }

    /// Makes a request and follows redirects. The token is sent only to the hub.
    pub fn request(&self, url: &str, ask: Ask) -> Result<Answer, Failed> {
        let mut uri: Uri = url.parse().map_err(|_| Failed::cut(url, "not a URL"))?;
        let mut hub = None;
        for _ in 0..=REDIRECTS {
            let to_hub = Origin::of(&uri).as_ref() == Some(&self.origin);
            let response = self.once(url, &uri, to_hub, ask)?;
            let headers = hub.get_or_insert_with(|| response.headers().clone());
            if !response.status().is_redirection() {
                let answer = Answer { hub: headers.clone(), response };
                return self.accepted(url, answer, to_hub);
            }
            let location = text(response.headers(), "location").unwrap_or_default();
            let next = self.next(url, &uri, location)?;
            // If a repository was renamed, use the headers of its new name.
            if Origin::of(&next).as_ref() == Some(&self.origin) {
                hub = None;
            } else if matches!(ask, Ask::Head) {
                return Ok(Answer { hub: headers.clone(), response });
            }
            uri = next;
        }
        Err(redirected(url, &uri.to_string(), "too many redirects"))
    }

    fn once(&self, url: &str, uri: &Uri, to_hub: bool, ask: Ask) -> Result<Response<Body>, Failed> {
        let mut request = match ask {
            Ask::Body { .. } => self.agent.get(uri),
            Ask::Head => self.agent.head(uri),
        };
        if let Some(token) = self.token.as_ref().filter(|_| to_hub) {
            request = request.header("authorization", format!("Bearer {}", token.secret()));
        }
        if let Ask::Body { from: from @ 1.. } = ask {
            request = request.header("range", format!("bytes={from}-"));
        }
        let error = match request.call() {
            Ok(response) => {
                self.answered.store(true, Ordering::Relaxed);
                return Ok(response);
            }
            Err(error) => error,
        };
        let stays = matches!(
            error,
            ureq::Error::HostNotFound
                | ureq::Error::Rustls(_)
                | ureq::Error::Tls(_)
                | ureq::Error::LargeResponseHeader(..)
                | ureq::Error::BadUri(_)
        );
        let mut failed = match error {
            ureq::Error::Io(error) => Failed::cut(url, error),
            error => Failed::cut(url, error),
        };
        failed.again = !stays && self.answered.load(Ordering::Relaxed);
        Err(failed)
    }

    /// Returns the target of a redirect.
    fn next(&self, url: &str, from: &Uri, location: &str) -> Result<Uri, Failed> {
        let refused = |reason| redirected(url, &shortened(location), reason);
        let absolute = match location.strip_prefix('/') {
            Some(rest) if !rest.starts_with('/') => {
                let scheme = from.scheme_str().unwrap_or("https");
                format!("{scheme}://{}{location}", from.authority().map_or("", Authority::as_str))
            }
            _ => location.to_owned(),
        };
        let next: Uri = absolute.parse().map_err(|_| refused("not a URL"))?;
        let origin = Origin::of(&next).ok_or_else(|| refused("only https:// is followed"))?;
        if self.origin.tls && !origin.tls {
            return Err(refused("it leads from an encrypted connection to one that is not"));
        }
        Ok(next)
    }

    /// Converts statuses other than success to errors.
    fn accepted(&self, url: &str, answer: Answer, from_hub: bool) -> Result<Answer, Failed> {
        let status = answer.response.status().as_u16();
        let code = answer.header("x-error-code").unwrap_or_default();
        match status {
            200 | 206 => Ok(answer),
            // The hub's answer for both private and missing models.
            401 if from_hub && code == "RepoNotFound" => Err(not_found(url, true)),
            401 | 403 if from_hub => Err(self.denied(url, status).into()),
            404 if from_hub => Err(not_found(url, code == "RepoNotFound")),
            429 => {
                let seconds: Option<u64> =
                    answer.header("retry-after").and_then(|text| text.trim().parse().ok());
                let wait = seconds.map_or_else(String::new, |seconds| format!(", retry after {seconds} s"));
                let error = Error::missing(format!("too many requests{wait}"))
                    .at(url)
                    .with_help("wait and pull again; a token in HF_TOKEN raises the limit");
                Err(Failed { error, cause: seconds.map_or(Cause::Other, Cause::Busy), again: true })
            }
            // Addresses in a store of files expire. The hub returns a new one.
            _ => {
                let again = status >= 500 || status == 408 || status == 403;
                let error = Error::missing(format!("unexpected status {status}"))
                    .at(url)
                    .with_help("try again later; fetched bytes are kept");
                Err(Failed { error, cause: Cause::Status(status), again })
            }
        }
    }

    /// Returns the error for a model that this user may not read.
    fn denied(&self, url: &str, status: u16) -> Error {
        let (id, page) = (self.name(url), self.page(url));
        let (more, then) = match self.token {
            Some(_) => ("", "as the user of the token, and check that the token may read it"),
            None => {
                (", and no token was sent", "if there are any, then set HF_TOKEN to a token of that user")
            }
        };
        Error::missing(format!("the hub denies access to {id} (status {status}){more}"))
            .with_help(format!("accept the terms on {page} {then}"))
    }

    /// Returns `OWNER/NAME` of a URL.
    fn name(&self, url: &str) -> String {
        let page = self.page(url);
        page.strip_prefix(&self.endpoint).unwrap_or(&page).trim_start_matches('/').to_owned()
    }
}

/// Returns the error for a model, revision or file that does not exist, or may be private.
fn not_found(url: &str, maybe_private: bool) -> Failed {
    let (what, help) = match maybe_private {
        true => ("not found, or private", "check owner, name and revision; a private model needs HF_TOKEN"),
        false => ("not found", "check owner, name, revision and file"),
    };
    let error = Error::missing(what).at(url).with_help(help);
    Failed { error, cause: Cause::NotFound, again: false }
}

/// Returns the error for a redirect that is not followed.
fn redirected(url: &str, to: &str, reason: &str) -> Failed {
    unlike_a_hub(format!("redirected to `{to}`: {reason}")).at(url).into()
}

/// Shortens a URL for a message, since stores of files add signatures of hundreds of characters.
fn shortened(url: &str) -> String {
    let end = url.find('?').unwrap_or(url.len());
    url[..end].chars().take(200).collect()
}

/// Loads the certificates of this machine, which may include certificates of a company's proxy.
fn tls() -> Result<TlsConfig> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reason = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        return Err(Error::missing(format!("no certificate authorities were found on this machine{reason}"))
            .with_help("install ca-certificates, or set SSL_CERT_FILE to a file of certificates"));
    }
    let roots: Vec<Certificate<'static>> =
        found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

/// Scheme, host and port of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    tls: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// Returns the origin, or `None` for a scheme other than HTTP, and for a URL with a password.
    fn of(uri: &Uri) -> Option<Origin> {
        let tls = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Some(Origin { tls, host: authority.host().to_ascii_lowercase(), port })
    }

    fn is_this_machine(&self) -> bool {
        ["localhost", "127.0.0.1", "[::1]"].contains(&self.host.as_str())
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;
    use crate::Cache;

    fn client(endpoint: &str, token: Option<&str>) -> Result<Client, Failed> {
        Client::new(&Settings {
            endpoint: endpoint.to_owned(),
            cache: Cache::new("unused"),
            token: token.and_then(|text| Token::parse(text, "a test").expect("a token")),
            offline: false,
            backoff: Duration::ZERO,
            patience: Duration::from_secs(5),
        })
    }

    #[test]
    fn addresses_are_escaped() {
        let client = client("http://localhost:1/", None).expect("a client");
        let id: HubId = "a/b@refs/pr/1".parse().expect("an id");
        assert_eq!(client.list(&id), "http://localhost:1/api/models/a/b/revision/refs%2Fpr%2F1?blobs=true");
        let url = client.file(&id, "c", "x y/#1?.gguf");
        assert_eq!(url, "http://localhost:1/a/b/resolve/c/x%20y/%231%3F.gguf");
        assert_eq!(
            (client.page(&url), client.name(&url)),
            ("http://localhost:1/a/b".to_owned(), "a/b".to_owned())
        );
    }

    fn is_no_hub(refused: Result<Client, Failed>, address: &str) {
        let error = refused.expect_err(address).error;
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        assert!(error.message().starts_with(&format!("`{address}` is not the address of a hub")), "{error}");
    }

    #[test]
    fn addresses_that_are_no_hub_are_refused() {
        for wrong in
            ["", "huggingface.co", "ftp://a", "file:///x", "http://u:p@a", "http://a?b", "http://a b"]
        {
            is_no_hub(client(wrong, None), wrong);
        }
        // A token is not sent without encryption.
        assert!(client("http://mirror", None).is_ok() && client("http://localhost", Some("t")).is_ok());
        is_no_hub(client("http://mirror", Some("t")), "http://mirror");
    }

    #[test]
    fn redirects_stay_encrypted_and_in_http() {
        let of = |url: &str| url.parse::<Uri>().expect("a URL");
        let client = client("http://localhost:1", None).expect("a client");
        let mut encrypted = client.clone();
        encrypted.origin.tls = true;
        let next = |client: &Client, to: &str| {
            client.next("url", &of("http://h:5/a"), to).map(|uri| uri.to_string())
        };
        assert!(next(&client, "/b").is_ok_and(|uri| uri == "http://h:5/b"));
        assert!(next(&client, "https://cdn/x?y").is_ok_and(|uri| uri == "https://cdn/x?y"));
        for wrong in ["", "b", "//h/b", "file:///etc/passwd", "http://u:p@h/"] {
            let error = next(&client, wrong).expect_err(wrong).error;
            assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("url")), "{wrong}: {error}");
            assert!(error.message().starts_with(&format!("redirected to `{wrong}`: ")), "{error}");
        }
        let error = next(&encrypted, "http://cdn/x").expect_err("not encrypted").error;
        assert!(error.message().contains("an encrypted connection"), "{error}");
    }
}
