//! Checks that a request that only root may make, and that another member has passed on, was made by root.

use std::net::{IpAddr, Ipv4Addr};

use api::{Status, error};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use identity::{Refused, Session, fingerprint};
use machine::auth::{Caller, Gate, RightsCache};

use replica::core::{ClientRequest, ReplyBody};
use replica::shared::Shared;
use telemetry::logging::{Logger, Value};

/// Address under which token verifications for members are queued: all members share it, and no client can
/// have it.
const MEMBERS: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

/// Returns `Ok` if the request may do what only root may. First waits until this member has applied
/// everything that was acknowledged before the request.
///
/// A member passes on the token of its caller. A caller who is known by a certificate has no token, and older
/// releases of etcd pass none on. A request without a token is refused, since the peer certificate does not
/// say on whose behalf the request is made.
///
/// # Errors
///
/// If authentication is enabled, returns etcd's error for a token that is missing or not valid, or for a user
/// who is not root.
pub(super) async fn is_root(shared: &Shared, logger: &Logger, headers: &HeaderMap) -> Result<(), Status> {
    match shared.core.ask(ClientRequest::Read).await?.body {
        ReplyBody::Readable(_) => {}
        ReplyBody::Outcome(Err(status), _) => return Err(status),
        _ => return Err(error::STOPPED),
    }
    if !shared.state.load().auth.is_enabled() {
        return Ok(());
    }
    let shown = |key: &str| (key == AUTHORIZATION.as_str()).then(|| headers.get(AUTHORIZATION)).flatten();
    // As in etcd, an empty token counts as no token.
    let Some(token) =
        identity::presented(|key| shown(key).map(|value| value.as_bytes())).filter(|token| !token.is_empty())
    else {
        return Err(error::USER_EMPTY);
    };
    let session = session(shared, token).await.inspect_err(|_| {
        let fields = [("token-fingerprint", Value::Str(&fingerprint(token)))];
        logger.warn_of_strangers("a member forwarded a request with an invalid auth token", &fields);
    })?;
    let (state, holder) = (shared.state.load(), session.holder());
    let revision = holder.revision().unwrap_or(state.auth.revision());
    let caller = Caller { user: holder.user(), revision };
    let gate = Gate::new(&state.auth, caller, &mut RightsCache::default());
    let is_outdated = holder
        .revision()
        .is_some_and(|revision| shared.clients.credentials.is_outdated(holder.user(), revision));
    if is_outdated { gate.outdated().admin() } else { gate.admin() }
}

/// Returns the session of a token, according to the published state; verifies the token's signature if
/// necessary.
async fn session(shared: &Shared, token: &[u8]) -> Result<Session, Status> {
    let recall = || shared.clients.credentials.session(token, shared.state.load().applied_index);
    match recall() {
        Err(Refused::Unverified) => {
            shared.clients.credentials.verify(MEMBERS, token).await?;
            recall().map_err(|_| error::INVALID_AUTH_TOKEN)
        }
        recalled => recalled.map_err(|_| error::INVALID_AUTH_TOKEN),
    }
}
