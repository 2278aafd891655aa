//! Routes requests to pages, to the list of members, or to a member: [`Service::answer`].

use std::rc::Rc;

use http::header::ALLOW;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use telemetry::logging::Logger;
use tokio::sync::watch;

use crate::assets;
use crate::connection_state::ConnectionState;
use crate::defences;
use crate::endpoints::Endpoints;
use crate::forward;
use crate::listener_settings::ListenerSettings;
use crate::permits::RequestPermits;
use crate::refusal::Refusal;
use crate::response_body::AnswerBody;
use crate::upstream::Dialer;

/// State that all connections share.
pub(crate) struct Service {
    pub(crate) dialer: Rc<Dialer>,
    pub(crate) endpoints: Endpoints,
    /// Host names under which browsers may reach the console without TLS, in addition to those of the
    /// listener.
    pub(crate) hosts: Vec<String>,
    pub(crate) logger: Logger,
    pub(crate) permits: Rc<RequestPermits>,
    /// Changes whenever TLS files have been reloaded.
    pub(crate) reloaded: watch::Receiver<()>,
}

impl Service {
    /// Returns the response to a request. Errors become responses too.
    pub(crate) async fn answer(
        self: &Rc<Service>,
        request: Request<Incoming>,
        settings: &ListenerSettings,
        state: Rc<ConnectionState>,
    ) -> Response<AnswerBody> {
        match self.find(request, settings, state).await {
            Ok(response) => response,
            Err(refusal) => {
                let is_wrong_method = refusal.status == StatusCode::METHOD_NOT_ALLOWED;
                let mut response: Response<AnswerBody> = refusal.into();
                if is_wrong_method {
                    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
                }
                response
            }
        }
    }

    async fn find(
        self: &Rc<Service>,
        request: Request<Incoming>,
        settings: &ListenerSettings,
        state: Rc<ConnectionState>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let host = defences::host(&request)?;
        defences::check_host(host, settings, &self.hosts)?;
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let Some(call) = path.strip_prefix("/api/") else {
            let file = if path == "/" { Some("index.html") } else { path.strip_prefix("/assets/") };
            let file = file.and_then(assets::find);
            let file = file.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "no such page"))?;
            if !is_read {
                return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "pages use GET"));
            }
            return Ok(assets::answer(file, request.headers()));
        };
        defences::check_caller(&request, host)?;
        if call == "members" {
            if !is_read {
                return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "the list of members uses GET"));
            }
            return self.endpoints.list(&self.dialer, &self.permits, request.headers(), state.address).await;
        }
        let found = call.strip_prefix("endpoint/").and_then(|rest| rest.split_once('/'));
        let found = found.and_then(|(id, rest)| Some((self.endpoints.find(id)?, rest.to_owned())));
        let (target, rest) = found.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "no such endpoint"))?;
        forward::forward(&self.dialer, &self.permits, target, &rest, request, state).await
    }
}
