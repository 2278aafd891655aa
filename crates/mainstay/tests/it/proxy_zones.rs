//! A `grpc-proxy` with a zone, in front of members in two zones.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::{TempDir, eventually};

use crate::auth::{CHEAP, secured};
use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE};
use crate::member::{Member, Setup};
use crate::proxy::{Proxy, figure, next_events};
use crate::run;

/// Place of the member in zone b; all others are in zone a.
const NEAR: usize = 1;

const PUTS: &str = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}";
const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";

/// Waits until an endpoint has this rank at a proxy.
async fn ranked(proxy: &Proxy, endpoint: SocketAddr, zone: &str, rank: f64) {
    let series = format!("mainstay_grpc_proxy_endpoint_rank{{endpoint=\"{endpoint}\",zone=\"{zone}\"}}");
    eventually("an endpoint has its rank", PATIENCE, async || {
        (proxy_figure(proxy.address, &series) == Some(rank)).then_some(())
    })
    .await;
}

/// Starts members of two zones, and a proxy in zone b that knows them.
async fn start(name: &str) -> (Cluster, Proxy) {
    let mut cluster = Cluster::plan(name, 3, &[]);
    for (at, slot) in cluster.slots.iter_mut().enumerate() {
        slot.flags.push(format!("--zone={}", if at == NEAR { "b" } else { "a" }));
    }
    cluster.start_all();
    let endpoints: Vec<String> = cluster.slots.iter().map(|slot| slot.client.to_string()).collect();
    let proxy = Proxy::start(cluster.dir.path(), &endpoints.join(","), &["--zone=b".to_owned()]);
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
        for (at, puts) in [(0, 0.0), (NEAR, 20.0), (2, 0.0)] {
            let address = cluster.slots[at].client;
            assert_eq!(figure(address, PUTS).await, puts, "m{at}");
            assert_eq!(figure(address, WATCHERS).await, if at == NEAR { 1.0 } else { 0.0 }, "m{at}");
        }
        let calls = format!("mainstay_grpc_proxy_endpoint_calls_total{{endpoint=\"{near}\",zone=\"b\"}}");
        assert!(proxy_figure(proxy.address, &calls).expect("it is counted") >= 21.0);

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
        assert_eq!(figure(near, PUTS).await, 1.0);
        cluster.member(NEAR).signal(libc::SIGSTOP);
        // Its connections stay open, so only its silence shows that it does not serve.
        put(&proxy, 1).await;
        for value in 2..10 {
            put(&proxy, value).await;
        }
        cluster.member(NEAR).signal(libc::SIGCONT);
        let before = figure(near, PUTS).await;
        eventually("writes go to the zone again", PATIENCE, async || {
            put(&proxy, 10).await;
            (figure(near, PUTS).await > before + 1.0).then_some(())
        })
        .await;
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
