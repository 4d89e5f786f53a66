//! Makes HTTP requests: follows redirects by the rules of a hub, retries, and converts statuses to
//! errors.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ureq::http::uri::Authority;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Proxy, ProxyProtocol};

use super::{INTERVAL, Watch};
use crate::{HubError, HubId, Settings, Token};

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

/// An error, and whether to retry the same request.
pub(super) struct Failed {
    pub error: HubError,
    pub again: bool,
}

impl Failed {
    /// Creates a permanent error.
    pub fn finally(error: HubError) -> Failed {
        Failed { error, again: false }
    }

    /// Creates the error for a broken connection.
    pub fn cut(url: &str, reason: impl fmt::Display) -> Failed {
        let error = HubError::Network { url: url.to_owned(), reason: reason.to_string() };
        Failed { error, again: true }
    }
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
    /// [`HubError::Endpoint`], [`HubError::Certificates`], [`HubError::Network`] for a proxy that
    /// is not supported.
    pub fn new(settings: &Settings) -> Result<Client, HubError> {
        let endpoint = settings.endpoint.trim_end_matches('/').to_owned();
        let refused = |reason| HubError::Endpoint { text: settings.endpoint.clone(), reason };
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
            let reason = "SOCKS proxies are not supported; set HTTPS_PROXY to an HTTP proxy".to_owned();
            return Err(HubError::Network { url: endpoint, reason });
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
        watch: &dyn Watch,
        mut progress: impl FnMut() -> u64,
        mut work: impl FnMut() -> Result<T, Failed>,
    ) -> Result<T, HubError> {
        let (mut failures, mut reached) = (0, progress());
        loop {
            let Failed { error, again } = match work() {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            if std::mem::replace(&mut reached, progress()) < reached {
                failures = 0;
            }
            failures += 1;
            let wait = match &error {
                HubError::RateLimited { seconds: Some(seconds), .. } => Duration::from_secs(*seconds),
                _ => self.backoff.saturating_mul(1 << (failures - 1)),
            };
            if !again || failures >= ATTEMPTS || wait > LONGEST_WAIT || watch.cancelled() {
                return Err(error);
            }
            watch.note(&format!("{error}; trying again in {:.0} s", wait.as_secs_f64().ceil()));
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
        let (url, to) = (url.to_owned(), uri.to_string());
        Err(Failed::finally(HubError::Redirect { url, to, reason: "too many redirects" }))
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
        let refused = |reason| {
            let (url, to) = (url.to_owned(), shortened(location));
            Failed::finally(HubError::Redirect { url, to, reason })
        };
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
        let url = url.to_owned();
        let error = match status {
            200 | 206 => return Ok(answer),
            // The hub's answer for both private and missing models.
            401 if from_hub && code == "RepoNotFound" => HubError::NotFound { url, maybe_private: true },
            401 | 403 if from_hub => {
                let id = self.name(&url);
                let (page, with_token) = (self.page(&url), self.token.is_some());
                HubError::Denied { id, status, page, with_token }
            }
            404 if from_hub => HubError::NotFound { url, maybe_private: code == "RepoNotFound" },
            429 => {
                let seconds = answer.header("retry-after").and_then(|text| text.trim().parse().ok());
                return Err(Failed { error: HubError::RateLimited { url, seconds }, again: true });
            }
            // Addresses in a store of files expire. The hub returns a new one.
            _ => {
                let again = status >= 500 || status == 408 || status == 403;
                return Err(Failed { error: HubError::Status { url, status }, again });
            }
        };
        Err(Failed::finally(error))
    }

    /// Returns `OWNER/NAME` of a URL.
    fn name(&self, url: &str) -> String {
        let page = self.page(url);
        page.strip_prefix(&self.endpoint).unwrap_or(&page).trim_start_matches('/').to_owned()
    }
}

/// Shortens a URL for a message, since stores of files add signatures of hundreds of characters.
fn shortened(url: &str) -> String {
    let end = url.find('?').unwrap_or(url.len());
    url[..end].chars().take(200).collect()
}

/// Loads the certificates of this machine, which may include certificates of a company's proxy.
fn tls() -> Result<TlsConfig, HubError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reason = found.errors.first().map_or_else(|| "there are none".to_owned(), ToString::to_string);
        return Err(HubError::Certificates { reason });
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
    use super::*;
    use crate::Cache;

    fn client(endpoint: &str, token: Option<&str>) -> Result<Client, HubError> {
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

    #[test]
    fn addresses_that_are_no_hub_are_refused() {
        for wrong in
            ["", "huggingface.co", "ftp://a", "file:///x", "http://u:p@a", "http://a?b", "http://a b"]
        {
            assert!(matches!(client(wrong, None), Err(HubError::Endpoint { .. })), "{wrong}");
        }
        // A token is not sent without encryption.
        assert!(client("http://mirror", None).is_ok() && client("http://localhost", Some("t")).is_ok());
        assert!(matches!(client("http://mirror", Some("t")), Err(HubError::Endpoint { .. })));
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
            let failed = next(&client, wrong).expect_err(wrong);
            assert!(matches!(failed.error, HubError::Redirect { .. }), "{wrong}: {}", failed.error);
        }
        assert!(matches!(
            next(&encrypted, "http://cdn/x"),
            Err(Failed { error: HubError::Redirect { .. }, .. })
        ));
    }
}
