//! Serves the listeners in `listen-metrics-urls`.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use ::http::{Request, Response};
use api::{Code, Status};
use bytes::Bytes;
use front::{Front, Head, Inbound, LocalBoxFuture, Method, Options, Outbound, Service, Unary};

use super::diagnosis::ByStranger;
use super::{FrontCounters, answer_metrics_listener};
use replica::shared::Shared;
use storage::values::LogValues;
use telemetry::logging::Logger;

/// Serves `/metrics`, `/health`, `/livez` and `/readyz` for monitoring, and no calls. Clients need not be
/// able to reach its addresses.
pub struct MetricsListener {
    shared: Arc<Shared>,
    counters: FrontCounters,
    values: LogValues,
    logger: Arc<Logger>,
}

impl MetricsListener {
    /// Starts to serve these listeners, on one thread. `counters` belong to the front that serves clients;
    /// the metrics show them. They do not count requests to the metrics listener itself.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread or its event loop cannot be created, or if a listener cannot be set up.
    pub fn start(
        shared: &Arc<Shared>,
        counters: &FrontCounters,
        logger: &Arc<Logger>,
        options: Options,
        listeners: Vec<front::Listener>,
    ) -> io::Result<Front> {
        let (shared, counters, logger) = (Arc::clone(shared), counters.clone(), Arc::clone(logger));
        let make_service = move |_| -> Rc<dyn Service> {
            let values = LogValues::new(shared.data.values.clone());
            let (shared, logger) = (Arc::clone(&shared), Arc::clone(&logger));
            Rc::new(MetricsListener { shared, counters: counters.clone(), values, logger })
        };
        front::start(Options { shards: 1, ..options }, listeners, Arc::new(make_service))
    }
}

fn no_calls() -> Status {
    Status::new(Code::Unimplemented, "mainstay: this address serves only metrics and health")
}

impl Service for MetricsListener {
    fn method(&self, _: &str) -> Option<Method> {
        None
    }

    fn has_service(&self, _: &str) -> bool {
        false
    }

    fn unary(self: Rc<Self>, _: Head, _: Bytes) -> Unary {
        Unary::Done(Err(no_calls()))
    }

    fn stream(self: Rc<Self>, _: Head, _: Inbound, _: Outbound) -> LocalBoxFuture<Result<(), Status>> {
        Box::pin(std::future::ready(Err(no_calls())))
    }

    fn http(self: Rc<Self>, mut request: Request<Bytes>) -> LocalBoxFuture<Response<Bytes>> {
        Box::pin(async move {
            super::confirm(&self.shared, &mut request).await;
            let is_tls = request.extensions().get::<front::Origin>().is_some_and(|origin| origin.is_tls);
            if self.shared.clients.show_certificates && !is_tls {
                request.extensions_mut().insert(ByStranger);
            }
            answer_metrics_listener(&self.shared, &self.values, &self.counters, &self.logger, &request)
        })
    }
}
