//! Many concurrent requests that only the core can answer: lists of leases, their times and keys, the whole state.

use std::task::{Context, Poll, Waker};

use api::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesRequest, LeaseLeasesResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, PutRequest,
};
use api::{Rpc, Status};
use bytes::Bytes;
use front::LocalBoxFuture;
use prost::Message as _;

use super::world::World;

/// Number of items that one turn of the core may visit for these requests.
const PER_TURN: u64 = 100;
const LEASES: usize = 20;
/// Number of calls of each kind.
const CROWD: usize = 500;

/// Calls that wait for responses, and the responses received.
struct Crowd {
    waiting: Vec<LocalBoxFuture<Result<Bytes, Status>>>,
    answers: Vec<Bytes>,
}

impl Crowd {
    fn ask(world: &World, rpc: Rpc, request: &impl prost::Message) -> Crowd {
        let message = Bytes::from(request.encode_to_vec());
        let waiting = (0..CROWD).map(|_| world.member(0).call(rpc, message.clone())).collect();
        let mut crowd = Crowd { waiting, answers: Vec::new() };
        crowd.look();
        crowd
    }

    /// Takes the responses that have arrived. Returns their number.
    fn look(&mut self) -> usize {
        let before = self.answers.len();
        self.waiting.retain_mut(|call| match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => {
                self.answers.push(answer.expect("is answered"));
                false
            }
            Poll::Pending => true,
        });
        self.answers.len() - before
    }
}

/// Runs one turn of the member's core, and then one of its shard.
fn turn(world: &mut World) {
    let member = world.places[0].member.as_mut().expect("runs");
    member.poll_tasks();
    member.turn().expect("goes on");
    member.poll_tasks();
}

fn grant(world: &mut World) -> i64 {
    let request = LeaseGrantRequest { ttl: 600, id: 0 };
    let answer: LeaseGrantResponse = world.call(0, Rpc::LeaseGrant, &request).expect("is granted");
    answer.id
}

#[test]
fn a_turn_of_the_core_answers_so_many_questions_and_a_write_does_not_wait_for_the_rest() {
    let mut world = World::new(1, 41, &[]);
    world.places[0].questions_per_turn = PER_TURN;
    world.start_all();
    let leases: Vec<i64> = (0..LEASES).map(|_| grant(&mut world)).collect();
    let put = |n: usize| PutRequest {
        key: format!("k{n}").into(),
        value: "v".into(),
        lease: leases[0],
        ..PutRequest::default()
    };
    for n in 0..300 {
        world.run(world.member(0).call(Rpc::KvPut, put(n).encode_to_vec().into())).expect("is put");
    }
    let time = |keys| LeaseTimeToLiveRequest { id: leases[0], keys };
    let mut crowds = [
        Crowd::ask(&world, Rpc::LeaseLeases, &LeaseLeasesRequest {}),
        Crowd::ask(&world, Rpc::LeaseTimeToLive, &time(false)),
        Crowd::ask(&world, Rpc::LeaseTimeToLive, &time(true)),
    ];
    let mut write = world.member(0).call(Rpc::KvPut, put(0).encode_to_vec().into());
    let mut left_at_write = None;
    let mut turns = 0;
    while crowds.iter().any(|crowd| !crowd.waiting.is_empty()) {
        turn(&mut world);
        world.places[0].member.as_mut().expect("runs").log_turn();
        turns += 1;
        let answered: usize = crowds.iter_mut().map(Crowd::look).sum();
        assert!(answered as u64 <= PER_TURN, "turn {turns} has answered {answered} questions");
        if left_at_write.is_none() && write.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        {
            left_at_write = Some(crowds.iter().map(|crowd| crowd.waiting.len()).sum::<usize>());
        }
    }
    assert!(
        left_at_write.is_some_and(|left| left > CROWD),
        "{left_at_write:?} were left when it was written"
    );
    // Requests of all kinds had their turns.
    let [lists, times, keys] = crowds;
    for answer in lists.answers {
        let list = LeaseLeasesResponse::decode(answer).expect("decodes");
        assert_eq!(list.leases.len(), LEASES);
    }
    for (answer, count) in
        times.answers.into_iter().map(|a| (a, 0)).chain(keys.answers.into_iter().map(|a| (a, 300)))
    {
        let answer = LeaseTimeToLiveResponse::decode(answer).expect("decodes");
        assert_eq!((answer.granted_ttl, answer.keys.len()), (600, count));
    }
    // The number of turns is at least the work of the requests divided by the work per turn, and not much
    // more.
    assert!((16..40).contains(&turns), "{turns} turns");
}
