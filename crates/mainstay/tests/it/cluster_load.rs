//! Writers that continue through all faults of the members, and record what was acknowledged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use testkit::eventually;

use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE, is_passing};
use crate::crash::attempt;
use crate::history::{Fate, History, Op};

/// A write whose outcome is unknown may still take effect later, so its writer continues under a new writer
/// number.
const WRITERS_MAX: u32 = 20_000;
/// Time after which a writer gives up a call and turns to another member.
const CALL_TIME_MAX: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Common {
    ended: AtomicBool,
    acknowledged: AtomicU64,
    next_writer: AtomicU32,
}

/// Operations of writers, by the writers' numbers.
type Done = Vec<(u32, Vec<Op>)>;

/// Writers that are running.
pub struct Load {
    common: Arc<Common>,
    tasks: Vec<tokio::task::JoinHandle<Done>>,
}

/// All operations of all writers so far.
pub struct Record {
    pub history: History,
    next_writer: u32,
}

impl Record {
    pub fn new() -> Record {
        Record { history: History::new(WRITERS_MAX), next_writer: 0 }
    }
}

async fn write(common: Arc<Common>, addresses: Vec<SocketAddr>, from: usize) -> Done {
    let mut done = Vec::new();
    for address in addresses.iter().cycle().skip(from) {
        if common.ended.load(Ordering::Relaxed) {
            break;
        }
        let Ok(client) = Client::within(CALL_TIME_MAX, *address).await else {
            // No process listens there at the moment; the member may be starting.
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let writer = common.next_writer.fetch_add(1, Ordering::Relaxed);
        assert!(writer < WRITERS_MAX, "too many writes failed");
        let mut ops = Vec::new();
        for number in 0.. {
            if common.ended.load(Ordering::Relaxed) {
                break;
            }
            let (deed, outcome) = attempt(&client, writer, number).await;
            let fate = match outcome {
                Ok(fate) => fate,
                Err(status) => {
                    assert!(is_passing(&status), "{status}");
                    Fate::Unknown
                }
            };
            ops.push(Op { number, deed, fate });
            if fate == Fate::Unknown {
                break;
            }
            common.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        done.push((writer, ops));
    }
    done
}

impl Load {
    /// Starts writers at all places of the cluster.
    pub fn start(cluster: &Cluster, record: &Record, writers: usize) -> Load {
        let everywhere: Vec<usize> = (0..cluster.slots.len()).collect();
        Load::start_at(cluster, &everywhere, record, writers)
    }

    /// Starts writers at these places of the cluster.
    pub fn start_at(cluster: &Cluster, slots: &[usize], record: &Record, writers: usize) -> Load {
        let common = Arc::new(Common { next_writer: record.next_writer.into(), ..Common::default() });
        let addresses: Vec<SocketAddr> = slots.iter().map(|at| cluster.slots[*at].client).collect();
        let tasks = (0..writers)
            .map(|from| tokio::spawn(write(Arc::clone(&common), addresses.clone(), from)))
            .collect();
        Load { common, tasks }
    }

    /// Waits until `count` more writes are acknowledged.
    pub async fn more(&self, count: u64) {
        let enough = self.common.acknowledged.load(Ordering::Relaxed) + count;
        eventually("writes are acknowledged", PATIENCE, async || {
            (self.common.acknowledged.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
    }

    /// Stops the writers, and adds their operations to the record.
    pub async fn end(self, record: &mut Record) {
        self.common.ended.store(true, Ordering::Relaxed);
        for task in self.tasks {
            for (writer, ops) in task.await.expect("no writer panics") {
                record.history.did(writer, ops);
            }
        }
        record.next_writer = self.common.next_writer.load(Ordering::Relaxed);
    }
}
