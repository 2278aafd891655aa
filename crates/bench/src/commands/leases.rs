//! Implements the command `leases`: measures many leases, their memory, their renewals and their ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Rpc;
use cli::{Command, Failure, Flag};

use super::Run;
use crate::given::{self, THREADS, connections, natural, positive, total};
use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::drive::{self, Nobody, Plan, Schedule};
use crate::loadgen::samples::Series;
use crate::loads::leases::{Grants, Ids, KeysOfOne, Renew, Sample, Ttl, lateness};
use crate::loads::write::{Keys, Put};
use crate::session::Session;
use crate::usage::Meter;

const EXPIRE_AT_ONCE: Flag<Duration> = Flag::duration(
    "expire-at-once",
    "0s",
    "Let all leases end within one second, this long after the command began, and measure how late they end \
         (0s: they have --ttl)",
);
const FIRST_ID: Flag<i64> = Flag::int("first-id", "1099511627776", "Id of the first lease");
const GRANTED: Flag<bool> = Flag::bool("granted", "The leases exist already, with these ids; grant none");
const HOLD: Flag<Duration> = Flag::duration("hold", "0s", "Wait this long before memory is measured");
const KEYS_OF_ONE: Flag<i64> =
    Flag::int("keys-of-one", "0", "Attach this many keys to one lease, and revoke it");
const LATE_MAX: Flag<Duration> =
    Flag::duration("late-max", "1m0s", "With --expire-at-once: wait at most this long for the ends");
const PUT_RATE: Flag<i64> = Flag::int("put-rate", "1000", "Puts per second beside ends and revocations");
const RANDOM_IDS: Flag<bool> =
    Flag::bool("random-ids", "Spread the ids over their range; they ascend without");
const RENEW: Flag<i64> = Flag::int("renew", "0", "Renewals per second after the grants (0: none)");
const RENEW_FOR: Flag<Duration> = Flag::duration("renew-for", "10s", "Time for which leases are renewed");
const SAMPLE_EVERY: Flag<i64> =
    Flag::int("sample-every", "1000", "With --expire-at-once: attach a key to every n-th lease");
const TOTAL: Flag<i64> = total("Total number of leases");
const TTL: Flag<i64> = Flag::int("ttl", "3600", "TTL of the leases in seconds");

pub(super) const LEASES: Command<Run> = Command {
    name: "leases",
    usage: "leases",
    about: "Measure many leases: memory, renewals, ends",
    long: "Grants many leases, and shows the rate and the server's memory per lease, without that of the connections:\n\
           each client grants one lease before the memory is read first. Then, as the flags say: renews them at a fixed\n\
           rate; lets all of them end within one second, and shows how late each sampled lease ended and how long puts\n\
           took meanwhile and before; or attaches many keys to one lease and revokes it beside puts.",
    flags: &[
        EXPIRE_AT_ONCE.row(),
        FIRST_ID.row(),
        GRANTED.row(),
        HOLD.row(),
        KEYS_OF_ONE.row(),
        LATE_MAX.row(),
        PUT_RATE.row(),
        RANDOM_IDS.row(),
        RENEW.row(),
        RENEW_FOR.row(),
        SAMPLE_EVERY.row(),
        THREADS.row(),
        TOTAL.row(),
        TTL.row(),
    ],
    example: "  bench --conns 8 --clients 2000 leases --total 1000000 --renew 100000\n  \
                  bench --conns 8 --clients 2000 leases --total 1000000 --expire-at-once 60s",
    run: Some(Run::of(leases).without(&[
        given::CSV.row(),
        given::HTML.row(),
        given::JSON.row(),
        given::PRECISE.row(),
        given::REPORT_PERFDASH.row(),
        given::SAMPLE.row(),
    ])),
    ..Command::EMPTY
};

/// Time for which puts are measured alone, and beside a revocation.
const PUTS_FOR: Duration = Duration::from_secs(5);

fn leases(session: &Session) -> Result<(), Failure> {
    let matches = &session.matches;
    let began = Instant::now();
    let (clients, conns) = connections(matches)?;
    let total = natural(matches, TOTAL)?;
    let ids = Ids { first: positive(matches, FIRST_ID)?, random: matches.get(RANDOM_IDS) };
    let at_once = Some(matches.get(EXPIRE_AT_ONCE)).filter(|time| !time.is_zero()).map(|time| began + time);
    let every = positive(matches, SAMPLE_EVERY)?;
    let sample = Arc::new(Sample::new(total, if at_once.is_some() { every } else { u64::MAX }));
    let puts = PutsBeside { rate: positive(matches, PUT_RATE)? as f64, target: session.target()? };
    let target = session.target()?;
    let pid = u32::try_from(matches.get(given::PID)).ok().filter(|pid| *pid > 0);
    let meter = target.endpoints.first().map(|endpoint| Meter::new(endpoint, pid));
    let rss = || meter.as_ref().and_then(|meter| meter.before().rss_bytes);
    let plan = Plan {
        total,
        clients,
        connections: conns,
        threads: matches.get(THREADS) as usize,
        ..Plan::default()
    };

    if total > 0 && !matches.get(GRANTED) {
        let ttl = at_once.map_or(Ttl::Seconds(positive(matches, TTL)? as i64), Ttl::EndsAt);
        // One lease for each client first, so that the buffers of the server's connections are in the memory
        // before, and only leases make the difference.
        let warm_up = Plan { total: clients as u64, ..plan.clone() };
        let other_ids = Ids { first: ids.first + total + (1 << 40), ..ids };
        let none = Arc::new(Sample::new(0, u64::MAX));
        let grants = |_| Grants { ids: other_ids, ttl, sample: Arc::clone(&none) };
        drive::measure(&warm_up, &target, grants, &mut Nobody).map_err(Failure::error)?;
        let before = rss();
        let grants = |_| Grants { ids, ttl, sample: Arc::clone(&sample) };
        let runs = drive::measure(&plan, &target, grants, &mut Nobody).map_err(Failure::error)?;
        for run in &runs {
            let rate = total as f64 / run.elapsed.as_secs_f64();
            session.say(&format!("Granted {total} leases in {:.1?}, {rate:.0}/s\n", run.elapsed))?;
            said(session, "  grant", &run.series[0])?;
        }
        std::thread::sleep(matches.get(HOLD));
        if let (Some(before), Some(after)) = (before, rss()) {
            let each = after.saturating_sub(before) as f64 / total as f64;
            session.say(&format!("Memory: {before} bytes before, {after} after, {each:.1} per lease\n"))?;
        }
    }
    let rate = natural(matches, RENEW)?;
    if rate > 0 {
        let duration = matches.get(RENEW_FOR);
        let renew = Renew { ids, total: total.max(1), streams: clients, rate: rate as f64, duration };
        let (series, took) = renew.run(target.clone(), conns)?;
        let reached = series.count() as f64 / took.as_secs_f64();
        session.say(&format!("Renewed at {rate}/s: {} in {took:.1?}, {reached:.0}/s\n", series.count()))?;
        said(session, "  renewal", &series)?;
    }
    let keys = natural(matches, KEYS_OF_ONE)?;
    if keys > 0 {
        revoke_one(session, &plan, &puts, keys)?;
    }
    if let Some(at) = at_once {
        said(session, "Puts alone", &puts.run(PUTS_FOR)?)?;
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::error("--expire-at-once: the time was over before all leases were granted"));
        }
        std::thread::sleep(left.saturating_sub(Duration::from_secs(1)));
        let longest = matches.get(LATE_MAX);
        let beside = std::thread::scope(|scope| {
            let beside = scope.spawn(|| puts.run(PUTS_FOR));
            let (series, left) = lateness(target.clone(), &sample, at, longest)?;
            session
                .say(&format!("Ended: {} sampled leases; {left} did not end in time\n", series.count()))?;
            said(session, "  late", &series)?;
            beside.join().unwrap_or_else(|_| Err(Failure::error("the puts panicked")))
        })?;
        said(session, "Puts beside the ends", &beside)?;
    }
    Ok(())
}

/// Attaches keys to one lease, and revokes it beside puts.
fn revoke_one(session: &Session, plan: &Plan, puts: &PutsBeside, keys: u64) -> Result<(), Failure> {
    let lease = 7_000_000_001;
    let mut asker = Asker::new(puts.target.clone()).map_err(Failure::error)?;
    asker
        .ask(Rpc::LeaseGrant, |message| {
            message.int(1, 36_000).uint(2, lease);
        })
        .map_err(Failure::error)?;
    let plan = Plan { total: keys, ..plan.clone() };
    drive::measure(&plan, &puts.target, |_| KeysOfOne { lease }, &mut Nobody).map_err(Failure::error)?;
    said(session, "Puts alone", &puts.run(PUTS_FOR)?)?;
    let beside = std::thread::scope(|scope| {
        let beside = scope.spawn(|| puts.run(PUTS_FOR));
        std::thread::sleep(Duration::from_secs(1));
        let began = Instant::now();
        let revoked = asker.ask(Rpc::LeaseRevoke, |message| {
            message.uint(1, lease);
        });
        session.say(&format!(
            "Revoked a lease with {keys} keys in {:.1?}: {:?}\n",
            began.elapsed(),
            revoked.map(drop)
        ))?;
        beside.join().unwrap_or_else(|_| Err(Failure::error("the puts panicked")))
    })?;
    said(session, "Puts beside the revocation", &beside)
}

/// Puts at a fixed rate, which are measured beside other work.
struct PutsBeside {
    rate: f64,
    target: Target,
}

impl PutsBeside {
    fn run(&self, duration: Duration) -> Result<Series, Failure> {
        let schedule = Schedule::Open(self.rate);
        let plan =
            Plan { duration: Some(duration), schedule, clients: 256, connections: 2, ..Plan::default() };
        let put = |_| match Keys::new(8, 10_000) {
            Ok(keys) => Put::new(keys, 64, false, 1),
            Err(_) => unreachable!("eight bytes are enough for a number below 10,000"),
        };
        let runs = drive::measure(&plan, &self.target, put, &mut Nobody).map_err(Failure::error)?;
        runs.into_iter()
            .next()
            .and_then(|run| run.series.into_iter().next())
            .ok_or_else(|| Failure::error("no puts were measured"))
    }
}

/// Prints percentiles of a series in milliseconds, and its errors.
fn said(session: &Session, name: &str, series: &Series) -> Result<(), Failure> {
    let histogram = series.histogram();
    let ms = |nanos: u64| nanos as f64 / 1e6;
    session.say(&format!(
        "{name}: {} ok, {} failed; p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms\n",
        series.count(),
        series.failed(),
        ms(histogram.percentile(50.0)),
        ms(histogram.percentile(99.0)),
        ms(histogram.percentile(99.9)),
        ms(histogram.max()),
    ))?;
    for (error, count) in &series.errors {
        session.say(&format!("  {count} times: {error}\n"))?;
    }
    Ok(())
}
