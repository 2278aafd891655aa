//! Preferred endpoints are used first, and others only if these do not serve.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::etcdserverpb::{Member, MemberListResponse, RangeRequest, RangeResponse};
use api::{Rpc, error};
use mainstay_client::{CallOptions, Client, Preference, Settings};
use prost::Message as _;
use tokio::time::timeout;

use crate::run;
use crate::server::{Call, Server};

/// Time for which a call waits for a preferred endpoint that was not connected before.
const PATIENCE: Duration = Duration::from_millis(500);

async fn answers(count: i64) -> Server {
    Server::start(move |call: Call| async move {
        call.reply(Ok(RangeResponse { count, ..RangeResponse::default() }));
    })
    .await
}

/// Returns a client that prefers these servers in this order, and its preference.
fn client_of(servers: &[&Server]) -> (Client, Preference) {
    let preference = Preference::default();
    let ranks: HashMap<String, u32> = servers.iter().map(|server| server.endpoint()).zip(0..).collect();
    preference.set(&ranks);
    // The order of the endpoints must not matter.
    let endpoints: Vec<String> = servers.iter().rev().map(|server| server.endpoint()).collect();
    let settings = Settings { preference: Some(preference.clone()), ..Settings::of(endpoints) };
    (Client::new(settings).unwrap(), preference)
}

async fn ask(client: &Client) -> i64 {
    let answer: RangeResponse = client.call(Rpc::KvRange, &RangeRequest::default()).await.unwrap();
    answer.count
}

#[test]
fn others_are_used_only_when_none_of_the_preferred_stands() {
    run(async {
        let (near, far) = (answers(1).await, answers(2).await);
        let (client, preference) = client_of(&[&near, &far]);
        for _ in 0..5 {
            assert_eq!(ask(&client).await, 1);
        }
        assert_eq!(far.calls().len(), 0);
        assert_eq!(preference.attempts(), HashMap::from([(near.endpoint(), 5), (far.endpoint(), 0)]));
        drop(near);
        while ask(&client).await != 2 {}
    });
}

#[test]
fn a_new_order_applies_to_the_next_call_and_streams_can_tell() {
    run(async {
        let (first, second) = (answers(1).await, answers(2).await);
        let (client, preference) = client_of(&[&first, &second]);
        assert_eq!(ask(&client).await, 1);
        assert!(!client.is_outranked(&first.endpoint(), 1));
        preference.set(&HashMap::from([(first.endpoint(), 1), (second.endpoint(), 0)]));
        // The second one is not connected yet. The call waits for it.
        assert_eq!(ask(&client).await, 2);
        while !client.is_outranked(&first.endpoint(), 1) {
            tokio::task::yield_now().await;
        }
        assert!(!client.is_outranked(&second.endpoint(), 1));
        assert!(!client.is_outranked(&first.endpoint(), 2), "ranks 0 and 1 count as equal");
    });
}

#[test]
fn a_call_that_fails_for_lack_of_a_leader_goes_on_to_the_next() {
    run(async {
        let lost = Server::start(|call: Call| async move {
            call.reply(Err::<RangeResponse, _>(error::NO_LEADER));
        })
        .await;
        let (next, last) = (answers(2).await, answers(3).await);
        let (client, _) = client_of(&[&lost, &next, &last]);
        // A later attempt may reach the third before the second is connected.
        while ask(&client).await != 2 {}
        for _ in 0..5 {
            assert_eq!(ask(&client).await, 2);
        }
    });
}

#[test]
fn endpoints_are_passed_over_in_their_order() {
    run(async {
        let (one, two, three) = (answers(1).await, answers(2).await, answers(3).await);
        let (client, preference) = client_of(&[&one, &two, &three]);
        preference.set(&HashMap::from([(one.endpoint(), 0), (two.endpoint(), 0), (three.endpoint(), 1)]));
        let pass = async |passed_over: usize| {
            let options = CallOptions { passed_over, ..CallOptions::default() };
            let request = RangeRequest::default().encode_to_vec().into();
            let answer = client.forward(Rpc::KvRange, &options, request).await.unwrap();
            RangeResponse::decode(answer).unwrap().count
        };
        // Until all of them are connected, fewer can be passed over.
        while pass(2).await != 3 {}
        while pass(0).await != 2 || pass(0).await != 1 {}
        for _ in 0..5 {
            let mut reached = [pass(0).await, pass(1).await, pass(2).await];
            assert_eq!(reached[2], 3);
            reached.sort_unstable();
            assert_eq!(reached, [1, 2, 3]);
        }
    });
}

/// Returns a listener to which nothing can connect in time, because its queue of connections is full, and
/// the connections that fill it.
async fn black_hole() -> (tokio::net::TcpListener, Vec<tokio::net::TcpStream>) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(Ok(stream)) =
        timeout(Duration::from_millis(200), tokio::net::TcpStream::connect(address)).await
    {
        held.push(stream);
    }
    (listener, held)
}

#[test]
fn an_open_connection_is_used_while_a_preferred_endpoint_is_silent() {
    run(async {
        let far = answers(2).await;
        let (hole, _held) = black_hole().await;
        let near = hole.local_addr().unwrap().to_string();
        let preference = Preference::default();
        preference.set(&HashMap::from([(far.endpoint(), 0), (near.clone(), 1)]));
        let settings =
            Settings { preference: Some(preference.clone()), ..Settings::of([near.clone(), far.endpoint()]) };
        let client = Client::new(settings).unwrap();
        assert_eq!(ask(&client).await, 2);
        preference.set(&HashMap::from([(far.endpoint(), 1), (near, 0)]));
        // Connecting to the silent one goes on for longer than this.
        assert_eq!(timeout(Duration::from_secs(2), ask(&client)).await, Ok(2));
        // Only the first call waits a little, in case that it connects at once. If each did, none would be fast;
        // on a busy machine some may be slow.
        let mut fastest = Duration::MAX;
        for _ in 0..20 {
            let began = Instant::now();
            assert_eq!(ask(&client).await, 2);
            fastest = fastest.min(began.elapsed());
        }
        assert!(fastest < PATIENCE, "{fastest:?}");
    });
}

#[test]
fn a_call_that_waits_for_a_silent_endpoint_follows_a_new_order() {
    run(async {
        let far = answers(2).await;
        let (hole, _held) = black_hole().await;
        let near = hole.local_addr().unwrap().to_string();
        // A call that did not notice the new order would be answered when its patience with the silent endpoint
        // ends. On a busy machine a call may take that long anyway, so it is tried until one is faster.
        for attempt in 0.. {
            let preference = Preference::default();
            preference.set(&HashMap::from([(far.endpoint(), 1), (near.clone(), 0)]));
            let settings = Settings {
                preference: Some(preference.clone()),
                ..Settings::of([near.clone(), far.endpoint()])
            };
            let client = Client::new(settings).unwrap();
            let began = Instant::now();
            let mut call = std::pin::pin!(ask(&client));
            if timeout(PATIENCE / 5, &mut call).await.is_err() {
                preference.set(&HashMap::from([(far.endpoint(), 1), (near.clone(), 4)]));
                assert_eq!(call.await, 2);
                if began.elapsed() < PATIENCE {
                    break;
                }
            }
            assert!(attempt < 20, "no call followed the new order");
        }
    });
}

#[test]
fn the_given_endpoints_stay_beside_those_of_the_member_list() {
    run(async {
        let listed = Arc::new(OnceLock::new());
        let members = Server::start({
            let listed = listed.clone();
            move |call: Call| {
                let client_urls = Vec::clone(listed.get().unwrap());
                let member = Member { name: "m".to_owned(), client_urls, ..Member::default() };
                let answer = MemberListResponse { members: vec![member], ..MemberListResponse::default() };
                async move { call.reply(Ok(answer)) }
            }
        })
        .await;
        let (given, dead, other) = (members.address.to_string(), "127.0.0.1:2", "http://127.0.0.1:1");
        listed.set(vec![format!("http://{given}"), other.to_owned()]).unwrap();
        let settings = Settings {
            preference: Some(Preference::default()),
            ..Settings::of([given.clone(), dead.to_owned()])
        };
        let client = Client::new(settings).unwrap();
        client.sync().await.unwrap();
        // One that is listed keeps its string, by which it has its rank.
        assert_eq!(client.endpoints(), [&given, dead, other]);
    });
}

#[test]
fn others_are_connected_while_a_preferred_endpoint_is_silent() {
    run(async {
        let far = answers(2).await;
        let (hole, _held) = black_hole().await;
        let near = hole.local_addr().unwrap().to_string();
        let preference = Preference::default();
        preference.set(&HashMap::from([(far.endpoint(), 1), (near.clone(), 0)]));
        let settings = Settings { preference: Some(preference), ..Settings::of([near, far.endpoint()]) };
        let client = Client::new(settings).unwrap();
        assert_eq!(timeout(Duration::from_secs(3), ask(&client)).await, Ok(2));
    });
}
