//! The load of a Kubernetes cluster, against a responder: what is due is due, and what a server does not do is
//! found out. `mainstay/tests/it/kubernetes.rs` has the same load against a real server.

use std::time::Duration;

use mainstay_bench::loadgen::drive::Nobody;
use mainstay_bench::loadgen::responder::Options;
use mainstay_bench::loads::kubernetes::fleet::Fleet;
use mainstay_bench::loads::kubernetes::measured::{Measured, Window};
use mainstay_bench::loads::kubernetes::{Cluster, Kind};

use crate::served::Served;

const NODES: u64 = 50;

/// Measures a second of a cluster whose nodes renew five times per second.
fn measured(options: Options, cluster: Cluster) -> Measured {
    let served = Served::start(options);
    let cluster = Cluster {
        lease_interval: Duration::from_millis(200),
        status_interval: Duration::from_millis(500),
        progress_interval: Duration::ZERO,
        compaction_interval: Duration::ZERO,
        ..cluster
    };
    let window = Window {
        nodes: NODES,
        warm_up: Duration::from_millis(200),
        duration: Duration::from_secs(1),
        late: Duration::from_millis(50),
        catch_up_max: Duration::from_millis(300),
    };
    Fleet::connect(served.target(), cluster).unwrap().measure(window, &mut Nobody).unwrap()
}

fn cluster() -> Cluster {
    Cluster { pods_per_node: 0.0, ..Cluster::default() }
}

#[test]
fn each_node_renews_once_in_every_interval() {
    let it = measured(Options::default(), cluster());
    // A machine that pauses delays operations, but each of them is due and counted all the same.
    let due = |kind: Kind| it.series[kind as usize].count() + it.skipped[kind as usize];
    assert_eq!(due(Kind::Renewal), NODES * 5);
    assert_eq!(due(Kind::Status), NODES * 2);
    assert_eq!((it.conflicts, it.series[Kind::PodCreate as usize].count()), (0, 0));
}

#[test]
fn a_renewal_that_finds_the_last_one_unanswered_is_skipped() {
    // The populated objects take two requests; the stall comes in the middle of the window.
    let stall = Some((400, Duration::from_millis(700)));
    let it = measured(Options { stall, ..Options::default() }, cluster());
    let (count, skipped) = (it.series[Kind::Renewal as usize].count(), it.skipped[Kind::Renewal as usize]);
    assert_eq!(count + skipped, NODES * 5, "each renewal was due");
    assert!(skipped >= NODES, "{skipped} were skipped: 0.7 s have three intervals");
    // One renewal of each node waited, with its latency from the time at which it was due.
    let slow = it.late[Kind::Renewal as usize];
    assert!(slow >= NODES * 3 / 4, "{slow} were late");
    let told = it.shortfalls(Duration::from_millis(50)).join("; ");
    assert!(
        told.contains("lease renewal: p99 is") && told.contains("the last one was not answered"),
        "{told}"
    );
}

#[test]
fn a_server_that_delivers_no_events_is_found_out() {
    let it = measured(Options::default(), cluster());
    assert_eq!(it.differences.len(), 3 * 2, "three API servers, leases and nodes: {:?}", it.differences);
    let renewals = NODES * 6;
    let wanted = format!("API server 0 received 0 events of /registry/leases/ for {renewals} writes");
    assert!(it.differences.contains(&wanted), "{wanted} in {:?}", it.differences);
    assert!(it.catch_up >= Duration::from_millis(300), "the events were waited for: {:?}", it.catch_up);
}

#[test]
fn pods_are_replaced_at_the_rate_of_their_lifetime() {
    let lives = Cluster { pods_per_node: 1.0, pod_lifetime: Duration::from_secs(5), ..Cluster::default() };
    // 50 pods are replaced in five seconds: ten per second.
    let it = measured(Options::default(), lives);
    assert_eq!(it.series[Kind::PodCreate as usize].count(), 10);
    let events = it.series[Kind::Event as usize].count();
    assert!((15..=40).contains(&events), "{events} events: the first of each life");
    let grants = it.series[Kind::Grant as usize].count();
    assert!(grants <= 3, "{grants} grants: the events of an API server share a lease for a minute");
}

#[test]
fn a_server_that_refuses_the_objects_is_an_error() {
    let served =
        Served::start(Options { refuse_every: Some((1, 8, "no space".to_owned())), ..Options::default() });
    let refused = Fleet::connect(served.target(), cluster()).err().expect("it is refused");
    assert!(refused.to_string().contains("no space"), "{refused}");
}
