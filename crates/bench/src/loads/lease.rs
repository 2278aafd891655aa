//! `lease-keepalive`: each client keeps a lease of its own alive.

use api::Rpc;
use loadgen::drive::{Request, Step, Workload, done};
use loadgen::status::Status;
use loadgen::wire::{Fields, Message};

/// A lease per client, granted before the load; then one keep-alive stream per operation, which is
/// given up when its answer is there, as etcd's client does it for a single keep-alive.
#[derive(Clone, Debug, Default)]
pub struct KeepAlive;

impl Workload for KeepAlive {
    /// The lease.
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
        // The grant's answer and that to a keep-alive both have header, ID and TTL.
        *lease = Fields(body).number(2);
        true
    }

    fn answered(&mut self, _: &mut u64, status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}
