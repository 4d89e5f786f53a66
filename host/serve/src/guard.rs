//! Checks before any request is read: its host, its origin, its key.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;

use crate::app::App;
use crate::body::discard;
use crate::fields::shortened;
use crate::keys::KeyIndex;
use crate::refusal::Refusal;

/// Host names by which clients may call the server.
///
/// A page of another site can make a browser resolve the site's own name to this server (DNS
/// rebinding). The browser then sends that name as `Host`. It cannot do so with an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    names: Vec<String>,
    /// Whether the server is reached by addresses other than loopback ones.
    is_public: bool,
}

impl Hosts {
    pub fn new(address: &SocketAddr, names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        Hosts { names: names.collect(), is_public: !address.ip().is_loopback() }
    }

    /// Checks a `Host`, with or without a port.
    fn allows(&self, host: &str) -> bool {
        let Some(name) = without_port(host) else { return false };
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = address.parse::<IpAddr>() {
            return self.is_public || address.is_loopback();
        }
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name == "localhost" || self.names.contains(&name)
    }
}

/// Returns a host without its port, or `None` if the port is not a number.
fn without_port(host: &str) -> Option<&str> {
    let (name, port) = match host.rfind(']') {
        Some(end) => match host.get(end + 1..)? {
            "" => (host, None),
            rest => (host.get(..=end)?, Some(rest.strip_prefix(':')?)),
        },
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let is_valid = port.is_none_or(|port| port.parse::<u16>().is_ok());
    (is_valid && !name.is_empty()).then_some(name)
}

/// Paths without data, which need no key. The page requests the key itself.
const OPEN_PATHS: [&str; 4] = ["/", "/page.css", "/page.js", "/health"];

/// Checks a request, passes it on, and completes the response.
pub(crate) async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let endpoint = endpoint(request.uri().path());
    let mut response = match check(&app, &request) {
        Ok(key) => {
            request.extensions_mut().insert(key);
            next.run(request).await
        }
        Err(refusal) => {
            discard(request.into_body()).await;
            refusal.into_response()
        }
    };
    app.metrics.responded(endpoint, response.status().as_u16());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn check(app: &App, request: &Request) -> Result<KeyIndex, Refusal> {
    let (headers, path) = (request.headers(), request.uri().path());
    let host = one(headers, &header::HOST)?;
    check_host(&app.hosts, host, request.uri().authority().map(axum::http::uri::Authority::as_str))?;
    check_origin(headers, host.unwrap_or_default(), request.method(), path)?;
    if request.method() == Method::OPTIONS {
        let what = "the server does not answer preflight requests of other sites";
        let help = "call it from its own page, or from a program";
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what, help));
    }
    match &app.keys {
        None => Ok(KeyIndex(0)),
        Some(_) if OPEN_PATHS.contains(&path) => Ok(KeyIndex(0)),
        Some(keys) => {
            let given = one(headers, &header::AUTHORIZATION)?.and_then(bearer);
            let help = "send `Authorization: Bearer KEY`";
            let refused = |what: &str| Refusal::new(StatusCode::UNAUTHORIZED, "invalid_api_key", what, help);
            let given = given.ok_or_else(|| refused("the request has no API key"))?;
            keys.find(given).ok_or_else(|| refused("the API key is not known"))
        }
    }
}

/// Returns the value of a header that may occur once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    let invalid = |what: String| Refusal::invalid("invalid_header", what, "send the header once, as ASCII");
    if second.is_some() {
        return Err(invalid(format!("the header `{name}` occurs twice")));
    }
    let text = first.map(|value| value.to_str().map_err(|_| invalid(format!("`{name}` is not ASCII"))));
    text.transpose()
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

fn check_host(hosts: &Hosts, host: Option<&str>, authority: Option<&str>) -> Result<(), Refusal> {
    let Some(host) = host else {
        let help = "send the header `Host`";
        return Err(Refusal::invalid("invalid_header", "the request names no host", help));
    };
    let unknown = [Some(host), authority].into_iter().flatten().find(|name| !hosts.allows(name));
    match unknown {
        None => Ok(()),
        Some(name) => {
            let what = format!("the server is not called `{}`", shortened(name));
            let help = "use its address, or start it with `--host-name`";
            Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", what, help))
        }
    }
}

/// Refuses requests that a browser sends for a page of another site. Links to the page work.
fn check_origin(headers: &HeaderMap, host: &str, method: &Method, path: &str) -> Result<(), Refusal> {
    let refused = || {
        let what = "requests of other sites are refused";
        let help = "call the server from its own page, or from a program";
        Refusal::new(StatusCode::FORBIDDEN, "cross_site", what, help)
    };
    if let Some(origin) = one(headers, &header::ORIGIN)? {
        let own = ["http://", "https://"].into_iter().find_map(|scheme| origin.strip_prefix(scheme));
        if !own.is_some_and(|own| own.eq_ignore_ascii_case(host)) {
            return Err(refused());
        }
    }
    let site = one(headers, &HeaderName::from_static("sec-fetch-site"))?;
    let is_link = *method == Method::GET && path == "/";
    match site {
        Some("cross-site" | "same-site") if !is_link => Err(refused()),
        _ => Ok(()),
    }
}

/// Returns the name of an endpoint for metrics.
fn endpoint(path: &str) -> &'static str {
    match path {
        "/" | "/page.css" | "/page.js" => "page",
        "/health" => "health",
        "/metrics" => "metrics",
        "/v1/placement" => "placement",
        "/v1/chat/completions" => "chat",
        "/v1/completions" => "completions",
        "/v1/embeddings" => "embeddings",
        "/v1/responses" => "responses",
        path if path == "/v1/models" || path.starts_with("/v1/models/") => "models",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(address: &str) -> Hosts {
        Hosts::new(&address.parse().unwrap(), ["My-Box.local.".to_owned()])
    }

    #[test]
    fn names_of_other_sites_are_refused() {
        let local = hosts("127.0.0.1:8080");
        for host in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "my-box.local",
            "localhost.",
        ] {
            assert!(local.allows(host), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "localhost:x",
            "localhost:99999",
            "192.168.0.2",
            "[::1",
            "[::1]x",
            "[2001:db8::1]",
            "a@localhost",
        ] {
            assert!(!local.allows(host), "{host}");
        }
        let public = hosts("0.0.0.0:8080");
        assert!(
            public.allows("192.168.0.2:8080")
                && public.allows("[2001:db8::1]")
                && !public.allows("evil.example")
        );
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        let check = |pairs: &[(&'static str, &'static str)], method: Method, path: &str| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            check_origin(&headers, "localhost:8080", &method, path)
                .map_err(|refusal| refusal.status().as_u16())
        };
        let chat = "/v1/chat/completions";
        assert_eq!(check(&[], Method::POST, chat), Ok(()));
        assert_eq!(
            check(
                &[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")],
                Method::POST,
                chat
            ),
            Ok(())
        );
        for origin in ["http://evil.example", "null", "http://localhost:9090", "file://localhost:8080", ""] {
            assert_eq!(check(&[("origin", origin)], Method::POST, chat), Err(403), "{origin}");
        }
        let twice = [("origin", "http://localhost:8080"), ("origin", "http://evil.example")];
        assert_eq!(check(&twice, Method::POST, chat), Err(400));
        assert_eq!(check(&[("sec-fetch-site", "cross-site")], Method::GET, "/v1/models"), Err(403));
        assert_eq!(check(&[("sec-fetch-site", "cross-site")], Method::GET, "/"), Ok(()));
        assert_eq!(check(&[("sec-fetch-site", "none")], Method::GET, "/v1/models"), Ok(()));
    }

    #[test]
    fn a_request_names_one_known_host() {
        let local = hosts("127.0.0.1:8080");
        let code = |host, authority| {
            check_host(&local, host, authority).map_err(|refusal| refusal.status().as_u16())
        };
        assert_eq!(code(Some("localhost"), None), Ok(()));
        assert_eq!(code(None, None), Err(400));
        assert_eq!(code(Some("evil.example"), None), Err(421));
        assert_eq!(code(Some("localhost"), Some("evil.example")), Err(421));
    }

    #[test]
    fn keys_are_sent_as_bearer_tokens() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("abc"), None);
    }
}
