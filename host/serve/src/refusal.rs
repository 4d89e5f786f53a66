//! Errors as clients of OpenAI's interface expect them.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use shardwright::{Error, ErrorKind};

/// Seconds after which a client may retry a request that the server had no room for.
const RETRY_SECONDS: u64 = 1;

/// An error response: a status and an error object with type, code, field, message and help.
#[derive(Clone, Debug)]
pub(crate) struct Refusal(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    status: StatusCode,
    code: &'static str,
    param: Option<String>,
    message: String,
    help: String,
    retry_after: Option<u64>,
}

impl Refusal {
    pub fn new(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let (message, help) = (message.into(), help.into());
        Refusal(Box::new(Parts { status, code, param: None, message, help, retry_after: None }))
    }

    /// Creates the refusal of a request that is invalid.
    pub fn invalid(code: &'static str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, code, message, help)
    }

    /// Creates the refusal of a value that a field cannot have.
    pub fn value(param: &str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Refusal::invalid("invalid_value", message, help).at(param)
    }

    /// Creates the refusal of a request that the server has no room for now.
    pub fn busy(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let mut refusal = Refusal::new(status, code, message, help);
        refusal.0.retry_after = Some(RETRY_SECONDS);
        refusal
    }

    /// Creates the refusal after an error of the server itself.
    pub fn internal(message: impl Into<String>) -> Self {
        let help = "run the server with `-vv` and report the output";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message, help)
    }

    /// Creates the refusal of a request that the stopping server does not finish.
    pub fn stopping() -> Self {
        let help = "send the request again to the next server";
        Refusal::busy(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping", help)
    }

    /// Creates the refusal for an error about the data of a request.
    pub fn of_request(error: &Error) -> Self {
        let (status, code) = match error.kind() {
            ErrorKind::Argument => (StatusCode::BAD_REQUEST, "invalid_value"),
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "invalid_data"),
            ErrorKind::Unsupported => (StatusCode::BAD_REQUEST, "unsupported"),
            ErrorKind::Context => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            ErrorKind::Cancelled => return Refusal::stopping(),
            _ => return Refusal::of_server(error),
        };
        let help = error.help().unwrap_or("correct the request");
        Refusal::new(status, code, error.to_string(), help)
    }

    /// Creates the refusal for an error of a model or of the machine.
    pub fn of_server(error: &Error) -> Self {
        if error.is_device_lost() {
            let help = "send the request again, and see the log of the server if that fails too";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Refusal::busy(status, "device_lost", error.to_string(), help);
        }
        let help = error.help().unwrap_or("see the log of the server").to_owned();
        match error.kind() {
            ErrorKind::Memory | ErrorKind::Resource => {
                let code = error.kind().name();
                Refusal::busy(StatusCode::SERVICE_UNAVAILABLE, code, error.to_string(), help)
            }
            ErrorKind::Cancelled => Refusal::stopping(),
            kind => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, kind.name(), error.to_string(), help),
        }
    }

    /// Names the field that the refusal is about, unless it has one.
    #[must_use]
    pub fn at(mut self, param: &str) -> Self {
        self.0.param.get_or_insert_with(|| param.to_owned());
        self
    }

    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Returns the type of the error in OpenAI's interface.
    fn kind(&self) -> &'static str {
        match self.0.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Returns the error object. Its message ends with the help.
    pub fn json(&self) -> Value {
        let Parts { code, param, message, help, .. } = &*self.0;
        json!({ "error": {
            "message": format!("{message}. help: {help}"),
            "type": self.kind(),
            "param": param,
            "code": code,
        } })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        let mut response = json_response(self.0.status, &self.json());
        let headers = response.headers_mut();
        if let Some(seconds) = self.0.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Creates a response with a JSON document.
pub(crate) fn json_response(status: StatusCode, document: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(document.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_object_has_type_code_field_message_and_help() {
        let refusal = Refusal::value("messages[0].role", "unknown role `x`", "use `user`");
        let error = &refusal.at("messages").json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(error["code"], "invalid_value");
        assert_eq!(error["param"], "messages[0].role");
        assert_eq!(error["message"], "unknown role `x`. help: use `user`");
        let response = Refusal::stopping().into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }

    #[test]
    fn errors_of_requests_and_of_the_server_differ_in_status() {
        for (kind, of_request, of_server) in [
            (ErrorKind::Argument, 400, 500),
            (ErrorKind::Invalid, 400, 500),
            (ErrorKind::Unsupported, 400, 500),
            (ErrorKind::Context, 400, 500),
            (ErrorKind::Memory, 503, 503),
            (ErrorKind::Resource, 503, 503),
            (ErrorKind::Cancelled, 503, 503),
            (ErrorKind::Shim, 500, 500),
        ] {
            let error = Error::new(kind, "odd");
            assert_eq!(Refusal::of_request(&error).status().as_u16(), of_request, "{kind:?}");
            assert_eq!(Refusal::of_server(&error).status().as_u16(), of_server, "{kind:?}");
        }
        let lost = Error::new(ErrorKind::Shim, "gone").with_help("load it again").of_lost_device();
        for refusal in [Refusal::of_request(&lost), Refusal::of_server(&lost)] {
            let error = &refusal.json()["error"];
            assert_eq!((refusal.status().as_u16(), &error["code"]), (503, &json!("device_lost")));
            let text = error["message"].as_str().unwrap();
            assert!(text.starts_with("gone. help: send the request again"), "{text}");
        }
        let context = Refusal::of_request(&Error::new(ErrorKind::Context, "too long"));
        assert_eq!(context.json()["error"]["code"], "context_length_exceeded");
    }
}
