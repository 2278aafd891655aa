//! Defines the workloads of a comparison: their names, their sizes, and how each of them is run.

use std::time::Duration;
use stdx::Random;

use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::drive::{Nobody, Observer, Plan, Request, Run, Schedule, Step, Workload, done, measure};
use crate::loadgen::samples::Series;
use crate::loadgen::status::Status;
use crate::loadgen::wire::Message;
use api::Rpc;
use cli::Failure;

use crate::Error;
use crate::loads::authenticate::Authenticate;
use crate::loads::kubernetes::fleet::Fleet;
use crate::loads::kubernetes::measured::Window;
use crate::loads::kubernetes::{Cluster, Kind};
use crate::loads::random_from_clock;
use crate::loads::range::Range;
use crate::loads::write::{Keys, Put, TxnMixed};
use crate::usage::{Meter, Usage};

/// Size of all workloads of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Takes about one minute per server.
    Small,
    /// Takes about ten minutes per server.
    Medium,
    /// Uses the sizes of published experiments with etcd.
    Full,
}

impl Scale {
    /// Parses the value of `--scale`.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "small" => Ok(Scale::Small),
            "medium" => Ok(Scale::Medium),
            "full" => Ok(Scale::Full),
            _ => Err(Failure::usage(format!("--scale is small, medium or full, not {text:?}"))),
        }
    }

    fn of<T>(self, small: T, medium: T, full: T) -> T {
        match self {
            Scale::Small => small,
            Scale::Medium => medium,
            Scale::Full => full,
        }
    }
}

/// A named workload of a comparison.
pub struct Contest {
    /// Name of the workload, as in `--workload`.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    run: fn(&mut Field) -> Result<(), Error>,
}

/// All workloads, in the order in which they run.
pub static CONTESTS: &[Contest] = &[
    Contest { name: "put-1k", about: "puts of 1 KiB, 500 clients on 100 connections", run: put_1k },
    Contest { name: "put-one", about: "puts of 256 B, one client", run: put_one },
    Contest {
        name: "range-l",
        about: "linearizable reads of a key, 1000 clients on 100 connections",
        run: range_l,
    },
    Contest {
        name: "range-s",
        about: "serializable reads of a key, 1000 clients on 100 connections",
        run: range_s,
    },
    Contest { name: "range-one", about: "linearizable reads of a key, one client", run: range_one },
    Contest {
        name: "range-writes",
        about: "linearizable reads, beside 10 puts per second",
        run: range_writes,
    },
    Contest {
        name: "curve",
        about: "linearizable reads beside 0, 10, 100, 1000 puts per second",
        run: curve,
    },
    Contest {
        name: "txn-mixed",
        about: "transactions: on average 4 reads of 10 keys for each put",
        run: txn_mixed,
    },
    Contest { name: "value-1m", about: "linearizable reads of one value of 1 MB", run: value_1m },
    Contest {
        name: "expensive",
        about: "cheap reads and puts, alone and beside ranges of many keys",
        run: expensive,
    },
    Contest {
        name: "kubernetes",
        about: "a Kubernetes cluster: leases, nodes, pods, events, watches and compactions",
        run: kubernetes,
    },
    Contest { name: "authenticate", about: "logins on 200 connections", run: logins },
];

/// Result of a workload on one server.
pub struct Measured {
    /// Name of the workload or of one of its parts.
    pub workload: String,
    /// The run, with its latencies.
    pub run: Run,
    /// Resources that the server used; `None` if they cannot be attributed to this load.
    pub usage: Option<Usage>,
}

/// Everything that a workload needs to run on one server, and the measurements so far.
pub struct Field<'a> {
    /// Address and settings of the server.
    pub target: &'a Target,
    /// Meter of the server's resource usage.
    pub meter: &'a Meter,
    /// Size of the workload.
    pub scale: Scale,
    /// Number of threads of the load generator.
    pub threads: usize,
    /// True if the server was started for this comparison. A workload must not change the users and settings
    /// of any other server.
    pub is_ours: bool,
    /// Measurements so far.
    pub measured: Vec<Measured>,
}

impl Contest {
    /// Runs the workload, and appends its measurements to `field`.
    pub fn run(&self, field: &mut Field) -> Result<(), Error> {
        (self.run)(field)
    }
}

/// Observer that measures the server's resource usage during the run, without the warm-up before it.
struct Metered<'a> {
    meter: &'a Meter,
    before: Usage,
    used: Usage,
}

impl Observer for Metered<'_> {
    fn begins(&mut self, _: usize) {
        self.before = self.meter.before();
    }

    fn ends(&mut self, _: usize) {
        self.used = self.meter.since(self.before);
    }
}

impl Field<'_> {
    fn plan(&self, connections: usize, clients: usize, total: u64) -> Plan {
        Plan { total, connections, clients, threads: self.threads, ..Plan::default() }
    }

    fn measure<W: Workload>(
        &mut self,
        workload: &str,
        plan: &Plan,
        make: impl Fn(usize) -> W,
    ) -> Result<(), Error> {
        let mut metered = Metered { meter: self.meter, before: Usage::default(), used: Usage::default() };
        let mut runs = measure(plan, self.target, make, &mut metered)?;
        if let Some(run) = runs.pop() {
            self.measured.push(Measured { workload: workload.to_owned(), run, usage: Some(metered.used) });
        }
        Ok(())
    }

    /// Writes one key with a random value of the given size, so that the load can read it.
    fn seed(&self, key: &[u8], value_bytes: usize) -> Result<(), Error> {
        let value = random_from_clock(5).bytes(value_bytes);
        Asker::new(self.target.clone())?.ask(Rpc::KvPut, |message| {
            message.bytes(1, key).bytes(2, &value);
        })?;
        Ok(())
    }

    /// Runs the load `load` at the given rate in the background while `measured` runs. The background load
    /// runs slightly longer than `time`, so that it covers all of `measured`.
    fn beside<W: Workload + Clone + Sync>(
        &mut self,
        load: W,
        rate: f64,
        time: Duration,
        measured: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let target = self.target.clone();
        let plan = Plan {
            duration: Some(time + Duration::from_millis(300)),
            schedule: Schedule::Open(rate),
            clients: 20,
            connections: 2,
            ..Plan::default()
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| measure(&plan, &target, |_| load.clone(), &mut Nobody));
            let result = measured(self);
            let beside = other.join().map_err(|_| Error::ThreadGone("the load beside"))??;
            let failed: u64 = beside.iter().flat_map(|run| &run.series).map(|series| series.failed()).sum();
            if failed > 0 {
                return Err(Error::BesideFailed(failed));
            }
            result
        })
    }
}

const KEY: &[u8] = b"compared";

fn reads(serializable: bool) -> Range {
    Range { key: KEY.to_vec(), serializable, ..Range::default() }
}

fn put(value_bytes: usize) -> impl Fn(usize) -> Put {
    let keys = Keys::new(8, 100_000).expect("eight bytes hold such numbers");
    move |thread| Put::new(keys.clone(), value_bytes, true, thread as u64)
}

fn put_1k(field: &mut Field) -> Result<(), Error> {
    let mut plan = field.plan(100, 500, field.scale.of(20_000, 100_000, 1_000_000));
    plan.warmup = Duration::from_millis(300);
    field.measure("put-1k", &plan, put(1024))
}

fn put_one(field: &mut Field) -> Result<(), Error> {
    let mut plan = field.plan(1, 1, field.scale.of(1_000, 3_000, 20_000));
    plan.warmup = Duration::from_millis(200);
    field.measure("put-one", &plan, put(256))
}

fn range_with(field: &mut Field, name: &str, serializable: bool) -> Result<(), Error> {
    field.seed(KEY, 1024)?;
    let mut plan = field.plan(100, 1000, field.scale.of(40_000, 200_000, 500_000));
    plan.warmup = Duration::from_millis(300);
    field.measure(name, &plan, |_| reads(serializable))
}

fn range_l(field: &mut Field) -> Result<(), Error> {
    range_with(field, "range-l", false)
}

fn range_s(field: &mut Field) -> Result<(), Error> {
    range_with(field, "range-s", true)
}

fn range_one(field: &mut Field) -> Result<(), Error> {
    field.seed(KEY, 1024)?;
    let mut plan = field.plan(1, 1, field.scale.of(3_000, 10_000, 50_000));
    plan.warmup = Duration::from_millis(200);
    field.measure("range-one", &plan, |_| reads(false))
}

fn beside_writes(field: &mut Field, name: &str, rate: u64) -> Result<(), Error> {
    let time = field.scale.of(Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60));
    let mut plan = field.plan(100, 1000, 0);
    plan.duration = Some(time);
    if rate == 0 {
        return field.measure(name, &plan, |_| reads(false));
    }
    field.beside(put(1024)(0), rate as f64, time, |field| field.measure(name, &plan, |_| reads(false)))
}

fn range_writes(field: &mut Field) -> Result<(), Error> {
    field.seed(KEY, 1024)?;
    beside_writes(field, "range-writes", 10)
}

fn curve(field: &mut Field) -> Result<(), Error> {
    field.seed(KEY, 1024)?;
    [0, 10, 100, 1000].into_iter().try_for_each(|rate| beside_writes(field, &format!("curve-{rate}"), rate))
}

fn txn_mixed(field: &mut Field) -> Result<(), Error> {
    field.seed(KEY, 1024)?;
    let mut plan = field.plan(20, 100, field.scale.of(10_000, 50_000, 500_000));
    plan.warmup = Duration::from_millis(300);
    let range = Range { key: vec![0], end: vec![0], limit: 10, ..Range::default() };
    let keys = Keys::new(8, 10_000)?;
    field.measure("txn-mixed", &plan, |thread| {
        TxnMixed::new(keys.clone(), 1024, 4.0, &range, thread as u64)
    })?;
    // Merge the series of the reads and of the writes, so that the report shows one load.
    if let Some(Measured { run, .. }) = field.measured.last_mut()
        && let Some(writes) = run.series.pop()
        && let Some(all) = run.series.first_mut()
    {
        all.add(writes);
    }
    Ok(())
}

fn value_1m(field: &mut Field) -> Result<(), Error> {
    field.seed(b"large", 1_000_000)?;
    let (clients, total) = field.scale.of((50, 300), (200, 2_000), (1000, 20_000));
    let plan = field.plan(100.min(clients), clients, total);
    let range = Range { key: b"large".to_vec(), ..Range::default() };
    field.measure("value-1m", &plan, |_| range.clone())
}

/// Workload that fills the store: puts keys of 128 bytes, each once, with values of varying size.
#[derive(Clone)]
struct Fill {
    values: Vec<u8>,
    bytes_min: u64,
    bytes_max: u64,
    random: Random,
}

fn filled_key(number: u64) -> Vec<u8> {
    format!("filled/{number:0121}").into_bytes()
}

impl Workload for Fill {
    type Client = ();

    fn begin(&mut self, _: &mut (), number: u64, request: &mut Request) -> Step {
        let bytes = self.bytes_min + self.random.below(self.bytes_max - self.bytes_min + 1);
        request.method = Rpc::KvPut;
        Message(&mut request.message)
            .bytes(1, &filled_key(number))
            .bytes(2, self.values.get(..bytes as usize).unwrap_or_default());
        Step::Call
    }

    fn answered(&mut self, _: &mut (), status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}

fn expensive(field: &mut Field) -> Result<(), Error> {
    // The full scale repeats a published experiment: 100,000 pairs with values of 1 to 32 KiB, and one range
    // of 20,000 of them per second.
    let (pairs, in_range, bytes_max) =
        field.scale.of((4_000, 4_000, 4096), (20_000, 20_000, 8192), (100_000, 20_000, 32_768));
    let time = field.scale.of(Duration::from_secs(4), Duration::from_secs(20), Duration::from_secs(60));
    let fill = Fill {
        values: random_from_clock(6).bytes(bytes_max as usize),
        bytes_min: 1024,
        bytes_max,
        random: random_from_clock(7),
    };
    measure(&field.plan(10, 50, pairs), field.target, |_| fill.clone(), &mut Nobody)?;
    let cheap = Range { key: filled_key(0), end: filled_key(10), ..Range::default() };
    let dear =
        Range { key: b"filled/".to_vec(), end: b"filled0".to_vec(), limit: in_range, ..Range::default() };
    let mut reads = field.plan(10, 100, 0);
    reads.duration = Some(time);
    reads.schedule = Schedule::Open(100.0);
    let writes = Plan { schedule: Schedule::Open(20.0), clients: 20, connections: 4, ..reads.clone() };
    let both = |field: &mut Field, name: &str| -> Result<(), Error> {
        // Run both loads at the same time. `other` collects the measurements of the writes, because `field`
        // is in use by the reads.
        let mut other = Field { measured: Vec::new(), ..*field };
        let (read_name, write_name) = (format!("{name}-reads"), format!("{name}-writes"));
        let written = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let result = other.measure(&write_name, &writes, put(128));
                result.map(|()| std::mem::take(&mut other.measured))
            });
            let result = field.measure(&read_name, &reads, |_| cheap.clone());
            let written = thread.join().map_err(|_| Error::ThreadGone("the writes' thread"))?;
            result.and(written)
        })?;
        field.measured.extend(written);
        // The two loads ran at the same time, so the server's CPU time and disk writes cannot be attributed
        // to either. Keep only its memory.
        for measured in &mut field.measured {
            measured.usage =
                measured.usage.map(|usage| Usage { rss_bytes: usage.rss_bytes, ..Usage::default() });
        }
        Ok(())
    };
    both(field, "expensive-alone")?;
    field.beside(dear, 1.0, time, |field| both(field, "expensive-beside"))
}

/// Measures the load of a cluster: all operations of the API servers as one load, and the delivery of their
/// events as another, which causes no calls of its own.
fn kubernetes(field: &mut Field) -> Result<(), Error> {
    let second = Duration::from_secs(1);
    let cluster = Cluster {
        pods_per_node: field.scale.of(2.0, 5.0, 30.0),
        compaction_interval: second * field.scale.of(1, 10, 300),
        ..Cluster::default()
    };
    let window = Window {
        nodes: field.scale.of(500, 2_000, 5_000),
        warm_up: second * field.scale.of(2, 10, 10),
        duration: second * field.scale.of(4, 30, 600),
        late: Duration::from_millis(50),
        catch_up_max: second * field.scale.of(1, 10, 30),
    };
    let mut metered = Metered { meter: field.meter, before: Usage::default(), used: Usage::default() };
    let mut measured = Fleet::connect(field.target.clone(), cluster)?.measure(window, &mut metered)?;
    let delivered = measured.series.swap_remove(Kind::Delivery as usize);
    let mut calls = Series::default();
    measured.series.drain(..).for_each(|series| calls.add(series));
    for (workload, series, usage) in [
        ("kubernetes", calls, metered.used),
        // The work of delivering is in the usage of the calls.
        ("kubernetes-delivery", delivered, Usage { rss_bytes: metered.used.rss_bytes, ..Usage::default() }),
    ] {
        let run = Run {
            series: vec![series],
            began: measured.began.unwrap_or_else(std::time::SystemTime::now),
            elapsed: measured.duration,
            generator: measured.generator,
        };
        field.measured.push(Measured { workload: workload.to_owned(), run, usage: Some(usage) });
    }
    match measured.differences.first() {
        Some(difference) => Err(Error::EventsDiffer(difference.clone())),
        None => Ok(()),
    }
}

const USER: (&str, &str) = ("root", "a password for a while");

fn logins(field: &mut Field) -> Result<(), Error> {
    if !field.is_ours {
        return Err(Error::NotOurs);
    }
    let mut asker = Asker::new(field.target.clone())?;
    asker.ask(Rpc::AuthUserAdd, |message| {
        message.bytes(1, USER.0.as_bytes()).bytes(2, USER.1.as_bytes());
    })?;
    asker.ask(Rpc::AuthRoleAdd, |message| {
        message.bytes(1, b"root");
    })?;
    asker.ask(Rpc::AuthUserGrantRole, |message| {
        message.bytes(1, USER.0.as_bytes()).bytes(2, b"root");
    })?;
    asker.ask(Rpc::AuthEnable, |_| ())?;
    let plan = field.plan(200, 200, field.scale.of(60, 600, 6_000));
    let result = field.measure("authenticate", &plan, |_| Authenticate {
        name: USER.0.to_owned(),
        password: USER.1.to_owned(),
        users: 0,
    });
    // Disable authentication again, because the workloads that follow use this server without a token.
    let token = Asker::new(field.target.clone())?.authenticate(USER.0, USER.1)?;
    let mut target = field.target.clone();
    target.token = Some(token);
    Asker::new(target)?.ask(Rpc::AuthDisable, |_| ())?;
    result
}
