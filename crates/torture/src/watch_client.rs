//! Runs clients that watch keys: some watch all keys during the whole run, others open short watches from old
//! revisions, and others test whether watches respect permissions.

use std::sync::Arc;
use std::time::Duration;
use stdx::{First, race};

use api::Rpc;
use api::etcdserverpb as pb;
use api::etcdserverpb::watch_request::RequestUnion;
use http::{HeaderName, HeaderValue};
use oracle::{Asking, End, Watch, WatchAnswer, WatchResponse};
use prost::Message;
use tokio::sync::watch;

use crate::key_client::Known;
use crate::phase::{Phase, pause};
use crate::rng::Rng;
use crate::security::Identity;
use crate::session::ClientContext;
use crate::{translation, user_client};

/// A single zero byte. As a key it is the first possible one, and as a range end it means all following keys.
const ALL: &[u8] = b"\0";
/// Delay after a stream was broken, before the next attempt.
const REST: Duration = Duration::from_millis(100);

/// Condition under which a client ends its watch.
enum Until {
    /// The watch has received this revision, a time limit has passed, or the work phase is over.
    Revision(i64),
    /// The watch has received everything up to the last revision, after all clients have finished.
    Drained,
}

/// Watches all keys from revision 1 on. Opens another watch when a stream is broken, and ends when it is
/// drained.
pub async fn follow(
    context: Arc<ClientContext>,
    number: u64,
    member: usize,
    mut phase: watch::Receiver<Phase>,
) {
    let mut next = 1;
    loop {
        let mut watch = plan(&context, number, member);
        watch.key = ALL.to_vec();
        watch.range_end = ALL.to_vec();
        watch.start_revision = next;
        watch.prev_kv = member == 1;
        watch.fragment = member == 2;
        let strict = number.is_multiple_of(2);
        run(&context, (&mut watch, identity_of(number)), strict, Until::Drained, &mut phase).await;
        // Continue after the last revision that is complete: a response that is not a fragment contains all
        // events of its revisions.
        for response in &watch.responses {
            match &response.answer {
                WatchAnswer::Events { events, fragment: false } => {
                    next = events.iter().map(|event| event.kv.mod_revision + 1).fold(next, i64::max);
                }
                WatchAnswer::Canceled { compact_revision, .. } => next = next.max(*compact_revision),
                _ => {}
            }
        }
        let drained = matches!(watch.end, End::Drained(_));
        if !watch.responses.is_empty() {
            context.record.lock().watches.push(watch);
        }
        if drained || matches!(*phase.borrow(), Phase::Over) {
            return;
        }
        tokio::time::sleep(REST).await;
    }
}

/// Opens watches that start at an old revision, one after the other, until the work phase is over.
pub async fn glance(
    context: Arc<ClientContext>,
    known: Arc<Known>,
    number: u64,
    member: usize,
    mut rng: Rng,
    mut phase: watch::Receiver<Phase>,
) {
    while pause(&mut phase, Duration::from_millis(rng.between(500, 4000))).await {
        let newest = known.newest();
        let mut watch = plan(&context, number, member);
        if rng.percent(40) {
            watch.key = format!("g{:06}/", context.record.number() / 1500).into_bytes();
            watch.range_end = b"h".to_vec();
        } else {
            watch.key = ALL.to_vec();
            watch.range_end = ALL.to_vec();
        }
        watch.start_revision = (newest - rng.between(0, 600) as i64).max(1);
        watch.prev_kv = rng.percent(30);
        watch.no_put = rng.percent(10);
        watch.no_delete = !watch.no_put && rng.percent(10);
        watch.fragment = rng.percent(30);
        let strict = rng.percent(50);
        run(&context, (&mut watch, identity_of(number)), strict, Until::Revision(newest + 5), &mut phase)
            .await;
        if !watch.responses.is_empty() {
            context.record.lock().watches.push(watch);
        }
    }
}

/// Opens watches on ranges that a user with changing permissions may or may not read, one after the other,
/// until the work phase is over.
pub async fn spy(
    context: Arc<ClientContext>,
    known: Arc<Known>,
    identity: Identity,
    (number, member): (u64, usize),
    mut rng: Rng,
    mut phase: watch::Receiver<Phase>,
) {
    while pause(&mut phase, Duration::from_millis(rng.between(50, 500))).await {
        if !context.security.is_there(identity) {
            continue;
        }
        let mut watch = plan(&context, number, member);
        (watch.key, watch.range_end) = user_client::some_range(&mut rng);
        watch.start_revision = known.newest() + 1 - rng.between(0, 30) as i64;
        watch.start_revision = watch.start_revision.max(1);
        watch.prev_kv = rng.percent(30);
        let strict = rng.percent(50);
        run(&context, (&mut watch, identity), strict, Until::Revision(i64::MAX), &mut phase).await;
        if !watch.responses.is_empty() {
            context.record.lock().watches.push(watch);
        }
    }
}

/// Watches all events from revision `from` to `to` once more at one member, at the end of the run.
pub async fn reread(context: &Arc<ClientContext>, number: u64, member: usize, from: i64, to: i64) {
    let mut watch = plan(context, number, member);
    (watch.key, watch.range_end, watch.start_revision) = (ALL.to_vec(), ALL.to_vec(), from);
    let (_sender, mut phase) = watch::channel(Phase::Drain(to));
    let patience = Duration::from_secs(30);
    let reading = run(context, (&mut watch, identity_of(number)), false, Until::Drained, &mut phase);
    // Ignore a timeout: the oracle also judges the events of a watch that ended early.
    let _ = tokio::time::timeout(patience, reading).await;
    context.record.lock().watches.push(watch);
}

/// Returns the user on whose behalf the client with this number acts.
fn identity_of(number: u64) -> Identity {
    if number.is_multiple_of(2) { Identity::Staff } else { Identity::Worker }
}

fn plan(context: &ClientContext, client: u64, member: usize) -> Watch {
    Watch {
        id: context.record.number(),
        client,
        member: member as u64,
        life: 0,
        opened: context.record.now(),
        key: Vec::new(),
        range_end: Vec::new(),
        start_revision: 0,
        prev_kv: false,
        no_put: false,
        no_delete: false,
        fragment: false,
        responses: Vec::new(),
        end: End::Broken,
    }
}

/// Opens a watch, and records its responses in `watch` until it ends.
async fn run(
    context: &ClientContext,
    (watch, identity): (&mut Watch, Identity),
    strict: bool,
    until: Until,
    phase: &mut watch::Receiver<Phase>,
) {
    let Ok(link) = context.open(watch.member as usize, identity, watch.client).await else { return };
    watch.life = link.life;
    watch.opened = context.record.now();
    context.record.lock().askers.extend(link.asker(Asking::Watch(watch.id)));
    let mut options = link.options();
    if strict {
        let (name, value) = (HeaderName::from_static("hasleader"), HeaderValue::from_static("true"));
        options = options.with(name, value);
    }
    let Ok((mut sender, mut receiver)) = link.channel.stream_with(Rpc::Watch.path(), &options).await else {
        return;
    };
    let create = pb::WatchCreateRequest {
        key: watch.key.clone().into(),
        range_end: watch.range_end.clone().into(),
        start_revision: watch.start_revision,
        progress_notify: true,
        filters: filters(watch),
        prev_kv: watch.prev_kv,
        watch_id: 0,
        fragment: watch.fragment,
    };
    let request = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    if sender.send(request.encode_to_vec().into()).await.is_err() {
        return;
    }
    let mut come = watch.start_revision - 1;
    // Limit the time: a watch that filters out all events would otherwise never end.
    let patience = tokio::time::Instant::now()
        + match until {
            Until::Revision(i64::MAX) => Duration::from_secs(6),
            Until::Revision(_) => Duration::from_secs(3),
            Until::Drained => Duration::from_secs(365 * 86_400),
        };
    loop {
        let target = match (&until, &*phase.borrow_and_update()) {
            (_, Phase::Over) => return,
            (Until::Revision(to), Phase::Work) => *to,
            (Until::Revision(_), _) => return,
            (Until::Drained, Phase::Drain(to)) if come >= *to => {
                watch.end = End::Drained(*to);
                return;
            }
            (Until::Drained, _) => i64::MAX,
        };
        if come >= target {
            return;
        }
        let message = match race(receiver.next(), tokio::time::timeout_at(patience, phase.changed())).await {
            First::Left(message) => message,
            First::Right(Ok(Ok(()))) => continue,
            First::Right(_) => return,
        };
        let Ok(Some(message)) = message else { return };
        let at = context.record.now();
        let Ok(message) = pb::WatchResponse::decode(message) else { return };
        let revision = message.header.as_ref().map_or(0, |header| header.revision);
        let answer = if message.canceled {
            let (compact_revision, reason) = (message.compact_revision, message.cancel_reason);
            WatchAnswer::Canceled { compact_revision, reason }
        } else if message.created {
            WatchAnswer::Created
        } else if message.events.is_empty() {
            come = come.max(revision);
            WatchAnswer::Progress
        } else {
            let fragment = message.fragment;
            let events: Vec<_> = message.events.into_iter().filter_map(translation::event).collect();
            if !fragment {
                come = events.iter().map(|event| event.kv.mod_revision).fold(come, i64::max);
            }
            context.record.lock().events += events.len() as u64;
            WatchAnswer::Events { events, fragment }
        };
        let canceled = matches!(answer, WatchAnswer::Canceled { .. });
        if let WatchAnswer::Canceled { reason, .. } = &answer
            && !reason.is_empty()
        {
            // The server may have cancelled the watch because the token has become invalid. Forget the token,
            // so that the next attempt logs in again.
            context.security.forget(&link.account.name, watch.client);
        }
        watch.responses.push(WatchResponse { at, revision, answer });
        if canceled {
            watch.end = End::Canceled;
            return;
        }
    }
}

fn filters(watch: &Watch) -> Vec<i32> {
    use pb::watch_create_request::FilterType;
    let mut filters = Vec::new();
    if watch.no_put {
        filters.push(FilterType::Noput as i32);
    }
    if watch.no_delete {
        filters.push(FilterType::Nodelete as i32);
    }
    filters
}
