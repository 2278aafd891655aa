//! Defines the load of `lease-keepalive`: each client keeps its own lease alive.

use crate::loadgen::drive::{Request, Step, Workload, done};
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message};
use api::Rpc;

/// A workload in which each client has a lease, which is granted before the load. Each operation opens a
/// keepalive stream, and cancels it after the first response. etcd's client does the same for a single
/// keepalive.
#[derive(Clone, Debug, Default)]
pub struct KeepAlive;

impl Workload for KeepAlive {
    /// Id of the client's lease.
    type Client = u64;

    fn prepare(&mut self, _: &mut u64, answer: Option<&Status>, request: &mut Request) -> Step {
        match answer {
            Some(status) => done(status),
            None => {
                request.method = Rpc::LeaseGrant;
                request.keep = true;
                Message(&mut request.message).int(1, 100);
                Step::Call
            }
        }
    }

    fn begin(&mut self, lease: &mut u64, _: u64, request: &mut Request) -> Step {
        request.method = Rpc::LeaseKeepAlive;
        Message(&mut request.message).uint(1, *lease);
        Step::Open
    }

    fn message(&mut self, lease: &mut u64, body: &[u8]) -> bool {
        // Field 2 is the lease's id, both in the response to a grant and in the response to a keepalive.
        *lease = Fields(body).number(2);
        true
    }

    fn answered(&mut self, _: &mut u64, status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}
