use std::net::SocketAddr;
use std::time::Duration;

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::*;
use api::mvccpb::KeyValue;
use api::{Code, Rpc, Status};
use bytes::Bytes;
use client::{CallOptions, Channel, Endpoint, Receiver, Sender, TlsFiles, Transport};
use prost::Message;

/// A connection to a member, with methods for the requests of etcd's API.
#[derive(Clone)]
pub struct Client {
    pub channel: Channel,
    /// Options of each unary call.
    options: CallOptions,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        let channel = Channel::connect(address).await.expect("the member takes connections");
        Client { channel, options: CallOptions::default() }
    }

    /// Connects like [`Client::connect`], to a member that may be slow or down; `time` limits the connection
    /// and each call.
    pub async fn within(time: Duration, address: SocketAddr) -> Result<Client, Status> {
        let channel = match tokio::time::timeout(time, Channel::connect(address)).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => {
                return Err(Status::with(Code::Unavailable, format!("connection error: {error}")));
            }
            Err(_) => return Err(Status::new(Code::Unavailable, "connection error: no greeting in time")),
        };
        Ok(Client { channel, options: CallOptions::default().within(time) })
    }

    /// Connects over TLS with these files; returns the error text if that fails.
    pub async fn secured(address: SocketAddr, files: &TlsFiles) -> Result<Client, String> {
        let tls = Some(files.load().map_err(|error| error.to_string())?);
        let transport =
            Transport { tls, dial_timeout: Some(Duration::from_secs(10)), ..Transport::default() };
        let endpoint = Endpoint::new(format!("https://{address}"));
        let channel = Channel::open(&endpoint, &transport).await.map_err(|error| error.to_string())?;
        Ok(Client { channel, options: CallOptions::default().within(Duration::from_secs(10)) })
    }

    /// Returns a client on the same connection that presents this token.
    pub fn with_token(&self, token: &str) -> Client {
        let value = http::HeaderValue::from_str(token).expect("a token is ASCII");
        let options = self.options.clone().with(http::HeaderName::from_static("token"), value);
        Client { channel: self.channel.clone(), options }
    }

    /// Returns a client on the same connection that sends another header.
    pub fn with_header(&self, name: &'static str, value: &str) -> Client {
        let value = http::HeaderValue::from_str(value).expect("it is ASCII");
        let options = self.options.clone().with(http::HeaderName::from_static(name), value);
        Client { channel: self.channel.clone(), options }
    }

    /// Opens a stream.
    pub async fn open(&self, rpc: Rpc) -> Result<(Sender, Receiver), Status> {
        self.channel.stream_with(rpc.path(), &self.options).await
    }

    /// Calls a unary method.
    pub async fn call<A: Message + Default>(&self, rpc: Rpc, request: &impl Message) -> Result<A, Status> {
        let answer =
            self.channel.unary_with(rpc.path(), &self.options, request.encode_to_vec().into()).await?;
        A::decode(answer).map_err(|e| Status::with(Code::Internal, format!("invalid answer: {e}")))
    }

    /// Puts a key; returns the revision.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<i64, Status> {
        let request = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
        let answer: PutResponse = self.call(Rpc::KvPut, &request).await?;
        Ok(revision(answer.header))
    }

    /// Puts a key with a lease.
    pub async fn put_leased(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: i64,
    ) -> Result<i64, Status> {
        let request = PutRequest { key: key.into(), value: value.into(), lease, ..PutRequest::default() };
        let answer: PutResponse = self.call(Rpc::KvPut, &request).await?;
        Ok(revision(answer.header))
    }

    /// Deletes a key; returns the revision and the number of deleted keys.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<(i64, i64), Status> {
        let request = DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() };
        let answer: DeleteRangeResponse = self.call(Rpc::KvDeleteRange, &request).await?;
        Ok((revision(answer.header), answer.deleted))
    }

    /// Returns a key's value and metadata, if the key exists.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<KeyValue>, Status> {
        let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
        let answer: RangeResponse = self.call(Rpc::KvRange, &request).await?;
        Ok(answer.kvs.into_iter().next())
    }

    /// Returns a key's value and metadata from this member's own state, without asking the other members.
    pub async fn get_local(&self, key: impl Into<Bytes>) -> Result<Option<KeyValue>, Status> {
        let request = RangeRequest { key: key.into(), serializable: true, ..RangeRequest::default() };
        let answer: RangeResponse = self.call(Rpc::KvRange, &request).await?;
        Ok(answer.kvs.into_iter().next())
    }

    /// Returns the members, as this member knows them.
    pub async fn members(&self) -> Result<Vec<Member>, Status> {
        let request = MemberListRequest { linearizable: false };
        let answer: MemberListResponse = self.call(Rpc::ClusterMemberList, &request).await?;
        Ok(answer.members)
    }

    /// Returns all keys and values.
    pub async fn everything(&self) -> Result<RangeResponse, Status> {
        let request = RangeRequest { key: ALL.into(), range_end: ALL.into(), ..RangeRequest::default() };
        self.call(Rpc::KvRange, &request).await
    }

    pub async fn compact(&self, revision: i64, physical: bool) -> Result<CompactionResponse, Status> {
        self.call(Rpc::KvCompact, &CompactionRequest { revision, physical }).await
    }

    /// Returns a hash of all versions up to a revision; 0 stands for the newest revision.
    pub async fn hash_kv(&self, revision: i64) -> Result<HashKvResponse, Status> {
        self.call(Rpc::MaintenanceHashKv, &HashKvRequest { revision }).await
    }

    pub async fn status(&self) -> Result<StatusResponse, Status> {
        self.call(Rpc::MaintenanceStatus, &StatusRequest {}).await
    }

    /// Grants a lease; returns its id.
    pub async fn grant(&self, ttl: i64) -> Result<i64, Status> {
        let answer: LeaseGrantResponse =
            self.call(Rpc::LeaseGrant, &LeaseGrantRequest { ttl, id: 0 }).await?;
        Ok(answer.id)
    }

    /// Revokes a lease.
    pub async fn revoke(&self, id: i64) -> Result<(), Status> {
        self.call::<LeaseRevokeResponse>(Rpc::LeaseRevoke, &LeaseRevokeRequest { id }).await.map(drop)
    }

    /// Returns the ids of the leases that this member knows, in order of expiry.
    pub async fn leases(&self) -> Result<Vec<i64>, Status> {
        let answer: LeaseLeasesResponse = self.call(Rpc::LeaseLeases, &LeaseLeasesRequest {}).await?;
        Ok(answer.leases.iter().map(|lease| lease.id).collect())
    }

    /// Returns the remaining time of a lease in seconds; -1 if it does not exist.
    pub async fn time_to_live(&self, id: i64, keys: bool) -> Result<LeaseTimeToLiveResponse, Status> {
        self.call(Rpc::LeaseTimeToLive, &LeaseTimeToLiveRequest { id, keys }).await
    }

    /// Returns the raised alarms.
    pub async fn alarms(&self) -> Result<Vec<AlarmMember>, Status> {
        let request = AlarmRequest { action: 0, member_id: 0, alarm: 0 };
        let answer: AlarmResponse = self.call(Rpc::MaintenanceAlarm, &request).await?;
        Ok(answer.alarms)
    }

    /// Clears every alarm, as `etcdctl alarm disarm` does.
    pub async fn disarm(&self) -> Result<(), Status> {
        for AlarmMember { member_id, alarm } in self.alarms().await? {
            let action = alarm_request::AlarmAction::Deactivate as i32;
            let request = AlarmRequest { action, member_id, alarm };
            let _: AlarmResponse = self.call(Rpc::MaintenanceAlarm, &request).await?;
        }
        Ok(())
    }

    /// Opens a watch on a separate stream, and waits until the server has created it.
    pub async fn watch(&self, create: WatchCreateRequest) -> Result<Watch, Status> {
        // A watch has no deadline. It ends when its reader is dropped.
        let options = CallOptions { timeout: None, ..self.options.clone() };
        self.watch_with(&options, create).await
    }

    /// Opens a watch like [`Client::watch`], with this metadata instead of the client's.
    pub async fn watch_with(
        &self,
        options: &CallOptions,
        create: WatchCreateRequest,
    ) -> Result<Watch, Status> {
        let (mut sender, receiver) = self.channel.stream_with(Rpc::Watch.path(), options).await?;
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        sender.send(request.encode_to_vec().into()).await?;
        let mut watch = Watch { _sender: sender, receiver };
        let created = watch.next().await?;
        assert!(created.created, "{created:?}");
        Ok(watch)
    }

    /// Watches all keys from a revision on.
    pub async fn watch_all(&self, start_revision: i64) -> Result<Watch, Status> {
        let (key, range_end) = (Bytes::from(ALL), Bytes::from(ALL));
        self.watch(WatchCreateRequest { key, range_end, start_revision, ..Default::default() }).await
    }
}

/// A single zero byte. As the key and the range end of a request, it selects all keys.
pub const ALL: &[u8] = b"\0";

/// A watch on a separate stream.
pub struct Watch {
    _sender: Sender,
    receiver: Receiver,
}

impl Watch {
    pub async fn next(&mut self) -> Result<WatchResponse, Status> {
        match self.receiver.next().await? {
            Some(message) => WatchResponse::decode(message)
                .map_err(|e| Status::with(Code::Internal, format!("not a watch response: {e}"))),
            None => Err(Status::new(Code::Internal, "the watch stream ended")),
        }
    }
}

pub fn revision(header: Option<ResponseHeader>) -> i64 {
    header.expect("every answer has a header").revision
}

/// Returns a put operation for transactions.
pub fn put_op(key: impl Into<Bytes>, value: impl Into<Bytes>) -> RequestOp {
    let put = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

pub fn delete_op(key: impl Into<Bytes>) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() };
    RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}
