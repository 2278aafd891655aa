//! The session of a proxy that owns keys. It runs in the background and has three tasks: renewing the lease
//! of the leasing keys, watching the leasing keys for changes by other proxies, and deleting the leasing keys
//! of keys that this proxy gives up. If one of the tasks fails, the proxy no longer owns any key, and a new
//! session begins.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{Compare, DeleteRangeRequest, RequestOp, TxnRequest, WatchCreateRequest};
use api::mvccpb::event::EventType;
use api::{Code, Status};
use bytes::Bytes;
use client::{CallOptions, WatchUpdate, Watcher, lease};
use stdx::{First, race};
use telemetry::logging::{Logger, Value};
use tokio::time::{sleep, timeout, timeout_at};

use super::owned::LeasingEvent;
use super::{CHUNK, Leasing, REVOKE, created_before, is_too_large};
use crate::background::Task;
use crate::members::Members;
use crate::namespace::end_of_prefix;

/// TTL of the lease in seconds. Source: etcd's sessions.
const TTL_SECONDS: i64 = 60;
/// Timeout of one call to a member.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// First and longest pause before a new session begins.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Pause before a failed deletion of leasing keys is retried.
const DELETE_PAUSE: Duration = Duration::from_millis(500);
/// Time for which deletions of leasing keys may fail before the session ends. Writes of other proxies are
/// waiting for these deletions. The end of the session revokes the lease, which deletes all leasing keys.
const DELETE_LIMIT: Duration = Duration::from_secs(10);

/// Status with which a session ends if a member did not create the watch or renew the lease in time.
const LATE: Status = Status::new(Code::DeadlineExceeded, "context deadline exceeded");

impl Leasing {
    /// Returns the background task that runs one session after another, until the process ends.
    pub(crate) fn task(self: Arc<Leasing>, logger: Logger) -> Task {
        Box::new(move |members| {
            Box::pin(async move {
                let mut pause = PAUSE.0;
                loop {
                    let began = Instant::now();
                    let status = self.session(&members).await;
                    logger.warn(
                        "leasing session ended; keys are not owned until the next one",
                        &[("error", Value::Str(&client::shown(&status)))],
                    );
                    if began.elapsed() > PAUSE.1 {
                        pause = PAUSE.0;
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            })
        })
    }

    /// Runs one session. Returns the reason why the session ended.
    async fn session(&self, members: &Members) -> Status {
        let client = members.client.within(CALL_LIMIT);
        let sent = Instant::now();
        let granted = match lease::grant(&client, TTL_SECONDS, 0).await {
            Ok(granted) => granted,
            Err(status) => return status,
        };
        let until = sent + seconds(granted.ttl);
        let outcome = self.with_lease(members, granted.id, until).await;
        self.with(|owned| owned.end());
        // The revocation deletes the leasing keys, for which writes of other proxies wait. Its error can be
        // ignored: the lease expires later, and the writes only wait for longer.
        let _ = lease::revoke(&client, granted.id).await;
        outcome
    }

    async fn with_lease(&self, members: &Members, lease: i64, until: Instant) -> Status {
        let mut request = WatchCreateRequest {
            key: self.prefix.clone(),
            range_end: end_of_prefix(&self.prefix),
            ..WatchCreateRequest::default()
        };
        if let Some(namespace) = &members.namespace {
            namespace.key(&mut request.key);
            namespace.range_end(&mut request.range_end);
        }
        // Without a leader, a member does not learn that other proxies ask for keys. So the watch has to end
        // in that case, which ends the session.
        let mut watcher = Watcher::new(&members.client.with_require_leader(), request);
        // Wait until the watch is created before `begin` allows claims, so that the watch reports every
        // change of the leasing keys that this session creates.
        match timeout(CALL_LIMIT, watcher.next()).await {
            Ok(Ok(Some(WatchUpdate::Created(_)))) => {}
            Ok(Ok(Some(WatchUpdate::Canceled(response)))) => {
                return client::status_of_text(&response.cancel_reason);
            }
            Ok(Err(status)) => return status,
            Ok(Ok(_)) | Err(_) => return LATE,
        }
        self.with(|owned| owned.begin(lease, until));
        let renewed = self.renew(members, lease, until);
        let watched = self.follow(members, watcher);
        let deleted = self.delete_left(members, lease);
        match race(race(renewed, watched), deleted).await {
            First::Left(First::Left(status) | First::Right(status)) | First::Right(status) => status,
        }
    }

    /// Renews the lease until a renewal fails. Returns the reason, which ends the session.
    async fn renew(&self, members: &Members, lease: i64, mut until: Instant) -> Status {
        loop {
            sleep(until.saturating_duration_since(Instant::now()) / 3).await;
            // Take the time before the request is sent: the member restarts the TTL later than this, so the
            // lease is certainly valid until the time that is computed from it.
            let sent = Instant::now();
            match timeout_at(until.into(), lease::keep_alive_once(&members.client, lease)).await {
                Ok(Ok(answer)) => {
                    until = sent + seconds(answer.ttl);
                    self.with(|owned| owned.renewed(until));
                }
                Ok(Err(status)) => return status,
                Err(_) => return LATE,
            }
        }
    }

    /// Handles the changes of leasing keys that the watch reports. Returns the reason when the watch ends.
    async fn follow(&self, members: &Members, mut watcher: Watcher) -> Status {
        loop {
            let response = match watcher.next().await {
                Ok(Some(WatchUpdate::Events(response))) => response,
                Ok(Some(WatchUpdate::Canceled(response))) => {
                    return client::status_of_text(&response.cancel_reason);
                }
                Ok(Some(WatchUpdate::Created(_) | WatchUpdate::Progress(_))) => continue,
                Ok(None) => return Status::new(Code::Canceled, "the watch is over"),
                Err(status) => return status,
            };
            let now = Instant::now();
            for mut event in response.events {
                if let Some(namespace) = &members.namespace {
                    namespace.strip_event(&mut event);
                }
                let Some(kv) = event.kv else { continue };
                if !kv.key.starts_with(&self.prefix) {
                    continue;
                }
                let key = kv.key.slice(self.prefix.len()..);
                let is_deleted = event.r#type == EventType::Delete as i32;
                let event = LeasingEvent {
                    revision: kv.mod_revision,
                    lease: kv.lease,
                    is_deleted,
                    is_wanted_back: !is_deleted && kv.value == REVOKE,
                };
                self.with(|owned| owned.leasing_key_changed(&key, event, now));
            }
        }
    }

    /// Deletes the leasing keys of the keys whose ownership this proxy has given up. Returns the error when
    /// deletions have failed for [`DELETE_LIMIT`], or when a single deletion is too large.
    async fn delete_left(&self, members: &Members, lease: i64) -> Status {
        let mut limit = CHUNK;
        loop {
            let left: Vec<(Bytes, i64)> = self.with(|owned| owned.take_to_delete()).into_iter().collect();
            if left.is_empty() {
                self.has_left.notified().await;
                continue;
            }
            let mut rest = &left[..];
            let mut last = Instant::now();
            while !rest.is_empty() {
                let some: Vec<TxnRequest> =
                    rest.iter().take(limit).map(|(key, up_to)| self.deletion(key, *up_to, lease)).collect();
                let options = CallOptions::default().within(CALL_LIMIT);
                match self.commit_some(members, &options, &some, &mut limit).await {
                    Ok((_, held)) => {
                        let (done, later) = rest.split_at(held.len());
                        self.with(|owned| done.iter().for_each(|(key, _)| owned.deleted(key)));
                        rest = later;
                        last = Instant::now();
                    }
                    // `commit_some` returns this error only if even a single deletion is too large, so a
                    // retry cannot succeed.
                    Err(status) if is_too_large(&status) || last.elapsed() > DELETE_LIMIT => return status,
                    Err(_) => sleep(DELETE_PAUSE).await,
                }
            }
        }
    }

    /// Returns a transaction that deletes the leasing key of a key, on the condition that the leasing key is
    /// attached to this lease and was created at revision `up_to` or before.
    fn deletion(&self, key: &Bytes, up_to: i64, lease: i64) -> TxnRequest {
        let leasing_key = self.leasing_key(key);
        let delete = DeleteRangeRequest { key: leasing_key.clone(), ..DeleteRangeRequest::default() };
        let own = Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Lease as i32,
            key: leasing_key.clone(),
            target_union: Some(TargetUnion::Lease(lease)),
            ..Compare::default()
        };
        TxnRequest {
            compare: vec![own, created_before(leasing_key, Bytes::new(), up_to.saturating_add(1))],
            success: vec![RequestOp { request: Some(Request::RequestDeleteRange(delete)) }],
            ..TxnRequest::default()
        }
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(ttl.max(0).unsigned_abs())
}
