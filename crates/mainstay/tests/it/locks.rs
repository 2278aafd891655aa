//! Locks, elections and health checks over gRPC, end to end. Cases with lost members and leases are in the
//! stepped tests of the crate `server`.

use std::time::Duration;

use api::etcdserverpb::*;
use api::health::health_check_response::ServingStatus;
use api::health::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};
use api::v3electionpb::*;
use api::v3lockpb::*;
use api::{Code, Rpc, Status};
use client::{Receiver, Sender};
use prost::Message as _;
use testkit::TempDir;

use crate::auth::{CHEAP, log_in, secured};
use crate::client::Client;
use crate::member::Setup;
use crate::run;

async fn observe(client: &Client, name: &'static str) -> (Sender, Receiver) {
    let (mut sender, receiver) = client.open(Rpc::ElectionObserve).await.expect("a stream");
    let request = LeaderRequest { name: name.into() };
    sender.send_last(request.encode_to_vec().into()).await.expect("the stream is open");
    (sender, receiver)
}

/// Returns the value and the create revision of the next leader that is reported; `None` at the end of the stream.
async fn told(receiver: &mut Receiver) -> Result<Option<(String, i64)>, Status> {
    let Some(message) = receiver.next().await? else { return Ok(None) };
    let kv = LeaderResponse::decode(message).expect("an answer").kv.expect("has one");
    Ok(Some((String::from_utf8(kv.value.to_vec()).expect("is text"), kv.create_revision)))
}

async fn campaign(client: &Client, lease: i64, value: &'static str) -> LeaderKey {
    let request = CampaignRequest { name: "seat".into(), lease, value: value.into() };
    let won: CampaignResponse = client.call(Rpc::ElectionCampaign, &request).await.expect("is won");
    won.leader.expect("has one")
}

#[test]
fn an_election_is_observed_from_its_beginning() {
    let dir = TempDir::new("observed");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let (_sender, mut receiver) = observe(&client, "seat").await;
        let (first, second) =
            (client.grant(60).await.expect("a lease"), client.grant(60).await.expect("one"));
        let leader = campaign(&client, first, "one").await;
        assert_eq!(told(&mut receiver).await, Ok(Some(("one".to_owned(), leader.rev))));
        let proclaim = ProclaimRequest { leader: Some(leader.clone()), value: "uno".into() };
        let _: ProclaimResponse = client.call(Rpc::ElectionProclaim, &proclaim).await.expect("leads");
        assert_eq!(told(&mut receiver).await, Ok(Some(("uno".to_owned(), leader.rev))));
        // An observer that comes later gets the current leader, and both observers get the next one.
        let (_late, mut late) = observe(&client, "seat").await;
        assert_eq!(told(&mut late).await, Ok(Some(("uno".to_owned(), leader.rev))));
        let resign = ResignRequest { leader: Some(leader) };
        let _: ResignResponse = client.call(Rpc::ElectionResign, &resign).await.expect("resigns");
        let leader = campaign(&client, second, "two").await;
        for receiver in [&mut receiver, &mut late] {
            assert_eq!(told(receiver).await, Ok(Some(("two".to_owned(), leader.rev))));
        }
    });
    member.stop();
}

#[test]
fn an_election_is_not_observed_by_those_who_may_not_read_it() {
    let dir = TempDir::new("unobserved");
    let member = Setup::new(dir.path()).flag(CHEAP).start();
    run(async {
        let client = member.client().await;
        let (_root, bob) = secured(&client).await;
        for caller in [&client, &bob] {
            // As in etcd, the stream ends without an error.
            let (_sender, mut receiver) = observe(caller, "a").await;
            assert_eq!(told(&mut receiver).await, Ok(None));
        }
        let (_sender, mut receiver) = observe(&bob, "b").await;
        let bob = log_in(&client, "bob", "bobpw").await.expect("is bob");
        let request = CampaignRequest { name: "b".into(), lease: 0, value: "bob".into() };
        let won: CampaignResponse = bob.call(Rpc::ElectionCampaign, &request).await.expect("is won");
        let leader = won.leader.expect("has one");
        assert_eq!(told(&mut receiver).await, Ok(Some(("bob".to_owned(), leader.rev))));
    });
    member.stop();
}

#[test]
fn a_client_that_gives_up_waiting_gives_its_key_up() {
    let dir = TempDir::new("given-up");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let lock = |lease| LockRequest { name: "door".into(), lease };
        let (first, second) =
            (client.grant(60).await.expect("a lease"), client.grant(60).await.expect("one"));
        let held: LockResponse = client.call(Rpc::Lock, &lock(first)).await.expect("is free");
        let hurried = Client::within(Duration::from_millis(300), member.client_address()).await;
        let hurried = hurried.expect("connects");
        let refused = hurried.call::<LockResponse>(Rpc::Lock, &lock(second)).await.expect_err("is taken");
        assert_eq!(refused.code, Code::DeadlineExceeded);
        let key = format!("door/{second:x}");
        while client.get(key.clone()).await.expect("answers").is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The revision shows that the waiting call had created its key.
        assert!(client.everything().await.expect("answers").header.expect("has one").revision >= 4);
        assert!(client.get(held.key.clone()).await.expect("answers").is_some());
        // A waiting call also gives up its key when its connection closes.
        let leaving = member.client().await;
        let request = lock(second);
        let waiting = tokio::time::timeout(
            Duration::from_millis(300),
            leaving.call::<LockResponse>(Rpc::Lock, &request),
        );
        assert!(waiting.await.is_err(), "it waits");
        drop(leaving);
        while client.get(key.clone()).await.expect("answers").is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let unlock = UnlockRequest { key: held.key };
        let _: UnlockResponse = client.call(Rpc::LockUnlock, &unlock).await.expect("is unlocked");
        let held: LockResponse = client.call(Rpc::Lock, &lock(second)).await.expect("is free");
        assert_eq!(held.key, key);
    });
    member.stop();
}

#[test]
fn the_whole_server_is_healthy_until_it_stops() {
    let dir = TempDir::new("healthy");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
        let whole: HealthCheckResponse = client.call(Rpc::HealthCheck, &check("")).await.expect("answers");
        assert_eq!(whole.status(), ServingStatus::Serving);
        for service in ["etcdserverpb.KV", "v3lockpb.Lock", "x"] {
            let unknown = client.call::<HealthCheckResponse>(Rpc::HealthCheck, &check(service)).await;
            assert_eq!(
                unknown,
                Err(Status::new(Code::NotFound, "unknown service")),
                "etcd has only the whole"
            );
        }
        let all: HealthListResponse =
            client.call(Rpc::HealthList, &HealthListRequest {}).await.expect("answers");
        assert_eq!(all.statuses.len(), 1);
        let mut watching = Vec::new();
        for (service, first) in [("", ServingStatus::Serving), ("x", ServingStatus::ServiceUnknown)] {
            let (mut sender, mut receiver) = client.open(Rpc::HealthWatch).await.expect("a stream");
            sender.send_last(check(service).encode_to_vec().into()).await.expect("is open");
            let status = receiver.next().await.expect("goes on").expect("is told");
            assert_eq!(HealthCheckResponse::decode(status).expect("an answer").status(), first);
            watching.push((sender, receiver));
        }
        // A defragmentation completes at once, so it does not change the health status.
        let _: DefragmentResponse =
            client.call(Rpc::MaintenanceDefragment, &DefragmentRequest {}).await.expect("is done");
        member.stop();
        let (_, receiver) = &mut watching[0];
        if let Ok(Some(last)) = receiver.next().await {
            let last = HealthCheckResponse::decode(last).expect("an answer");
            assert_eq!(last.status(), ServingStatus::NotServing);
        }
    });
}
