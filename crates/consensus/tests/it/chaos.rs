//! Random runs of a cluster, with all kinds of faults, for many seeds.

use consensus::{ConfChangeKind, Event, Request};
use mainstay_consensus as consensus;

use numbers::{Index, MemberId};
use testkit::Random;

use crate::sim::{Disk, Sim, WITNESS};

/// Number of seeds in a normal run; `MAINSTAY_SEEDS` sets another number and `MAINSTAY_SEED` a single seed.
const SEEDS: u64 = 500;
const STEPS: usize = 2500;
const MEMBERS_MAX: u64 = 6;

/// Lets two members that do not reach each other campaign at the same time.
fn duel(sim: &mut Sim, id: u64) {
    let other = sim.dice.pick(&sim.running());
    sim.heal();
    sim.cut.extend([(id, other), (other, id)]);
    for id in [id, other] {
        let _ = sim.request(id, Request::Campaign);
        sim.sync(id, usize::MAX);
    }
}

/// Runs with elections and crashes at every turn, and with slow disks.
fn storm(sim: &mut Sim, id: u64) {
    match sim.dice.below(20) {
        5 => duel(sim, id),
        0 | 1 => {
            let _ = sim.request(id, Request::Campaign);
        }
        2 => {
            let kept = usize::try_from(sim.dice.below(3)).expect("small");
            sim.crash(id, kept);
        }
        3 | 4 => sim.sync(id, 1),
        _ => {}
    }
}

fn chance(sim: &mut Sim, id: u64) {
    let count = 1 + usize::try_from(sim.dice.below(4)).expect("small");
    match sim.dice.below(1000) {
        0..150 => sim.tick(id),
        150..400 => sim.sync(id, count),
        400..600 => sim.apply(id, count),
        600..700 => {
            let bytes = 8 + usize::try_from(sim.dice.below(200)).expect("small");
            let _ = sim.propose(id, count, bytes);
        }
        700..760 => {
            let _ = sim.read(id);
        }
        760..820 => sim.fetch(id, if count == 4 { 0 } else { count * 3 }),
        820..860 => {
            let keep = sim.dice.below(10);
            sim.forget(id, keep);
        }
        860..890 => sim.checkpoint(id),
        890..910 => {
            let keep = sim.dice.below(20);
            sim.discard(id, keep);
        }
        910..920 => {
            let kept = usize::try_from(sim.dice.below(4)).expect("small");
            sim.crash(id, kept);
        }
        920..925 => {
            let to = sim.dice.pick(&[1, 2, 3, 4, 5]);
            let _ = sim.request(id, Request::Transfer(MemberId(to)));
        }
        925..927 => sim.must(id, Event::StepDownRequested),
        927..930 => {
            let _ = sim.request(id, Request::Campaign);
        }
        930..935 => sim.must(id, Event::DiskStalled),
        935..945 => sim.must(id, Event::DiskRecovered),
        945..950 => {
            let to = sim.dice.pick(&[1, 2, 3, 4, 5]);
            sim.must(id, Event::PeerUnreachable(MemberId(to)));
        }
        950..962 => change_members(sim, id),
        962..972 => observe(sim),
        _ => {}
    }
}

fn change_members(sim: &mut Sim, id: u64) {
    let state = sim.member(id).state.clone();
    let all: Vec<u64> = state.voters.iter().chain(&state.learners).copied().collect();
    if all.is_empty() {
        return;
    }
    let some = sim.dice.pick(&all);
    let (kind, node) = match sim.dice.below(4) {
        0 => {
            let is_data = |id: &&u64| !OBSERVERS.contains(id) && **id != WITNESS;
            let new = 1 + *sim.members.keys().filter(is_data).max().expect("members");
            if new > MEMBERS_MAX {
                return;
            }
            let kind = if sim.dice.one_in(2) { ConfChangeKind::AddLearner } else { ConfChangeKind::AddVoter };
            (kind, new)
        }
        1 => (ConfChangeKind::AddVoter, some),
        2 if state.voters.len() > 2 && (some != WITNESS || sim.dice.one_in(4))
            || state.learners.contains(&some) =>
        {
            (ConfChangeKind::Remove, some)
        }
        _ => (ConfChangeKind::Update, some),
    };
    if sim.propose_change(id, kind, node).is_ok() && !sim.members.contains_key(&node) {
        sim.add(node, Disk::default());
    }
}

const OBSERVERS: [u64; 2] = [101, 102];

/// Gives an observer another feeder: a member or the other observer.
fn observe(sim: &mut Sim) {
    let running = sim.running();
    let observer = sim.dice.pick(&OBSERVERS);
    let feeder = sim.dice.pick(&running);
    if feeder != observer && running.contains(&observer) {
        sim.observe(observer, feeder);
    }
}

fn weather(sim: &mut Sim) {
    let ids: Vec<u64> = sim.members.keys().copied().collect();
    match sim.dice.below(4) {
        0 => {
            let (a, b) = (sim.dice.pick(&ids), sim.dice.pick(&ids));
            sim.cut.insert((a, b));
        }
        1 => {
            let a = sim.dice.pick(&ids);
            sim.isolate(&[a]);
        }
        2 => {
            let (a, b) = (sim.dice.pick(&ids), sim.dice.pick(&ids));
            sim.isolate(&[a, b]);
        }
        _ => sim.heal(),
    }
}

fn network(sim: &mut Sim) {
    if sim.network.is_empty() {
        return;
    }
    // In most cases this is one of the oldest messages, sometimes any message.
    let len = sim.network.len() as u64;
    let at = if sim.dice.one_in(4) { sim.dice.below(len) } else { sim.dice.below(len.min(3)) };
    let at = usize::try_from(at).expect("small");
    match sim.dice.below(40) {
        0 | 1 => {
            let message = sim.network.remove(at);
            sim.lose(&message);
        }
        2 => {
            let message = sim.network[at].clone();
            sim.deliver(message);
        }
        _ => {
            let message = sim.network.remove(at);
            sim.deliver(message);
        }
    }
    if sim.network.len() > 400 {
        let lost: Vec<_> = sim.network.drain(..200).collect();
        lost.iter().for_each(|message| sim.lose(message));
    }
}

fn run(seed: u64) -> (u64, u64, u64, u64) {
    let voters = 1 + Random::new(seed).below(5);
    let mut sim = if seed % 5 == 4 { Sim::with_witness(seed, voters.max(2)) } else { Sim::new(seed, voters) };
    let stormy = seed % 3 == 2;
    sim.pre_vote = !stormy;
    OBSERVERS.iter().for_each(|id| sim.add_observer(*id));
    for _ in 0..STEPS {
        let ids: Vec<u64> = sim.members.keys().copied().collect();
        let id = sim.dice.pick(&ids);
        if sim.members[&id].node.is_some() {
            if stormy && sim.dice.one_in(2) {
                storm(&mut sim, id);
            } else {
                chance(&mut sim, id);
            }
        } else if sim.dice.one_in(if stormy { 2 } else { 10 }) {
            sim.start(id);
        }
        for _ in 0..3 {
            network(&mut sim);
        }
        if sim.dice.one_in(150) {
            weather(&mut sim);
        }
    }
    // All faults end: then the cluster must work again.
    sim.heal();
    let ids: Vec<u64> = sim.members.keys().copied().collect();
    for id in ids {
        if sim.members[&id].node.is_none() {
            sim.start(id);
        }
        sim.must(id, Event::DiskRecovered);
    }
    // Observers that feed each other would pass a read on until the next ticks.
    OBSERVERS.iter().for_each(|id| sim.observe(*id, 1));
    sim.rest();
    let mut proposed = false;
    let mut fed_by = None;
    for round in 0.. {
        assert!(round < 400, "the cluster does not recover:\n{}", sim.describe());
        sim.ticks(1);
        let Some(leader) = sim.leader() else { continue };
        if !proposed {
            proposed = sim.propose(leader, 1, 8).is_ok();
            sim.rest();
            continue;
        }
        let state = sim.member(leader).state.clone();
        // One observer follows the leader, the other follows the first.
        if fed_by != Some(leader) {
            fed_by = Some(leader);
            sim.observe(OBSERVERS[0], leader);
            sim.observe(OBSERVERS[1], OBSERVERS[0]);
        }
        let members: Vec<u64> =
            state.voters.iter().chain(&state.learners).chain(&OBSERVERS).copied().collect();
        if members.iter().all(|id| sim.member(*id).state == state)
            && sim.node(leader).status().commit == Index(state.index)
        {
            let context = sim.read(leader).expect("a leader");
            let Ok(of_observer) = sim.read(OBSERVERS[1]) else { continue };
            sim.rest();
            if [context, of_observer].iter().all(|context| sim.answered_reads.contains_key(context)) {
                break;
            }
        }
    }
    (sim.commit, sim.restores, sim.fetched, sim.answered_reads.len() as u64)
}

#[test]
fn seeds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("MAINSTAY_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("MAINSTAY_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let mut sums = (0, 0, 0, 0);
    for seed in &seeds {
        let outcome = std::panic::catch_unwind(|| run(*seed));
        match outcome {
            Ok((commits, restores, fetched, reads)) => {
                sums = (sums.0 + commits, sums.1 + restores, sums.2 + fetched, sums.3 + reads);
            }
            Err(_) => panic!("again with: MAINSTAY_SEED={seed} cargo test -p mainstay-consensus seeds"),
        }
    }
    println!(
        "{} seeds: committed {}, restored {}, fetched {}, read {}",
        seeds.len(),
        sums.0,
        sums.1,
        sums.2,
        sums.3
    );
    if seeds.len() > 100 {
        // Each kind of event must have happened; otherwise the runs do not test it.
        let least = seeds.len() as u64;
        assert!(
            sums.0 > 20 * least && sums.1 > least / 4 && sums.2 > least && sums.3 > 5 * least,
            "{sums:?}"
        );
    }
}

#[test]
fn a_seed_twice_is_the_same() {
    assert_eq!(run(4), run(4));
    assert_ne!(run(4), run(5));
}
