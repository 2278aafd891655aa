use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::etcdserverpb::{RangeRequest, RangeResponse};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use client::{CallOptions, Channel, Endpoint, Transport};
use oracle::{Asker, Asking, Fence, Operation, Outcome, Request};
use prost::Message;

use crate::record::Record;
use crate::security::{Account, Identity, Security, Token, wants_login};
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
    /// Who they are.
    pub security: Security,
}

/// A connection to a member, and as whom it is used.
#[derive(Clone)]
pub struct Link {
    /// The connection.
    pub channel: Channel,
    /// The life of the process at the other end, 0 if that is not certain.
    pub life: u64,
    /// The user; its name is empty if there are no users.
    pub account: Account,
    /// What calls have to show.
    pub token: Option<Token>,
}

impl Link {
    /// The options of a call.
    pub fn options(&self) -> CallOptions {
        Token::put(self.token.as_ref(), CallOptions::default())
    }

    /// Whose operation or watch that is; `None` if there are no users.
    pub fn asker(&self, asking: Asking) -> Option<Asker> {
        let token_at = self.token.as_ref().map_or(0, |token| token.since);
        let user = Security::seen_as(&self.account, self.token.as_ref()).to_owned();
        (!self.account.name.is_empty()).then_some(Asker { user, token_at, asking })
    }
}

impl ClientContext {
    /// Which life of a member's process runs, or ran last.
    pub fn life(&self, member: usize) -> u64 {
        self.lives.get(member).map_or(0, |life| life.load(Ordering::SeqCst))
    }

    /// Connects to a member with a certificate of this common name, if there are certificates. The number is the life of the
    /// process at the other end, 0 if that is not certain.
    async fn connect(&self, member: usize, name: &str) -> Result<(Channel, u64), Status> {
        let Some(address) = self.addresses.get(member) else {
            return Err(unavailable(&format!("there is no member {member}")));
        };
        let before = self.life(member);
        let tls = match &self.security.pki {
            Some(pki) => Some(pki.client(name).map_err(|error| unavailable(&error.to_string()))?),
            None => None,
        };
        let connected = match tls {
            None => tokio::time::timeout(CONNECT_TIME_MAX, Channel::connect(*address)).await,
            tls => {
                let endpoint = Endpoint::new(format!("https://{address}"));
                let transport = Transport { tls, ..Transport::default() };
                tokio::time::timeout(CONNECT_TIME_MAX, Channel::open(&endpoint, &transport)).await
            }
        };
        match connected {
            Err(_) => Err(unavailable("no greeting in time")),
            Ok(Err(error)) => Err(unavailable(&error.to_string())),
            // A process is gone before the next is started, so it is this one's.
            Ok(Ok(channel)) if self.life(member) == before => Ok((channel, before)),
            Ok(Ok(channel)) => Ok((channel, 0)),
        }
    }

    /// Connects to a member as this client, which acts for somebody, and logs in if it has to.
    ///
    /// # Errors
    /// No request of the client was sent.
    pub async fn open(&self, member: usize, identity: Identity, client: u64) -> Result<Link, Status> {
        self.reopen(None, member, identity, client).await
    }

    /// As [`ClientContext::open`], over a connection that stands if it still serves for that.
    async fn reopen(
        &self,
        link: Option<Link>,
        member: usize,
        identity: Identity,
        client: u64,
    ) -> Result<Link, Status> {
        let account =
            self.security.account(identity).ok_or_else(|| unavailable("there is no such user now"))?;
        let serves = |link: &Link| !link.channel.is_closed() && link.account == account;
        let (channel, life) = match link.filter(serves) {
            Some(link) => (link.channel, link.life),
            None => self.connect(member, Security::certificate_name(&account)).await?,
        };
        let token = self.security.token(&channel, &account, client, || self.record.now()).await?;
        Ok(Link { channel, life, account, token })
    }

    /// A call of this client's failed: what that says about its token.
    pub fn failed(&self, link: &Link, client: u64, status: &Status) {
        if wants_login(status) {
            self.security.forget(&link.account.name, client);
        }
    }

    /// A call over a connection of its own. A token that is not taken is replaced once.
    ///
    /// # Errors
    /// The server's, or the connection's.
    pub async fn call(
        &self,
        (member, identity, client): (usize, Identity, u64),
        rpc: Rpc,
        message: Bytes,
        time: Duration,
    ) -> Result<Bytes, Status> {
        let mut link = self.open(member, identity, client).await?;
        let asked = link.channel.unary_with(rpc.path(), &link.options().within(time), message.clone()).await;
        match asked {
            Err(status) if wants_login(&status) && link.token.is_some() => {
                self.failed(&link, client, &status);
                link = self.reopen(Some(link), member, identity, client).await?;
                link.channel.unary_with(rpc.path(), &link.options().within(time), message).await
            }
            answer => answer,
        }
    }
}

fn unavailable(text: &str) -> Status {
    Status::with(Code::Unavailable, format!("connection error: {text}"))
}

/// A client's connection to one member, which is made again when it breaks. No request is sent twice.
pub struct Session {
    context: Arc<ClientContext>,
    client: u64,
    identity: Identity,
    member: usize,
    link: Option<Link>,
    late: u32,
}

impl Session {
    /// A session that connects when it has to.
    pub fn new(context: &Arc<ClientContext>, client: u64, member: usize) -> Session {
        let identity = if client.is_multiple_of(2) { Identity::Staff } else { Identity::Worker };
        Session::of(context, identity, client, member)
    }

    /// As [`Session::new`], for somebody in particular.
    pub fn of(context: &Arc<ClientContext>, identity: Identity, client: u64, member: usize) -> Session {
        Session { context: Arc::clone(context), client, identity, member, link: None, late: 0 }
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
        let mut asker = None;
        let outcome = match self.link().await {
            Err(status) => outcome::never_sent(&status.message),
            Ok(link) => {
                life = link.life;
                asker = link.asker(Asking::Operation(id));
                call = self.context.record.now();
                match send(&link, &request, self.context.timeout).await {
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
        self.context.record.lock().askers.extend(asker);
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
        let link = self.link().await?;
        let request = RangeRequest { key: "none".into(), ..RangeRequest::default() };
        let options = link.options().within(self.context.timeout);
        let answer =
            link.channel.unary_with(Rpc::KvRange.path(), &options, request.encode_to_vec().into()).await;
        let answer = answer.inspect_err(|status| self.failed(status))?;
        let answer = RangeResponse::decode(answer);
        let header = answer.ok().and_then(|answer| answer.header);
        header.map(|header| header.revision).ok_or(Status::new(Code::Internal, "an answer without a header"))
    }

    async fn link(&mut self) -> Result<Link, Status> {
        let old = self.link.take();
        let is_new = old.is_none();
        let link = self.context.reopen(old, self.member, self.identity, self.client).await?;
        if is_new {
            self.late = 0;
        }
        Ok(self.link.insert(link).clone())
    }

    fn failed(&mut self, status: &Status) {
        if let Some(link) = &self.link {
            self.context.failed(link, self.client, status);
        }
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
async fn send(link: &Link, request: &Request, timeout: Duration) -> Result<Outcome, Status> {
    let (rpc, message) = translation::call(request);
    let answer = if matches!(request, Request::KeepAlive { .. }) {
        // The one stream among them; one message each way.
        let asking = async {
            let (mut sender, mut receiver) = link.channel.stream_with(rpc.path(), &link.options()).await?;
            sender.send_last(message).await?;
            receiver.next().await
        };
        match tokio::time::timeout(timeout, asking).await {
            Err(_) => return Err(Status::new(Code::DeadlineExceeded, "context deadline exceeded")),
            Ok(answer) => answer?.ok_or(Status::new(Code::Internal, "no answer to a keepalive"))?,
        }
    } else {
        link.channel.unary_with(rpc.path(), &link.options().within(timeout), message).await?
    };
    Ok(match translation::answer(request, answer) {
        Ok((header, response)) => Outcome::Done(header, response),
        Err(text) => Outcome::Unknown(text),
    })
}
