//! `grpc-proxy` and `gateway` as processes, in front of members.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use api::v3lockpb::{LockRequest, LockResponse};
use api::{Code, Rpc};
use prost::Message as _;
use testkit::{TempDir, eventually};

use crate::auth::{CHEAP, log_in, secured};
use crate::certificates::{Folder, files, flag};
use crate::client::{Client, Watch};
use crate::cluster::{Cluster, PATIENCE};
use crate::member::{Member, Setup, binary};
use crate::run;
use crate::tls::https;

/// A gRPC proxy that runs as a separate process.
pub struct Proxy {
    pub process: Member,
    pub address: SocketAddr,
}

impl Proxy {
    fn command(dir: &Path, endpoints: &str, flags: &[String]) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .args(["grpc-proxy", "start", "--listen-addr=127.0.0.1:0"])
            .arg(format!("--endpoints={endpoints}"))
            .arg(format!("--data-dir={}", dir.join("proxy").display()))
            .args(flags);
        command
    }

    pub fn start(dir: &Path, endpoints: &str, flags: &[String]) -> Proxy {
        let process = Member::launch(Proxy::command(dir, endpoints, flags), None);
        let address = address_in(&process.wait_for("started gRPC proxy"));
        Proxy { process, address }
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.address).await
    }
}

fn address_in(line: &str) -> SocketAddr {
    let address = line.split("\"address\":\"").nth(1).and_then(|rest| rest.split('"').next());
    address.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address in {line}"))
}

/// Returns the events of the next response that has any, as `key=value@revision`.
pub async fn next_events(watch: &mut Watch) -> Vec<String> {
    loop {
        let response = watch.next().await.expect("the watch stands");
        assert!(!response.canceled, "{response:?}");
        if !response.events.is_empty() {
            let shown = |event: &api::mvccpb::Event| {
                let kv = event.kv.as_ref().expect("an event has a key");
                let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
                format!("{}={}@{}", text(&kv.key), text(&kv.value), kv.mod_revision)
            };
            return response.events.iter().map(shown).collect();
        }
    }
}

#[test]
fn every_service_answers_through_a_proxy() {
    run(async {
        let dir = TempDir::new("proxy-plain");
        let member = Setup::new(dir.path()).start();
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &[]);
        let client = proxy.client().await;
        let mut watch = client.watch_all(0).await.unwrap();
        let revision = client.put("k", "v").await.unwrap();
        assert_eq!(next_events(&mut watch).await, [format!("k=v@{revision}")]);
        assert_eq!(client.get("k").await.unwrap().unwrap().value, "v");
        let lease = client.grant(60).await.unwrap();
        assert_eq!(client.time_to_live(lease, false).await.unwrap().granted_ttl, 60);
        let request = LockRequest { name: "l".into(), lease };
        let lock: LockResponse = client.call(Rpc::Lock, &request).await.unwrap();
        assert!(lock.key.starts_with(b"l/"));
        assert!(client.status().await.unwrap().raft_index > 0);
        client.compact(revision, true).await.unwrap();
        client.delete("k").await.unwrap();
        let (own, real) = (client.hash_kv(0).await.unwrap(), member.client().await.hash_kv(0).await.unwrap());
        assert_eq!((own.hash, own.hash_revision), (real.hash, real.hash_revision));
        // The member list names only the proxy, so that clients stay there.
        let urls: Vec<_> = client.members().await.unwrap().into_iter().flat_map(|m| m.client_urls).collect();
        assert_eq!(urls, ["127.0.0.1:23790"]);
        // Errors have the member's code and text.
        let status = client.get("").await.unwrap_err();
        assert_eq!(
            (status.code, &*status.message),
            (Code::InvalidArgument, "etcdserver: key is not provided")
        );
        let (_, mut snapshot) = {
            let (mut sender, receiver) = client.open(Rpc::MaintenanceSnapshot).await.unwrap();
            sender.send_last(bytes::Bytes::new()).await.unwrap();
            (sender, receiver)
        };
        assert!(snapshot.next().await.unwrap().is_some());
    });
}

#[test]
fn pages_tell_of_the_cluster_and_of_the_proxy() {
    run(async {
        let dir = TempDir::new("proxy-pages");
        let member = Setup::new(dir.path()).start();
        let own = testkit::ports::free_address();
        let flags = [
            format!("--advertise-client-url={own}"),
            "--metrics-addr=http://127.0.0.1:0".to_owned(),
            format!("--listen-addr={own}"),
        ];
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &flags);
        assert_eq!(proxy.address, own);
        proxy.client().await.put("k", "v").await.unwrap();
        let pages = |path: &'static str| async move {
            tokio::task::spawn_blocking(move || testkit::http1::get(own, path)).await.unwrap()
        };
        for path in ["/health", "/proxy/health"] {
            assert_eq!(pages(path).await.text(), "{\"health\":\"true\",\"reason\":\"\"}", "{path}");
        }
        assert!(pages("/metrics").await.text().contains("\netcd_server_has_leader 1\n"));
        let put = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1\n";
        assert!(pages("/proxy/metrics").await.text().contains(put));
        assert_eq!(pages("/v2/keys").await.status, 404);
        drop(member);
        assert!(pages("/health").await.text().starts_with("{\"health\":\"false\",\"reason\":\"GET ERROR:"));
    });
}

#[test]
fn profiles_are_served_where_they_are_asked_for() {
    let dir = TempDir::new("proxy-profiles");
    run(async {
        let flags = ["--enable-pprof".to_owned(), "--metrics-addr=http://127.0.0.1:0".to_owned()];
        let proxy = Proxy::start(dir.path(), "127.0.0.1:1", &flags);
        let answer = |path| testkit::http1::get(proxy.address, path);
        assert!(answer("/debug/pprof/").text().contains("goroutine"));
        // A thread sets its name only once it runs.
        eventually("the hub's thread has its name", PATIENCE, async || {
            answer("/debug/pprof/goroutine?debug=1").text().contains(" hub state ").then_some(())
        })
        .await;
        let profile = answer("/debug/pprof/profile?x=y&seconds=1");
        assert_eq!((profile.status, &profile.body[..2]), (200, &b"\x1f\x8b"[..]), "a compressed profile");
        assert_eq!(answer("/debug/pprof/profile?seconds=301").status, 400);
        assert_eq!(answer("/debug/pprof/none").status, 404);
        let plain = Proxy::start(dir.path(), "127.0.0.1:1", &[]);
        assert_eq!(testkit::http1::get(plain.address, "/debug/pprof/").status, 404);
    });
}

#[test]
fn tls_and_users_hold_on_both_sides_of_a_proxy() {
    run(async {
        let dir = TempDir::new("proxy-tls");
        let authority = Folder::new(dir.path(), "authority");
        let own = authority.issue("server", &[1], &["127.0.0.1", "localhost"]);
        // If the certificate had a common name, every client of the proxy would be the user with that name.
        let named = authority.issue("root", &[2], &["127.0.0.1"]);
        let member = https(dir.path())
            .flag(flag("cert-file", &own.cert))
            .flag(flag("key-file", &own.key))
            .flag(CHEAP)
            .start();
        let endpoint = format!("https://{}", member.client_address());
        let ca = flag("cacert", &authority.ca);
        let with_name = [ca.clone(), flag("cert", &named.cert), flag("key", &named.key)];
        let refusal = Member::launch(Proxy::command(dir.path(), &endpoint, &with_name), None).refuses();
        assert!(refusal.contains("cert has non empty Common Name"), "{refusal}");

        let flags = [
            ca,
            flag("cert-file", &own.cert),
            flag("key-file", &own.key),
            flag("trusted-ca-file", &authority.ca),
        ];
        let proxy = Proxy::start(dir.path(), &endpoint, &flags);
        let trusted = files(&authority, Some(&own));
        let client = Client::secured(proxy.address, &trusted).await.unwrap();
        let (root, bob) = secured(&client).await;
        // Each call has the permissions of its own token.
        assert_eq!(client.put("b", "x").await.unwrap_err().message, "etcdserver: user name is empty");
        bob.put("b", "x").await.unwrap();
        assert_eq!(bob.put("k", "x").await.unwrap_err().code, Code::PermissionDenied);
        root.put("k", "x").await.unwrap();
        assert_eq!(log_in(&client, "bob", "wrong").await.err().unwrap().code, Code::InvalidArgument);
        // A client without a certificate is refused.
        assert!(
            Client::secured(proxy.address, &files(&authority, None)).await.is_err() || {
                let stranger = Client::secured(proxy.address, &files(&authority, None)).await.unwrap();
                stranger.get("b").await.is_err()
            }
        );
        assert!(!proxy.process.heard("panicked", Duration::ZERO));
    });
}

#[test]
fn a_gateway_with_itself_as_endpoint_does_not_start() {
    let address = testkit::ports::free_address();
    let mut command = Command::new(binary());
    command
        .env_clear()
        .args(["gateway", "start"])
        .arg(format!("--listen-addr={address}"))
        .arg(format!("--endpoints=http://{address}"));
    let refusal = Member::launch(command, None).refuses();
    assert!(refusal.contains("should not resolve to the gateway listen addr"), "{refusal}");
}

/// Returns the value of a series on a member's metrics page.
pub async fn figure(address: SocketAddr, name: &'static str) -> f64 {
    let page = tokio::task::spawn_blocking(move || testkit::http1::get(address, "/metrics")).await.unwrap();
    let line = page.text().lines().find(|line| line.split(' ').next() == Some(name));
    let value = line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("no {name}"))
}

const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";

fn of_key(key: &'static str, start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest { key: key.into(), start_revision, ..WatchCreateRequest::default() }
}

#[test]
fn many_watchers_of_a_key_cost_the_member_one_watch() {
    run(async {
        let dir = TempDir::new("proxy-coalesced");
        let member = Setup::new(dir.path()).start();
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &[]);
        let client = proxy.client().await;
        let first = client.put("k", "0").await.unwrap();
        let mut watches = Vec::new();
        for number in 0..200 {
            // Some watches start now, and some at a revision whose events were sent already.
            let start = if number % 10 == 9 { first } else { 0 };
            watches.push((start, client.watch(of_key("k", start)).await.unwrap()));
            if number == 100 {
                client.put("k", "1").await.unwrap();
            }
        }
        let last = client.put("k", "2").await.unwrap();
        for (number, (start, watch)) in watches.iter_mut().enumerate() {
            let mut seen = Vec::new();
            while seen.last() != Some(&format!("k=2@{last}")) {
                seen.extend(next_events(watch).await);
            }
            let (zero, one, two) =
                (format!("k=0@{first}"), format!("k=1@{}", last - 1), format!("k=2@{last}"));
            let expected = match (*start, number) {
                (0, ..=100) => vec![one, two],
                (0, _) => vec![two],
                _ => vec![zero, one, two],
            };
            assert_eq!(seen, expected, "{number}");
        }
        // Watches that caught up have joined the one shared watch.
        while figure(member.client_address(), WATCHERS).await > 1.0 {
            tokio::task::yield_now().await;
        }
        drop(watches);
        while figure(member.client_address(), WATCHERS).await > 0.0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_watch_through_a_proxy_outlives_the_leader() {
    run(async {
        let mut cluster = Cluster::start("proxy-leader", 3, &[]);
        let dir = TempDir::new("proxy-leader-proxy");
        let endpoints: Vec<String> =
            (0..3).map(|at| cluster.member(at).client_address().to_string()).collect();
        let proxy = Proxy::start(dir.path(), &endpoints.join(","), &[]);
        let client = proxy.client().await;
        let (mut one, mut other) = (client.watch_all(0).await.unwrap(), client.watch_all(0).await.unwrap());
        let mut written = Vec::new();
        let leader = cluster.leader().await;
        for number in 0..20 {
            if number == 10 {
                cluster.kill(leader);
            }
            // A write whose outcome is unknown is sent again with the same key and value.
            let revision = loop {
                match client.put("k", number.to_string()).await {
                    Ok(revision) => break revision,
                    Err(status) => assert!(crate::cluster::is_passing(&status), "{status}"),
                }
            };
            written.push(format!("k={number}@{revision}"));
        }
        for watch in [&mut one, &mut other] {
            let mut seen = Vec::new();
            while seen.last() != written.last() {
                seen.extend(next_events(watch).await);
            }
            let revision = |event: &String| event.rsplit('@').next().unwrap().parse::<i64>().unwrap();
            assert!(seen.windows(2).all(|pair| revision(&pair[0]) < revision(&pair[1])), "{seen:?}");
            assert!(written.iter().all(|event| seen.contains(event)), "{seen:?}");
        }
    });
}

/// Creates a watch with the client's token; returns the stream and the first response.
async fn watched(
    client: &Client,
    request: WatchCreateRequest,
) -> ((client::Sender, client::Receiver), WatchResponse) {
    let (mut sender, mut receiver) = client.open(Rpc::Watch).await.unwrap();
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(request)) };
    sender.send(request.encode_to_vec().into()).await.unwrap();
    let told = WatchResponse::decode(receiver.next().await.unwrap().unwrap()).unwrap();
    ((sender, receiver), told)
}

#[test]
fn watches_with_different_rights_are_not_shared() {
    run(async {
        let dir = TempDir::new("proxy-rights");
        let member = Setup::new(dir.path()).flag(CHEAP).start();
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &[]);
        let client = proxy.client().await;
        let (root, bob) = secured(&client).await;
        let (mut allowed, told) = watched(&root, of_key("k", 0)).await;
        assert!(told.created && !told.canceled, "{told:?}");
        for client in [&bob, &client] {
            let (_, told) = watched(client, of_key("k", 0)).await;
            assert!(told.canceled && !told.cancel_reason.is_empty(), "{told:?}");
        }
        let revision = root.put("k", "secret").await.unwrap();
        let told = WatchResponse::decode(allowed.1.next().await.unwrap().unwrap()).unwrap();
        assert_eq!(told.events[0].kv.as_ref().unwrap().mod_revision, revision);
    });
}

#[test]
fn a_namespace_holds_all_keys_of_its_clients() {
    run(async {
        let dir = TempDir::new("proxy-namespace");
        let member = Setup::new(dir.path()).start();
        let real = member.client().await;
        real.put("other", "x").await.unwrap();
        let flags = ["--namespace=ns/".to_owned()];
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &flags);
        let client = proxy.client().await;
        let mut watch = client.watch_all(0).await.unwrap();
        let lease = client.grant(60).await.unwrap();
        let revision = client.put_leased("k", "v", lease).await.unwrap();
        real.put("other", "y").await.unwrap();
        let last = client.put("l", "w").await.unwrap();
        assert_eq!(next_events(&mut watch).await, [format!("k=v@{revision}")]);
        assert_eq!(next_events(&mut watch).await, [format!("l=w@{last}")]);
        let all = client.everything().await.unwrap();
        let keys: Vec<_> = all.kvs.iter().map(|kv| kv.key.as_ref()).collect();
        assert_eq!(keys, [b"k", b"l"]);
        assert_eq!(real.get("ns/k").await.unwrap().unwrap().value, "v");
        assert_eq!(client.time_to_live(lease, true).await.unwrap().keys, ["k"]);
        let request = LockRequest { name: "lock".into(), lease };
        let lock: LockResponse = client.call(Rpc::Lock, &request).await.unwrap();
        assert!(lock.key.starts_with(b"lock/"));
        assert!(real.get([b"ns/", lock.key.as_ref()].concat()).await.unwrap().is_some());
        assert_eq!(client.get("").await.unwrap_err().message, "etcdserver: key is not provided");
    });
}

#[test]
fn renewals_of_a_lease_are_answered_in_any_number() {
    run(async {
        let dir = TempDir::new("proxy-renewals");
        let member = Setup::new(dir.path()).start();
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &[]);
        let client = proxy.client().await;
        let leases = [client.grant(60).await.unwrap(), client.grant(90).await.unwrap(), 12_345];
        let (mut sender, mut receiver) = client.open(Rpc::LeaseKeepAlive).await.unwrap();
        for round in 0..30 {
            let id = leases[round % 3];
            sender.send(LeaseKeepAliveRequest { id }.encode_to_vec().into()).await.unwrap();
        }
        sender.finish();
        let mut ttls = std::collections::BTreeMap::<i64, usize>::new();
        while let Some(answer) = receiver.next().await.unwrap() {
            *ttls.entry(LeaseKeepAliveResponse::decode(answer).unwrap().ttl).or_default() += 1;
        }
        assert_eq!(ttls.into_iter().collect::<Vec<_>>(), [(0, 10), (60, 10), (90, 10)]);
    });
}

#[test]
fn a_crowd_of_renewals_holds_up_no_other() {
    run(async {
        let dir = TempDir::new("proxy-crowd");
        let member = Setup::new(dir.path()).start();
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &[]);
        let client = proxy.client().await;
        let lease = client.grant(60).await.unwrap();
        let renewal = |id: i64| bytes::Bytes::from(LeaseKeepAliveRequest { id }.encode_to_vec());
        let mut crowd = Vec::new();
        let mut connection = proxy.client().await;
        for stream in 0..60 {
            // One connection may not open too many streams by itself.
            if stream % 4 == 0 {
                connection = proxy.client().await;
            }
            let (mut sender, receiver) = connection.open(Rpc::LeaseKeepAlive).await.unwrap();
            for number in 0..256 {
                sender.send(renewal(1_000_000 + stream * 256 + number)).await.unwrap();
            }
            crowd.push((sender, receiver));
        }
        let (mut sender, mut receiver) = client.open(Rpc::LeaseKeepAlive).await.unwrap();
        sender.send(renewal(lease)).await.unwrap();
        let answer = receiver.next().await.unwrap().expect("it is answered");
        assert_eq!(LeaseKeepAliveResponse::decode(answer).unwrap().ttl, 60);
        // Half of the crowd's streams end their requests; all their renewals are answered, too.
        for (mut sender, mut receiver) in crowd.drain(30..) {
            sender.finish();
            let mut answers = 0;
            while receiver.next().await.unwrap().is_some() {
                answers += 1;
            }
            assert_eq!(answers, 256);
        }
        drop(crowd);
        sender.send(renewal(lease)).await.unwrap();
        assert!(receiver.next().await.unwrap().is_some());
    });
}

#[test]
fn a_malformed_message_ends_its_own_stream_only() {
    run(async {
        let dir = TempDir::new("proxy-garbage");
        let member = Setup::new(dir.path()).start();
        let proxy =
            Proxy::start(dir.path(), &member.client_address().to_string(), &["--namespace=n".to_owned()]);
        let client = proxy.client().await;
        let mut watch = client.watch_all(0).await.unwrap();
        for rpc in [Rpc::Watch, Rpc::LeaseKeepAlive, Rpc::KvRangeStream, Rpc::KvTxn, Rpc::KvRange] {
            let (mut sender, mut receiver) = client.open(rpc).await.unwrap();
            sender.send_last(bytes::Bytes::from_static(b"\xff\xff\xff")).await.unwrap();
            let ended = receiver.next().await;
            assert_eq!(ended.unwrap_err().code, Code::Internal, "{rpc:?}");
        }
        // Progress is sent to a client that requests it; a second cancellation of a watch is ignored.
        let revision = client.put("k", "v").await.unwrap();
        assert_eq!(next_events(&mut watch).await, [format!("k=v@{revision}")]);
        let (mut sender, mut receiver) = client.open(Rpc::Watch).await.unwrap();
        let requests = [
            RequestUnion::CreateRequest(of_key("k", 0)),
            RequestUnion::ProgressRequest(WatchProgressRequest {}),
        ];
        for request in requests {
            let request = WatchRequest { request_union: Some(request) };
            sender.send(request.encode_to_vec().into()).await.unwrap();
        }
        let mut next = async || WatchResponse::decode(receiver.next().await.unwrap().unwrap()).unwrap();
        assert!(next().await.created);
        let progress = next().await;
        assert_eq!((progress.watch_id, progress.header.unwrap().revision), (-1, revision));
    });
}
