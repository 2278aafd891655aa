//! A watch that survives broken connections: [`Watcher`] resumes behind the last revision it has seen, so that no event
//! is missed or comes twice. It knows one key or range; many watches are many of them.

use std::time::Duration;

use api::etcdserverpb::{
    ResponseHeader, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
    watch_request::RequestUnion,
};
use api::{Code, Rpc, Status, error};
use tokio::time::sleep;

use crate::client::Client;
use crate::lease::is_passing;
use crate::stream::Stream;

/// The pauses before a broken stream is opened again: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Events of a key or a range, over broken connections: each resumes right after the last revision seen, so that
/// none comes twice and none is missed.
pub struct Watcher {
    client: Client,
    request: WatchCreateRequest,
    stream: Option<Stream<WatchRequest, WatchResponse>>,
    /// Watch id on the stream that is open.
    id: Option<i64>,
    /// True if the caller was told that the watch stands.
    announced: bool,
    /// A response whose fragments are still coming.
    partial: Option<WatchResponse>,
    pause: Duration,
    over: bool,
}

/// An update that a watcher receives.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchUpdate {
    /// The watch stands; told once, not again when it resumes.
    Created(ResponseHeader),
    /// Events in order, of whole revisions only; fragments are joined.
    Events(WatchResponse),
    /// All events up to the header's revision were delivered.
    Progress(ResponseHeader),
    /// The server ended the watch, because the revision asked for is compacted away (`compact_revision` above 0) or
    /// for the reason it gives. Nothing follows.
    Canceled(WatchResponse),
}

impl Watcher {
    /// A watch that is created at the first [`Watcher::next`]. The request's `watch_id` has to be 0.
    pub fn new(client: &Client, request: WatchCreateRequest) -> Watcher {
        Watcher {
            client: client.clone(),
            request,
            stream: None,
            id: None,
            announced: false,
            partial: None,
            pause: PAUSE.0,
            over: false,
        }
    }

    /// Returns the next update; `None` after the end. The future may be dropped and the method called again without loss.
    ///
    /// # Errors
    ///
    /// The server refuses for good, such as for a missing permission, or has no leader and the client requires one. No
    /// update follows.
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
                    // Its revision was not told to anyone, so that it comes again whole.
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

    /// Asks the server to tell how far it is; a [`WatchUpdate::Progress`] follows once the watch has heard all up to
    /// there. Nothing happens without an open stream.
    ///
    /// # Errors
    /// As [`crate::StreamSender::send`].
    pub async fn request_progress(&mut self) -> Result<(), Status> {
        let request = RequestUnion::ProgressRequest(WatchProgressRequest {});
        match &mut self.stream {
            Some(stream) => stream.send(&WatchRequest { request_union: Some(request) }).await,
            None => Ok(()),
        }
    }

    /// The revision from which the watch goes on if its connection breaks now; 0 for from now on.
    pub fn next_revision(&self) -> i64 {
        self.request.start_revision
    }

    /// Takes one message of the stream, which is opened if there is none.
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
            // Opening again authenticates again.
            return Err(Status::with(Code::Unavailable, response.cancel_reason));
        }
        if response.canceled {
            return Ok(Some(WatchUpdate::Canceled(response)));
        }
        if response.created {
            self.pause = PAUSE.0;
            self.id = Some(response.watch_id);
            if self.request.start_revision == 0 {
                // What happens while a connection is away must not be missed, though nothing came before.
                self.request.start_revision = header.revision + 1;
            }
            let first = !std::mem::replace(&mut self.announced, true);
            return Ok(first.then_some(WatchUpdate::Created(header)));
        }
        if self.partial.is_some() && self.id != Some(response.watch_id) {
            // Progress of the whole stream amid fragments says nothing of events that are still coming.
            return Ok(None);
        }
        // Progress that was asked for speaks of all watches of the stream, with the number -1.
        if response.events.is_empty() && !response.fragment && self.partial.is_none() {
            if header.revision >= self.request.start_revision {
                self.request.start_revision = header.revision + 1;
            }
            return Ok(Some(WatchUpdate::Progress(header)));
        }
        if self.id != Some(response.watch_id) {
            return Err(Status::new(Code::Internal, "events of a watch that was not asked for"));
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
        if fragment {
            self.partial = Some(whole);
            return Ok(None);
        }
        if let Some(last) = whole.events.last().and_then(|event| event.kv.as_ref()) {
            self.request.start_revision = last.mod_revision + 1;
        }
        Ok(Some(WatchUpdate::Events(whole)))
    }
}

fn is_token_fault(reason: &str) -> bool {
    [error::INVALID_AUTH_TOKEN, error::AUTH_OLD_REVISION].iter().any(|known| known.message == reason)
}
