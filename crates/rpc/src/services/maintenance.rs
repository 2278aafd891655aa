//! Calls of the Maintenance service: status, alarms, hashes, snapshots; and gRPC health checks.

use numbers::{MemberId, Revision};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use storage::values::unreadable;

use api::error;
use api::etcdserverpb::alarm_request::AlarmAction;
use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse,
    SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
use api::health::health_check_response::ServingStatus;
use api::health::{HealthCheckRequest, HealthCheckResponse, HealthListResponse};
use api::limits::SNAPSHOT_BLOB_BYTES;
use api::{Code, Status};
use bytes::Bytes;
use front::{Answer, Inbound, Outbound, Unary};
use interchange::backend::{BackendWriter, Release};
use machine::{AsOf, Outcome, ReadError, range};
use mvcc::HashWalk;
use prost::Message as _;
use sha2::{Digest, Sha256};

use super::choose::read_at_once;
use super::principal::Principal;
use super::{NO_REQUEST, Services, decode, decode_streamed, whole};
use config::QUOTA_BYTES_DEFAULT;
use replica::core::{ClientRequest, ReplyBody};
use replica::long_reads::Reader;
use storage::etcd_database::{EtcdDatabase, EtcdDatabaseError};
use storage::kv_hash::KvHash;
use storage::read_ahead::ReadAhead;
use storage::values::{Attempt, LogValues, made};

/// Field of `InternalRaftRequest`.
const ALARM: u32 = 10;
/// Versions hashed between two looks at other calls.
const HASHED_PER_SLICE: usize = 256;
/// Versions measured for a snapshot between two looks at other calls.
const MEASURED_PER_SLICE: usize = 512;
/// Bytes of a snapshot written between two.
const SNAPSHOT_SLICE_BYTES: usize = 64 << 10;
/// The etcd that a snapshot is written for, which is one that later ones take over from.
const SNAPSHOT_RELEASE: Release = Release::V3_6;

impl Services {
    pub(super) fn status(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let StatusRequest {} = decode(message)?;
        self.some_principal()?;
        let state = self.state();
        let mut errors = Vec::new();
        if state.leader == 0 {
            errors.push(error::NO_LEADER.message.into_owned());
        }
        for alarm in state.alarms.list(0, 0) {
            // The text form of Go's message, as etcd prints it.
            let kind = AlarmType::try_from(alarm.alarm).map_or("", |kind| kind.as_str_name());
            errors.push(format!("memberID:{} alarm:{kind}", alarm.member_id));
        }
        let in_use = i64::try_from(state.in_use_bytes).unwrap_or(i64::MAX);
        let is_learner =
            state.members.by_id.get(&self.shared.identity.member_id).is_some_and(|member| member.is_learner);
        let response = StatusResponse {
            header: Some(self.header(state.view.snapshot().current_revision(), &state)),
            version: self.shared.api_version.to_owned(),
            db_size: i64::try_from(self.shared.db_size(state.in_use_bytes)).unwrap_or(i64::MAX),
            leader: state.leader,
            raft_index: state.commit_index.0,
            raft_term: state.applied_term.0,
            raft_applied_index: state.applied_index.0,
            errors,
            db_size_in_use: in_use,
            is_learner,
            storage_version: state.members.storage_version().unwrap_or_default().to_owned(),
            db_size_quota: i64::try_from(self.shared.limits.quota_bytes.unwrap_or(QUOTA_BYTES_DEFAULT))
                .unwrap_or(i64::MAX),
            downgrade_info: Some(DowngradeInfo {
                enabled: state.members.downgrade_target.is_some(),
                target_version: state.members.downgrade_target.clone().unwrap_or_default(),
            }),
            zone: self.shared.zone.clone(),
        };
        Ok(Unary::Done(Ok(whole(&response))))
    }

    pub(super) fn alarm(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: AlarmRequest = decode(message.clone())?;
        let action = AlarmAction::try_from(request.action);
        let principal = match action {
            Ok(AlarmAction::Get) => self.some_principal()?,
            _ => Principal::default(),
        };
        match action {
            Ok(AlarmAction::Get) => self.read(false, move |services| {
                // Again, since this member may have heard only now that authentication is enabled.
                services.some_user(&principal)?;
                let state = services.state();
                let header = Some(services.header(state.view.snapshot().current_revision(), &state));
                let alarms = state.alarms.list(request.alarm, request.member_id);
                Ok(Unary::Done(Ok(whole(&AlarmResponse { header, alarms }))))
            }),
            Ok(_) => self.as_root(move |services, principal| {
                services.propose(principal, ALARM, &message, false, "Alarm", |_, outcome, header| {
                    let Outcome::Alarms(alarms) = outcome else { return Err(error::STOPPED) };
                    Ok(whole(&AlarmResponse { header: Some(header), alarms }))
                })
            }),
            // etcd's server ends with a nil pointer here (COMPAT-2).
            Err(_) => {
                let text = format!("etcdserver: unknown alarm action {}", request.action);
                Err(Status::with(Code::InvalidArgument, text))
            }
        }
    }

    /// Answers a Defragment request. There is nothing to do: space is given back as it becomes free.
    pub(super) fn defragment(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let DefragmentRequest {} = decode(message)?;
        self.root()?;
        self.shared.metrics.disk.defrag_duration.observe(0.0);
        Ok(Unary::Done(Ok(whole(&DefragmentResponse { header: None }))))
    }

    pub(super) fn move_leader(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: MoveLeaderRequest = decode(message)?;
        let target = MemberId(request.target_id);
        self.as_root(move |services, _| {
            services.ask(
                |request_id| ClientRequest::MoveLeader(request_id, target),
                "MoveLeader",
                |_, body, _| match body {
                    ReplyBody::LeaderMoved => Ok(whole(&MoveLeaderResponse { header: None })),
                    ReplyBody::Outcome(Err(status), _) => Err(status),
                    _ => Err(error::STOPPED),
                },
            )
        })
    }

    pub(super) fn hash_kv(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: HashKvRequest = decode(message)?;
        let principal = self.root()?;
        self.expensive(&principal, self.peer.get().ip())?;
        let services = Rc::clone(self);
        // The number as it was sent: etcd too looks before it reads 0 as the present.
        let Some(cached) = self.shared.compaction_hashes.at(Revision(request.revision)) else {
            return Ok(Unary::Later(Box::pin(services.hash_kv_now(Revision(request.revision)))));
        };
        let state = self.state();
        let header = self.header(state.view.snapshot().current_revision(), &state);
        drop(state);
        Ok(Unary::Later(Box::pin(async move {
            let (hash_revision, compact_revision) = (cached.revision, cached.compact_revision);
            let Some(hash) = cached.wait().await else {
                return services.hash_kv_now(Revision(request.revision)).await;
            };
            let header = Some(header);
            Ok(whole(&HashKvResponse {
                header,
                hash,
                compact_revision: compact_revision.0,
                hash_revision: hash_revision.0,
            }))
        })))
    }

    async fn hash_kv_now(self: Rc<Self>, revision: Revision) -> Result<Answer, Status> {
        let began = Instant::now();
        let (state, published) = self.shared.read_long(Reader::Hash);
        let walk = HashWalk::new(&published.view.snapshot(), revision).map_err(range::refused)?;
        let header = self.header(state.moment().revision(), &published);
        drop(published);
        let (hash_revision, compact_revision) = (walk.revision(), walk.compact_revision());
        let hash = hash_versions(&state, walk, &self.values).await?;
        self.shared.metrics.mvcc.hash_rev_duration.observe_seconds(began.elapsed());
        let header = Some(header);
        Ok(whole(&HashKvResponse {
            header,
            hash,
            compact_revision: compact_revision.0,
            hash_revision: hash_revision.0,
        }))
    }

    /// A hash of everything this member holds. etcd's is over the pages of its own file format and comparable only
    /// between its own members; so is ours (COMPAT-3).
    pub(super) fn hash(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let HashRequest {} = decode(message)?;
        let principal = self.root()?;
        self.expensive(&principal, self.peer.get().ip())?;
        let (state, published) = self.shared.read_long(Reader::Hash);
        let header = self.header(state.moment().revision(), &published);
        let walk = HashWalk::new(&published.view.snapshot(), Revision::CURRENT).map_err(range::refused)?;
        let (alarms, members) = (Arc::clone(&published.alarms), Arc::clone(&published.members));
        drop(published);
        let services = Rc::clone(self);
        Ok(Unary::Later(Box::pin(async move {
            let began = Instant::now();
            let mut hash = hash_versions(&state, walk, &services.values).await?;
            for alarm in alarms.list(0, 0) {
                hash = crc32c::crc32c_append(hash, &alarm.encode_to_vec());
            }
            for member in members.by_id.values() {
                hash = crc32c::crc32c_append(hash, member.to_json().as_bytes());
            }
            services.shared.metrics.mvcc.hash_duration.observe_seconds(began.elapsed());
            Ok(whole(&HashResponse { header: Some(header), hash }))
        })))
    }

    /// Streams the state as a database of etcd's, and at last the SHA-256 of all that went before.
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
        // By the users of the state that is sent: it may be newer than the one in which the caller was asked for.
        self.gate(&self.state(), &principal).admin()?;
        let began = Instant::now();
        let database = EtcdDatabase::new(*state, &head, SNAPSHOT_RELEASE);
        drop(head);
        let read = database.state().clone();
        let failed = |error| unwritten(&error, &read);
        let mut measuring = database.measure();
        let plan = loop {
            if let Some(plan) = measuring.step(&database, MEASURED_PER_SLICE).map_err(&failed)? {
                break plan;
            }
            front::note_work(MEASURED_PER_SLICE as u64, 0);
            tokio::task::yield_now().await;
        };
        // What is left of the database behind each message, as etcd counts.
        let mut remaining_bytes = plan.size_bytes();
        let mut digest = Sha256::new();
        let version = api::CLUSTER_VERSION.to_owned();
        let writer = BackendWriter::new(Vec::new(), plan, SNAPSHOT_RELEASE);
        let writer = writer.map_err(|e| failed(e.into()))?;
        let mut writing = Some(database.write(writer).map_err(&failed)?);
        let values = ReadAhead::of(&self.values);
        while let Some(mut going) = writing.take() {
            let portion =
                made(values.clone(), |values| going.portion(&database, values, SNAPSHOT_SLICE_BYTES));
            let done = going.write(&database, portion.await.map_err(&failed)?);
            let done = done.map_err(&failed)?;
            let piece = if done {
                going.into_writer().finish().map_err(|e| failed(e.into()))?
            } else {
                let piece = std::mem::take(going.output());
                writing = Some(going);
                piece
            };
            let mut piece = Bytes::from(piece);
            digest.update(&piece);
            // It is made, and gone through once more for the digest.
            front::note_work(0, 2 * piece.len() as u64);
            while !piece.is_empty() {
                let blob = piece.split_to(piece.len().min(SNAPSHOT_BLOB_BYTES));
                remaining_bytes = remaining_bytes.saturating_sub(blob.len() as u64);
                let response =
                    SnapshotResponse { header: None, remaining_bytes, blob, version: version.clone() };
                outbound.send(response.encode_to_vec().into()).await?;
            }
            tokio::task::yield_now().await;
        }
        let blob = Bytes::copy_from_slice(&digest.finalize());
        let response = SnapshotResponse { header: None, remaining_bytes: 0, blob, version };
        outbound.send(response.encode_to_vec().into()).await?;
        self.shared.metrics.disk.snapshot_duration.observe_seconds(began.elapsed());
        Ok(())
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
        EtcdDatabaseError::Read(ReadError::Overtaken) => super::range::overtaken(state),
        EtcdDatabaseError::Read(error) => unreadable(error),
        EtcdDatabaseError::Write(error) => {
            Status::with(Code::Internal, format!("mainstay: the snapshot cannot be written: {error}"))
        }
    }
}

/// The checksum of HashKV over what a walk covers, with every value read.
async fn hash_versions(state: &AsOf, walk: HashWalk, values: &Rc<LogValues>) -> Result<u32, Status> {
    let mut so_far = (walk, KvHash::default());
    let values = ReadAhead::of(values);
    loop {
        // Both passes of a slice are as large, whatever was done in the turn meanwhile.
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

/// Continues a hash by a number of versions, or by so much work. Returns true if that was all.
fn hash_slice(
    state: &AsOf,
    (mut walk, mut hash): (HashWalk, KvHash),
    work_max: usize,
    values: &Attempt,
) -> Result<(HashWalk, KvHash, bool), Status> {
    let slice = super::range::slice(state)?;
    let (mut failed, mut bytes, mut versions) = (None, 0, 0);
    let done = walk.step_while(&slice.snapshot(), HASHED_PER_SLICE, |version| {
        failed = hash.feed(version, values).err();
        bytes += version.value_len() as usize;
        versions += 1;
        failed.is_none() && bytes + versions as usize * front::KEY_BYTES < work_max
    });
    front::note_work(versions, bytes as u64);
    failed.map_or(Ok((walk, hash, done)), Err)
}

pub(super) fn health_check(message: Bytes) -> Result<Unary, Status> {
    let HealthCheckRequest { service } = decode(message)?;
    if !service.is_empty() {
        return Err(Status::new(Code::NotFound, "unknown service"));
    }
    let status = ServingStatus::Serving as i32;
    Ok(Unary::Done(Ok(Answer::Whole(HealthCheckResponse { status }.encode_to_vec().into()))))
}

pub(super) fn health_list() -> HealthListResponse {
    let status = ServingStatus::Serving as i32;
    HealthListResponse { statuses: HashMap::from([(String::new(), HealthCheckResponse { status })]) }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use machine::Newest;
    use mvcc::{Location, Moment, Store, Value, View};
    use numbers::LeaseId;

    use super::*;
    use crate::services::range::REPLACED;
    use storage::readers::Reading;
    use storage::values::Source;

    /// A disk that has nothing at hand.
    struct Nothing;

    impl Source for Nothing {
        fn read_at_hand(&self, _: Value, _: &mut BytesMut) -> Result<bool, ReadError> {
            Ok(false)
        }

        fn fetch(&self, _: &[Value]) -> Option<Reading> {
            None
        }
    }

    /// The newest view, if there is one.
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
        writer.put(
            b"k",
            Value { location: Location { segment: 1, offset: 0 }, len: 0, crc: 0 },
            LeaseId::NONE,
        );
        writer.finish();
        assert_eq!(unwritten(&overtaken, &now(Some(other.publish()))), REPLACED);
        assert_eq!(unwritten(&overtaken, &now(None)), error::COMPACTED);
    }

    #[test]
    fn a_slice_of_a_hash_is_as_large_as_what_is_left_of_the_turn() {
        let mut store = Store::new();
        for n in 0..400 {
            let mut writer = store.begin();
            let location = Location { segment: 1, offset: n };
            writer.put(format!("k{n}").as_bytes(), Value { location, len: 100, crc: 0 }, LeaseId::NONE);
            writer.finish();
        }
        let view = store.publish();
        let state = AsOf::from(Arc::clone(&view));
        let missing = |work| {
            let account = front::Budget::new(1 << 20).open([127, 0, 0, 1].into());
            account.allow_work(work);
            let _turn = account.begin_turn();
            let walk = HashWalk::new(&view.snapshot(), Revision::CURRENT).expect("is there");
            let values = Attempt::new(Rc::new(Nothing));
            hash_slice(&state, (walk, KvHash::default()), read_at_once(), &values).expect("goes on");
            assert!(front::work_left() <= work / 8, "{} of {work} are left", front::work_left());
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
            let location = Location { segment: 1, offset: n };
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
