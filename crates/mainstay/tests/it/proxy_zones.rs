//! A `grpc-proxy` with a zone, in front of members in two zones.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    WatchCreateRequest, alarm_request,
};
use api::{Rpc, error};
use prost::Message as _;
use testkit::{TempDir, eventually};

use crate::auth::{CHEAP, log_in, secured};
use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::member::{Member, Setup};
use crate::proxy::{Proxy, figure, next_events};
use crate::run;

/// Place of the member in zone b; all others are in zone a.
const NEAR: usize = 1;

const PUTS: &str = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}";
/// Time after its last use for which a token is valid, in the test of expired ones.
const TOKEN_TIME: Duration = Duration::from_secs(3);
const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";

/// Waits until an endpoint has this rank at a proxy.
async fn ranked(proxy: &Proxy, endpoint: impl Display, zone: &str, rank: f64) {
    let series = format!("mainstay_grpc_proxy_endpoint_rank{{endpoint=\"{endpoint}\",zone=\"{zone}\"}}");
    eventually("an endpoint has its rank", PATIENCE, async || {
        (proxy_figure(proxy.address, &series) == Some(rank)).then_some(())
    })
    .await;
}

/// Starts members of two zones.
fn members(name: &str, flags: &[&str]) -> Cluster {
    in_zones(Cluster::plan(name, 3, flags))
}

/// Starts these members, one of them in zone b.
fn in_zones(mut cluster: Cluster) -> Cluster {
    for (at, slot) in cluster.slots.iter_mut().enumerate() {
        slot.flags.push(format!("--zone={}", if at == NEAR { "b" } else { "a" }));
    }
    cluster.start_all();
    cluster
}

/// Starts a proxy in zone b that knows these members.
fn proxy_of(cluster: &Cluster, known: &[usize], flags: &[&str]) -> Proxy {
    let endpoints: Vec<String> = known.iter().map(|at| cluster.slots[*at].client.to_string()).collect();
    let flags: Vec<String> = ["--zone=b"].iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
    Proxy::start(cluster.dir.path(), &endpoints.join(","), &flags)
}

/// Starts members of two zones, and a proxy in zone b that knows them.
async fn start(name: &str) -> (Cluster, Proxy) {
    start_with(name, &[]).await
}

async fn start_with(name: &str, flags: &[&str]) -> (Cluster, Proxy) {
    let cluster = members(name, flags);
    let proxy = proxy_of(&cluster, &[0, 1, 2], &[]);
    ranked(&proxy, cluster.slots[NEAR].client, "b", 0.0).await;
    (cluster, proxy)
}

/// Writes through the proxy until a write succeeds; returns how it is shown as an event.
async fn put(proxy: &Proxy, value: usize) -> String {
    let written = eventually("a write through the proxy", PATIENCE, async || {
        let client = Client::within(Duration::from_secs(1), proxy.address).await.ok()?;
        client.put("k", value.to_string()).await.ok()
    });
    format!("k={value}@{}", written.await)
}

/// Returns the number of calls for which a proxy has chosen a member.
fn calls_to(proxy: &Proxy, cluster: &Cluster, at: usize) -> f64 {
    let (endpoint, zone) = (cluster.slots[at].client, if at == NEAR { "b" } else { "a" });
    let series =
        format!("mainstay_grpc_proxy_endpoint_calls_total{{endpoint=\"{endpoint}\",zone=\"{zone}\"}}");
    proxy_figure(proxy.address, &series).expect("it is counted")
}

/// Returns the value of a series on the page with the metrics of a proxy.
fn proxy_figure(proxy: SocketAddr, series: &str) -> Option<f64> {
    let page = testkit::http1::get(proxy, "/proxy/metrics");
    let value = page.text().lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    value.parse().ok()
}

#[test]
fn calls_and_watches_stay_in_the_zone_while_it_serves_and_come_back() {
    run(async {
        let (mut cluster, proxy) = start("proxy-zone").await;
        let near = cluster.slots[NEAR].client;
        let client = proxy.client().await;
        let mut watch = client.watch_all(0).await.expect("watches are served");
        let mut written = Vec::new();
        for value in 0..20 {
            written.push(put(&proxy, value).await);
        }
        for at in 0..3 {
            let address = cluster.slots[at].client;
            // A write that took long was tried again.
            let puts = figure(address, PUTS).await;
            assert!(if at == NEAR { puts >= 20.0 } else { puts == 0.0 }, "m{at}: {puts}");
            assert_eq!(figure(address, WATCHERS).await, if at == NEAR { 1.0 } else { 0.0 }, "m{at}");
        }
        assert!(calls_to(&proxy, &cluster, NEAR) >= 21.0);

        cluster.kill(NEAR);
        for value in 20..30 {
            written.push(put(&proxy, value).await);
        }
        ranked(&proxy, near, "b", 4.0).await;

        proxy.process.wait_for("no endpoint of the zone serves");

        cluster.start_one(NEAR);
        let mut value = 30;
        eventually("writes go to the zone again", PATIENCE, async || {
            written.push(put(&proxy, value).await);
            value += 1;
            (figure(near, PUTS).await > 0.0).then_some(())
        })
        .await;
        eventually("the watch goes to the zone again", PATIENCE, async || {
            (figure(near, WATCHERS).await == 1.0).then_some(())
        })
        .await;
        for at in [0, 2] {
            let address = cluster.slots[at].client;
            eventually("the watch leaves the other zone", PATIENCE, async || {
                (figure(address, WATCHERS).await == 0.0).then_some(())
            })
            .await;
        }
        written.push(put(&proxy, value).await);
        let mut seen = Vec::new();
        while seen.last() != written.last() {
            seen.extend(next_events(&mut watch).await);
        }
        // A write that was tried again may have two events.
        let revision = |event: &String| event.rsplit('@').next().and_then(|text| text.parse::<i64>().ok());
        assert!(seen.windows(2).all(|pair| revision(&pair[0]) < revision(&pair[1])), "{seen:?}");
        assert!(written.iter().all(|event| seen.contains(event)), "{written:?} {seen:?}");
    });
}

#[test]
fn a_member_of_the_zone_that_hangs_is_left_until_it_answers() {
    run(async {
        let (cluster, proxy) = start("proxy-zone-hangs").await;
        let near = cluster.slots[NEAR].client;
        put(&proxy, 0).await;
        assert!(figure(near, PUTS).await >= 1.0);
        cluster.member(NEAR).signal(libc::SIGSTOP);
        // Its connections stay open, so only its silence shows that it does not serve.
        put(&proxy, 1).await;
        for value in 2..10 {
            put(&proxy, value).await;
        }
        ranked(&proxy, near, "b", 4.0).await;
        cluster.member(NEAR).signal(libc::SIGCONT);
        ranked(&proxy, near, "b", 0.0).await;
        let calls = || [0, 1, 2].map(|at| calls_to(&proxy, &cluster, at));
        let before = calls();
        eventually("its connections are back", PATIENCE, async || {
            put(&proxy, 10).await;
            (calls()[NEAR] > before[NEAR]).then_some(())
        })
        .await;
        let before = calls();
        for value in 11..21 {
            put(&proxy, value).await;
        }
        let now = calls();
        assert!(now[NEAR] >= before[NEAR] + 10.0, "{before:?} {now:?}");
        assert_eq!([now[0], now[2]], [before[0], before[2]]);
    });
}

#[test]
fn without_rights_to_ask_the_zone_is_that_of_the_address() {
    run(async {
        let dir = TempDir::new("proxy-zone-users");
        let member = Setup::new(dir.path()).flag("--zone=b").flag(CHEAP).start();
        secured(&member.client().await).await;
        let endpoint = member.client_address();
        for (networks, zone, rank) in [
            // The status, which has the zone, is for users only.
            ("", "", 2.0),
            ("b=127.0.0.0/8", "b", 0.0),
            ("c=127.0.0.0/8", "c", 2.0),
        ] {
            let flags = ["--zone=b".to_owned(), format!("--zone-networks={networks}")];
            let proxy = Proxy::start(dir.path(), &endpoint.to_string(), &flags);
            ranked(&proxy, endpoint, zone, rank).await;
        }
    });
}

#[test]
fn zones_that_cannot_be_followed_are_refused() {
    let dir = TempDir::new("proxy-zone-refused");
    for (flags, reason) in [
        (&["grpc-proxy", "start", "--zone=a b"][..], "invalid zone"),
        (&["grpc-proxy", "start", "--zone-networks=a=10.0.0.0/8"], "zone-networks needs zone"),
        (&["gateway", "start", "--zone=a"], "zone needs zone-networks"),
        (&["gateway", "start", "--zone=a", "--zone-networks=a=10.0.0.0/33"], "invalid zone-networks"),
    ] {
        let mut command = std::process::Command::new(crate::member::binary());
        command.env_clear().current_dir(dir.path()).args(flags);
        let said = Member::launch(command, None).refuses();
        assert!(said.contains(reason), "{flags:?}: {said}");
    }
}

/// Waits until the only watch is at this member.
async fn watched_at(cluster: &Cluster, near: usize) {
    for at in cluster.running() {
        let (address, expected) = (cluster.slots[at].client, f64::from(u8::from(at == near)));
        eventually("the watch is where it should be", PATIENCE, async || {
            (figure(address, WATCHERS).await == expected).then_some(())
        })
        .await;
    }
}

/// Compacts everything that is older than the present state.
async fn compact_all(client: &Client) {
    let mut last = 0;
    for value in 0..20 {
        last = client.put("other", value.to_string()).await.expect("writes are served");
    }
    client.compact(last, true).await.expect("it is compacted");
}

#[test]
fn a_watch_without_events_moves_although_its_last_event_is_compacted() {
    run(async {
        let (mut cluster, proxy) = start("proxy-zone-compacted").await;
        let near = cluster.slots[NEAR].client;
        cluster.kill(NEAR);
        ranked(&proxy, near, "b", 4.0).await;
        let client = proxy.client().await;
        let mut watch = client.watch(quiet()).await.expect("watches are served");
        let first = client.put("quiet", "1").await.expect("writes are served");
        assert_eq!(next_events(&mut watch).await, [format!("quiet=1@{first}")]);
        compact_all(&client).await;
        cluster.start_one(NEAR);
        watched_at(&cluster, NEAR).await;
        let second = proxy.client().await.put("quiet", "2").await.expect("writes are served");
        assert_eq!(next_events(&mut watch).await, [format!("quiet=2@{second}")]);
    });
}

fn quiet() -> WatchCreateRequest {
    WatchCreateRequest { key: "quiet".into(), ..WatchCreateRequest::default() }
}

#[test]
fn a_watch_stays_where_it_is_if_the_member_of_the_zone_refuses_it() {
    run(async {
        let (mut cluster, proxy) =
            start_with("proxy-zone-token", &[CHEAP, &format!("--auth-token-ttl={}", TOKEN_TIME.as_secs())])
                .await;
        let near = cluster.slots[NEAR].client;
        secured(&cluster.client(0).await).await;
        cluster.kill(NEAR);
        ranked(&proxy, near, "b", 4.0).await;
        let client = proxy.client().await;
        let log_in = async || log_in(&client, "root", "rootpw").await.expect("is root");
        let root = log_in().await;
        let mut watch = root.watch(quiet()).await.expect("watches are served");
        // Each use would make the token last longer.
        tokio::time::sleep(TOKEN_TIME * 2).await;
        assert_eq!(root.get("quiet").await.map(drop), Err(error::INVALID_AUTH_TOKEN));
        cluster.start_one(NEAR);
        ranked(&proxy, near, "b", 0.0).await;
        let before = calls_to(&proxy, &cluster, NEAR);
        eventually("the watch is tried in the zone", PATIENCE, async || {
            (calls_to(&proxy, &cluster, NEAR) > before).then_some(())
        })
        .await;
        for value in ["1", "2"] {
            let revision = log_in().await.put("quiet", value).await.expect("writes are served");
            assert_eq!(next_events(&mut watch).await, [format!("quiet={value}@{revision}")]);
        }
        assert_eq!(figure(near, WATCHERS).await, 0.0);
    });
}

#[test]
fn a_lease_is_renewed_elsewhere_while_the_member_of_the_zone_hangs() {
    run(async {
        let (cluster, proxy) = start("proxy-zone-lease").await;
        let near = cluster.slots[NEAR].client;
        let client = proxy.client().await;
        let lease = client.grant(600).await.expect("it is granted");
        let (mut sender, mut receiver) =
            client.channel.stream(Rpc::LeaseKeepAlive.path()).await.expect("a stream");
        let mut renew = async || {
            let request = LeaseKeepAliveRequest { id: lease };
            sender.send(request.encode_to_vec().into()).await.expect("it is sent");
            let answer = receiver.next().await.expect("the stream stands").expect("an answer");
            LeaseKeepAliveResponse::decode(answer).expect("the answer of a renewal").ttl
        };
        assert_eq!(renew().await, 600);
        cluster.member(NEAR).signal(libc::SIGSTOP);
        // Sent before anything shows that the member hangs. It must be answered soon after that is known.
        let began = Instant::now();
        assert_eq!(renew().await, 600);
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        ranked(&proxy, near, "b", 4.0).await;
        cluster.member(NEAR).signal(libc::SIGCONT);
    });
}

#[test]
fn endpoints_from_the_member_list_get_ranks_and_the_given_ones_stay() {
    run(async {
        let flags = ["--zone-networks=b=127.0.0.0/8", "--zone-member-list=only"];
        let mut cluster = members("proxy-zone-sync", &flags);
        let (near, far) = (cluster.slots[NEAR].client, cluster.slots[0].client);
        let proxy = proxy_of(&cluster, &[0, 2], &["--endpoints-auto-sync-interval=1s"]);
        let client = proxy.client().await;
        let mut watch = client.watch(quiet()).await.expect("watches are served");
        ranked(&proxy, format!("http://{near}"), "b", 0.0).await;
        ranked(&proxy, far, "a", 2.0).await;
        // The shared watches have a client of their own.
        watched_at(&cluster, NEAR).await;
        // The list names the near one only. When it ends, the given ones are left.
        cluster.kill(NEAR);
        let written = put(&proxy, 1).await;
        assert!(written.starts_with("k=1@"));
        let revision = client.put("quiet", "1").await.expect("writes are served");
        assert_eq!(next_events(&mut watch).await, [format!("quiet=1@{revision}")]);
    });
}

#[test]
fn without_rights_a_corrupt_member_is_left_and_its_audit_log_stays_short() {
    run(async {
        let mut cluster = Cluster::plan("proxy-zone-corrupt", 3, &[CHEAP]);
        let audit = cluster.dir.path().join("audit");
        cluster.slots[NEAR].flags.push(format!("--audit-log={}", audit.display()));
        let cluster = in_zones(cluster);
        let proxy = proxy_of(&cluster, &[0, 1, 2], &[]);
        let near = cluster.slots[NEAR].client;
        ranked(&proxy, near, "b", 0.0).await;
        secured(&cluster.client(0).await).await;
        let root = log_in(&proxy.client().await, "root", "rootpw").await.expect("is root");
        root.put("k", "v").await.expect("writes are served");
        let direct = log_in(&cluster.client(NEAR).await, "root", "rootpw").await.expect("is root");
        let member_id = direct.status().await.expect("it answers").header.expect("a header").member_id;
        let action = alarm_request::AlarmAction::Activate as i32;
        let request = AlarmRequest { action, member_id, alarm: AlarmType::Corrupt as i32 };
        root.call::<AlarmResponse>(Rpc::MaintenanceAlarm, &request).await.expect("it is raised");
        ranked(&proxy, near, "b", 4.0).await;
        for _ in 0..3 {
            assert_eq!(root.get("k").await.expect("others serve").expect("it is there").value, "v");
        }
        let refused = std::fs::read_to_string(audit.with_extension("refused")).expect("a file");
        assert_eq!(refused.matches("Maintenance/Status").count(), 1, "{refused}");
    });
}

#[test]
fn a_watch_that_a_hanging_member_has_not_confirmed_goes_elsewhere() {
    run(async {
        let (cluster, proxy) = start("proxy-zone-unconfirmed").await;
        cluster.member(NEAR).signal(libc::SIGSTOP);
        let client = proxy.client().await;
        let mut watch = client.watch(quiet()).await.expect("it is confirmed");
        let written = cluster.client(0).await.put("quiet", "1").await.expect("writes are served");
        assert_eq!(next_events(&mut watch).await, [format!("quiet=1@{written}")]);
        cluster.member(NEAR).signal(libc::SIGCONT);
    });
}
