//! `compaction`: forgets history.

use api::etcdserverpb as pb;

use crate::call::Call;
use crate::failure::Failure;
use crate::numbers;

pub(super) async fn compaction(call: &Call) -> Result<(), Failure> {
    let [revision] = call.args() else {
        return Err(Failure::bad_args("compaction command needs 1 argument"));
    };
    let revision = numbers::signed(revision, 10).map_err(Failure::error)?;
    let request = pb::CompactionRequest { revision, physical: call.matches.flag("physical") };
    let connection = call.connect().await?;
    let _: pb::CompactionResponse =
        call.limited(connection.call("/etcdserverpb.KV/Compact", &request)).await?;
    call.line(format!("compacted revision {revision}"))
}
