//! Tests of the engine against the responder: plain and with TLS, with limits, refusals, resets and GOAWAY.

use std::time::Duration;

use api::Rpc;
use mainstay_bench::loadgen::Error;
use mainstay_bench::loadgen::calls::Target;
use mainstay_bench::loadgen::drive::{Nobody, Plan, Request, Run, Schedule, Step, Workload, done, measure};
use mainstay_bench::loadgen::responder::Options;
use mainstay_bench::loadgen::socket::Endpoint;
use mainstay_bench::loadgen::status::Status;
use mainstay_bench::loadgen::wire::Fields;
use mainstay_bench::loads::lease::KeepAlive;
use mainstay_bench::loads::range::{Range, Same};
use mainstay_bench::loads::watch::Watch;
use mainstay_bench::loads::write::{Keys, Put};
use mainstay_bench::tls;

use testkit::TempDir;

use crate::served::Served;

fn plan(total: u64, connections: usize, clients: usize) -> Plan {
    Plan { total, connections, clients, drain_max: Duration::from_secs(20), ..Plan::default() }
}

fn puts(target: &Target, plan: &Plan, value_bytes: usize) -> Run {
    let make = |seed| Put::new(Keys::new(8, 1000).unwrap(), value_bytes, true, seed as u64);
    measure(plan, target, make, &mut Nobody).unwrap().remove(0)
}

#[test]
fn all_calls_are_answered_over_many_connections_and_threads() {
    let served = Served::start(Options::default());
    let run = puts(&served.target(), &Plan { threads: 3, ..plan(5000, 7, 90) }, 256);
    assert_eq!(run.series[0].count(), 5000, "{:?}", run.series[0].errors);
    assert_eq!(run.series[0].failed(), 0);
    assert_eq!(run.generator.lost, 0);
}

#[test]
fn clients_without_work_do_not_hold_up_the_end() {
    let served = Served::start(Options::default());
    assert_eq!(puts(&served.target(), &plan(3, 2, 50), 8).series[0].count(), 3);
}

#[test]
fn small_windows_both_ways_only_slow_it_down() {
    let served = Served::start(Options {
        stream_window: 1000,
        connection_window: 65_535,
        value_bytes: 200_000,
        ..Options::default()
    });
    let target = Target { stream_window: 3000, connection_window: 70_000, ..served.target() };
    // Values of 300 kB are sent and values of 200 kB received, while windows and frames are small.
    assert_eq!(puts(&target, &plan(20, 2, 6), 300_000).series[0].count(), 20);
    let read = measure(&plan(30, 2, 6), &target, |_| Checked, &mut Nobody).unwrap();
    assert_eq!(read[0].series[0].count(), 30, "{:?}", read[0].series[0].errors);
}

/// Reads, and checks the values that arrive.
struct Checked;

impl Workload for Checked {
    type Client = usize;

    fn begin(&mut self, bytes: &mut usize, _: u64, request: &mut Request) -> Step {
        *bytes = 0;
        request.method = Rpc::KvRange;
        request.keep = true;
        Step::Call
    }

    fn message(&mut self, bytes: &mut usize, body: &[u8]) -> bool {
        *bytes = Fields(Fields(body).bytes(2)).bytes(5).iter().filter(|byte| **byte == b'v').count();
        false
    }

    fn answered(&mut self, bytes: &mut usize, status: &Status, _: &mut Request) -> Step {
        if status.code == 0 && *bytes != 200_000 {
            return Step::Done(0, Err(Error::Workload(format!("{bytes} bytes came").into())));
        }
        done(status)
    }
}

#[test]
fn a_limit_of_streams_makes_calls_wait_their_turn() {
    let served = Served::start(Options { streams_max: 3, ..Options::default() });
    assert_eq!(puts(&served.target(), &plan(1000, 1, 64), 8).series[0].count(), 1000);
}

#[test]
fn a_server_without_a_header_table_is_served() {
    let served = Served::start(Options { table_bytes: 0, ..Options::default() });
    assert_eq!(puts(&served.target(), &plan(500, 2, 20), 8).series[0].count(), 500);
}

#[test]
fn resets_and_refusals_are_counted_by_their_text() {
    let refusal = "etcdserver: too many requests".to_owned();
    let served = Served::start(Options {
        reset_every: Some(10),
        refuse_every: Some((7, 8, refusal.clone())),
        ..Options::default()
    });
    let run = puts(&served.target(), &plan(700, 3, 30), 8);
    let series = &run.series[0];
    assert_eq!(
        series.errors["rpc error: code = Canceled desc = stream terminated by RST_STREAM with error code: CANCEL"],
        70
    );
    // Every 70th request is reset before it can be refused.
    assert_eq!(series.errors[&refusal], 90);
    assert_eq!(series.count(), 540);
}

#[test]
fn after_a_farewell_the_load_goes_on_over_a_new_connection() {
    let served = Served::start(Options { goaway_after: Some(100), ..Options::default() });
    let run = puts(&served.target(), &plan(2000, 2, 40), 8);
    let series = &run.series[0];
    assert_eq!(series.count() + series.failed(), 2000);
    // Requests that the server did not accept count as failed; all others are answered.
    assert!(series.count() > 1000, "{} of 2000: {:?}", series.count(), series.errors);
    assert!(series.errors.keys().all(|text| text.contains("code = Unavailable")), "{:?}", series.errors);
    assert!(run.generator.lost >= 5, "{} connections were renewed", run.generator.lost);
}

#[test]
fn over_tls_all_is_the_same_and_a_stranger_is_refused() {
    let directory = TempDir::new("tls");
    let (cert, key) = tls::make(directory.path()).unwrap();
    let served = Served::start(Options {
        tls: Some(tls::server(&cert, &key).unwrap()),
        value_bytes: 200_000,
        ..Options::default()
    });
    let client = |files: tls::Files| {
        let config = files.client(true).unwrap();
        Target::new(vec![Endpoint::parse(&format!("https://{}", served.address), config.as_ref()).unwrap()])
    };
    let trusting = client(tls::Files { cacert: cert, ..Default::default() });
    assert_eq!(puts(&trusting, &plan(300, 4, 40), 50_000).series[0].count(), 300);
    let read = measure(&plan(50, 4, 40), &trusting, |_| Checked, &mut Nobody).unwrap();
    assert_eq!(read[0].series[0].count(), 50, "{:?}", read[0].series[0].errors);
    let careless = client(tls::Files { skip_verify: true, ..Default::default() });
    assert_eq!(puts(&careless, &plan(10, 1, 1), 8).series[0].count(), 10);
    // This client trusts another certificate.
    let other = TempDir::new("tls-other");
    let (stranger, _) = tls::make(other.path()).unwrap();
    let wary = client(tls::Files { cacert: stranger, ..Default::default() });
    let refused = measure(&plan(1, 1, 1), &wary, |_| Checked, &mut Nobody).unwrap_err().to_string();
    assert!(refused.contains("dial error"), "{refused}");
}

#[test]
fn an_endpoint_where_nobody_listens_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let target = Target::new(vec![Endpoint::parse(&address, None).unwrap()]);
    let error = measure(&plan(1, 1, 1), &target, |_| KeepAlive, &mut Nobody).unwrap_err().to_string();
    assert!(error.contains(&address) && error.contains("dial error"), "{error}");
}

#[test]
fn a_method_the_server_does_not_know_fails_with_its_words() {
    let served = Served::start(Options::default());
    let lock = Same { method: Rpc::Lock, message: Vec::new() };
    let run = measure(&plan(5, 1, 2), &served.target(), |_| lock.clone(), &mut Nobody).unwrap().remove(0);
    assert_eq!(run.series[0].errors["rpc error: code = Unimplemented desc = unknown method"], 5);
}

#[test]
fn streams_answer_and_are_given_up() {
    let served = Served::start(Options::default());
    let run = measure(&plan(400, 3, 12), &served.target(), |_| KeepAlive, &mut Nobody).unwrap().remove(0);
    assert_eq!(run.series[0].count(), 400, "{:?}", run.series[0].errors);
    // Creates watches only; without puts, no event arrives.
    let watch = Watch {
        streams: 5,
        per_stream: 20,
        keys: vec![vec![1], vec![2]],
        put_rate: 0,
        put_total: 0,
        clients: 1,
    };
    let [(made, _), (events, _)] = watch.run(served.target(), 2, || ()).unwrap();
    assert_eq!((made.count(), events.count()), (100, 0));
}

#[test]
fn several_endpoints_share_the_calls() {
    let (one, two) = (
        Served::start(Options::default()),
        Served::start(Options {
            refuse_every: Some((1, 14, "etcdserver: not here".to_owned())),
            ..Options::default()
        }),
    );
    let endpoints = [&one, &two].map(|served| Endpoint::parse(&served.address, None).unwrap());
    let run = puts(&Target::new(endpoints.to_vec()), &plan(100, 1, 1), 8);
    assert_eq!((run.series[0].count(), run.series[0].failed()), (50, 50));
}

#[test]
fn warm_up_and_repetitions_are_separate_runs() {
    let served = Served::start(Options::default());
    let plan = Plan { warmup: Duration::from_millis(50), repeat: 3, ..plan(200, 2, 4) };
    let range = Range { key: b"a".to_vec(), ..Range::default() };
    let runs = measure(&plan, &served.target(), |_| range.clone(), &mut Nobody).unwrap();
    assert_eq!(runs.iter().map(|run| run.series[0].count()).collect::<Vec<_>>(), [200, 200, 200]);
}

#[test]
fn a_duration_ends_a_load_without_a_total() {
    let served = Served::start(Options::default());
    for schedule in [Schedule::Flat, Schedule::Paced(500.0)] {
        let plan = Plan { duration: Some(Duration::from_millis(200)), schedule, ..plan(1, 2, 4) };
        let run = puts(&served.target(), &plan, 8);
        assert!(run.elapsed >= Duration::from_millis(200), "{:?}", run.elapsed);
        assert!(run.series[0].count() > 0);
        if schedule != Schedule::Flat {
            assert!(run.series[0].count() <= 102, "{} at 500 per second", run.series[0].count());
        }
    }
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let served = Served::start(Options::default());
    let (address, target) = (served.address.clone(), served.target());
    let plan = Plan {
        duration: Some(Duration::from_millis(1500)),
        schedule: Schedule::Open(400.0),
        ..plan(1, 3, 20)
    };
    let load = std::thread::spawn(move || puts(&target, &plan, 64));
    // The server stops while the load runs, and is away for a while.
    std::thread::park_timeout(Duration::from_millis(300));
    drop(served);
    std::thread::park_timeout(Duration::from_millis(200));
    let _again = Served::at(&address, Options::default());
    let run = load.join().unwrap();
    let series = &run.series[0];
    assert_eq!(series.count() + series.failed(), 600, "every operation ends one way or the other");
    assert!(series.count() >= 500, "{} went well: {:?}", series.count(), series.errors);
    assert!(run.generator.lost >= 3, "all connections were lost");
    let longest = series.histogram().max();
    assert!(longest > 150_000_000, "those that came meanwhile waited: {longest} ns");
}
