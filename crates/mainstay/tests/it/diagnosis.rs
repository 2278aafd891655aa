//! `/debug/mainstay`: the page on which a member reports its clients and its expensive calls.

use std::net::SocketAddr;

use api::Rpc;
use api::etcdserverpb::{
    AuthenticateRequest, AuthenticateResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, RangeRequest,
    RangeResponse,
};
use prost::Message as _;
use serde_json::Value;

use testkit::{TempDir, eventually, http1};

use crate::cluster::PATIENCE;
use crate::member::Setup;
use crate::{filler, run};

fn page(address: SocketAddr) -> Value {
    let answer = http1::get(address, "/debug/mainstay");
    assert_eq!(answer.status, 200);
    let body = answer.text();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[test]
fn who_calls_and_what_was_expensive() {
    let dir = TempDir::new("diagnosis");
    run(async {
        let member = Setup::new(dir.path()).start();
        let client = member.client().await;
        for number in 0..1500 {
            client.put(format!("many/{number:04}"), "x").await.expect("puts are served");
        }
        client.put("large", filler(1, 200 << 10)).await.expect("puts are served");
        let watch = client.watch_all(1).await.expect("a watch can be opened");
        let lease = client.grant(600).await.expect("a lease");
        let (mut renewing, mut renewed) =
            client.channel.stream(Rpc::LeaseKeepAlive.path()).await.expect("a stream of renewals");
        for _ in 0..2 {
            let request = LeaseKeepAliveRequest { id: lease }.encode_to_vec();
            renewing.send(request.into()).await.expect("the stream is open");
            let answer = renewed.next().await.expect("renewals are answered").expect("an answer");
            assert_eq!(LeaseKeepAliveResponse::decode(answer).expect("an answer").ttl, 600);
        }
        // One small range, and three expensive ones.
        for limit in [10, 0, 0, 1200] {
            let (key, range_end) = ("many/".into(), "many0".into());
            let request = RangeRequest { key, range_end, limit, ..RangeRequest::default() };
            let _: RangeResponse = client.call(Rpc::KvRange, &request).await.expect("reads are served");
        }

        eventually("the size on disk follows what is put", PATIENCE, async || {
            let status = client.status().await.expect("asks are answered");
            (status.db_size > 200 << 10).then_some(())
        })
        .await;

        let told = page(member.client_address());
        assert_eq!(told["name"], "m");
        assert!(told["clock_unix_ns"].as_u64().expect("a time") > 1_600_000_000_000_000_000);
        // If the disk is busy, there may have been stalls.
        let stalls = told["fsync_stalls"].as_array().expect("a list");
        assert!(stalls.iter().all(|stall| stall["seconds"].as_f64() >= Some(0.1)), "{told}");
        let ranges = told["expensive_ranges"].as_array().expect("a list");
        assert_eq!(ranges.len(), 1, "{told}");
        let range = &ranges[0];
        assert_eq!(range["client"], "127.0.0.1");
        assert_eq!((&range["key"], &range["range_end"]), (&"\"many/\"".into(), &"\"many0\"".into()));
        assert_eq!((range["count"].as_u64(), range["keys_max"].as_u64()), (Some(3), Some(1500)), "{range}");
        assert!(range["bytes_total"].as_u64().expect("bytes") > 3 * 1200 * 10);
        let values = told["large_values"].as_array().expect("a list");
        assert_eq!(values.len(), 1, "{told}");
        assert_eq!((&values[0]["key"], values[0]["bytes"].as_u64()), (&"\"large\"".into(), Some(200 << 10)));
        let us = &told["clients"].as_array().expect("a list")[0];
        assert_eq!(us["address"], "127.0.0.1", "{told}");
        assert_eq!((us["watches"].as_i64(), us["leases"].as_i64()), (Some(1), Some(1)), "{us}");
        assert_eq!(us["connections"].as_i64(), Some(1), "{us}");
        assert!(us["requests"].as_u64().expect("a number") >= 1507, "{us}");
        assert!(us["slow_watches"].as_i64().is_some(), "{us}");
        let log = &told["log"];
        assert!(log["segments"].as_u64() >= Some(1), "{log}");
        assert!(
            log["used_bytes"].as_u64() > Some(200 << 10)
                && log["file_bytes"].as_u64() >= log["used_bytes"].as_u64(),
            "{log}"
        );

        drop((watch, renewing, renewed, client));
        eventually("what is closed is no longer counted", PATIENCE, async || {
            let told = page(member.client_address());
            let us = &told["clients"][0];
            let open = [&us["watches"], &us["leases"], &us["connections"]];
            (open == [&Value::from(0); 3]).then_some(())
        })
        .await;
    });
}

fn page_with(address: SocketAddr, token: &str) -> Value {
    let answer = http1::request(address, "GET", "/debug/mainstay", &[("Authorization", token)], b"");
    assert_eq!(answer.status, 200);
    serde_json::from_str(answer.text()).expect("JSON")
}

/// Returns the names in one of the lists of heavy users of the member, the heaviest first.
fn heavy(page: &Value, subject: &str, measure: &str) -> Vec<String> {
    let list = page["heavy"][subject][measure].as_array().cloned().unwrap_or_default();
    list.iter().map(|heavy| heavy["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn what_the_member_is_busy_with_is_told_to_those_who_may_know() {
    let dir = TempDir::new("heavy");
    // With extensive metrics, every call is sampled.
    let member = Setup::new(dir.path())
        .flag("--metrics=extensive")
        .flag("--metrics-heavy-hitters")
        .flag(crate::auth::CHEAP)
        .start();
    let address = member.client_address();
    run(async {
        let client = member.client().await;
        // The request is repeated so often that it is certainly in the list.
        for _ in 0..12 {
            client
                .put("/registry/secrets/default/large", filler(1, 64 << 10))
                .await
                .expect("puts are served");
        }
        client.put("/registry/tokens/default/once", filler(1, 1 << 20)).await.expect("puts are served");
        for number in 0..40 {
            client.put(format!("/registry/pods/default/{number}"), "x").await.expect("puts are served");
            client.get("b<script>").await.expect("reads are served");
        }
        let told = page(address);
        let pods = "\"/registry/pods/\"".to_owned();
        let secrets = "\"/registry/secrets/\"".to_owned();
        assert!(heavy(&told, "prefix", "requests")[..2].contains(&pods), "{told}");
        let bytes = heavy(&told, "prefix", "bytes");
        assert!(bytes[0] == "\"/registry/tokens/\"" && bytes[1] == secrets, "{told}");
        assert!(heavy(&told, "prefix", "seconds").contains(&pods), "{told}");
        assert_eq!(heavy(&told, "client", "requests"), ["127.0.0.1"], "{told}");
        assert!(heavy(&told, "user", "requests").is_empty(), "{told}");
        // 40 requests within a moment give an initial rate of 40 * ln 2 / 60 per second.
        let list = told["heavy"]["prefix"]["requests"].as_array().expect("a list");
        let rate =
            list.iter().find(|heavy| heavy["name"] == *pods).expect("it is told")["per_second"].as_f64();
        assert!(rate.is_some_and(|rate| (0.2..0.5).contains(&rate)), "{told}");
        let metrics = http1::get(address, "/metrics").text().to_owned();
        let is_told = |line: &str| {
            line.starts_with("mainstay_heavy_bytes_per_second{")
                && line.contains("name=\"/registry/secrets/\"")
                && line.contains("subject=\"prefix\"")
        };
        assert!(metrics.lines().any(is_told), "{metrics}");
        assert!(!metrics.contains("tokens"), "a key that came once is in metrics: {metrics}");
        // Requests that pages of other origins send.
        for header in [("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")] {
            let metrics = http1::request(address, "GET", "/metrics", &[header], b"").text().to_owned();
            assert!(metrics.contains("etcd_server_has_leader 1"), "{metrics}");
            assert!(!metrics.contains("mainstay_heavy"), "{metrics}");
        }

        let (root, bob) = crate::auth::secured(&client).await;
        for _ in 0..5 {
            bob.get("b").await.expect("is allowed");
        }
        let token = async |client: &crate::client::Client, name: &str, password: &str| {
            let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
            client.call::<AuthenticateResponse>(Rpc::Authenticate, &request).await.expect("is let in").token
        };
        let (roots, bobs) = (token(&root, "root", "rootpw").await, token(&bob, "bob", "bobpw").await);
        let told = page_with(address, &roots);
        assert!(heavy(&told, "user", "requests").contains(&"bob".to_owned()), "{told}");
        assert!(heavy(&told, "prefix", "requests").contains(&pods), "{told}");
        for told in [page(address), page_with(address, &bobs), page_with(address, &format!("{roots}x"))] {
            assert!(told["heavy"].get("prefix").is_none() && told["heavy"].get("user").is_none(), "{told}");
            assert!(!told.to_string().contains("registry") && !told.to_string().contains("bob"), "{told}");
            assert_eq!(heavy(&told, "client", "requests"), ["127.0.0.1"], "{told}");
        }
        let metrics = http1::get(address, "/metrics").text().to_owned();
        assert!(!metrics.contains("registry") && !metrics.contains("subject=\"user\""), "{metrics}");
        assert!(metrics.contains("mainstay_heavy_requests_per_second"), "{metrics}");
    });
}

#[test]
fn metrics_name_no_keys_unless_they_are_to() {
    let dir = TempDir::new("nameless");
    let member = Setup::new(dir.path()).flag("--metrics=extensive").start();
    run(async {
        let client = member.client().await;
        for _ in 0..100 {
            client.put("reset-token-137-s3cret", "x").await.expect("puts are served");
        }
        let told = page(member.client_address());
        assert_eq!(heavy(&told, "prefix", "requests"), ["\"reset-token-137-s3cret\""], "{told}");
        let metrics = http1::get(member.client_address(), "/metrics").text().to_owned();
        assert!(!metrics.contains("s3cret") && !metrics.contains("127.0.0.1"), "{metrics}");
    });
}
