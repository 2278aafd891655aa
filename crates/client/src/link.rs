use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::channel::Channel;
use crate::endpoint::Endpoint;
use crate::transport::Transport;

/// First and longest pause after a failed attempt to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Time for which calls wait for the first attempt to connect to a preferred endpoint, although another one is
/// connected.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// One endpoint and the connection to it. The connection is opened at first use and then kept open by a
/// background task. So calls only choose among open connections, and do not wait for an endpoint that cannot
/// be reached while another endpoint is connected.
pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    shown: Arc<Shown>,
    keeper: OnceLock<(AbortHandle, Instant)>,
}

/// State that is published by the task which keeps the connection open.
struct Shown {
    state: Mutex<State>,
    /// Sender of a counter that changes when the connection of any endpoint of the client is opened or ends.
    /// It wakes the calls that wait for a connection.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    channel: Option<Channel>,
    /// True once the first attempt to connect has ended, with or without success.
    tried: bool,
    /// Reason why the last attempt to connect failed or the last connection broke; `None` if there is no such
    /// reason. It is kept after a reconnect until the new connection has been open for a while: a server of
    /// another protocol accepts every connection and then closes it, and must not appear reachable in
    /// between.
    error: Option<String>,
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex, and every assignment leaves a consistent state, so
        // poisoning is ignored.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, channel: Channel) {
        let mut state = self.lock();
        state.channel = Some(channel);
        state.tried = true;
        drop(state);
        self.changed();
    }

    fn show_error(&self, error: String) {
        *self.lock() = State { channel: None, tried: true, error: Some(error) };
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|change| *change = change.wrapping_add(1));
    }
}

impl Link {
    pub(crate) fn new(endpoint: Endpoint, changes: watch::Sender<u64>) -> Link {
        let shown = Shown { state: Mutex::new(State::default()), changes };
        Link { endpoint, shown: Arc::new(shown), keeper: OnceLock::new() }
    }

    /// Starts the task that connects, unless it was started before.
    pub(crate) fn wake(&self, transport: &Transport) {
        self.keeper.get_or_init(|| {
            let kept = keep(self.endpoint.clone(), transport.clone(), self.shown.clone());
            (tokio::spawn(kept).abort_handle(), Instant::now())
        });
    }

    /// Returns the connection if it is open.
    pub(crate) fn channel(&self) -> Option<Channel> {
        self.shown.lock().channel.clone().filter(|channel| !channel.is_closed())
    }

    /// Returns true if an attempt to connect has ended, with or without success.
    pub(crate) fn was_tried(&self) -> bool {
        self.shown.lock().tried
    }

    /// Returns true if the first attempt to connect takes long: it has not ended within [`PATIENCE`].
    pub(crate) fn is_slow(&self) -> bool {
        !self.was_tried() && self.keeper.get().is_some_and(|(_, since)| since.elapsed() >= PATIENCE)
    }

    /// Returns the reason why there is no stable connection: the last attempt to connect failed, or the last
    /// connection broke and a new one has not been open for a while. Otherwise returns `None`.
    pub(crate) fn error(&self) -> Option<String> {
        self.shown.lock().error.clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some((keeper, _)) = self.keeper.get() {
            keeper.abort();
        }
    }
}

async fn keep(endpoint: Endpoint, transport: Transport, shown: Arc<Shown>) {
    let mut pause = PAUSE.0;
    loop {
        match Channel::open(&endpoint, &transport).await {
            Ok(channel) => {
                let closed = channel.closed();
                shown.show(channel);
                // Treat a server that closes the connection soon after it was opened like one that cannot be
                // reached: keep the error, and pause before the next attempt.
                let mut closed = pin!(closed);
                let lasted = timeout(pause, &mut closed).await.is_err();
                if lasted {
                    shown.lock().error = None;
                    closed.await;
                }
                shown.show_error("connection error: desc = \"error reading from server: EOF\"".to_owned());
                if lasted {
                    pause = PAUSE.0;
                    continue;
                }
            }
            Err(error) => {
                let text = format!("connection error: desc = \"transport: Error while dialing: {error}\"");
                shown.show_error(text);
            }
        }
        sleep(pause).await;
        pause = (pause * 8 / 5).min(PAUSE.1);
    }
}
