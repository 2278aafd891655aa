//! Clusters of two or four members and a witness: which losses they survive, and what a witness never does.

use std::panic::catch_unwind;

use api::raftpb::MessageType;
use consensus::{ConfChangeKind, EntryKind, Event, Refusal, Request, Role};
use mainstay_consensus as consensus;
use numbers::{Index, MemberId};
use testkit::Random;

use crate::sim::{Sim, WITNESS};

/// Ticks of an election timeout, and the most that a follower waits before it campaigns.
const TIMEOUT: usize = 10;

/// Returns two members and a witness at rest, led by member 1, which does not count the witness.
fn led() -> Sim {
    let mut sim = Sim::with_witness(7, 2);
    sim.rest();
    sim.must_take(1, Request::Campaign);
    sim.rest();
    assert_eq!(sim.leader(), Some(1));
    assert!(!sim.node(1).counts_witness(), "both members have everything");
    sim
}

fn commit(sim: &Sim, id: u64) -> Index {
    sim.node(id).status().commit
}

fn last(sim: &Sim, id: u64) -> Index {
    sim.node(id).status().last
}

#[test]
fn a_write_waits_for_both_members_and_the_witness_gets_it_without_its_payload() {
    let mut sim = led();
    let before = commit(&sim, 1);
    sim.isolate(&[2]);
    sim.propose(1, 3, 100).expect("a leader");
    sim.rest();
    assert_eq!((commit(&sim, 1), last(&sim, 1)), (before, before + 3));
    assert_eq!(last(&sim, WITNESS), before, "the witness has nothing that member 2 lacks");
    sim.heal();
    sim.ticks(2);
    assert_eq!((commit(&sim, 1), last(&sim, WITNESS)), (before + 3, before + 3));
    let of_kind = |id: u64, kind| {
        let entries = sim.member(id).disk.entries.iter().filter(move |entry| entry.kind == kind);
        entries.map(|entry| entry.data.len()).collect::<Vec<_>>()
    };
    assert_eq!(of_kind(2, EntryKind::Normal).iter().sum::<usize>(), 300);
    assert_eq!(of_kind(WITNESS, EntryKind::Normal).iter().sum::<usize>(), 0);
    assert_eq!(of_kind(WITNESS, EntryKind::ConfChange), of_kind(2, EntryKind::ConfChange), "kept");
}

#[test]
fn the_witness_takes_the_place_of_a_member_that_is_silent_for_an_election_timeout() {
    let mut sim = led();
    let before = commit(&sim, 1);
    sim.crash(2, 0);
    sim.propose(1, 1, 8).expect("a leader");
    sim.ticks(TIMEOUT - 1);
    assert_eq!(commit(&sim, 1), before, "member 2 may be slow");
    sim.ticks(2);
    assert_eq!(commit(&sim, 1), before + 1);
    assert!(sim.node(1).counts_witness());
    assert_eq!(last(&sim, WITNESS), before + 1);
    // The next writes do not wait, and a read is confirmed by the witness.
    sim.propose(1, 5, 8).expect("a leader");
    let read = sim.read(1).expect("a leader");
    sim.rest();
    assert_eq!(commit(&sim, 1), before + 6);
    assert!(sim.answered_reads.contains_key(&read));
    // The member is back: once it has everything, it is waited for again.
    sim.start(2);
    sim.ticks(2 * TIMEOUT);
    assert_eq!(commit(&sim, 2), before + 6);
    assert!(!sim.node(1).counts_witness());
    sim.isolate(&[2]);
    sim.propose(1, 1, 8).expect("a leader");
    sim.rest();
    assert_eq!(commit(&sim, 1), before + 6);
}

#[test]
fn a_leader_that_dies_with_entries_on_its_way_leaves_a_member_that_can_lead() {
    for syncs in 0..3 {
        let mut sim = led();
        // The entries reach the witness's connection, member 2 gets none of them.
        sim.propose(1, 3, 8).expect("a leader");
        sim.sync(1, syncs);
        let messages = std::mem::take(&mut sim.network);
        messages.into_iter().filter(|message| message.to() == WITNESS).for_each(|it| sim.deliver(it));
        sim.sync(WITNESS, usize::MAX);
        sim.crash(1, 0);
        sim.ticks(4 * TIMEOUT);
        assert_eq!(sim.leader(), Some(2), "{}", sim.describe());
        // The lost leader was silent for longer than an election timeout, so its place is taken at once.
        let before = commit(&sim, 2);
        sim.propose(2, 1, 8).expect("a leader");
        sim.rest();
        assert_eq!(commit(&sim, 2), before + 1);
    }
}

#[test]
fn a_leader_alone_with_the_witness_sends_it_only_what_its_own_disk_has() {
    let mut sim = led();
    sim.crash(2, 0);
    sim.ticks(2 * TIMEOUT);
    let before = last(&sim, WITNESS);
    sim.propose(1, 2, 8).expect("a leader");
    for message in std::mem::take(&mut sim.network) {
        sim.deliver(message);
    }
    sim.sync(WITNESS, usize::MAX);
    assert_eq!(last(&sim, WITNESS), before);
    // The leader's machine loses what was not synced, and leads again all the same.
    sim.crash(1, 0);
    sim.start(1);
    sim.ticks(4 * TIMEOUT);
    assert_eq!(sim.leader(), Some(1));
    sim.propose(1, 1, 8).expect("a leader");
    sim.ticks(2 * TIMEOUT);
    assert!(commit(&sim, 1) > before, "{}", sim.describe());
}

#[test]
fn a_member_without_acknowledged_writes_does_not_lead_and_says_why() {
    let mut sim = led();
    sim.isolate(&[2]);
    sim.propose(1, 4, 8).expect("a leader");
    sim.ticks(2 * TIMEOUT);
    let acknowledged = commit(&sim, 1);
    assert_eq!(last(&sim, WITNESS), acknowledged, "the witness counts");
    sim.crash(1, usize::MAX);
    sim.heal();
    sim.ticks(10 * TIMEOUT);
    assert_eq!(sim.leader(), None, "the writes are not lost in silence");
    assert!(sim.node(2).is_behind_witness());
    sim.start(1);
    sim.ticks(4 * TIMEOUT);
    assert_eq!(sim.leader(), Some(1));
    assert!(!sim.node(2).is_behind_witness());
    assert!(commit(&sim, 2) >= acknowledged);
}

#[test]
fn a_witness_never_leads() {
    let mut sim = led();
    assert!(sim.request(WITNESS, Request::Campaign).is_err());
    let refused = sim.request(1, Request::Transfer(MemberId(WITNESS)));
    assert_eq!(refused, Err(Refusal::Other(format!("member {WITNESS:x} is a witness and cannot lead"))));
    sim.crash(1, 0);
    sim.crash(2, 0);
    sim.ticks(10 * TIMEOUT);
    assert_eq!(sim.node(WITNESS).status().role, Role::Follower);
    sim.start(1);
    sim.start(2);
    sim.ticks(4 * TIMEOUT);
    assert!(sim.leader().is_some_and(|leader| leader != WITNESS));
    // A leader of a build that knows no witnesses asks one to lead.
    let (leader, term) = {
        let status = sim.node(1).status();
        (status.leader.0, status.term.0)
    };
    let order = api::raftpb::Message {
        r#type: Some(MessageType::MsgTimeoutNow as i32),
        to: Some(WITNESS),
        from: Some(leader),
        term: Some(term),
        ..Default::default()
    };
    sim.must_take(WITNESS, Request::Receive(order));
    assert_eq!(sim.node(WITNESS).status().role, Role::Follower);
}

#[test]
fn a_witness_is_added_and_catches_up_from_old_entries_and_from_a_snapshot() {
    for discards in [false, true] {
        let mut sim = Sim::new(7, 2);
        sim.rest();
        sim.must_take(1, Request::Campaign);
        sim.rest();
        sim.propose(1, 50, 100).expect("a leader");
        sim.rest();
        for id in [1, 2] {
            sim.checkpoint(id);
            sim.forget(id, 0);
            if discards {
                sim.discard(id, 0);
            }
        }
        sim.propose_change(1, ConfChangeKind::AddVoter, WITNESS).expect("a leader");
        sim.rest();
        assert_eq!(sim.node(1).witness(), MemberId(WITNESS));
        sim.add(WITNESS, crate::sim::Disk::default());
        sim.ticks(3 * TIMEOUT);
        assert_eq!(sim.restores > 0, discards);
        assert_eq!(last(&sim, WITNESS), last(&sim, 1), "{}", sim.describe());
        let bytes = |id: u64| sim.member(id).disk.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        assert!(bytes(WITNESS) < 100);
        sim.crash(1, usize::MAX);
        sim.ticks(4 * TIMEOUT);
        assert_eq!(sim.leader(), Some(2));
        // It is removed like any member. Then both members are needed.
        sim.start(1);
        sim.ticks(2 * TIMEOUT);
        sim.propose_change(2, ConfChangeKind::Remove, WITNESS).expect("a leader");
        sim.rest();
        assert_eq!(sim.node(2).witness(), MemberId::NONE);
    }
}

#[test]
fn entries_for_the_witness_that_were_lost_are_sent_again() {
    let mut sim = led();
    for round in 0..20 {
        sim.propose(1, 2, 8).expect("a leader");
        sim.rest_losing(|message| message.to() == WITNESS && round % 3 != 0);
        sim.ticks(1);
    }
    sim.ticks(3);
    assert_eq!(last(&sim, WITNESS), last(&sim, 1), "{}", sim.describe());
}

/// Lets something happen to a random member, as in `chaos.rs`, without changes of members.
fn chance(sim: &mut Sim, ids: &[u64]) {
    let id = sim.dice.pick(ids);
    if sim.members[&id].node.is_none() {
        if sim.dice.one_in(8) {
            sim.start(id);
        }
        return;
    }
    let count = 1 + usize::try_from(sim.dice.below(4)).expect("small");
    match sim.dice.below(1000) {
        0..200 => sim.tick(id),
        200..450 => sim.sync(id, count),
        450..600 => sim.apply(id, count),
        600..720 => {
            let bytes = 8 + usize::try_from(sim.dice.below(200)).expect("small");
            let _ = sim.propose(id, count, bytes);
        }
        720..760 => {
            let _ = sim.read(id);
        }
        760..800 => sim.fetch(id, count * 3),
        800..840 => {
            let keep = sim.dice.below(10);
            sim.forget(id, keep);
        }
        840..870 => sim.checkpoint(id),
        870..890 => {
            let keep = sim.dice.below(20);
            sim.discard(id, keep);
        }
        890..905 => {
            let kept = usize::try_from(sim.dice.below(4)).expect("small");
            sim.crash(id, kept);
        }
        905..915 => {
            let to = sim.dice.pick(ids);
            let _ = sim.request(id, Request::Transfer(MemberId(to)));
        }
        915..920 => {
            let _ = sim.request(id, Request::Campaign);
        }
        920..925 => sim.must(id, Event::DiskStalled),
        925..940 => sim.must(id, Event::DiskRecovered),
        940..945 => {
            let to = sim.dice.pick(ids);
            sim.must(id, Event::PeerUnreachable(MemberId(to)));
        }
        945..950 => sim.isolate(&[id]),
        950..970 => sim.heal(),
        _ => {}
    }
}

fn network(sim: &mut Sim) {
    if sim.network.is_empty() {
        return;
    }
    let len = sim.network.len() as u64;
    let at = if sim.dice.one_in(4) { sim.dice.below(len) } else { sim.dice.below(len.min(3)) };
    let message = sim.network.remove(usize::try_from(at).expect("small"));
    if sim.dice.one_in(30) {
        sim.lose(&message)
    } else {
        sim.deliver(message)
    }
    if sim.network.len() > 400 {
        let lost: Vec<_> = sim.network.drain(..200).collect();
        lost.iter().for_each(|message| sim.lose(message));
    }
}

/// Runs a cluster with a witness under faults until all members that have to be are in step; then loses one
/// machine for good, with its disk, in the middle of whatever is going on. Returns how many entries were
/// committed, and whether the lost machine led.
fn lose_one(seed: u64) -> (u64, bool) {
    let voters = if Random::new(seed).one_in(4) { 4 } else { 2 };
    let mut sim = Sim::with_witness(seed, voters);
    let ids: Vec<u64> = sim.members.keys().copied().collect();
    let (mut lost, mut led) = (None, false);
    for step in 0..6000 {
        chance(&mut sim, &ids);
        for _ in 0..3 {
            network(&mut sim);
        }
        if step < 1500 {
            continue;
        }
        // The leader of the newest term says that it does not count the witness: now any machine may be lost.
        let Some(leader) = sim.leader() else { continue };
        let is_newest =
            sim.running().iter().all(|id| sim.node(*id).status().term <= sim.node(leader).status().term);
        if is_newest && !sim.node(leader).counts_witness() && sim.dice.one_in(20) {
            let id = sim.dice.pick(&ids);
            led = id == leader;
            sim.crash(id, usize::MAX);
            lost = Some(id);
            break;
        }
    }
    let lost = lost.unwrap_or_else(|| panic!("the members never are in step:\n{}", sim.describe()));
    let acknowledged = sim.commit;
    sim.heal();
    // It stays down for good. Its disk is only looked at by the check that counts who had an entry.
    let rest: Vec<u64> = ids.iter().copied().filter(|id| *id != lost).collect();
    for id in &rest {
        if sim.members[id].node.is_none() {
            sim.start(*id);
        }
        sim.must(*id, Event::DiskRecovered);
    }
    for round in 0.. {
        assert!(round < 400, "the cluster does not survive the loss of {lost}:\n{}", sim.describe());
        sim.ticks(1);
        let Some(leader) = sim.leader() else { continue };
        assert!(last(&sim, leader).0 >= acknowledged, "an acknowledged write is lost");
        if sim.propose(leader, 1, 8).is_ok() {
            let wanted = last(&sim, leader);
            sim.ticks(2 * TIMEOUT);
            if sim.leader() == Some(leader) && commit(&sim, leader) >= wanted {
                break;
            }
        }
    }
    // Every payload is still there.
    let leader = sim.leader().expect("one leads");
    let empty = sim.member(leader).disk.entries.iter().filter(|entry| {
        entry.data.is_empty() && sim.committed.get(&entry.index.0).is_some_and(|known| !known.data.is_empty())
    });
    assert_eq!(empty.count(), 0, "payloads are lost");
    (sim.commit, led)
}

#[test]
fn any_machine_may_be_lost_while_the_others_are_in_step() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("MAINSTAY_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("MAINSTAY_SEEDS").unwrap_or(200)).collect(),
    };
    let (mut commits, mut leaders) = (0, 0);
    for seed in &seeds {
        let Ok((committed, led)) = catch_unwind(|| lose_one(*seed)) else {
            panic!("again with: MAINSTAY_SEED={seed} cargo test -p mainstay-consensus any_machine");
        };
        commits += committed;
        leaders += u64::from(led);
    }
    let all = seeds.len() as u64;
    println!("{all} seeds: committed {commits}, {leaders} lost leaders");
    if all >= 100 {
        assert!(commits > 20 * all && leaders > all / 10, "{commits} {leaders}");
    }
}
