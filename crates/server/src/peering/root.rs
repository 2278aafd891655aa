//! On whose behalf another member hands on what only root may do.

use std::net::{IpAddr, Ipv4Addr};

use api::{Status, error};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use identity::{Refused, Session, fingerprint};
use machine::auth::{Caller, Gate, RightsCache};

use replica::core::{ClientRequest, ReplyBody};
use replica::shared::Shared;
use telemetry::logging::{Logger, Value};

/// Whose turn it is when the signatures of tokens are looked at: all members together count as one address, which no client has.
const MEMBERS: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

/// Asks whether a request may be carried out that only root may make, once this member knows all that was acknowledged before.
///
/// A member hands on the token that its caller has shown. A caller who is known by a certificate has none, and older releases of
/// etcd hand none on: a request without one is refused, since a certificate that opens the peer port does not tell on whose behalf
/// it is shown.
///
/// # Errors
///
/// If authentication is enabled: etcd's for a token that is missing or not valid, and for a user who is not root.
pub(super) async fn is_root(shared: &Shared, logger: &Logger, headers: &HeaderMap) -> Result<(), Status> {
    match shared.ask(ClientRequest::Read).await?.body {
        ReplyBody::Readable(_) => {}
        ReplyBody::Outcome(Err(status), _) => return Err(status),
        _ => return Err(error::STOPPED),
    }
    if !shared.state.load().auth.is_enabled() {
        return Ok(());
    }
    let shown = |key: &str| (key == AUTHORIZATION.as_str()).then(|| headers.get(AUTHORIZATION)).flatten();
    // As in etcd, an empty one is none.
    let Some(token) =
        identity::presented(|key| shown(key).map(|value| value.as_bytes())).filter(|token| !token.is_empty())
    else {
        return Err(error::USER_EMPTY);
    };
    let session = session(shared, token).await.inspect_err(|_| {
        let fields = [("token-fingerprint", Value::Str(&fingerprint(token)))];
        logger.warn_of_strangers("a member has passed on an invalid auth token", &fields);
    })?;
    let (state, holder) = (shared.state.load(), session.holder());
    let revision = holder.revision().unwrap_or(state.auth.revision());
    let caller = Caller { user: holder.user(), revision };
    let gate = Gate::new(&state.auth, caller, &mut RightsCache::default());
    let is_outdated =
        holder.revision().is_some_and(|revision| shared.credentials.is_outdated(holder.user(), revision));
    if is_outdated { gate.outdated().admin() } else { gate.admin() }
}

/// The session of a token, as of what is published.
async fn session(shared: &Shared, token: &[u8]) -> Result<Session, Status> {
    let recall = || shared.credentials.session(token, shared.state.load().applied_index);
    match recall() {
        Err(Refused::Unverified) => {
            shared.credentials.verify(MEMBERS, token).await?;
            recall().map_err(|_| error::INVALID_AUTH_TOKEN)
        }
        recalled => recalled.map_err(|_| error::INVALID_AUTH_TOKEN),
    }
}
