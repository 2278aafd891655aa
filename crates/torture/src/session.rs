use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::etcdserverpb::{RangeRequest, RangeResponse};
use api::{Code, Rpc, Status};
use client::{CallOptions, Channel};
use oracle::{Fence, Operation, Outcome, Request};
use prost::Message;

use crate::record::Record;
use crate::{outcome, translation};

/// How long connecting may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// After so many calls in a row without an answer in time a new connection is made.
const LATE_MAX: u32 = 3;

/// What all clients share.
pub struct ClientContext {
    /// What they did.
    pub record: Record,
    /// Where each member serves.
    pub addresses: Vec<SocketAddr>,
    /// How often each member's process was started.
    pub lives: Vec<AtomicU64>,
    /// How long an operation may take.
    pub timeout: Duration,
}

impl ClientContext {
    /// Which life of a member's process runs, or ran last.
    pub fn life(&self, member: usize) -> u64 {
        self.lives.get(member).map_or(0, |life| life.load(Ordering::SeqCst))
    }

    /// Connects to a member. The number is the life of the process at the other end, 0 if that is not certain.
    ///
    /// # Errors
    /// `Unavailable`: nothing was sent.
    pub async fn connect(&self, member: usize) -> Result<(Channel, u64), Status> {
        let unavailable = |text: String| Status::with(Code::Unavailable, format!("connection error: {text}"));
        let Some(address) = self.addresses.get(member) else {
            return Err(unavailable(format!("there is no member {member}")));
        };
        let before = self.life(member);
        match tokio::time::timeout(CONNECT_TIME_MAX, Channel::connect(*address)).await {
            Err(_) => Err(unavailable("no greeting in time".to_owned())),
            Ok(Err(error)) => Err(unavailable(error.to_string())),
            // A process is gone before the next is started, so it is this one's.
            Ok(Ok(channel)) if self.life(member) == before => Ok((channel, before)),
            Ok(Ok(channel)) => Ok((channel, 0)),
        }
    }
}

/// A client's connection to one member, which is made again when it breaks. No request is sent twice.
pub struct Session {
    context: Arc<ClientContext>,
    client: u64,
    member: usize,
    link: Option<(Channel, u64)>,
    late: u32,
}

impl Session {
    /// A session that connects when it has to.
    pub fn new(context: &Arc<ClientContext>, client: u64, member: usize) -> Session {
        Session { context: Arc::clone(context), client, member, link: None, late: 0 }
    }

    /// The client's number.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// What all clients share.
    pub fn context(&self) -> &Arc<ClientContext> {
        &self.context
    }

    /// Goes on at another member.
    pub fn move_to(&mut self, member: usize) {
        if self.member != member {
            (self.member, self.link, self.late) = (member, None, 0);
        }
    }

    /// Asks, records, and says what came of it.
    pub async fn ask(&mut self, request: Request) -> Outcome {
        self.ask_fenced(request, None).await
    }

    /// As [`Session::ask`], believing to hold a lock.
    pub async fn ask_fenced(&mut self, request: Request, fence: Option<Fence>) -> Outcome {
        let id = self.context.record.number();
        self.ask_numbered(id, request, fence).await
    }

    /// As [`Session::ask_fenced`], with a number of the record that the request may have used for its values.
    pub async fn ask_numbered(&mut self, id: u64, request: Request, fence: Option<Fence>) -> Outcome {
        let mut call = self.context.record.now();
        let mut life = 0;
        let outcome = match self.link().await {
            Err(status) => outcome::never_sent(&status.message),
            Ok((channel, own)) => {
                life = own;
                call = self.context.record.now();
                match send(&channel, &request, self.context.timeout).await {
                    Ok(outcome) => outcome,
                    Err(status) => {
                        self.failed(&status);
                        outcome::of(&status)
                    }
                }
            }
        };
        let returned = self.context.record.now();
        let mut request = request;
        if let Request::Put(put) = &mut request {
            put.value = translation::recorded(&put.value);
        }
        let (client, member) = (self.client, self.member as u64);
        self.context.record.did(Operation {
            id,
            client,
            member,
            life,
            call,
            returned,
            request,
            outcome: outcome.clone(),
            fence,
        });
        outcome
    }

    /// The member's revision. Not recorded.
    ///
    /// # Errors
    /// The server's, or the connection's.
    pub async fn revision(&mut self) -> Result<i64, Status> {
        let (channel, _) = self.link().await?;
        let request = RangeRequest { key: "none".into(), ..RangeRequest::default() };
        let options = CallOptions::default().within(self.context.timeout);
        let answer = channel.unary_with(Rpc::KvRange.path(), &options, request.encode_to_vec().into()).await;
        let answer = answer.inspect_err(|status| self.failed(status))?;
        let answer = RangeResponse::decode(answer);
        let header = answer.ok().and_then(|answer| answer.header);
        header.map(|header| header.revision).ok_or(Status::new(Code::Internal, "an answer without a header"))
    }

    async fn link(&mut self) -> Result<(Channel, u64), Status> {
        if let Some(link) = &self.link {
            return Ok(link.clone());
        }
        let link = self.context.connect(self.member).await?;
        self.late = 0;
        Ok(self.link.insert(link).clone())
    }

    fn failed(&mut self, status: &Status) {
        if status.message.starts_with("connection error") {
            self.link = None;
        } else if status.code == Code::DeadlineExceeded {
            self.late += 1;
            if self.late >= LATE_MAX {
                self.link = None;
            }
        } else {
            self.late = 0;
        }
    }
}

/// Sends a request once. An answer that is none is an unknown outcome.
async fn send(channel: &Channel, request: &Request, timeout: Duration) -> Result<Outcome, Status> {
    let (rpc, message) = translation::call(request);
    let answer = if matches!(request, Request::KeepAlive { .. }) {
        // The one stream among them; one message each way.
        let asking = async {
            let (mut sender, mut receiver) = channel.stream(rpc.path()).await?;
            sender.send_last(message).await?;
            receiver.next().await
        };
        match tokio::time::timeout(timeout, asking).await {
            Err(_) => return Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")),
            Ok(answer) => answer?.ok_or(Status::new(Code::Internal, "no answer to a keepalive"))?,
        }
    } else {
        channel.unary_with(rpc.path(), &CallOptions::default().within(timeout), message).await?
    };
    Ok(match translation::answer(request, answer) {
        Ok((header, response)) => Outcome::Done(header, response),
        Err(text) => Outcome::Unknown(text),
    })
}
