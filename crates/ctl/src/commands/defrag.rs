//! `defrag`: asks members to free unused space.

use std::time::Instant;

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure};
use client::shown;

use super::endpoint::CLUSTER;
use super::endpoint::endpoints;
use super::{MAINTENANCE, Run};
use crate::call::Call;

pub(super) const DEFRAG: Command<Run> = Command {
    name: "defrag",
    usage: "defrag",
    about: "Defragments the storage of the etcd members with given endpoints",
    example: "  etcdctl defrag --cluster",
    flags: &[CLUSTER.row()],
    group: MAINTENANCE,
    run: Some(Run::asking(|call| Box::pin(defrag(call)))),
    ..Command::EMPTY
};

pub(super) async fn defrag(call: &Call) -> Result<(), Failure> {
    let mut failed = false;
    for endpoint in endpoints(call).await? {
        let connection = call.connect_to(&endpoint).await?;
        let start = Instant::now();
        let request = pb::DefragmentRequest {};
        let outcome = call
            .limit(connection.call::<_, pb::DefragmentResponse>(Rpc::MaintenanceDefragment, &request))
            .await;
        let took = cli::go::duration(start.elapsed());
        match outcome {
            Ok(_) => call.line(format!("Finished defragmenting etcd member[{endpoint}]. took {took}"))?,
            Err(status) => {
                let error = shown(&status);
                call.warn(format!("Failed to defragment etcd member[{endpoint}]. took {took}. ({error})"));
                failed = true;
            }
        }
    }
    if failed { Err(Failure::said(Failure::ERROR)) } else { Ok(()) }
}
