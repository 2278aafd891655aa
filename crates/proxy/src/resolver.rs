//! `--resolver-prefix`: makes proxies known to each other, so that clients get the proxies as the member
//! list. Each proxy registers itself by a key below the prefix, which is attached to a lease and has the
//! format of the package `naming/endpoints` of etcd's client. Each proxy watches all keys below the prefix.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{
    Member, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, WatchCreateRequest,
};
use api::mvccpb::KeyValue;
use api::mvccpb::event::EventType;
use api::{Code, Rpc, Status};
use bytes::Bytes;
use client::concurrency::Session;
use client::{CallOptions, WatchUpdate, Watcher};
use prost::Message as _;
use serde_json::{Value as Json, json};
use stdx::race;
use telemetry::logging::{Logger, Value};
use tokio::time::sleep;

use crate::background::Task;
use crate::leasing::Leasing;
use crate::members::Members;
use crate::namespace::decode_answer;

/// Pause before a registration or a watch is retried. Source: etcd's proxy.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of proxies in the member list. Further proxies are left out.
const PROXIES_MAX: usize = 4_000;
/// Maximum length of the key, and of the value, of a registration in bytes. Longer registrations are left
/// out.
const ENTRY_BYTES_MAX: usize = 4 << 10;
/// Maximum number of registrations that one request reads.
const PAGE: i64 = 100;
/// Largest response with a page of registrations, in bytes. If a page does not fit, smaller pages are read.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// Timeout of one call to a member.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The proxies that are registered below the prefix, by the key of their registration. The task that watches
/// the prefix changes this map, and the shards (threads that serve clients) read it.
#[derive(Debug, Default)]
pub(crate) struct Proxies(Mutex<BTreeMap<Bytes, Member>>);

/// Settings and state for the registration of this proxy, and for finding the other proxies.
pub(crate) struct Resolver {
    /// `--resolver-prefix`, without the trailing slash.
    pub(crate) prefix: String,
    /// TTL of the registration in seconds.
    pub(crate) ttl: i64,
    /// Address at which clients reach this proxy.
    pub(crate) advertise: String,
    /// Host name of this machine.
    pub(crate) host: String,
    /// The known proxies, which include this one.
    pub(crate) proxies: Arc<Proxies>,
    /// Ownership of keys; `None` if the proxy owns no keys. The registration is written through it, because
    /// another proxy may own the key of the registration.
    pub(crate) leasing: Option<Arc<Leasing>>,
    /// Logger for the registration and its errors.
    pub(crate) logger: Logger,
}

impl Proxies {
    /// Returns the proxies as members, in the order of their keys; an empty list if no proxy is known.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.known().values().cloned().collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Bytes, Member>> {
        // No code panics while it holds this lock, so poisoning is ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Resolver {
    /// Returns the background task that registers the proxy and watches the others, until the process ends.
    pub(crate) fn task(self) -> Task {
        Box::new(move |members| {
            Box::pin(async move {
                race(self.keep_registered(&members), self.keep_watching(&members)).await;
            })
        })
    }

    async fn keep_registered(&self, members: &Members) {
        loop {
            match self.register(members).await {
                Ok(session) => {
                    self.logger.info(
                        "registered session with lease",
                        &[("addr", Value::Str(&self.advertise)), ("lease-ttl", Value::Display(&self.ttl))],
                    );
                    session.done().await;
                    self.logger.warn("session expired; possible network partition or server restart", &[]);
                    self.logger.warn("creating a new session to rejoin", &[]);
                }
                Err(status) => self
                    .logger
                    .warn("failed to create a session", &[("error", Value::Str(&client::shown(&status)))]),
            }
            sleep(PAUSE).await;
        }
    }

    async fn register(&self, members: &Members) -> Result<Session, Status> {
        let session = Session::open(&members.client.within(CALL_LIMIT), self.ttl).await?;
        let put = PutRequest {
            key: format!("{}/{}", self.prefix, self.advertise).into(),
            value: entry_of(&self.advertise, &self.host).into(),
            lease: session.lease(),
            ..PutRequest::default()
        };
        let request = TxnRequest {
            success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
            ..TxnRequest::default()
        };
        let options = CallOptions::default().within(CALL_LIMIT);
        let message = request.encode_to_vec().into();
        let put = match &self.leasing {
            Some(leasing) => leasing.call(members, Rpc::KvTxn, &options, message, false).await,
            None => members.call(Rpc::KvTxn, &options, message).await,
        };
        match put {
            Ok(_) => Ok(session),
            Err(status) => {
                // The put may have been carried out. Closing the session revokes its lease, which removes the
                // registration immediately. Otherwise it would stay until the lease expires.
                let _ = session.close().await;
                Err(status)
            }
        }
    }

    async fn keep_watching(&self, members: &Members) {
        loop {
            if let Err(status) = self.watch(members).await {
                let why = client::shown(&status);
                self.logger.warn(
                    "failed to establish endpoint watch",
                    &[("prefix", Value::Str(&self.prefix)), ("error", Value::Str(&why))],
                );
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads the registrations, and then follows their changes until the watch ends.
    async fn watch(&self, members: &Members) -> Result<(), Status> {
        let (key, range_end) = self.range();
        let (found, revision) = self.read(members, &key, &range_end).await?;
        *self.proxies.known() = found;
        let mut request = WatchCreateRequest {
            key,
            range_end,
            start_revision: revision + 1,
            ..WatchCreateRequest::default()
        };
        if let Some(namespace) = &members.namespace {
            namespace.key(&mut request.key);
            namespace.range_end(&mut request.range_end);
        }
        let mut watcher = Watcher::new(&members.client, request);
        while let Some(update) = watcher.next().await? {
            let response = match update {
                WatchUpdate::Events(response) => response,
                WatchUpdate::Canceled(response) => {
                    return Err(client::status_of_text(&response.cancel_reason));
                }
                WatchUpdate::Created(_) | WatchUpdate::Progress(_) => continue,
            };
            let mut known = self.proxies.known();
            for mut event in response.events {
                if let Some(namespace) = &members.namespace {
                    namespace.strip_event(&mut event);
                }
                match event.kv {
                    Some(kv) if event.r#type == EventType::Delete as i32 => drop(known.remove(&kv.key)),
                    Some(kv) => self.add(&mut known, &kv),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Reads the registrations page by page. Returns the registered proxies by key, and the revision at which
    /// they were read.
    async fn read(
        &self,
        members: &Members,
        key: &Bytes,
        range_end: &Bytes,
    ) -> Result<(BTreeMap<Bytes, Member>, i64), Status> {
        let mut request = RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: PAGE,
            ..RangeRequest::default()
        };
        let options =
            CallOptions { message_bytes_max: PAGE_BYTES_MAX, ..CallOptions::default().within(CALL_LIMIT) };
        let mut found = BTreeMap::new();
        loop {
            let page = match members.call(Rpc::KvRange, &options, request.encode_to_vec().into()).await {
                Err(status) if status.code == Code::ResourceExhausted && request.limit > 1 => {
                    request.limit /= 2;
                    continue;
                }
                answer => decode_answer::<RangeResponse>(&answer?)?,
            };
            if request.revision == 0 {
                request.revision = page.header.unwrap_or_default().revision;
            }
            page.kvs.iter().for_each(|kv| self.add(&mut found, kv));
            match page.kvs.last() {
                Some(last) if page.more && found.len() < PROXIES_MAX => {
                    request.key = [last.key.as_ref(), b"\0"].concat().into();
                }
                _ => return Ok((found, request.revision)),
            }
        }
    }

    /// Returns the range of all keys below the prefix and a slash.
    fn range(&self) -> (Bytes, Bytes) {
        // The character `0` follows the slash in ASCII, so this range contains exactly the keys that begin
        // with the prefix and a slash.
        (format!("{}/", self.prefix).into(), format!("{}0", self.prefix).into())
    }

    fn add(&self, known: &mut BTreeMap<Bytes, Member>, kv: &KeyValue) {
        if kv.key.len() > ENTRY_BYTES_MAX || kv.value.len() > ENTRY_BYTES_MAX {
            return self.logger.warn("ignoring a registration that is too large", &[]);
        }
        match member_of(&kv.value) {
            Ok(_) if known.len() >= PROXIES_MAX && !known.contains_key(&kv.key) => {
                self.logger.warn("too many proxies are registered; ignoring one", &[]);
            }
            Ok(member) => drop(known.insert(Bytes::copy_from_slice(&kv.key), member)),
            Err(error) => self.logger.warn(
                "unmarshal endpoint update failed",
                &[("key", Value::Str(&String::from_utf8_lossy(&kv.key))), ("error", Value::Str(&error))],
            ),
        }
    }
}

/// Returns the value of a registration. Its fields are in the same order as in etcd.
fn entry_of(address: &str, host: &str) -> String {
    let metadata = json!({ "name": host }).to_string();
    format!("{{\"Op\":0,\"Addr\":{},\"Metadata\":{}}}", json!(address), json!(metadata))
}

/// Parses the value of a registration.
fn member_of(value: &[u8]) -> Result<Member, String> {
    let entry: Json = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    let address = entry.get("Addr").and_then(Json::as_str).unwrap_or_default();
    let metadata = entry.get("Metadata").and_then(Json::as_str).ok_or("no metadata")?;
    let metadata: Json = serde_json::from_str(metadata).map_err(|error| format!("metadata: {error}"))?;
    let name = metadata.get("name").and_then(Json::as_str).unwrap_or_default();
    Ok(Member { name: name.to_owned(), client_urls: vec![address.to_owned()], ..Member::default() })
}

#[cfg(test)]
mod tests {
    use telemetry::logging::{Format, Level};

    use super::*;

    #[test]
    fn a_registration_has_etcds_form() {
        let entry = entry_of("127.0.0.1:23790", "a\"b");
        assert_eq!(entry, r#"{"Op":0,"Addr":"127.0.0.1:23790","Metadata":"{\"name\":\"a\\\"b\"}"}"#);
        let member = member_of(entry.as_bytes()).unwrap();
        assert_eq!((&*member.name, member.client_urls), ("a\"b", vec!["127.0.0.1:23790".to_owned()]));
    }

    #[test]
    fn a_registration_that_cannot_be_read_is_refused() {
        for value in ["", "x", "{}", r#"{"Op":0,"Addr":"a","Metadata":null}"#, r#"{"Metadata":"x"}"#] {
            assert!(member_of(value.as_bytes()).is_err(), "{value}");
        }
        assert_eq!(member_of(br#"{"Metadata":"{}"}"#).unwrap().client_urls, [""]);
    }

    fn resolver() -> Resolver {
        Resolver {
            prefix: "p".to_owned(),
            ttl: 1,
            advertise: String::new(),
            host: String::new(),
            proxies: Arc::default(),
            leasing: None,
            logger: Logger::to(Level::Error, Format::Json, Vec::new()),
        }
    }

    #[test]
    fn proxies_beyond_the_limit_are_left_out() {
        let resolver = resolver();
        let kv = |key: usize| KeyValue {
            key: key.to_string().into(),
            value: entry_of(&key.to_string(), "h").into(),
            ..KeyValue::default()
        };
        let mut known = BTreeMap::new();
        (0..PROXIES_MAX + 5).for_each(|key| resolver.add(&mut known, &kv(key)));
        // The limit does not apply to a change of a known entry.
        resolver.add(&mut known, &KeyValue { value: entry_of("new", "h").into(), ..kv(0) });
        assert_eq!((known.len(), &*known[&b"0"[..]].client_urls[0]), (PROXIES_MAX, "new"));
    }

    #[test]
    fn large_registrations_are_left_out_and_messages_are_not_held() {
        let resolver = resolver();
        let mut known = BTreeMap::new();
        let message = Bytes::from(b"a and the rest of a long message".to_vec());
        let small =
            KeyValue { key: message.slice(..1), value: entry_of("a", "h").into(), ..KeyValue::default() };
        resolver.add(&mut known, &small);
        let host = "h".repeat(4 << 10);
        resolver.add(
            &mut known,
            &KeyValue { key: "b".into(), value: entry_of("b", &host).into(), ..small.clone() },
        );
        let key = vec![b'c'; (4 << 10) + 1];
        resolver.add(&mut known, &KeyValue { key: key.into(), ..small.clone() });
        drop(small);
        assert_eq!((known.len(), &*known[&b"a"[..]].client_urls[0]), (1, "a"));
        assert!(message.is_unique());
    }
}
