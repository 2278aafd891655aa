//! A leader that is cut off from the others by a network that reports no errors.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use api::etcdserverpb::WatchCreateRequest;
use api::{Code, Status, error};
use client::CallOptions;

use testkit::eventually;

use crate::client::{ALL, revision};
use crate::cluster::{CALL_TIME_MAX, Cluster, PATIENCE};
use crate::cluster_load::{Load, Record};
use crate::crash::check;
use crate::network::Network;
use crate::run;

/// Runs the body in a separate thread, at the router of a network of three; skips it if network namespaces
/// are not allowed.
fn in_network(test: &'static str, body: impl FnOnce(Cluster, Network) + Send + 'static) {
    let thread = std::thread::spawn(move || match Network::enter(3) {
        Err(error) => {
            // Written directly, since the test harness would capture the output.
            writeln!(std::io::stderr(), "SKIPPED {test}: making network namespaces needs root: {error}")
                .expect("standard error is open");
        }
        Ok(network) => {
            let mut cluster = Cluster::plan(test, 3, &[]);
            for (at, slot) in cluster.slots.iter_mut().enumerate() {
                let address = IpAddr::V4(network.address(at));
                slot.client = SocketAddr::new(address, 2379);
                slot.peer = SocketAddr::new(address, 2380);
                slot.launcher = network.launcher(at);
            }
            cluster.start_all();
            body(cluster, network);
        }
    });
    thread.join().expect("the test's thread ends well");
}

#[test]
fn a_leader_cut_off_serves_nothing_old_and_comes_back() {
    in_network("cut-off", |cluster, mut network| {
        run(async {
            let mut record = Record::new();
            let leader = cluster.leader().await;
            let others = [(leader + 1) % 3, (leader + 2) % 3];
            let load = Load::start(&cluster, &record, 12);
            load.more(200).await;
            let client = cluster.client(leader).await;
            let name = "hasleader".parse().expect("a header's name");
            let needs_leader = CallOptions::default().with(name, "true".parse().expect("a header's value"));
            let create =
                || WatchCreateRequest { key: ALL.into(), range_end: ALL.into(), ..Default::default() };
            let mut strict = client.watch_with(&needs_leader, create()).await.expect("a watch can be opened");
            let mut patient = client.watch(create()).await.expect("a watch can be opened");

            network.cut_off(leader);
            let began = Instant::now();
            let reading = {
                let client = client.clone();
                tokio::spawn(async move { client.get("k").await })
            };
            assert_ne!(cluster.leader_of(&others).await, leader);
            println!("the others had a leader after {:?}", began.elapsed());
            load.more(200).await;
            load.end(&mut record).await;

            // The majority has made further writes. This member returns neither those writes nor older data.
            let everything = cluster.client(others[0]).await.everything().await.expect("reads are served");
            let newest = revision(everything.header);
            let ended = loop {
                if let Err(status) = strict.next().await {
                    break status;
                }
            };
            assert_eq!(ended, error::NO_LEADER);
            // The delete matches no key, so it makes no revision even if it is carried out later.
            let asked = Instant::now();
            let write = client.delete("k").await;
            assert!(asked.elapsed() < CALL_TIME_MAX, "the member refuses before its client loses patience");
            let read = reading.await.expect("no panic");
            assert_eq!(read.err(), Some(error::TIMEOUT));
            // etcd's text for a write that could not even be proposed.
            assert_eq!(write.err(), Some(Status::new(Code::DeadlineExceeded, "context deadline exceeded")));
            client.get_local("k").await.expect("reads of its own state are served");

            network.heal();
            eventually("the member is back", PATIENCE, async || client.get("k").await.ok()).await;
            loop {
                let response = patient.next().await.expect("a watch that needs no leader goes on");
                if response.events.iter().filter_map(|e| e.kv.as_ref()).any(|kv| kv.mod_revision >= newest) {
                    break;
                }
            }
            check(&client, &mut record.history, 0).await;
            cluster.assert_equal().await;
            let (acknowledged, unknown) = record.history.tally();
            println!("{acknowledged} acknowledged writes, {unknown} cut short: none lost");
        });
    });
}
