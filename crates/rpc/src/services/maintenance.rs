//! Answers the calls of the Maintenance service (status, alarms, hashes, snapshots), and gRPC health checks.

use numbers::{MemberId, Revision};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::values::unreadable;

use accounting::{Account, Budget, Charge};
use api::error;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, AutopilotMember, AutopilotStatus, AutopilotStep,
    DefragmentRequest, DefragmentResponse, DowngradeInfo, HashKvRequest, HashKvResponse, HashRequest,
    HashResponse, MoveLeaderRequest, MoveLeaderResponse, ObserverStatus, SnapshotRequest, SnapshotResponse,
    StatusRequest, StatusResponse,
};
use api::health::health_check_response::ServingStatus;
use api::health::{HealthCheckRequest, HealthCheckResponse, HealthListResponse};
use api::limits::{QUOTA_BYTES_DEFAULT, SNAPSHOT_BLOB_BYTES};
use api::{Code, Status};
use bytes::Bytes;
use front::{Answer, Inbound, Outbound};
use interchange::backend::{BackendWriter, Release};
use machine::{AsOf, Outcome, ReadError, range};
use mvcc::HashWalk;
use prost::Message as _;
use sha2::{Digest, Sha256};
use stdx::{First, race};
use tokio::sync::{mpsc, oneshot};

use super::call::Call;
use super::choose::read_at_once;
use super::principal::Principal;
use super::{NO_REQUEST, Services, decode, decode_streamed, whole};
use replica::autopilot::{MemberState, Mode, StepRecord};
use replica::core::{ClientRequest, ReplyBody};
use replica::long_reads::Reader;
use replica::observing::ObserverStanding;
use replica::shared::Shared;
use storage::etcd_database::{EtcdDatabase, EtcdDatabaseError};
use storage::kv_hash::KvHash;
use storage::read_ahead::ReadAhead;
use storage::values::{Attempt, LogValues, made};

/// Field number of `InternalRaftRequest`.
const ALARM: u32 = 10;
/// Number of versions that are hashed before other calls run.
const HASHED_PER_SLICE: usize = 256;
/// Number of versions whose encoded size is added up, to plan a snapshot, before the task yields to other
/// calls.
const MEASURED_PER_SLICE: usize = 512;
/// Bytes of a snapshot that are written before other calls run.
const SNAPSHOT_SLICE_BYTES: usize = 64 << 10;
/// Bytes that are counted for a call while it is hashing or making a snapshot: a buffer of the log, and the
/// values and the output of a slice.
const LONG_WORK_BYTES: usize = 192 << 10;
/// Release of etcd whose file format snapshots have. Later releases can read it.
const SNAPSHOT_RELEASE: Release = Release::V3_6;

/// Answers a Status.
pub(super) async fn status(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let StatusRequest {} = decode(message)?;
    call.some_user()?;
    let services = &call.services;
    let state = services.state();
    let mut errors = Vec::new();
    if state.leader == 0 {
        errors.push(error::NO_LEADER.message.into_owned());
    }
    for alarm in state.alarms.list(0, 0) {
        // As etcd prints it: the form of the message in Go's protobuf library.
        let kind = AlarmType::try_from(alarm.alarm).map_or("", |kind| kind.as_str_name());
        errors.push(format!("memberID:{} alarm:{kind}", alarm.member_id));
    }
    let in_use = i64::try_from(state.in_use_bytes).unwrap_or(i64::MAX);
    let is_learner = state
        .members
        .by_id
        .get(&services.shared.member.identity.member_id)
        .is_some_and(|member| member.is_learner)
        // Tools that know no observers must not count one as a voter.
        || services.shared.member.observes;
    let response = StatusResponse {
        header: Some(services.header(state.view.snapshot().current_revision(), &state)),
        version: services.shared.member.api_version.to_owned(),
        db_size: i64::try_from(services.shared.data.db_size(state.in_use_bytes)).unwrap_or(i64::MAX),
        leader: state.leader,
        raft_index: state.commit_index.0,
        raft_term: state.applied_term.0,
        raft_applied_index: state.applied_index.0,
        errors,
        db_size_in_use: in_use,
        is_learner,
        storage_version: state.members.storage_version().unwrap_or_default().to_owned(),
        db_size_quota: i64::try_from(
            services.shared.member.limits.quota_bytes.unwrap_or(QUOTA_BYTES_DEFAULT),
        )
        .unwrap_or(i64::MAX),
        downgrade_info: Some(DowngradeInfo {
            enabled: state.members.downgrade_target.is_some(),
            target_version: state.members.downgrade_target.clone().unwrap_or_default(),
        }),
        zone: services.shared.member.zone.clone(),
        observers: services.shared.cluster.observers().iter().map(observer_status).collect(),
        is_observer: services.shared.member.observes,
        feeder: services.shared.cluster.feeder().unwrap_or(0),
        autopilot: autopilot_status(&services.shared),
        is_witness: services.shared.member.is_witness,
        witness_counts: services.shared.cluster.counts_witness(),
    };
    Ok(whole(&response))
}

/// Returns the state of this member's autopilot; `None` if it is off and the member is no standby, so that the
/// response is that of etcd.
fn autopilot_status(shared: &Shared) -> Option<AutopilotStatus> {
    let options = shared.member.autopilot;
    if options.mode == Mode::Off && !options.is_standby {
        return None;
    }
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let state = shared.cluster.autopilot();
    let step = |record: &StepRecord| AutopilotStep {
        at_ms: record.at_ms,
        step: record.step.kind().to_owned(),
        member_id: record.step.member(),
        reason: record.why.clone(),
        outcome: record.outcome.name().to_owned(),
        error: record.error.clone(),
    };
    let member = |member: &MemberState| AutopilotMember {
        id: member.id,
        name: member.name.clone(),
        is_learner: member.is_learner,
        reports: member.is_standby.is_some(),
        standby: member.is_standby.unwrap_or(false),
        silent_ms: member.silent_ms,
        caught_up: member.is_caught_up,
        sync_p99_ms: member.sync_p99_ms.unwrap_or(0),
        clients: member.clients.unwrap_or(0),
    };
    Some(AutopilotStatus {
        mode: options.mode.name().to_owned(),
        deciding: state.decides,
        standby: options.is_standby,
        replace_after_ms: ms(options.replace_after),
        interval_ms: ms(options.interval),
        steps: state.steps.iter().map(step).collect(),
        advice: state.advice.clone(),
        members: state.members.iter().map(member).collect(),
    })
}

fn observer_status(standing: &ObserverStanding) -> ObserverStatus {
    let ObserverStanding { card, matched, lag_entries, is_active, .. } = standing;
    ObserverStatus {
        id: card.id,
        name: card.name.clone(),
        peer_urls: card.peer_urls.clone(),
        client_urls: card.client_urls.clone(),
        zone: card.zone.clone(),
        release: card.release.clone(),
        matched_index: matched.0,
        lag_entries: *lag_entries,
        active: *is_active,
        state: standing.state().to_owned(),
    }
}

/// Answers an Alarm.
pub(super) async fn alarm(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: AlarmRequest = decode(message.clone())?;
    let (header, alarms) = match AlarmAction::try_from(request.action) {
        Ok(AlarmAction::Get) => {
            call.some_user()?;
            let read = call.readable(false).await?;
            // Checked again: this member may have learned only during the wait that authentication is
            // enabled.
            call.some_user()?;
            call.reads(read);
            let state = call.services.state();
            let header = call.services.header(state.view.snapshot().current_revision(), &state);
            (header, state.alarms.list(request.alarm, request.member_id))
        }
        Ok(_) => {
            call.as_root().await?;
            let applied = call.propose(ALARM, message, "Alarm").await?;
            let Outcome::Alarms(alarms) = applied.outcome else { return Err(error::STOPPED) };
            (applied.header, alarms)
        }
        // For an unknown action, etcd's server crashes with a nil pointer (COMPAT-2); Mainstay returns an
        // error.
        Err(_) => {
            let text = format!("etcdserver: unknown alarm action {}", request.action);
            return Err(Status::with(Code::InvalidArgument, text));
        }
    };
    Ok(whole(&AlarmResponse { header: Some(header), alarms }))
}

/// Answers a Defragment. There is nothing to do, because unused space is freed continuously.
pub(super) async fn defragment(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let DefragmentRequest {} = decode(message)?;
    call.root()?;
    call.shared().diagnostics.metrics.disk.defrag_duration.observe(0.0);
    Ok(whole(&DefragmentResponse { header: None }))
}

/// Answers a MoveLeader.
pub(super) async fn move_leader(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: MoveLeaderRequest = decode(message)?;
    let target = MemberId(request.target_id);
    call.as_root().await?;
    let ask = |request_id| ClientRequest::MoveLeader(request_id, target);
    match call.ask("MoveLeader", ask).await? {
        (ReplyBody::LeaderMoved, _) => Ok(whole(&MoveLeaderResponse { header: None })),
        (ReplyBody::Outcome(Err(status), _), _) => Err(status),
        _ => Err(error::STOPPED),
    }
}

/// Answers a HashKV.
pub(super) async fn hash_kv(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: HashKvRequest = decode(message)?;
    let revision = Revision(request.revision);
    call.root()?;
    call.expensive()?;
    let services = &call.services;
    // The requested revision is looked up unchanged among the hashes of past compactions. Like etcd, this
    // looks it up before 0 is replaced with the current revision.
    let Some(cached) = services.shared.data.compaction_hashes.at(revision) else {
        return hash_kv_now(call, revision).await;
    };
    let header = Some(services.newest_header());
    let (hash_revision, compact_revision) = (cached.revision.0, cached.compact_revision.0);
    match cached.wait().await {
        Some(hash) => Ok(whole(&HashKvResponse { header, hash, compact_revision, hash_revision })),
        None => hash_kv_now(call, revision).await,
    }
}

async fn hash_kv_now(call: &Call, revision: Revision) -> Result<Answer, Status> {
    let (services, began) = (&call.services, Instant::now());
    let (state, published) = services.shared.read_long(Reader::Hash);
    let walk = HashWalk::new(&published.view.snapshot(), revision).map_err(range::refused)?;
    let header = Some(services.header(state.moment().revision(), &published));
    drop(published);
    let (hash_revision, compact_revision) = (walk.revision().0, walk.compact_revision().0);
    let hash = services.hash_versions(call.client(), state, walk).await?;
    services.shared.diagnostics.metrics.mvcc.hash_rev_duration.observe_seconds(began.elapsed());
    Ok(whole(&HashKvResponse { header, hash, compact_revision, hash_revision }))
}

/// Answers a Hash with a hash of everything that this member holds. etcd's hash covers the pages of its
/// database file, so it is comparable only between etcd members. The hash returned here is comparable only
/// between Mainstay members (COMPAT-3).
pub(super) async fn hash(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let HashRequest {} = decode(message)?;
    call.root()?;
    call.expensive()?;
    let services = &call.services;
    let (state, published) = services.shared.read_long(Reader::Hash);
    let header = services.header(state.moment().revision(), &published);
    let walk = HashWalk::new(&published.view.snapshot(), Revision::CURRENT).map_err(range::refused)?;
    let (alarms, members) = (Arc::clone(&published.alarms), Arc::clone(&published.members));
    drop(published);
    let began = Instant::now();
    let mut hash = services.hash_versions(call.client(), state, walk).await?;
    for alarm in alarms.list(0, 0) {
        hash = crc32c::crc32c_append(hash, &alarm.encode_to_vec());
    }
    for member in members.by_id.values() {
        hash = crc32c::crc32c_append(hash, member.to_json().as_bytes());
    }
    services.shared.diagnostics.metrics.mvcc.hash_duration.observe_seconds(began.elapsed());
    Ok(whole(&HashResponse { header: Some(header), hash }))
}

impl Services {
    /// Streams the state as an etcd database, followed by the SHA-256 of the database.
    pub(super) async fn snapshot(
        self: Rc<Self>,
        principal: Principal,
        client: IpAddr,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> Result<(), Status> {
        let Some(message) = inbound.next().await? else { return Err(NO_REQUEST) };
        let SnapshotRequest {} = decode_streamed(message)?;
        self.gate(&self.state(), &principal).admin()?;
        self.expensive(&principal, client)?;
        let reply = self.pending.ask(ClientRequest::Image)?.await?;
        let ReplyBody::Image(head, state) = reply.body else { return Err(error::STOPPED) };
        // The rights are checked again, with the newest users and roles, since the state to be sent may be
        // newer than the state of the first check.
        self.gate(&self.state(), &principal).admin()?;
        let began = Instant::now();
        let database = EtcdDatabase::new(*state, &head, SNAPSHOT_RELEASE);
        drop(head);
        // One piece is made while the previous one is sent.
        let (pieces, mut made) = mpsc::channel(1);
        let budget = self.shared.clients.memory.get().cloned();
        let work = move |values| async move {
            if let Err(status) = make_snapshot(database, values, budget, &pieces).await {
                // An error of the channel means that the call has ended.
                let _ = pieces.send(Err(status)).await;
            }
        };
        let sending = async {
            let version = api::CLUSTER_VERSION.to_owned();
            while let Some(piece) = made.recv().await {
                let Piece { mut bytes, remaining_bytes, is_digest, _charge } = piece?;
                while !bytes.is_empty() {
                    let blob = bytes.split_to(bytes.len().min(SNAPSHOT_BLOB_BYTES));
                    let remaining_bytes = remaining_bytes + bytes.len() as u64;
                    let version = version.clone();
                    let response = SnapshotResponse { header: None, remaining_bytes, blob, version };
                    outbound.send(response.encode_to_vec().into()).await?;
                }
                if is_digest {
                    return Ok(());
                }
            }
            Err(error::STOPPED)
        };
        self.work_long(client, work, sending).await?;
        self.shared.diagnostics.metrics.disk.snapshot_duration.observe_seconds(began.elapsed());
        Ok(())
    }

    /// Returns the HashKV checksum of all versions of a walk, with their values.
    async fn hash_versions(&self, client: IpAddr, state: AsOf, walk: HashWalk) -> Result<u32, Status> {
        let (mut answer, hashed) = oneshot::channel();
        let work = move |values| async move {
            // Whether the call has ended is asked first, because work of many such calls may be queued.
            let First::Right(hash) = race(answer.closed(), hash_versions(&state, walk, &values)).await else {
                return;
            };
            // Released before the answer, because the client may compact next and expect that versions go.
            drop(state);
            // An error means that the call has ended.
            let _ = answer.send(hash);
        };
        self.work_long(client, work, hashed).await.unwrap_or(Err(error::STOPPED))
    }

    /// Runs `work` on the thread for long work, and `caller` on this thread, until `caller` ends. If there is
    /// no thread for long work, both run on this one.
    ///
    /// `work` sends its results to `caller` through a channel, and ends when `caller` was dropped. Its argument
    /// reads values of the log without waiting for a disk.
    async fn work_long<T, F: Future<Output = ()> + 'static>(
        &self,
        client: IpAddr,
        work: impl FnOnce(Rc<LogValues>) -> F + Send + 'static,
        caller: impl Future<Output = T>,
    ) -> T {
        let _held = Account::of_turn().map(|account| account.hold(LONG_WORK_BYTES));
        let Err(work) = self.shared.data.long_work.begin(client, work) else { return caller.await };
        let working = async {
            work(self.values.clone()).await;
            std::future::pending::<Infallible>().await
        };
        match race(caller, working).await {
            First::Left(result) => result,
            First::Right(never) => match never {},
        }
    }

    pub(super) async fn health_watch(
        self: Rc<Self>,
        mut inbound: Inbound,
        mut outbound: Outbound,
    ) -> Result<(), Status> {
        let Some(message) = inbound.next().await? else { return Err(NO_REQUEST) };
        let HealthCheckRequest { service } = decode_streamed(message)?;
        let serving = if service.is_empty() { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
        let status =
            |status: ServingStatus| HealthCheckResponse { status: status as i32 }.encode_to_vec().into();
        outbound.send(status(serving)).await?;
        self.closing.clone().begun().await;
        outbound.send(status(ServingStatus::NotServing)).await?;
        Err(error::STOPPED)
    }
}

fn unwritten(error: &EtcdDatabaseError, state: &AsOf) -> Status {
    match error {
        EtcdDatabaseError::Read(ReadError::Overtaken) => super::walk::overtaken(state),
        EtcdDatabaseError::Read(error) => unreadable(error),
        EtcdDatabaseError::Write(error) => {
            Status::with(Code::Internal, format!("mainstay: the snapshot cannot be written: {error}"))
        }
    }
}

/// A piece of a snapshot on its way from the thread that makes it to the shard that sends it.
struct Piece {
    bytes: Bytes,
    /// Bytes of the database after this piece.
    remaining_bytes: u64,
    /// True if the piece is the SHA-256 of the database, which comes last.
    is_digest: bool,
    _charge: Option<Charge>,
}

/// Makes a snapshot piece by piece. Ends early when `pieces` is closed.
async fn make_snapshot(
    database: EtcdDatabase,
    values: Rc<LogValues>,
    budget: Option<Budget>,
    pieces: &mpsc::Sender<Result<Piece, Status>>,
) -> Result<(), Status> {
    let read = database.state().clone();
    let failed = |error| unwritten(&error, &read);
    let mut measuring = database.measure();
    let plan = loop {
        // Work of many calls that have ended may be queued.
        if pieces.is_closed() {
            return Ok(());
        }
        if let Some(plan) = measuring.step(&database, MEASURED_PER_SLICE).map_err(&failed)? {
            break plan;
        }
        accounting::note_work(MEASURED_PER_SLICE as u64, 0);
        tokio::task::yield_now().await;
    };
    // Counted as in etcd.
    let mut remaining_bytes = plan.size_bytes();
    let mut digest = Sha256::new();
    let writer = BackendWriter::new(Vec::new(), plan, SNAPSHOT_RELEASE);
    let writer = writer.map_err(|e| failed(e.into()))?;
    let mut writing = Some(database.write(writer).map_err(&failed)?);
    let values = ReadAhead::of(&values);
    while let Some(mut going) = writing.take() {
        // The piece is made only when there is room for it, so that a client that takes nothing has at most
        // two pieces: this one, and the one that is being sent.
        let Ok(room) = pieces.reserve().await else { return Ok(()) };
        let portion = made(values.clone(), |values| going.portion(&database, values, SNAPSHOT_SLICE_BYTES));
        let First::Right(portion) = race(pieces.closed(), portion).await else { return Ok(()) };
        let done = going.write(&database, portion.map_err(&failed)?);
        let done = done.map_err(&failed)?;
        let bytes = if done {
            going.into_writer().finish().map_err(|e| failed(e.into()))?
        } else {
            let bytes = std::mem::take(going.output());
            writing = Some(going);
            bytes
        };
        digest.update(&bytes);
        // The bytes count twice: they were written, and then read again for the digest.
        accounting::note_work(0, 2 * bytes.len() as u64);
        remaining_bytes = remaining_bytes.saturating_sub(bytes.len() as u64);
        let _charge = budget.as_ref().map(|budget| budget.charge(bytes.len()));
        room.send(Ok(Piece { bytes: bytes.into(), remaining_bytes, is_digest: false, _charge }));
        tokio::task::yield_now().await;
    }
    // Released before the end of the snapshot, because the client may compact next and expect that versions
    // go.
    drop((database, read));
    let bytes = Bytes::copy_from_slice(&digest.finalize());
    // An error of the channel means that the call has ended.
    let _ = pieces.send(Ok(Piece { bytes, remaining_bytes: 0, is_digest: true, _charge: None })).await;
    Ok(())
}

/// Returns the HashKV checksum of all versions of a walk, with their values.
async fn hash_versions(state: &AsOf, walk: HashWalk, values: &Rc<LogValues>) -> Result<u32, Status> {
    let mut so_far = (walk, KvHash::default());
    let values = ReadAhead::of(values);
    loop {
        // Computed outside the closure: the limit depends on the work left in the turn, and `made` repeats
        // the closure after it has fetched missing values. Every repetition must end at the same version.
        let work_max = read_at_once();
        let slice = made(values.clone(), |values| hash_slice(state, so_far.clone(), work_max, values));
        let (walk, hash, done) = slice.await?;
        if done {
            return Ok(hash.finish());
        }
        so_far = (walk, hash);
        tokio::task::yield_now().await;
    }
}

/// Continues a hash by at most [`HASHED_PER_SLICE`] versions and about `work_max` bytes of work. The last
/// result is true if the walk has ended.
fn hash_slice(
    state: &AsOf,
    (mut walk, mut hash): (HashWalk, KvHash),
    work_max: usize,
    values: &Attempt,
) -> Result<(HashWalk, KvHash, bool), Status> {
    let slice = super::walk::slice(state)?;
    let (mut failed, mut bytes, mut versions) = (None, 0, 0);
    let done = walk.step_while(&slice.snapshot(), HASHED_PER_SLICE, |version| {
        failed = hash.feed(version, values).err();
        bytes += version.value_len() as usize;
        versions += 1;
        failed.is_none() && bytes + versions as usize * accounting::KEY_BYTES < work_max
    });
    accounting::note_work(versions, bytes as u64);
    failed.map_or(Ok((walk, hash, done)), Err)
}

/// Answers a gRPC health check.
pub(super) async fn health_check(_: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let HealthCheckRequest { service } = decode(message)?;
    if !service.is_empty() {
        return Err(Status::new(Code::NotFound, "unknown service"));
    }
    Ok(whole(&HealthCheckResponse { status: ServingStatus::Serving as i32 }))
}

/// Answers with the health status of all services.
pub(super) async fn health_list(_: &mut Call, _: Bytes) -> Result<Answer, Status> {
    let status = HealthCheckResponse { status: ServingStatus::Serving as i32 };
    Ok(whole(&HealthListResponse { statuses: HashMap::from([(String::new(), status)]) }))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use bytes::BytesMut;
    use disk::MemDisk;
    use machine::{Machine, Newest, Rules};
    use mvcc::{Location, Moment, Store, Value, View};
    use numbers::{ClusterId, Index, LeaseId};

    use super::*;
    use crate::services::walk::REPLACED;
    use storage::readers::Reading;
    use storage::values::Source;

    /// A disk with no values in memory.
    struct Nothing;

    impl Source for Nothing {
        fn read_at_hand(&self, _: Value, _: &mut BytesMut) -> Result<bool, ReadError> {
            Ok(false)
        }

        fn fetch(&self, _: &[Value]) -> Option<Reading> {
            None
        }
    }

    /// A source of the newest view, if there is one.
    struct Now(Option<Arc<View>>);

    impl Newest for Now {
        fn view(&self) -> Option<Arc<View>> {
            self.0.clone()
        }

        fn needs(&self, _: &Moment) {}
    }

    #[test]
    fn a_snapshot_of_a_state_that_was_replaced_is_not_said_to_have_been_compacted() {
        let overtaken = EtcdDatabaseError::Read(ReadError::Overtaken);
        let moment = Store::new().publish().moment();
        let now = |view| AsOf::new(moment, Arc::new(Now(view)));
        let mut other = Store::new();
        let mut writer = other.begin();
        writer.put(b"k", Value { location: Location::new(1, 0), len: 0, crc: 0 }, LeaseId::NONE);
        writer.finish();
        assert_eq!(unwritten(&overtaken, &now(Some(other.publish()))), REPLACED);
        assert_eq!(unwritten(&overtaken, &now(None)), error::COMPACTED);
    }

    #[test]
    fn a_snapshot_whose_client_takes_nothing_has_two_pieces() {
        let mut machine = Machine::new(Rules { learners_max: 1 });
        for n in 0..4000 {
            let mut writer = machine.store.begin();
            writer.put(format!("{n:0100}").as_bytes(), Value::default(), LeaseId::NONE);
            writer.finish();
        }
        let database = EtcdDatabase::new(machine.store.publish(), &machine.head(), SNAPSHOT_RELEASE);
        let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
        let disk = Arc::new(MemDisk::new(1));
        let (log, _) = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {})).expect("opens");
        let values = Rc::new(LogValues::new(log.values()));
        let budget = Budget::new(1 << 30);
        let (pieces, mut made) = mpsc::channel(1);
        let mut making = pin!(make_snapshot(database, values, Some(budget.clone()), &pieces));
        let mut poll = |times| {
            (0..times).all(|_| making.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending())
        };
        assert!(poll(1000), "it waits for its client");
        let piece = |made: &mut mpsc::Receiver<Result<Piece, Status>>| {
            made.try_recv().expect("is made").expect("can be made")
        };
        let first = piece(&mut made);
        assert_eq!(budget.held_bytes(), first.bytes.len(), "one piece is made in advance");
        assert!(poll(1000), "it waits again");
        let second = piece(&mut made);
        assert_eq!(budget.held_bytes(), first.bytes.len() + second.bytes.len());
        assert!(made.try_recv().is_err() && first.bytes.len() <= 2 * SNAPSHOT_SLICE_BYTES);
        assert_eq!(first.remaining_bytes, second.remaining_bytes + second.bytes.len() as u64);
        drop((first, second, made));
        assert!(!poll(2), "it ends with its call");
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn a_slice_of_a_hash_is_as_large_as_what_is_left_of_the_turn() {
        let mut store = Store::new();
        for n in 0..400 {
            let mut writer = store.begin();
            let location = Location::new(1, n);
            writer.put(format!("k{n}").as_bytes(), Value { location, len: 100, crc: 0 }, LeaseId::NONE);
            writer.finish();
        }
        let view = store.publish();
        let state = AsOf::from(Arc::clone(&view));
        let missing = |work| {
            let account = accounting::Budget::new(1 << 20).open([127, 0, 0, 1].into());
            account.allow_work(work);
            let _turn = account.begin_turn();
            let walk = HashWalk::new(&view.snapshot(), Revision::CURRENT).expect("is there");
            let values = Attempt::new(Rc::new(Nothing));
            hash_slice(&state, (walk, KvHash::default()), read_at_once(), &values).expect("goes on");
            assert!(accounting::work_left() <= work / 8, "{} of {work} are left", accounting::work_left());
            values.missing()
        };
        let of_turns = [64 << 10, 8 << 10, 0].map(missing);
        assert_eq!(of_turns, [HASHED_PER_SLICE, 36, 18]);
    }

    #[test]
    fn a_slice_of_a_hash_reads_no_more_than_it_may() {
        let mut store = Store::new();
        for n in 0..40 {
            let mut writer = store.begin();
            let location = Location::new(1, n);
            writer.put(format!("k{n}").as_bytes(), Value { location, len: 100_000, crc: 0 }, LeaseId::NONE);
            writer.finish();
        }
        let view = store.publish();
        let walk = HashWalk::new(&view.snapshot(), Revision::CURRENT).expect("is there");
        let state = AsOf::from(view);
        let (mut so_far, mut slices) = ((walk, KvHash::default()), 0);
        loop {
            let values = Attempt::new(Rc::new(Nothing));
            let (walk, hash, done) = hash_slice(&state, so_far, read_at_once(), &values).expect("goes on");
            assert!(values.missing() <= 3, "{}", values.missing());
            slices += usize::from(values.missing() > 0);
            if done {
                break;
            }
            so_far = (walk, hash);
        }
        assert_eq!(slices, 14);
    }
}
