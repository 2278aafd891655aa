//! Starts the console that a member runs, with its list of members and the URL through which it reaches this
//! member.

use std::sync::Arc;

use config::Url;
use console::{Console, Limits, Listener, Member, Options, Source};
use replica::shared::Shared;
use telemetry::logging::{Logger, Value};
use tls::ClientTls;

use crate::error::StartError;
use crate::listening::Listening;

/// Starts the console. Must be called only when clients are already served.
pub(crate) fn start(
    shared: &Arc<Shared>,
    logger: &Logger,
    listeners: Vec<Listener>,
    listening: &Listening,
    hosts: Vec<String>,
    dialing: ClientTls,
) -> Result<Console, StartError> {
    let told_by = Arc::clone(shared);
    let list = move || {
        let members = Arc::clone(&told_by.state.load().members);
        let list = members.by_id.values().map(|member| Member {
            id: member.id,
            name: member.name.clone(),
            client_urls: member.client_urls.clone(),
            is_learner: member.is_learner,
        });
        list.collect()
    };
    let listens_at = reached_at(listening).expect("a member listens for clients, at URLs");
    let options = Options {
        listeners,
        hosts,
        source: Source::Member { id: shared.member.identity.member_id, listens_at, list: Arc::new(list) },
        dialing,
        reloaders: Vec::new(),
        limits: Limits::default(),
    };
    let console = Console::start(options, logger.clone())
        .map_err(|error| StartError::Thread { what: "the thread of the console", error })?;
    let urls: Vec<&str> = listening.console.iter().map(String::as_str).collect();
    logger.info("serving the console", &[("urls", Value::List(&urls))]);
    Ok(console)
}

/// Returns the URL through which the console requests pages of this member: a URL without TLS if there is
/// one, because a request without TLS costs least.
fn reached_at(listening: &Listening) -> Option<Url> {
    let listeners = if listening.pages.is_empty() { &listening.clients } else { &listening.pages };
    let urls: Vec<Url> = listeners.iter().filter_map(|url| Url::parse(url).ok()).collect();
    urls.iter().find(|url| !url.scheme().is_secure()).or(urls.first()).cloned()
}
