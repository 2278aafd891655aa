//! Writes the objects of a cluster before its load is measured: many puts in each transaction, and several
//! transactions at a time.

use api::Rpc;

use crate::Error;
use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::wire::Fields;
use crate::loads::range::prefix_end;

use super::fleet::Fleet;
use super::known::{Batch, Known};
use super::state::State;
use super::{PREFIXES, Resource, WRITTEN, wire};

/// Transactions in flight on each connection.
const AT_A_TIME: usize = 4;
/// Puts of a transaction; etcd's default limit is 128.
const PUTS_MAX: u64 = 100;
/// Bytes of a transaction at which it is sent; etcd's default limit of a request is 1.5 MiB.
const BYTES_MAX: usize = 1 << 20;

/// Key that says that the objects in a store are those of this load.
const MARK: &[u8] = b"mainstay-bench-kubernetes";
/// Prefix of all keys of a cluster.
const ALL: &[u8] = b"/registry/";

/// Makes sure that the store has no objects: deletes those of an earlier run. Fails if there are objects that
/// this load has not written, because it would overwrite those of a real cluster.
pub(super) fn clear(target: Target) -> Result<(), Error> {
    let mut asker = Asker::new(target)?;
    let count = |asker: &mut Asker, key: &[u8], end: &[u8]| {
        asker.ask(Rpc::KvRange, |message| {
            message.bytes(1, key).bytes(2, end).flag(9, true);
        })
    };
    let objects = Fields(&count(&mut asker, ALL, &prefix_end(ALL))?).number(4);
    if objects > 0 {
        if Fields(&count(&mut asker, MARK, &[])?).number(4) == 0 {
            return Err(Error::NotEmpty { objects });
        }
        for prefix in PREFIXES.iter().take(WRITTEN) {
            asker.ask(Rpc::KvDeleteRange, |message| {
                message.bytes(1, prefix.as_bytes()).bytes(2, &prefix_end(prefix.as_bytes()));
            })?;
        }
    }
    asker.ask(Rpc::KvPut, |message| {
        message.bytes(1, MARK);
    })?;
    Ok(())
}

impl Fleet {
    /// Writes the objects that are missing for this many nodes. Objects that exist for more nodes stay.
    /// Returns the number of objects written, and their bytes.
    pub(super) fn populate(&mut self, nodes: u64) -> Result<(u64, u64), Error> {
        let (had, had_pods) = (self.state.leases.len() as u64, self.state.pods.len() as u64);
        let pods = self.state.cluster.pods(nodes);
        let next_pod = self.state.oldest + had_pods;
        let wanted = nodes as usize;
        if self.state.leases.len() < wanted {
            self.state.leases.resize(wanted, Known::default());
            self.state.statuses.resize(wanted, Known::default());
        }
        self.state.pods.resize(pods.max(had_pods) as usize, Known::default());
        let (mut total, mut bytes) = (0, 0);
        let parts = [
            (Resource::Leases, had..nodes.max(had)),
            (Resource::Nodes, had..nodes.max(had)),
            (Resource::Pods, next_pod..next_pod + pods.saturating_sub(had_pods)),
        ];
        for (resource, range) in parts {
            let mut next = range.start;
            while next < range.end {
                let batch = self.state.gather(resource, next, range.end);
                bytes += self.state.message.len() as u64;
                total += batch.count;
                next += batch.count;
                let servers = self.state.cluster.api_servers;
                let server = (total / batch.count.max(1)) as usize % servers;
                self.state.call_batch(&mut self.calls, server, batch);
                self.turn_until(|state| state.in_flight < AT_A_TIME * servers)?;
            }
        }
        self.turn_until(|state| state.in_flight == 0)?;
        Ok((total, bytes))
    }
}

impl State {
    /// Writes a transaction with objects from number `first` on into `message`. Returns which they are.
    fn gather(&mut self, resource: Resource, first: u64, end: u64) -> Batch {
        self.message.clear();
        let mut count = 0;
        while count < PUTS_MAX && first + count < end && self.message.len() < BYTES_MAX {
            let number = first + count;
            match resource {
                Resource::Leases => {
                    self.objects.lease_key(number, &mut self.key);
                    self.objects.lease(number, 0, &mut self.value);
                }
                Resource::Nodes => {
                    self.objects.node_key(number, &mut self.key);
                    self.objects.node(number, 0, &mut self.value);
                }
                Resource::Pods | Resource::Events => {
                    self.objects.pod_key(number, &mut self.key);
                    self.objects.pod(number, number, 0, &mut self.value);
                }
            }
            wire::txn_put(&mut self.message, &self.key, &self.value);
            count += 1;
        }
        Batch { resource, first, count }
    }

    /// Notes the revision of all objects of a batch.
    pub(super) fn batch_written(&mut self, batch: Batch, revision: i64) {
        for number in batch.first..batch.first + batch.count {
            let known = match batch.resource {
                Resource::Leases => self.leases.get_mut(number as usize),
                Resource::Nodes => self.statuses.get_mut(number as usize),
                Resource::Pods | Resource::Events => {
                    let at = number.checked_sub(self.oldest).and_then(|at| usize::try_from(at).ok());
                    at.and_then(|at| self.pods.get_mut(at))
                }
            };
            if let Some(known) = known {
                known.end(revision);
            }
        }
    }
}
