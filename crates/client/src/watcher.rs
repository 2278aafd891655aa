//! Watches a key or a range over broken connections. After a reconnect, [`Watcher`] resumes after the last
//! revision that it has received, so that no event is lost or delivered twice. Each [`Watcher`] has a
//! separate stream.

use std::time::Duration;

use api::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
    watch_request::RequestUnion,
};
use api::mvccpb::Event;
use api::{Code, Rpc, Status, error};
use prost::Message as _;
use tokio::time::sleep;

use crate::client::Client;
use crate::lease::is_passing;
use crate::stream::Stream;

/// First and longest pause before a broken stream is opened again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Beginning of the message of the error of [`Watcher::by_revision`].
const TOO_LARGE: &str = "the changes of a revision are too large";

/// Returns true for the error with which a watch ends if a revision is larger than [`Watcher::by_revision`] allows.
pub fn is_revision_too_large(status: &Status) -> bool {
    status.code == Code::ResourceExhausted && status.message.starts_with(TOO_LARGE)
}

/// Receives the events of a key or a range, even if connections break. After a reconnect, the watch resumes
/// directly after the last revision that was received, so that no event is lost or delivered twice.
pub struct Watcher {
    client: Client,
    request: WatchCreateRequest,
    stream: Option<Stream<WatchRequest, WatchResponse>>,
    /// Watch id on the stream that is open now; `None` until the server has created the watch on this stream.
    id: Option<i64>,
    /// True if [`WatchUpdate::Created`] was returned to the caller.
    announced: bool,
    /// Number of times that a server has created the watch.
    times_created: u64,
    /// Response whose further fragments have not arrived yet; `None` between complete responses.
    partial: Option<WatchResponse>,
    /// Maximum bytes of the events of one revision; `None` if responses are joined whole, whatever their size.
    revision_bytes_max: Option<usize>,
    pause: Duration,
    over: bool,
}

/// An update that a watcher receives.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchUpdate {
    /// The watch was created. Returned once, not again after a reconnect.
    Created(ResponseHeader),
    /// Events in order of their revisions. All events of a revision are in one update; fragments are joined.
    Events(WatchResponse),
    /// All events up to the header's revision were delivered.
    Progress(ResponseHeader),
    /// The server has ended the watch: either the requested revision is compacted (`compact_revision` is
    /// above 0), or the reason is in `cancel_reason`. No update follows.
    Canceled(WatchResponse),
}

impl Watcher {
    /// Returns a watcher. The first [`Watcher::next`] creates the watch. The `watch_id` of the request must
    /// be 0.
    pub fn new(client: &Client, request: WatchCreateRequest) -> Watcher {
        Watcher {
            client: client.clone(),
            request,
            stream: None,
            id: None,
            announced: false,
            times_created: 0,
            partial: None,
            revision_bytes_max: None,
            pause: PAUSE.0,
            over: false,
        }
    }

    /// Returns the watcher, with bounded memory for fragmented responses: it returns the complete revisions of a
    /// fragment without waiting for the fragments that follow, and keeps only the events of the revision that
    /// goes on in the next fragment. If these have more than `revision_bytes_max` bytes, the watch ends with
    /// `ResourceExhausted`.
    ///
    /// A server may send the history of many revisions as one response, whose fragments together are as large as
    /// all these revisions.
    #[must_use]
    pub fn by_revision(mut self, revision_bytes_max: usize) -> Watcher {
        self.revision_bytes_max = Some(revision_bytes_max);
        self
    }

    /// Returns the next update, or `None` after the end. If the future is dropped, no update is lost; the
    /// method may be called again.
    ///
    /// # Errors
    ///
    /// Returns the server's status if it refuses the watch permanently (for example because a permission is
    /// missing), or if the client requires a leader and the server has none. No update follows.
    pub async fn next(&mut self) -> Result<Option<WatchUpdate>, Status> {
        while !self.over {
            match self.step().await {
                Ok(Some(update)) => {
                    self.over |= matches!(update, WatchUpdate::Canceled(_));
                    return Ok(Some(update));
                }
                Ok(None) => {}
                Err(status) => {
                    self.stream = None;
                    self.id = None;
                    // Discard the fragments of an incomplete response. They were not delivered to the caller,
                    // and the server will send all of the response's events again.
                    self.partial = None;
                    if !is_passing(&status) || status.message == error::NO_LEADER.message {
                        self.over = true;
                        return Err(status);
                    }
                    if status.code == Code::Unavailable {
                        self.pause = (self.pause * 5 / 4).min(PAUSE.1);
                        sleep(self.pause).await;
                    }
                }
            }
        }
        Ok(None)
    }

    /// Requests a progress report from the server. [`WatchUpdate::Progress`] follows once all events up to
    /// the current revision were delivered. Does nothing if no stream is open.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::StreamSender::send`].
    pub async fn request_progress(&mut self) -> Result<(), Status> {
        let request = RequestUnion::ProgressRequest(WatchProgressRequest {});
        match &mut self.stream {
            Some(stream) => stream.send(&WatchRequest { request_union: Some(request) }).await,
            None => Ok(()),
        }
    }

    /// Returns the revision at which the watch resumes if its connection breaks now. Returns 0 if the request
    /// has no start revision and the watch was not created yet; it will start with the first event after its
    /// creation.
    pub fn next_revision(&self) -> i64 {
        self.request.start_revision
    }

    /// Returns the number of times that a server has created the watch: once, and once more after each broken
    /// connection.
    pub fn times_created(&self) -> u64 {
        self.times_created
    }

    /// Receives one message from the stream. Opens the stream first if none is open.
    async fn step(&mut self) -> Result<Option<WatchUpdate>, Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let mut stream = self.client.open(Rpc::Watch).await?;
                let request = RequestUnion::CreateRequest(self.request.clone());
                stream.send(&WatchRequest { request_union: Some(request) }).await?;
                self.stream.insert(stream)
            }
        };
        let Some(response) = stream.next().await? else {
            return Err(Status::new(Code::Unavailable, "the server ended the stream of watches"));
        };
        self.take(response)
    }

    fn take(&mut self, response: WatchResponse) -> Result<Option<WatchUpdate>, Status> {
        let header = response.header.unwrap_or_default();
        let refused = response.canceled && response.compact_revision == 0;
        if refused && is_token_fault(&response.cancel_reason) && self.client.has_user() {
            // The server refused the token. Return an error after which the stream is opened again, because
            // the client then authenticates again.
            return Err(Status::with(Code::Unavailable, response.cancel_reason));
        }
        if response.canceled {
            return Ok(Some(WatchUpdate::Canceled(response)));
        }
        if response.created {
            self.pause = PAUSE.0;
            self.times_created += 1;
            self.id = Some(response.watch_id);
            if self.request.start_revision == 0 {
                // Store a start revision even if no event was received. Otherwise the watch would resume at
                // the current revision after a reconnect, and events that happened in between would be lost.
                self.request.start_revision = header.revision + 1;
            }
            let first = !std::mem::replace(&mut self.announced, true);
            return Ok(first.then_some(WatchUpdate::Created(header)));
        }
        if self.partial.is_some() && self.id != Some(response.watch_id) {
            // Ignore a progress report for all watches of the stream that arrives between two fragments: its
            // revision may include events of fragments that have not arrived yet.
            return Ok(None);
        }
        // Do not check the watch id of a progress report: a report that was requested has the id -1.
        if response.events.is_empty() && !response.fragment && self.partial.is_none() {
            if header.revision >= self.request.start_revision {
                self.request.start_revision = header.revision + 1;
            }
            return Ok(Some(WatchUpdate::Progress(header)));
        }
        if self.id != Some(response.watch_id) {
            return Err(Status::new(Code::Internal, "events of a watch that was not created"));
        }
        let fragment = response.fragment;
        let whole = match self.partial.take() {
            None => response,
            Some(mut partial) => {
                partial.events.extend(response.events);
                partial.fragment = fragment;
                partial
            }
        };
        let whole = match (fragment, self.revision_bytes_max) {
            (false, _) => whole,
            (true, None) => {
                self.partial = Some(whole);
                return Ok(None);
            }
            (true, Some(bytes_max)) => {
                let complete = self.keep_last_revision(whole, bytes_max)?;
                if complete.events.is_empty() {
                    return Ok(None);
                }
                complete
            }
        };
        if let Some(last) = whole.events.last().and_then(|event| event.kv.as_ref()) {
            self.request.start_revision = last.mod_revision + 1;
        }
        Ok(Some(WatchUpdate::Events(whole)))
    }

    /// Keeps the events of the last revision of a response, because the next fragment may have more of them, and
    /// returns the response with the events of the earlier revisions.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` if the events that are kept have more than `bytes_max` bytes.
    fn keep_last_revision(
        &mut self,
        mut whole: WatchResponse,
        bytes_max: usize,
    ) -> Result<WatchResponse, Status> {
        let revision = |event: &Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let last = whole.events.last().map_or(0, revision);
        let from = whole.events.iter().rposition(|event| revision(event) != last).map_or(0, |at| at + 1);
        let kept = whole.events.split_off(from);
        let bytes: usize = kept.iter().map(Event::encoded_len).sum();
        if bytes > bytes_max {
            return Err(Status::with(
                Code::ResourceExhausted,
                format!("{TOO_LARGE} (revision {last}, more than {bytes_max} bytes)"),
            ));
        }
        self.partial = Some(WatchResponse {
            header: whole.header,
            watch_id: whole.watch_id,
            events: kept,
            ..Default::default()
        });
        Ok(WatchResponse { fragment: false, ..whole })
    }
}

fn is_token_fault(reason: &str) -> bool {
    [error::INVALID_AUTH_TOKEN, error::AUTH_OLD_REVISION].iter().any(|known| known.message == reason)
}
