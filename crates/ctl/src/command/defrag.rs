//! `defrag`: asks members to give unused space back.

use std::time::Instant;

use api::etcdserverpb as pb;

use super::endpoint::endpoints;
use crate::call::Call;
use crate::failure::Failure;
use client::shown;

pub(super) async fn defrag(call: &Call) -> Result<(), Failure> {
    let mut failed = false;
    for endpoint in endpoints(call).await? {
        let connection = call.connect_to(&endpoint).await?;
        let start = Instant::now();
        let request = pb::DefragmentRequest {};
        let outcome = call
            .limit(
                connection
                    .call::<_, pb::DefragmentResponse>("/etcdserverpb.Maintenance/Defragment", &request),
            )
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
