//! The queue of passwords that wait for bcrypt.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use mainstay_identity::passwords::{
    Ask, Busy, Cost, Hashing, Outcome, Proof, Task, Ticket, Verified, WorkQueue,
};
use testkit::Random;

type Queue = WorkQueue<u32, u64>;

fn verified() -> Verified {
    Verified::new(Duration::from_secs(10), 100, Instant::now(), &mut mainstay_identity::system_entropy())
}

fn proof(verified: &Verified, user: &str, password: &str) -> Proof {
    verified.recall(user, Some(b"stored"), password.as_bytes(), Instant::now()).unwrap_err()
}

fn ask(verified: &Verified, address: u32, user: &str, password: &str, asker: u64) -> Ask<u32, u64> {
    let task = Task::check(Some(b"stored"), password.as_bytes());
    Ask { proof: proof(verified, user, password), task, address, asker }
}

#[test]
fn two_hundred_clients_of_a_user_cost_one_bcrypt() {
    let verified = verified();
    let mut queue = Queue::new(1000, 1000);
    let mut new_work = 0;
    for asker in 0..200 {
        let pushed = queue.push(ask(&verified, asker as u32 % 10, "root", "right", asker)).unwrap();
        new_work += usize::from(pushed.new_work);
    }
    assert_eq!((new_work, queue.waiting(), queue.askers()), (1, 1, 200));
    let work = queue.take().unwrap();
    assert!(queue.take().is_none());
    // Later askers with the same proof share the work while it runs, too.
    for asker in 200..250 {
        assert!(!queue.push(ask(&verified, 77, "root", "right", asker)).unwrap().new_work);
    }
    assert!(queue.push(ask(&verified, 77, "root", "wrong", 250)).unwrap().new_work);
    let answered = queue.finish(work);
    assert_eq!(answered, (0..250).collect::<Vec<u64>>());
    assert_eq!((queue.askers(), queue.waiting(), queue.running()), (1, 1, 0));
}

/// Returns the number of jobs done before the job of this asker.
fn work_before(queue: &mut Queue, asker: u64) -> usize {
    for before in 0.. {
        let work = queue.take().expect("the asker is in the queue");
        if queue.finish(work).contains(&asker) {
            return before;
        }
    }
    unreachable!()
}

#[test]
fn wrong_passwords_from_one_address_keep_nobody_out() {
    let verified = verified();
    let mut queue = Queue::new(8192, 2048);
    for number in 0..2000 {
        queue.push(ask(&verified, 1, &format!("user{number}"), "wrong", number)).unwrap();
    }
    queue.push(ask(&verified, 2, "alice", "right", 9999)).unwrap();
    assert!(work_before(&mut queue, 9999) <= 4);
}

#[test]
fn a_crowd_that_tries_one_user_keeps_nobody_else_out() {
    let verified = verified();
    let mut queue = Queue::new(8192, 2048);
    for number in 0..4000 {
        queue.push(ask(&verified, number as u32, "root", &format!("guess{number}"), number)).unwrap();
    }
    queue.push(ask(&verified, 1_000_000, "alice", "right", 9999)).unwrap();
    assert!(work_before(&mut queue, 9999) <= 4);
}

#[test]
fn a_user_who_is_attacked_gets_in_from_another_address() {
    let verified = verified();
    let mut queue = Queue::new(8192, 2048);
    for number in 0..2000 {
        queue.push(ask(&verified, 1, "root", &format!("guess{number}"), number)).unwrap();
    }
    queue.push(ask(&verified, 2, "root", "right", 9999)).unwrap();
    assert!(work_before(&mut queue, 9999) <= 4);
}

#[test]
fn places_are_bounded_and_go_to_those_with_fewest() {
    let verified = verified();
    let mut queue = Queue::new(100, 60);
    for number in 0..60 {
        queue.push(ask(&verified, 1, &format!("user{number}"), "x", number)).unwrap();
    }
    // This address has the maximum number of askers.
    assert_eq!(queue.push(ask(&verified, 1, "another", "x", 60)).unwrap_err(), Busy(60));
    for number in 100..140 {
        queue.push(ask(&verified, 2, &format!("user{number}"), "x", number)).unwrap();
    }
    assert_eq!(queue.askers(), 100);
    // The queue is full: the last asker of address 1 is displaced by each newcomer, until address 1 has no
    // more askers than the others.
    let mut displaced = Vec::new();
    for number in 0..30 {
        let pushed = queue.push(ask(&verified, 3, &format!("late{number}"), "x", 1000 + number)).unwrap();
        displaced.extend(pushed.displaced);
    }
    assert_eq!(displaced[..20], (40..60).rev().collect::<Vec<u64>>()[..]);
    assert_eq!((queue.askers(), displaced.len()), (100, 30));
    // Askers whose work is running are not displaced.
    let mut queue = Queue::new(2, 2);
    queue.push(ask(&verified, 1, "a", "x", 1)).unwrap();
    queue.push(ask(&verified, 1, "b", "x", 2)).unwrap();
    let (first, second) = (queue.take().unwrap(), queue.take().unwrap());
    assert_eq!(queue.push(ask(&verified, 2, "c", "x", 3)).unwrap_err(), Busy(3));
    assert_eq!([queue.finish(first), queue.finish(second)].concat().len(), 2);
    assert!(queue.push(ask(&verified, 2, "c", "x", 3)).is_ok());
}

#[test]
fn who_has_gone_leaves_no_work() {
    let verified = verified();
    let mut queue = Queue::new(100, 100);
    let one = queue.push(ask(&verified, 1, "a", "x", 1)).unwrap().ticket;
    let two = queue.push(ask(&verified, 2, "a", "x", 2)).unwrap().ticket;
    assert_eq!(queue.give_up(one), Some(1));
    assert_eq!(queue.give_up(one), None);
    assert_eq!(queue.waiting(), 1);
    assert_eq!(queue.give_up(two), Some(2));
    assert_eq!((queue.waiting(), queue.askers()), (0, 0));
    assert!(queue.take().is_none());
    // Running work continues, and no asker is left to answer.
    let three = queue.push(ask(&verified, 1, "a", "x", 3)).unwrap().ticket;
    let work = queue.take().unwrap();
    assert_eq!(queue.give_up(three), Some(3));
    assert_eq!(queue.finish(work), Vec::<u64>::new());
    assert_eq!((queue.running(), queue.askers()), (0, 0));
}

#[test]
fn new_hashes_are_not_shared() {
    let verified = verified();
    let mut queue = Queue::new(100, 100);
    let hash = |asker| Ask {
        proof: proof(&verified, "root", "new"),
        task: Task::hash(b"new").unwrap(),
        address: 1,
        asker,
    };
    assert!(queue.push(hash(1)).unwrap().new_work);
    assert!(queue.push(hash(2)).unwrap().new_work);
    assert_eq!(queue.waiting(), 2);
    assert_eq!(Task::hash(&[b'x'; 73]).unwrap_err().to_string(), "bcrypt: password length exceeds 72 bytes");
    let mut entropy = mainstay_identity::system_entropy();
    let hashing = Hashing::new(Cost::new(4).unwrap(), &mut entropy);
    let work = queue.take().unwrap();
    let Outcome::Hashed(stored) = work.task.run(&hashing, &mut entropy) else { panic!("is hashed") };
    let check = Task::check(Some(stored.as_bytes()), b"new");
    assert_eq!(check.run(&hashing, &mut entropy), Outcome::Right);
    assert_eq!(Task::check(Some(stored.as_bytes()), b"old").run(&hashing, &mut entropy), Outcome::Wrong);
    assert_eq!(Task::check(None, b"new").run(&hashing, &mut entropy), Outcome::Wrong);
    assert!(!format!("{:?}", work.task).contains("new"));
}

/// Every asker is answered, displaced or gives up exactly once, in any order of events, and all counters are
/// correct.
#[test]
fn nobody_is_lost_and_nobody_is_answered_twice() {
    let verified = verified();
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut queue = Queue::new(60, 25);
        let mut inside: HashMap<u64, (u32, Ticket)> = HashMap::new();
        let mut running = BTreeMap::new();
        for asker in 0..3000_u64 {
            match random.below(10) {
                0..5 => {
                    let address = random.below(6) as u32;
                    let (user, password) = (random.below(5).to_string(), random.below(6).to_string());
                    let own = inside.values().filter(|(known, _)| *known == address).count();
                    match queue.push(ask(&verified, address, &user, &password, asker)) {
                        Err(Busy(back)) => {
                            assert_eq!(back, asker);
                            assert!(own == 25 || inside.len() == 60, "seed {seed}");
                        }
                        Ok(pushed) => {
                            if let Some(displaced) = pushed.displaced {
                                let (of, _) = inside.remove(&displaced).expect("was inside");
                                assert_ne!(of, address);
                                assert!(
                                    !running
                                        .values()
                                        .any(|(tickets, _): &(Vec<u64>, _)| tickets.contains(&displaced))
                                );
                            }
                            inside.insert(asker, (address, pushed.ticket));
                        }
                    }
                }
                5..7 => {
                    if let Some(work) = queue.take() {
                        running.insert(asker, (Vec::new(), work));
                    } else {
                        assert_eq!(queue.waiting(), 0);
                    }
                }
                7..9 => {
                    if let Some((_, (_, work))) = running.pop_first() {
                        for answered in queue.finish(work) {
                            assert!(inside.remove(&answered).is_some(), "seed {seed}: {answered}");
                        }
                    }
                }
                _ => {
                    let someone = inside.keys().copied().min_by_key(|known| known ^ random.number());
                    if let Some(someone) = someone {
                        let (_, ticket) = inside.remove(&someone).unwrap();
                        assert_eq!(queue.give_up(ticket), Some(someone));
                        assert_eq!(queue.give_up(ticket), None);
                    }
                }
            }
            assert_eq!((queue.askers(), queue.running()), (inside.len(), running.len()), "seed {seed}");
        }
        while let Some(work) = queue.take() {
            running.insert(u64::MAX - queue.running() as u64, (Vec::new(), work));
        }
        for (_, work) in running.into_values() {
            for answered in queue.finish(work) {
                assert!(inside.remove(&answered).is_some());
            }
        }
        assert!(inside.is_empty(), "seed {seed}: {inside:?}");
        assert_eq!((queue.askers(), queue.waiting(), queue.running()), (0, 0, 0));
        assert_eq!(format!("{queue:?}"), "WorkQueue { askers: 0, jobs: 0, running: 0, .. }");
    }
}

#[test]
fn no_hash_is_in_the_output_of_debug() {
    let task = Task::check(Some(b"$2a$10$pl4nted"), b"pl4nted");
    let outcome = Outcome::Hashed("$2a$10$pl4nted".to_owned());
    let shown = format!("{task:?} {outcome:?} {:?}", Task::hash(b"pl4nted"));
    assert!(!shown.contains("pl4nted") && !shown.contains("112, 108, 52"), "{shown}");
}
