//! Begins a connection on its shard: [`begin`] waits for the first bytes, which show whether the client
//! speaks HTTP/2 or HTTP/1.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use stdx::{First, race};

use accounting::{Account, Held};
use transport::TLS_BYTES;

use crate::Origin;
use crate::admissions::{Admission, Registration, SessionValidity};
use crate::closing::Closing;
use crate::shard_state::ShardState;
use crate::socket::{Socket, Transport, Wire};
use crate::turnstile::Pass;

/// Connection whose first bytes have arrived.
pub(crate) struct NewConnection<S> {
    pub(crate) socket: Socket<S>,
    pub(crate) speaks_h2: bool,
    pub(crate) origin: Origin,
    pub(crate) account: Rc<Account>,
    pub(crate) secured: Option<Box<SecureState>>,
}

/// Additional state of a TLS connection.
pub(crate) struct SecureState {
    registration: Registration,
    _held: Held,
}

impl SecureState {
    /// Returns the handle that shows whether the client is still admitted.
    pub(crate) fn validity(&self) -> &Rc<SessionValidity> {
        &self.registration.validity
    }
}

/// Waits for the first bytes of a connection. Returns `None`, and the connection must be closed, if the front
/// begins to close first, or if the client speaks a protocol that its listener does not serve, or HTTP/1
/// although it has negotiated HTTP/2 by ALPN.
pub(crate) async fn begin<S: Transport + 'static>(
    wire: Wire<S>,
    origin: Origin,
    admission: Option<Admission>,
    state: Rc<ShardState>,
    mut closing: Closing,
) -> std::io::Result<Option<NewConnection<S>>> {
    let account = state.options.budget.open(origin.peer.ip());
    let secured = admission.map(|admission| {
        let registration = Registration::new(&state.admissions, admission, origin.peer);
        Box::new(SecureState { registration, _held: account.hold(TLS_BYTES) })
    });
    let validity = secured.as_ref().map(|secured| secured.validity().clone());
    let mut socket = Socket::new(wire, state.sockets.clone(), origin.peer.ip());
    let mut pass = Pass::default();
    // The first poll does not pass the turnstile, because the turnstile has just admitted the connection.
    let mut has_turn = true;
    let first = poll_fn(|cx| {
        let waits =
            !std::mem::take(&mut has_turn) && pass.poll(&state.turnstile, origin.peer.ip(), cx).is_pending();
        let polled = if waits { Poll::Pending } else { socket.poll_speaks_h2(cx) };
        account.set_buffers(socket.buffer_bytes());
        if polled.is_pending() && account.poll_doomed(cx).is_ready() {
            return Poll::Ready(Err(std::io::ErrorKind::OutOfMemory.into()));
        }
        if validity.as_ref().is_some_and(|validity| validity.poll_over(cx).is_ready()) {
            return Poll::Ready(Err(std::io::ErrorKind::PermissionDenied.into()));
        }
        polled
    });
    let first = tokio::time::timeout(state.options.first_bytes_timeout, first);
    let First::Left(first) = race(first, closing.begun()).await else { return Ok(None) };
    let speaks_h2 = first.map_err(|_| std::io::ErrorKind::TimedOut)??;
    let is_taken = origin.serves.takes(speaks_h2, origin.is_tls) && (speaks_h2 || !socket.has_agreed_on_h2());
    Ok(is_taken.then_some(NewConnection { socket, speaks_h2, origin, account, secured }))
}
