//! A server that stalls for a while: an open schedule reveals the stall, a paced one hides it.

use std::time::Duration;

use mainstay_bench::loadgen::drive::{Nobody, Plan, Schedule, measure};
use mainstay_bench::loadgen::responder::Options;
use mainstay_bench::loadgen::samples::Series;
use mainstay_bench::loads::range::Range;

use crate::served::Served;

const STALL: Duration = Duration::from_millis(400);

/// Makes 2000 reads at 1000 per second; the server stalls after the 500th.
fn stalled(schedule: Schedule) -> Series {
    let served = Served::start(Options { stall: Some((500, STALL)), ..Options::default() });
    let plan = Plan { total: 2000, clients: 4, connections: 2, schedule, ..Plan::default() };
    let range = Range { key: b"a".to_vec(), ..Range::default() };
    measure(&plan, &served.target(), |_| range.clone(), &mut Nobody).unwrap().remove(0).series.remove(0)
}

#[test]
fn a_stall_is_seen_by_all_who_came_during_it() {
    let series = stalled(Schedule::Open(1000.0));
    let all = series.histogram();
    assert_eq!(all.count(), 2000);
    // 400 operations were due during the 400 ms; those in the first half waited at least 200 ms.
    let waited = all.buckets().filter(|(nanos, _)| *nanos > 200_000_000).map(|(_, count)| count).sum::<u64>();
    assert!(waited >= 190, "{waited} of 2000 waited for more than half of the stall");
    assert!(all.percentile(99.0) > 350_000_000, "p99 is {} ns", all.percentile(99.0));
    assert!(all.percentile(90.0) > 150_000_000, "p90 is {} ns", all.percentile(90.0));
}

#[test]
fn the_paced_schedule_of_etcds_tool_leaves_the_stall_out() {
    let series = stalled(Schedule::Paced(1000.0));
    let slow =
        series.histogram().buckets().filter(|(nanos, _)| *nanos > 200_000_000).map(|(_, n)| n).sum::<u64>();
    // Only operations in flight met the stall, one per client, and some more if the machine itself pauses.
    assert!((1..=40).contains(&slow), "{slow} operations met the stall");
}

#[test]
fn a_held_rate_is_held() {
    let served = Served::start(Options::default());
    let plan = Plan {
        duration: Some(Duration::from_millis(500)),
        clients: 50,
        connections: 5,
        threads: 2,
        schedule: Schedule::Open(2000.0),
        ..Plan::default()
    };
    let range = Range { key: b"a".to_vec(), ..Range::default() };
    let run = measure(&plan, &served.target(), |_| range.clone(), &mut Nobody).unwrap().remove(0);
    assert_eq!(run.series[0].count(), 1000, "all that was due, and nothing else");
    assert!(run.elapsed > Duration::from_millis(490), "{:?}", run.elapsed);
}

#[test]
fn a_high_rate_does_not_set_a_timer_for_each_operation() {
    let served = Served::start(Options::default());
    let plan = Plan {
        total: 40_000,
        clients: 100,
        connections: 2,
        schedule: Schedule::Open(100_000.0),
        ..Plan::default()
    };
    let range = Range { key: b"a".to_vec(), ..Range::default() };
    let run = measure(&plan, &served.target(), |_| range.clone(), &mut Nobody).unwrap().remove(0);
    assert_eq!(run.series[0].count(), 40_000);
    // A timer expires a tenth of a millisecond after it was set at the earliest, and no other is set
    // meanwhile.
    let timers_max = run.elapsed.as_micros() as u64 / 100 + 1;
    assert!(run.generator.timers <= timers_max, "{} timers in {:?}", run.generator.timers, run.elapsed);
    assert!(run.generator.timers > 0, "the rate is held by timers");
}
