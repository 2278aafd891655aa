use consensus::HardState;
use machine::{GrantedLease, SharedMap};
use numbers::{MemberId, Term};
use telemetry::metrics::MetricsDetail;

use super::checkpoints::{NOTES_PER_ENTRY, TAKEN_BACK_AHEAD};
use super::*;

const RULES: LeaseRules = LeaseRules {
    ttl_min: Seconds(2),
    request_timeout: Duration::from_secs(7),
    grace: Duration::from_secs(1),
    note_interval: Duration::from_secs(60),
    expire: true,
};
const REQUEST: RequestId = RequestId { shard: 0, slot: 1, generation: 0 };
/// Index of the last entry of the log, and of the last applied entry.
const REACH: (Index, Index) = (Index(0), Index(0));

static NO_KEYS: SharedMap<bytes::Bytes, ()> = SharedMap::new();

fn lease(ttl: Seconds, remaining: Seconds) -> Lease<'static> {
    Lease { ttl, remaining, keys: &NO_KEYS }
}

fn clocks(now: Instant) -> LeaseClocks {
    clocks_by(RULES, now)
}

fn clocks_by(rules: LeaseRules, now: Instant) -> LeaseClocks {
    let mut clocks = LeaseClocks::new(
        rules,
        Arc::new(Renewals::new(now)),
        Arc::new(Metrics::new(&[], MetricsDetail::Basic)),
        now,
    );
    clocks.allow_revokes();
    clocks
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn a_lease_expires_once_and_whoever_renews_it_then_hears_when_it_is_gone() {
    let start = Instant::now();
    let mut clocks = clocks(start);
    clocks.granted(LeaseId(5), Seconds(10), true, start);
    clocks.granted(LeaseId(6), Seconds(1), false, start);
    assert_eq!(clocks.running(), 1, "on a member that does not lead no clock runs");
    clocks.look(Index(1), Index(1), start + seconds(9));
    assert!(clocks.take_expired(|_| 0).is_empty());
    let late = start + seconds(11);
    clocks.look(Index(1), Index(1), late);
    assert!(clocks.has_to_do(true, || false, REACH) && !clocks.has_to_do(false, || false, REACH));
    assert_eq!(clocks.take_expired(|_| 0), [5].map(LeaseId));
    assert!(clocks.take_expired(|_| 0).is_empty());
    let renewal =
        clocks.renew((REQUEST, LeaseId(5)), Some(lease(Seconds(10), Seconds(0))), Index(1), late, late);
    assert_eq!(renewal, Renewal::Waits);
    assert_eq!(clocks.revoked(LeaseId(5)), [(REQUEST, late)]);
    clocks.revocation_ended(LeaseId(5), false, late);
    assert_eq!(
        clocks.renew((REQUEST, LeaseId(5)), None, Index(1), late, late),
        Renewal::Answered(Seconds(0))
    );
}

#[test]
fn leases_that_only_their_source_ends_neither_expire_nor_are_noted() {
    let start = Instant::now();
    let mut clocks = clocks_by(LeaseRules { expire: false, ..RULES }, start);
    // A lease with a remaining time that its source has recorded.
    let granted = GrantedLease { id: LeaseId(5), ttl: Seconds(10), remaining: Seconds(1) };
    let leases = Leases::granted([granted]).expect("is sound");
    clocks.others_are(OtherPrograms::Mainstay);
    clocks.start(&leases, false, start);
    clocks.start_some(&leases);
    clocks.granted(LeaseId(6), Seconds(1), true, start);
    assert_eq!(clocks.running(), 2);
    let late = start + seconds(10 * 365 * 86_400);
    clocks.look(Index(1), Index(1), late);
    assert!(clocks.take_expired(|_| 0).is_empty());
    clocks.note_if_due(late);
    clocks.note_before_stop(1);
    assert!(!clocks.is_noting());
}

#[test]
fn while_apply_is_behind_nothing_expires() {
    let start = Instant::now();
    let mut clocks = clocks(start);
    clocks.granted(LeaseId(5), Seconds(10), true, start);
    clocks.look(Index(1), Index(2), start + seconds(11));
    clocks.look(Index(1), Index(3), start + seconds(20));
    assert!(clocks.take_expired(|_| 0).is_empty());
    clocks.look(Index(2), Index(3), start + seconds(21));
    assert_eq!(
        clocks.take_expired(|_| 0),
        [5].map(LeaseId),
        "what was committed after eleven seconds is applied"
    );
}

#[test]
fn a_renewal_takes_a_note_back_that_is_applied_or_under_way() {
    let start = Instant::now();
    let mut clocks = clocks(start);
    clocks.granted(LeaseId(5), Seconds(10), true, start);
    let renew = |clocks: &mut LeaseClocks, remaining, applied| {
        clocks.renew((REQUEST, LeaseId(5)), Some(lease(Seconds(10), remaining)), applied, start, start)
    };
    assert_eq!(renew(&mut clocks, Seconds(0), Index(1)), Renewal::Answered(Seconds(10)));
    assert_eq!(renew(&mut clocks, Seconds(3), Index(1)), Renewal::TakesBack(Seconds(10)));
    clocks.noted(&[LeaseCheckpoint { id: 5, remaining_ttl: 3 }], Index(9));
    assert_eq!(renew(&mut clocks, Seconds(0), Index(8)), Renewal::TakesBack(Seconds(10)));
    assert_eq!(renew(&mut clocks, Seconds(0), Index(9)), Renewal::Answered(Seconds(10)));
}

/// Returns a node whose log ends at `last`, and whose entries cannot be read.
fn node(last: Index) -> Node {
    let config = consensus::Config { id: MemberId(1), ..consensus::Config::default() };
    let restored = consensus::RestoredState {
        hard_state: HardState { term: Term(1), commit: last, ..HardState::default() },
        voters: vec![MemberId(1)],
        applied: last,
        applied_term: Term(1),
        ..consensus::RestoredState::default()
    };
    let node = Node::new(config, restored).expect("starts");
    assert_eq!(node.status().last, last);
    node
}

/// Returns `count` leases of 60 s. The leases whose ids `noted` selects have a checkpoint of 25 s.
fn leases(count: i64, noted: impl Fn(i64) -> bool) -> Leases {
    let granted = (1..=count).map(|id| GrantedLease {
        id: LeaseId(id),
        ttl: Seconds(60),
        remaining: Seconds(if noted(id) { 25 } else { 0 }),
    });
    Leases::granted(granted).expect("are sound")
}

/// Starts all clocks of a new leader.
fn lead(clocks: &mut LeaseClocks, leases: &Leases, doubted: bool, now: Instant) {
    clocks.start(leases, doubted, now);
    while clocks.renewals.with(|expiry| expiry.is_starting()) {
        clocks.start_some(leases);
    }
}

/// Takes the next slice as if it had got into the log, or had been refused. Returns the ids of the leases
/// whose checkpoints it clears.
fn slice(clocks: &mut LeaseClocks, leases: &Leases, is_taken: bool, now: Instant) -> Vec<i64> {
    let notes = clocks.note_some(&node(Index(0)), (leases, Index(0)), true, now).unwrap_or_default();
    clocks.proposed(is_taken.then_some(Index(0)));
    assert!(notes.iter().all(|note| note.remaining_ttl == 0));
    notes.iter().map(|note| note.id).collect()
}

/// Returns the remaining time of the lease with the id 1, in seconds, including the grace of a new
/// leader.
fn left(clocks: &LeaseClocks, now: Instant) -> u64 {
    clocks.left(LeaseId(1), now).expect("has a clock").as_secs()
}

#[test]
fn in_doubt_the_notes_of_all_leases_are_taken_back() {
    let start = Instant::now();
    // Another member may have lease checkpoints that this member does not have.
    let leases = leases(2_500, |id| id == 7);
    for heard in [false, true] {
        let mut clocks = clocks(start);
        lead(&mut clocks, &leases, !heard, start);
        if heard {
            clocks.others_are(OtherPrograms::Mainstay);
            clocks.others_are(OtherPrograms::SomeEtcd);
        }
        let mut all = Vec::new();
        while clocks.is_noting() {
            assert!(clocks.has_to_do(false, || true, REACH));
            all.append(&mut slice(&mut clocks, &leases, true, start));
        }
        assert!(all.iter().copied().eq(1..=2_500));
        assert!(!clocks.has_to_do(false, || true, REACH));
        // Later passes clear only lease checkpoints that are in the state.
        clocks.look(Index(0), Index(0), start);
        clocks.others_are(OtherPrograms::SomeEtcd);
        clocks.note_if_due(start + seconds(61));
        assert_eq!(slice(&mut clocks, &leases, true, start), [7]);
    }
}

#[test]
fn doubt_outlives_leadership_until_all_notes_are_taken_back() {
    let start = Instant::now();
    let leases = leases(10, |_| true);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, false, start);
    assert_eq!(left(&clocks, start), 26);
    clocks.stop(start);
    lead(&mut clocks, &leases, true, start);
    assert_eq!(left(&clocks, start), 61);
    let renewal = (REQUEST, LeaseId(1));
    let renewed = clocks.renew(renewal, Some(lease(Seconds(60), Seconds(0))), Index(0), start, start);
    assert_eq!(renewed, Renewal::TakesBack(Seconds(60)), "another member may have a note");
    clocks.stop(start);
    lead(&mut clocks, &leases, false, start);
    assert_eq!(left(&clocks, start), 61, "it was only begun");
    assert_eq!(slice(&mut clocks, &leases, true, start).len(), 10);
    assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
    clocks.stop(start);
    clocks.look(Index(0), Index(0), start);
    lead(&mut clocks, &leases, false, start);
    assert_eq!(left(&clocks, start), 61, "it was in the log of a leader that is none any more");
    // No lease is checkpointed while lease checkpoints are distrusted.
    clocks.others_are(OtherPrograms::Mainstay);
    clocks.note_before_stop(1);
    assert_eq!(slice(&mut clocks, &leases, true, start + seconds(2)).len(), 10);
    assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
    clocks.look(Index(0), Index(0), start);
    let renewed = clocks.renew(renewal, Some(lease(Seconds(60), Seconds(0))), Index(0), start, start);
    assert_eq!(renewed, Renewal::Answered(Seconds(60)));
    clocks.stop(start);
    lead(&mut clocks, &leases, false, start);
    assert_eq!(left(&clocks, start), 26);
}

#[test]
fn a_slice_that_is_refused_is_taken_back_after_the_next_tick() {
    let start = Instant::now();
    let leases = leases(1_500, |_| true);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, true, start);
    assert_eq!(slice(&mut clocks, &leases, true, start).len(), 1_000);
    for _ in 0..2 {
        assert_eq!(slice(&mut clocks, &leases, false, start).first(), Some(&1_001));
        assert!(clocks.is_noting() && !clocks.has_to_do(false, || true, REACH), "it does not spin");
        assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
        clocks.others_are(OtherPrograms::Unheard);
        assert!(clocks.has_to_do(false, || true, REACH));
    }
    assert_eq!(slice(&mut clocks, &leases, true, start).len(), 500);
    assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
    assert!(!clocks.is_noting());
}

/// Renews the lease with the id 1 as a shard does, without the core. Returns `None` if the core has to renew
/// it.
fn by_shard(clocks: &LeaseClocks, now: Instant) -> Option<Seconds> {
    clocks.renewals.renew(LeaseId(1), now)
}

#[test]
fn no_shard_renews_a_lease_once_its_time_left_has_been_looked_at_for_a_note() {
    let start = Instant::now();
    let leases = leases(1, |_| false);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, false, start);
    clocks.open_to_shards(true);
    clocks.others_are(OtherPrograms::Mainstay);
    let renew = |clocks: &mut LeaseClocks, applied, now| {
        clocks.renew((REQUEST, LeaseId(1)), leases.get(LeaseId(1)), Index(applied), now, now)
    };
    let answered = Renewal::Answered(Seconds(60));
    assert_eq!(by_shard(&clocks, start), None);
    assert_eq!(renew(&mut clocks, 1, start), answered);
    assert_eq!(by_shard(&clocks, start + seconds(5)), Some(Seconds(60)));
    clocks.note_before_stop(1);
    let notes = clocks.note_some(&node(Index(0)), (&leases, Index(0)), true, start + seconds(15));
    assert_eq!(notes, Some(vec![LeaseCheckpoint { id: 1, remaining_ttl: 50 }]));
    // The lease checkpoint was not even proposed yet.
    assert_eq!(by_shard(&clocks, start + seconds(15)), None);
    clocks.noted(&notes.expect("is noted"), Index(9));
    assert_eq!(by_shard(&clocks, start + seconds(16)), None);
    assert_eq!(renew(&mut clocks, 8, start + seconds(17)), Renewal::TakesBack(Seconds(60)));
    assert_eq!(by_shard(&clocks, start + seconds(18)), None);
    clocks.noted(&[LeaseCheckpoint { id: 1, remaining_ttl: 0 }], Index(10));
    assert_eq!(renew(&mut clocks, 10, start + seconds(19)), answered);
    assert_eq!(by_shard(&clocks, start + seconds(20)), Some(Seconds(60)));
    // Another proposer may have made any lease checkpoint, so a renewal may have to clear it.
    clocks.noted_by_another();
    assert_eq!(by_shard(&clocks, start + seconds(20)), None);
    assert_eq!(renew(&mut clocks, 10, start + seconds(20)), answered);
    assert_eq!(by_shard(&clocks, start + seconds(20)), Some(Seconds(60)));
}

#[test]
fn no_shard_renews_a_lease_in_doubt_or_for_a_member_that_leads_no_more() {
    let start = Instant::now();
    let leases = leases(1, |_| false);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, false, start);
    clocks.open_to_shards(true);
    let renew = |clocks: &mut LeaseClocks| {
        clocks.renew((REQUEST, LeaseId(1)), leases.get(LeaseId(1)), Index(1), start, start)
    };
    assert_eq!(renew(&mut clocks), Renewal::Answered(Seconds(60)));
    assert_eq!(by_shard(&clocks, start), Some(Seconds(60)));
    clocks.others_are(OtherPrograms::SomeEtcd);
    assert_eq!(by_shard(&clocks, start), None, "another member may have a note");
    assert_eq!(renew(&mut clocks), Renewal::TakesBack(Seconds(60)));
    assert_eq!(by_shard(&clocks, start), None);
    clocks.stop(start);
    lead(&mut clocks, &leases, false, start);
    clocks.noted(&[LeaseCheckpoint { id: 1, remaining_ttl: 0 }], Index(1));
    assert_eq!(renew(&mut clocks), Renewal::Answered(Seconds(60)));
    assert_eq!(by_shard(&clocks, start), None, "nobody has said that no other member can lead");
    clocks.open_to_shards(true);
    assert_eq!(by_shard(&clocks, start), Some(Seconds(60)));
    clocks.stop(start);
    assert_eq!(by_shard(&clocks, start), None);
}

#[test]
fn few_slices_are_under_way_and_they_go_on_however_far_apply_is_behind() {
    let start = Instant::now();
    let leases = leases(6_500, |_| false);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, true, start);
    // More unapplied entries than the limit for proposing a lease checkpoint.
    let mut last = Index(NOTED_BEHIND_MAX + 1);
    let mut applied = Index(0);
    let mut next = |clocks: &mut LeaseClocks, applied: Index| {
        let notes = clocks.note_some(&node(last), (&leases, applied), true, start)?;
        last = Index(last.0 + 1);
        clocks.proposed(Some(last));
        Some((notes.len(), last))
    };
    for _ in 0..TAKEN_BACK_AHEAD {
        assert!(clocks.has_to_do(false, || true, (Index(1 << 20), applied)));
        assert_eq!(next(&mut clocks, applied).map(|(count, _)| count), Some(NOTES_PER_ENTRY));
    }
    let first = Index(NOTED_BEHIND_MAX + 2);
    for (done, count) in [(0, 1_000), (1, 1_000), (2, 500)] {
        assert!(clocks.is_noting() && !clocks.has_to_do(false, || true, (Index(1 << 20), applied)));
        assert_eq!(next(&mut clocks, applied), None, "the disk has enough to do");
        applied = Index(first.0 + done);
        clocks.look(applied, applied, start);
        assert!(clocks.has_to_do(false, || true, (Index(1 << 20), applied)));
        assert_eq!(next(&mut clocks, applied).map(|(count, _)| count), Some(count));
    }
    // A new leader does not wait for slices in the log of the earlier leader.
    clocks.stop(start);
    lead(&mut clocks, &leases, true, start);
    assert_eq!(next(&mut clocks, applied).map(|(count, _)| count), Some(NOTES_PER_ENTRY));
}

#[test]
fn doubt_ends_with_the_last_entry_and_a_renewal_makes_one_of_its_own_at_most() {
    let start = Instant::now();
    let leases = leases(2, |_| false);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, true, start);
    let renew = |clocks: &mut LeaseClocks, id, applied| {
        let lease = lease(Seconds(60), Seconds(0));
        clocks.renew((REQUEST, LeaseId(id)), Some(lease), applied, start, start)
    };
    let (own, behind) = (Renewal::Answered(Seconds(60)), Renewal::TakesBack(Seconds(60)));
    assert_eq!(renew(&mut clocks, 1, Index(8)), behind);
    clocks.noted(&[LeaseCheckpoint { id: 1, remaining_ttl: 0 }], Index(9));
    assert_eq!(renew(&mut clocks, 1, Index(8)), behind, "its entry is under way");
    assert_eq!(renew(&mut clocks, 1, Index(9)), own, "its note is taken back");
    assert_eq!(renew(&mut clocks, 2, Index(9)), behind, "another member may have one of it");
    // Entry 10 clears both lease checkpoints, and entry 11 follows it.
    assert_eq!(
        clocks.note_some(&node(Index(9)), (&leases, Index(9)), true, start).map(|notes| notes.len()),
        Some(2)
    );
    clocks.proposed(Some(Index(10)));
    assert_eq!(clocks.note_some(&node(Index(11)), (&leases, Index(9)), true, start), None);
    assert!(!clocks.is_noting());
    for (applied, renewed) in [(10, behind), (11, own)] {
        clocks.look(Index(applied), Index(11), start);
        assert_eq!(renew(&mut clocks, 2, Index(applied)), renewed);
    }
}

#[test]
fn all_notes_are_taken_back_once_more_where_some_were_made_since() {
    let start = Instant::now();
    let leases = leases(10, |_| false);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, false, start);
    let all_taken_back = |clocks: &mut LeaseClocks| {
        clocks.others_are(OtherPrograms::SomeEtcd);
        let taken_back = slice(clocks, &leases, true, start);
        while clocks.is_noting() {
            assert_eq!(slice(clocks, &leases, true, start), [0; 0]);
        }
        clocks.look(Index(0), Index(0), start);
        taken_back.len()
    };
    assert_eq!(all_taken_back(&mut clocks), 10);
    // The member that runs etcd is removed, and added again.
    clocks.others_are(OtherPrograms::Mainstay);
    assert_eq!(all_taken_back(&mut clocks), 0, "none were made");
    clocks.others_are(OtherPrograms::Mainstay);
    clocks.note_if_due(start + seconds(61));
    assert_eq!(slice(&mut clocks, &leases, true, start), [0; 0]);
    assert_eq!(all_taken_back(&mut clocks), 10);
    assert_eq!(all_taken_back(&mut clocks), 0);
    // Other members may have led and made lease checkpoints.
    clocks.stop(start);
    lead(&mut clocks, &leases, false, start);
    assert_eq!(all_taken_back(&mut clocks), 10);
}

#[test]
fn whoever_waits_is_told_when_leadership_is_lost_or_time_is_up() {
    let start = Instant::now();
    for stops in [false, true] {
        let mut clocks = clocks(start);
        clocks.granted(LeaseId(5), Seconds(2), true, start);
        let late = start + seconds(3);
        clocks.look(Index(1), Index(1), late);
        assert_eq!(
            clocks.renew((REQUEST, LeaseId(5)), Some(lease(Seconds(2), Seconds(0))), Index(1), late, late),
            Renewal::Waits
        );
        assert!(clocks.sweep(late + seconds(6)).is_empty());
        let told = if stops { clocks.stop(late) } else { clocks.sweep(late + seconds(7)) };
        assert_eq!(told, [REQUEST]);
        assert!(clocks.sweep(late + seconds(8)).is_empty());
    }
}

#[test]
fn revocations_are_limited_per_turn_in_flight_and_between_ticks_and_tried_again() {
    let start = Instant::now();
    let mut clocks = clocks(start);
    let leases = i64::try_from(REVOKES_PER_TICK).expect("fits") + 10;
    (0..leases).for_each(|id| clocks.granted(LeaseId(id), Seconds(2), true, start));
    // No lease is overdue yet.
    let late = start + seconds(2);
    clocks.look(Index(1), Index(1), late);
    let mut turns = 0;
    let mut all = Vec::new();
    loop {
        let some = clocks.take_expired(|_| 0);
        if some.is_empty() {
            break;
        }
        assert_eq!(some.len(), REVOKES_PER_TURN);
        turns += 1;
        all.extend(some);
        if clocks.revokes_open == REVOKES_OPEN_MIN {
            assert!(clocks.take_expired(|_| 0).is_empty());
            let committed = all[all.len() - REVOKES_OPEN_MIN..].to_vec();
            committed.into_iter().for_each(|id| clocks.revocation_ended(id, false, late));
        }
    }
    assert_eq!((turns, all.len()), (REVOKES_PER_TICK / REVOKES_PER_TURN, REVOKES_PER_TICK));
    // So the ticks, 100 ms apart, let a million leases end in half a second.
    const { assert!(REVOKES_PER_TICK * 5 >= 1_000_000) };
    clocks.allow_revokes();
    assert_eq!(clocks.take_expired(|_| 0).len(), 10);
    clocks.revocation_ended(all[0], true, late);
    assert!(clocks.take_expired(|_| 0).is_empty());
    clocks.look(Index(1), Index(1), late + REVOKE_PAUSE);
    assert!(clocks.take_expired(|_| 0).is_empty(), "a refusal stops the others until the next tick");
    clocks.allow_revokes();
    assert_eq!(clocks.take_expired(|_| 0), [all[0]]);
}

/// Returns how late the last of `count` leases is revoked that all end at the same time, and the largest number
/// of revocations in flight. The log takes `sync` for all revocations that have reached it, and the core 600 ns
/// for each; puts and other work take nothing.
fn last_revoked(count: i64, sync: Duration) -> (Duration, usize) {
    const CORE_PER_LEASE: Duration = Duration::from_nanos(600);
    let start = Instant::now();
    let mut clocks = clocks(start);
    (0..count).for_each(|id| clocks.granted(LeaseId(id), Seconds(2), true, start));
    let due = start + seconds(2);
    let (mut now, mut next_tick, mut most) = (due, due, 0);
    let (mut written, mut waiting, mut synced_at) = (Vec::new(), Vec::new(), due);
    loop {
        if now >= next_tick {
            clocks.allow_revokes();
            next_tick += Duration::from_millis(100);
        }
        clocks.look(Index(1), Index(1), now);
        if now >= synced_at {
            let synced: Vec<LeaseId> = std::mem::replace(&mut written, std::mem::take(&mut waiting));
            synced_at = now + sync;
            for id in synced {
                clocks.revoked(id);
                clocks.revocation_ended(id, false, now);
            }
        }
        let some = clocks.take_expired(|_| 0);
        most = most.max(clocks.revokes_open);
        if clocks.revokes_open == 0 {
            assert_eq!(clocks.running(), 0);
            return (now - due, most);
        }
        if some.is_empty() {
            clocks.core_is_idle();
        }
        let took = CORE_PER_LEASE * u32::try_from(some.len()).expect("fits");
        now = if some.is_empty() { synced_at.min(next_tick) } else { now + took };
        waiting.extend(some);
    }
}

#[test]
fn leases_that_end_at_once_are_revoked_at_a_million_a_second_whatever_a_sync_takes() {
    // The shorter the syncs, the fewer revocations are in flight, for which the writes of clients wait.
    for (sync_us, open_max) in [(200, 2500), (1000, 4000), (2000, 8000), (5000, 20_000)] {
        let (late, most) = last_revoked(300_000, Duration::from_micros(sync_us));
        println!("a sync of {sync_us} us: the last after {} ms, {most} in flight", late.as_millis());
        assert!(late < Duration::from_millis(300), "a sync of {sync_us} us: {late:?}");
        assert!(most <= open_max, "a sync of {sync_us} us: {most} in flight");
    }
}

#[test]
fn the_number_of_revocations_in_flight_falls_once_the_leader_has_caught_up() {
    let start = Instant::now();
    let mut clocks = clocks(start);
    let count = i64::try_from(2 * REVOKES_OPEN_MIN).expect("fits");
    (0..count).for_each(|id| clocks.granted(LeaseId(id), Seconds(2), true, start));
    clocks.core_is_idle();
    assert_eq!(clocks.revokes_open_max, REVOKES_OPEN_MIN, "nothing has expired");
    clocks.look(Index(1), Index(1), start + seconds(2));
    let mut all = Vec::new();
    let mut take = |clocks: &mut LeaseClocks| {
        while let Some(some) = Some(clocks.take_expired(|_| 0)).filter(|some| !some.is_empty()) {
            all.extend(some);
        }
        all.len()
    };
    assert_eq!(take(&mut clocks), REVOKES_OPEN_MIN);
    clocks.core_is_idle();
    assert_eq!(take(&mut clocks), REVOKES_OPEN_MIN, "nothing was applied, perhaps without a quorum");
    clocks.revocation_ended(LeaseId(0), false, start);
    assert_eq!(take(&mut clocks), REVOKES_OPEN_MIN + 1);
    (0..10).for_each(|_| clocks.core_is_idle());
    assert_eq!(take(&mut clocks), REVOKES_OPEN_MIN + REVOKES_OPEN_MIN / 4 + 1);
    clocks.allow_revokes();
    assert!(clocks.revokes_open_max > REVOKES_OPEN_MIN, "more have expired");
    for id in 1..count {
        clocks.revocation_ended(LeaseId(id), false, start);
        take(&mut clocks);
    }
    assert_eq!(take(&mut clocks), 2 * REVOKES_OPEN_MIN);
    clocks.allow_revokes();
    assert_eq!(clocks.revokes_open_max, REVOKES_OPEN_MIN);
    assert!(clocks.take_expired(|_| 0).is_empty());
}

/// Runs the pass of a stop for up to `turns` turns, with the same seed for the same place. Returns the ids of the
/// leases that are noted, in order.
fn noted_at_stop(
    clocks: &mut LeaseClocks,
    leases: &Leases,
    seed: u64,
    turns: usize,
    now: Instant,
) -> Vec<i64> {
    clocks.note_before_stop(seed);
    let notes = (0..turns).map(|_| clocks.note_some(&node(Index(0)), (leases, Index(0)), true, now));
    notes.flatten().flatten().map(|note| note.id).collect()
}

#[test]
fn a_stop_notes_leases_for_a_second_and_no_longer() {
    let start = Instant::now();
    let leases = leases(3 * NOTES_PER_ENTRY as i64, |_| false);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, false, start);
    clocks.others_are(OtherPrograms::Mainstay);
    let late = start + seconds(30);
    let clearing_max = Duration::from_millis(2500);
    let some = noted_at_stop(&mut clocks, &leases, 1, 1, late).len();
    assert!((1..=NOTES_PER_ENTRY).contains(&some), "{some} notes in a slice");
    assert!(!clocks.has_noted(Duration::from_millis(999), clearing_max));
    assert!(clocks.has_noted(seconds(1), clearing_max), "two slices are left");
    assert_eq!(clocks.note_some(&node(Index(0)), (&leases, Index(0)), true, late), None);
    // Checkpoints that a member with etcd must not find are cleared for longer.
    clocks.others_are(OtherPrograms::SomeEtcd);
    assert!(!clocks.has_noted(seconds(2), clearing_max) && clocks.is_noting());
    assert!(clocks.has_noted(seconds(3), clearing_max));
}

#[test]
fn a_stop_notes_all_leases_in_time_and_others_than_the_last_one_if_there_are_too_many() {
    let start = Instant::now();
    let count = 5 * NOTES_PER_ENTRY as i64;
    let leases = leases(count, |_| false);
    let mut clocks = clocks(start);
    lead(&mut clocks, &leases, false, start);
    clocks.others_are(OtherPrograms::Mainstay);
    let late = start + seconds(30);
    let mut reached = std::collections::BTreeSet::new();
    for seed in 1..=30 {
        let some = noted_at_stop(&mut clocks, &leases, seed, 1, late);
        assert!(!some.is_empty());
        reached.extend(some);
    }
    assert!(reached.len() as i64 > count * 9 / 10, "{} of {count} leases were reached", reached.len());
    let mut all = noted_at_stop(&mut clocks, &leases, 7, 8, late);
    assert!(!clocks.is_noting());
    all.sort_unstable();
    assert_eq!(all, (1..=count).collect::<Vec<i64>>());
}

#[test]
fn a_lease_ends_however_often_leaders_change_or_stop() {
    const TTL: i64 = 36_000;
    let start = Instant::now();
    let lease = |remaining| {
        let granted = GrantedLease { id: LeaseId(1), ttl: Seconds(TTL), remaining: Seconds(remaining) };
        Leases::granted([granted]).expect("is sound")
    };
    // A leader runs its pass once a minute, and another one when it stops. The next leader goes on from the last note.
    for stops in [false, true] {
        let (mut left, mut now) = (TTL, start);
        let mut clocks = clocks(start);
        for _ in 0..50 {
            let state = lease(if left < TTL { left } else { 0 });
            lead(&mut clocks, &state, false, now);
            clocks.others_are(OtherPrograms::Mainstay);
            now += seconds(if stops { 10 } else { 65 });
            match stops {
                true => clocks.note_before_stop(1),
                false => clocks.note_if_due(now),
            }
            let some = (0..2).map(|_| clocks.note_some(&node(Index(0)), (&state, Index(0)), true, now));
            let notes: Vec<i64> = some.flatten().flatten().map(|note| note.remaining_ttl).collect();
            let used = if stops { 9 } else { 64 };
            assert_eq!(notes, [left - used], "all that it has used up but for the grace is noted");
            left = notes[0];
            clocks.stop(now);
        }
    }
}

#[test]
fn keys_of_expired_leases_count_as_in_flight() {
    let start = Instant::now();
    let mut clocks = clocks(start);
    (1..=10).for_each(|id| clocks.granted(LeaseId(id), Seconds(2), true, start));
    clocks.look(Index(1), Index(1), start + seconds(3));
    let take = |clocks: &mut LeaseClocks| clocks.take_expired(|_| 1000).len();
    let turns: Vec<usize> = (0..4).map(|_| take(&mut clocks)).collect();
    assert_eq!(
        turns,
        [1, 1, 0, 0],
        "two leases with a thousand keys each are as much as two thousand without"
    );
    clocks.revocation_ended(LeaseId(1), false, start);
    assert_eq!([take(&mut clocks), take(&mut clocks)], [1, 0]);
    (2..=3).for_each(|id| clocks.revocation_ended(LeaseId(id), false, start));
    assert_eq!(clocks.revokes_open, 0);
    // A lease with very many keys is revoked, too.
    assert_eq!(clocks.take_expired(|_| 1_000_000), [4].map(LeaseId));
    assert!(clocks.take_expired(|_| 0).is_empty());
}

#[test]
fn a_new_term_begins_with_few_revocations_in_flight() {
    let start = Instant::now();
    let mut clocks = clocks(start);
    let count = i64::try_from(2 * REVOKES_OPEN_MIN).expect("fits");
    (0..count).for_each(|id| clocks.granted(LeaseId(id), Seconds(2), true, start));
    clocks.look(Index(1), Index(1), start + seconds(3));
    while !clocks.take_expired(|_| 0).is_empty() {}
    clocks.revocation_ended(LeaseId(0), false, start);
    while !clocks.take_expired(|_| 0).is_empty() {}
    clocks.core_is_idle();
    assert!(clocks.revokes_open_max > REVOKES_OPEN_MIN);
    clocks.stop(start);
    assert_eq!(clocks.revokes_open_max, REVOKES_OPEN_MIN);
}

#[test]
fn a_turn_of_a_new_or_a_deposed_leader_works_on_as_many_leases_however_many_there_are() {
    const CLOCKS_PER_TURN_MAX: usize = LEASES_PER_TURN + 512;
    let start = Instant::now();
    for count in [10_000, 1_000_000] {
        let state = leases(count, |_| false);
        let mut clocks = clocks(start);
        clocks.start(&state, false, start);
        assert_eq!(clocks.running(), 0, "the turn in which it begins to lead starts no clock");
        // All leases are served at once: a renewal starts the clock of its lease only.
        let last = LeaseId(count);
        let lease = state.get(last);
        assert_eq!(clocks.time_to_live(last, lease, start + seconds(31)), (Seconds(30), Seconds(60)));
        let renewed = clocks.renew((REQUEST, last), lease, Index(0), start, start);
        assert_eq!((renewed, clocks.running()), (Renewal::Answered(Seconds(60)), 1));
        let mut before = clocks.running();
        while clocks.renewals.with(|expiry| expiry.is_starting()) {
            clocks.start_some(&state);
            let started = clocks.running() - before;
            assert!(started <= LEASES_PER_TURN, "{started} clocks were started in one turn");
            before = clocks.running();
        }
        assert_eq!(clocks.running(), state.len());
        let left = |clocks: &LeaseClocks| clocks.forgotten.iter().map(Expiry::clocks).sum::<usize>();
        clocks.stop(start);
        let mut before = left(&clocks);
        assert_eq!(
            (before, clocks.running()),
            (state.len(), 0),
            "the turn in which it is deposed drops none"
        );
        while clocks.has_to_forget() {
            clocks.forget_some();
            let dropped = before - left(&clocks);
            assert!(dropped <= CLOCKS_PER_TURN_MAX, "{dropped} clocks were dropped in one turn");
            before = left(&clocks);
        }
        assert_eq!(before, 0);
    }
}
