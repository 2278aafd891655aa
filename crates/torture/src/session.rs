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

/// Time limit for connecting to a member.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// Number of calls in a row that time out before the client makes a new connection.
const LATE_MAX: u32 = 3;

/// State that all clients of a run share.
pub struct ClientContext {
    /// Record of what the clients did.
    pub record: Record,
    /// Address of each member for clients.
    pub addresses: Vec<SocketAddr>,
    /// Number of times that each member's process was started.
    pub lives: Vec<AtomicU64>,
    /// Time limit for an operation.
    pub timeout: Duration,
    /// Certificates and users of the run.
    pub security: Security,
}

/// A connection to a member, and the user on whose behalf it is used.
#[derive(Clone)]
pub struct Link {
    /// The connection.
    pub channel: Channel,
    /// Number of the member's process to which the connection leads, counted from the member's first start; 0
    /// if it is uncertain.
    pub life: u64,
    /// Account of the user; its name is empty if the run has no users.
    pub account: Account,
    /// Token that is sent with each call; `None` if no token is needed.
    pub token: Option<Token>,
}

impl Link {
    /// Returns the options of a call, with the token.
    pub fn options(&self) -> CallOptions {
        Token::put(self.token.as_ref(), CallOptions::default())
    }

    /// Returns the record of the user on whose behalf an operation or watch is sent; `None` if the run has no
    /// users.
    pub fn asker(&self, asking: Asking) -> Option<Asker> {
        let token_at = self.token.as_ref().map_or(0, |token| token.since);
        let user = Security::seen_as(&self.account, self.token.as_ref()).to_owned();
        (!self.account.name.is_empty()).then_some(Asker { user, token_at, asking })
    }
}

impl ClientContext {
    /// Returns how often a member's process has been started so far.
    pub fn life(&self, member: usize) -> u64 {
        self.lives.get(member).map_or(0, |life| life.load(Ordering::SeqCst))
    }

    /// Connects to a member. If the run has certificates, presents one with this common name. Returns the
    /// connection, and the number of the process to which it leads, 0 if uncertain.
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
            // The number of starts was the same before and after connecting. A process ends before the next
            // one is started, so the connection leads to the process with this number.
            Ok(Ok(channel)) if self.life(member) == before => Ok((channel, before)),
            Ok(Ok(channel)) => Ok((channel, 0)),
        }
    }

    /// Connects to a member with this identity, and logs in if the user needs a token.
    ///
    /// # Errors
    /// Returns an error if connecting or logging in fails. In this case no request of the client was sent.
    pub async fn open(&self, member: usize, identity: Identity, client: u64) -> Result<Link, Status> {
        self.reopen(None, member, identity, client).await
    }

    /// Returns a link like [`ClientContext::open`], but keeps using the connection of `link` if possible.
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

    /// Must be called when a call has failed. Forgets the client's token if the error says that it is not
    /// valid.
    pub fn failed(&self, link: &Link, client: u64, status: &Status) {
        if wants_login(status) {
            self.security.forget(&link.account.name, client);
        }
    }

    /// Makes a call over a new connection. If the member refuses the token, logs in again and repeats the
    /// call once.
    ///
    /// # Errors
    /// Returns the status of the response, or the error of the connection.
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

/// A client's connection to a member. If the connection is broken, the next request opens another one. No
/// request is sent twice.
pub struct Session {
    context: Arc<ClientContext>,
    client: u64,
    identity: Identity,
    member: usize,
    link: Option<Link>,
    late: u32,
}

impl Session {
    /// Creates a session, which connects at its first request. The client number determines the user.
    pub fn new(context: &Arc<ClientContext>, client: u64, member: usize) -> Session {
        let identity = if client.is_multiple_of(2) { Identity::Staff } else { Identity::Worker };
        Session::of(context, identity, client, member)
    }

    /// Creates a session like [`Session::new`], for this identity.
    pub fn of(context: &Arc<ClientContext>, identity: Identity, client: u64, member: usize) -> Session {
        Session { context: Arc::clone(context), client, identity, member, link: None, late: 0 }
    }

    /// Returns the client number.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// Returns the state that all clients share.
    pub fn context(&self) -> &Arc<ClientContext> {
        &self.context
    }

    /// Sends all further requests to this member.
    pub fn move_to(&mut self, member: usize) {
        if self.member != member {
            (self.member, self.link, self.late) = (member, None, 0);
        }
    }

    /// Sends a request, records it, and returns its outcome.
    pub async fn ask(&mut self, request: Request) -> Outcome {
        self.ask_fenced(request, None).await
    }

    /// Sends a request like [`Session::ask`]. If there is a `fence`, records that the client believes it
    /// holds that lock.
    pub async fn ask_fenced(&mut self, request: Request, fence: Option<Fence>) -> Outcome {
        let id = self.context.record.number();
        self.ask_numbered(id, request, fence).await
    }

    /// Sends a request like [`Session::ask_fenced`], with a number that the caller has taken from the record
    /// before, for example to use it in the value that is put.
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

    /// Reads the member's current revision. This read is not recorded as an operation.
    ///
    /// # Errors
    /// Returns the status of the response, or the error of the connection.
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

/// Sends a request once. If the response cannot be decoded, the outcome is unknown.
async fn send(link: &Link, request: &Request, timeout: Duration) -> Result<Outcome, Status> {
    let (rpc, message) = translation::call(request);
    let answer = if matches!(request, Request::KeepAlive { .. }) {
        // A keepalive is the only request over a stream. Send one message, and wait for one response.
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
