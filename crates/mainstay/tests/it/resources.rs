//! Scarce resources: open files, memory, and the server's time. With `MAINSTAY_FULL_SIZE` set, each test is
//! as large as production may get; normally it is as small as still shows the effect.

use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::etcdserverpb::{TxnRequest, TxnResponse, WatchCreateRequest};
use api::{Code, Rpc, Status};

use testkit::{TempDir, eventually};

use crate::client::{Client, put_op};
use crate::cluster::PATIENCE;
use crate::member::{Member, READY, Setup};
use crate::{filler, run};

const MIB: usize = 1 << 20;

/// Returns the size for a normal run, or for a run with `MAINSTAY_FULL_SIZE`.
fn size(normal: u32, full: u32) -> u32 {
    if std::env::var_os("MAINSTAY_FULL_SIZE").is_some() { full } else { normal }
}

/// A task that puts keys one after the other until it is stopped, and records how long each put took.
struct Pulse {
    ended: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<Duration>>,
}

impl Pulse {
    async fn start(member: &Member) -> Pulse {
        let client = member.client().await;
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let task = tokio::spawn(async move {
            let mut took = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let began = Instant::now();
                client.put("pulse", "x").await.expect("puts go on");
                client.get("pulse").await.expect("reads go on");
                took.push(began.elapsed());
            }
            took
        });
        Pulse { ended, task }
    }

    /// Stops the task, and prints the times of its puts. Returns these times.
    async fn end(self, what: &str) -> Vec<Duration> {
        self.ended.store(true, Ordering::Relaxed);
        let mut took = self.task.await.expect("it does not panic");
        took.sort_unstable();
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
        println!(
            "{what}: {} times a put and a get, p50 {:?}, p99 {:?}, most {:?}",
            took.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
        took
    }
}

/// Runs a task for each number below `count`, `at_once` of them concurrently.
async fn many<F: Future<Output = ()> + 'static>(count: u32, at_once: u32, task: impl Fn(u32) -> F) {
    let local = tokio::task::LocalSet::new();
    let next = std::cell::Cell::new(0);
    let workers = (0..at_once).map(|_| async {
        while next.get() < count {
            let number = next.replace(next.get() + 1);
            task(number).await;
        }
    });
    let all: Vec<_> = workers.collect();
    local
        .run_until(async {
            // Polls all workers until all are done.
            let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
            std::future::poll_fn(|context| {
                all.retain_mut(|worker| worker.as_mut().poll(context).is_pending());
                if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        })
        .await;
}

#[test]
fn open_files_run_out_for_clients_only() {
    const FILES_MAX: u64 = 256;
    let dir = TempDir::in_memory("files");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=10").flag("--log-level=debug");
    let mut command = setup.command();
    // SAFETY: a plain system call, which is allowed between fork and exec; the limit is initialized.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: FILES_MAX, rlim_max: FILES_MAX };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let member = Member::launch(command, None);
    member.wait_for(READY);
    run(async {
        let client = member.client().await;
        client.put("k", "v").await.expect("puts are served");
        let address = member.client_address();
        let crowd: Vec<TcpStream> =
            (0..2 * FILES_MAX).filter_map(|_| TcpStream::connect(address).ok()).collect();
        assert!(crowd.len() as u64 > FILES_MAX, "the kernel takes them all: {}", crowd.len());
        // The last connection of the crowd is closed by the member.
        let mut last = crowd.last().expect("there is one").try_clone().expect("a handle can be made");
        last.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        let mut byte = [0];
        assert!(matches!(last.read(&mut byte), Ok(0) | Err(_)), "the last has nobody to talk to");

        // Earlier connections are served; the log creates new segments, and checkpoints are saved.
        for number in 0..80u32 {
            client
                .put(format!("k/{number}"), filler(number, MIB))
                .await
                .expect("existing clients are served");
        }
        member.wait_for("saved a checkpoint");
        assert!(client.alarms().await.expect("alarms are listed").is_empty(), "{}", member.said());
        let segments = std::fs::read_dir(setup.data_dir.join("member/log")).expect("it is there").count();
        assert!(segments >= 4, "{segments} files");

        drop(crowd);
        eventually("new clients are served again", PATIENCE, async || {
            let fresh = Client::within(Duration::from_secs(2), address).await.ok()?;
            fresh.get("k").await.ok()
        })
        .await;
        let kv = client.get("k/77").await.expect("reads are served").expect("it is there");
        assert_eq!(kv.value, filler(77, MIB));
    });
    member.kill();
    // No acknowledged write was lost.
    run(async {
        let member = setup.start();
        let client = member.client().await;
        for number in 0..80u32 {
            let kv = client.get(format!("k/{number}")).await.expect("reads are served");
            assert_eq!(kv.expect("it is there").value, filler(number, MIB));
        }
    });
}

#[test]
fn large_requests_at_once_take_bounded_memory() {
    let clients = size(8, 64);
    const EACH: u32 = 16;
    let dir = TempDir::in_memory("large");
    let member = Setup::new(dir.path()).start();
    let before = member.rss_bytes();
    run(async {
        let value = filler(1, MIB);
        let tasks: Vec<_> = (0..clients * EACH).map(|number| (number, value.clone())).collect();
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(member.client().await);
        }
        let running: Vec<_> = tasks
            .into_iter()
            .map(|(number, value)| {
                let client = connections[(number % clients) as usize].clone();
                tokio::spawn(async move { client.put(format!("k/{}", number % 64), value).await })
            })
            .collect();
        let (mut done, mut turned_away, mut most) = (0, 0, 0);
        for task in running {
            match task.await.expect("no writer panics") {
                Ok(_) => done += 1,
                // Too many calls at once, or the disk did not finish the write in time.
                Err(Status { code: Code::ResourceExhausted | Code::Unavailable, .. }) => turned_away += 1,
                Err(status) => panic!("{status}"),
            }
            most = most.max(member.rss_bytes());
        }
        // Other clients are served when the overload is over.
        connections[0].put("after", "x").await.expect("puts are served");
        let grown = most.saturating_sub(before) / MIB as u64;
        println!(
            "{done} of {} puts of 1 MiB at once, {turned_away} turned away: {grown} MiB more",
            clients * EACH
        );
        assert!(done > 0 && grown < 1024, "{grown} MiB");
    });
    member.stop();
}

#[test]
fn a_thousand_lagging_watchers_hold_nobody_up() {
    let (watchers, puts) = (size(200, 1000), size(300, 3000));
    const VALUE_BYTES: usize = 4 << 10;
    let dir = TempDir::in_memory("lagging");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let rate = async |from: u32| {
            let began = Instant::now();
            for number in from..from + puts {
                client
                    .put(format!("w/{}", number % 10), filler(number, VALUE_BYTES))
                    .await
                    .expect("puts are served");
            }
            f64::from(puts) / began.elapsed().as_secs_f64()
        };
        let alone = rate(0).await;
        let first = client.status().await.expect("it serves").header.expect("a header").revision + 1;
        // With few connections that nobody reads, their flow-control windows are soon full.
        let mut connections = Vec::new();
        for _ in 0..10 {
            connections.push(member.client().await);
        }
        let mut streams = Vec::new();
        for number in 0..watchers {
            let create = WatchCreateRequest {
                key: "w/".into(),
                range_end: "w0".into(),
                start_revision: first,
                ..WatchCreateRequest::default()
            };
            let connection = &connections[(number % 10) as usize];
            streams.push(connection.watch(create).await.expect("watches are made"));
        }
        let before = member.rss_bytes();
        let watched = rate(puts).await;
        let grown = member.rss_bytes().saturating_sub(before) / MIB as u64;
        println!(
            "{watchers} watchers that do not read: {alone:.0} puts/s alone, {watched:.0} with them, {grown} MiB more"
        );
        assert!(watched > alone / 20.0, "puts collapse: {alone:.0} to {watched:.0} per second");
        assert!(grown < 512, "{grown} MiB");
        // Each stream gets all events in order.
        let last = first + i64::from(puts) - 1;
        let reading: Vec<_> = streams
            .into_iter()
            .map(|mut watch| {
                tokio::spawn(async move {
                    let mut next = first;
                    while next <= last {
                        let response = watch.next().await.expect("the stream goes on");
                        assert_eq!(response.compact_revision, 0, "nothing was compacted");
                        for event in response.events {
                            assert_eq!(event.kv.expect("an event has a key").mod_revision, next);
                            next += 1;
                        }
                    }
                })
            })
            .collect();
        for reader in reading {
            reader.await.expect("each reader gets everything");
        }
    });
    member.stop();
}

#[test]
fn many_leases_expire_in_one_moment() {
    let count = size(3000, 100_000);
    let ttl = size(3, 90);
    let dir = TempDir::in_memory("expiry");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        let began = Instant::now();
        let granting = client.clone();
        many(count, 200, move |number| {
            let client = granting.clone();
            async move {
                let lease = client.grant(i64::from(ttl)).await.expect("leases are granted");
                // If the put is refused, its lease has expired already.
                match client.put_leased(format!("leased/{number:06}"), "x", lease).await {
                    Ok(_) => {}
                    Err(status) => assert_eq!(status.code, Code::NotFound, "{status}"),
                }
            }
        })
        .await;
        println!("{count} leases with a key each in {:?}", began.elapsed());
        // The process is stopped until all leases have run out, so that all of them expire at the same
        // moment.
        member.signal(libc::SIGSTOP);
        let until = Instant::now() + Duration::from_secs(u64::from(ttl) + 1);
        eventually("all have run out", Duration::from_secs(120), async || {
            (Instant::now() >= until).then_some(())
        })
        .await;
        member.signal(libc::SIGCONT);
        let awake = Instant::now();
        let pulse = Pulse::start(&member).await;
        eventually("all keys are gone", Duration::from_secs(60), async || {
            let all = api::etcdserverpb::RangeRequest {
                key: "leased/".into(),
                range_end: "leased0".into(),
                count_only: true,
                ..Default::default()
            };
            let answer: api::etcdserverpb::RangeResponse = client.call(Rpc::KvRange, &all).await.ok()?;
            (answer.count == 0).then_some(())
        })
        .await;
        println!("{count} leases expired within {:?}", awake.elapsed());
        let took = pulse.end("while leases expire").await;
        assert!(took.last().is_some_and(|most| *most < Duration::from_secs(5)), "the member stands still");
    });
    member.stop();
}

#[test]
fn many_keys_are_compacted_while_others_go_on() {
    let count = size(30_000, 1_000_000);
    let dir = TempDir::in_memory("compacted");
    let member = Setup::new(dir.path()).start();
    run(async {
        let client = member.client().await;
        for round in 0..2 {
            let writing = client.clone();
            many(count / 100, 8, move |batch| {
                let client = writing.clone();
                async move {
                    let keys = batch * 100..batch * 100 + 100;
                    let success = keys.map(|n| put_op(format!("c/{n:07}"), format!("{round}-{n}"))).collect();
                    let request = TxnRequest { success, ..TxnRequest::default() };
                    let _: TxnResponse =
                        client.call(Rpc::KvTxn, &request).await.expect("transactions are served");
                }
            })
            .await;
        }
        let revision = client.status().await.expect("it serves").header.expect("a header").revision;
        let pulse = Pulse::start(&member).await;
        let began = Instant::now();
        client.compact(revision, true).await.expect("compactions are served");
        println!("{count} old versions were removed within {:?}", began.elapsed());
        let took = pulse.end("while they are compacted").await;
        assert!(took.last().is_some_and(|most| *most < Duration::from_secs(5)), "the member stands still");
        let n = count / 2;
        let kv = client.get(format!("c/{n:07}")).await.expect("reads are served").expect("it is there");
        assert_eq!(kv.value, format!("1-{n}"));
    });
    member.stop();
}
