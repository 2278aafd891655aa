//! `compaction`: removes history up to a revision.

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag};

use super::{KV, Run};
use crate::call::Call;
use crate::numbers;

const PHYSICAL: Flag<bool> =
    Flag::bool("physical", "'true' to wait for compaction to physically remove all old revisions");

pub(super) const COMPACTION: Command<Run> = Command {
    name: "compaction",
    usage: "compaction [options] <revision>",
    about: "Compacts the event history in etcd",
    example: "  etcdctl compaction 1234",
    flags: &[PHYSICAL.row()],
    group: KV,
    run: Some(Run::asking(|call| Box::pin(compaction(call)))),
    ..Command::EMPTY
};

pub(super) async fn compaction(call: &Call) -> Result<(), Failure> {
    let [revision] = call.args() else {
        return Err(Failure::bad_args("compaction command needs 1 argument"));
    };
    let revision = numbers::signed(revision, 10).map_err(Failure::error)?;
    let request = pb::CompactionRequest { revision, physical: call.matches.get(PHYSICAL) };
    let connection = call.connect().await?;
    let _: pb::CompactionResponse = call.limited(connection.call(Rpc::KvCompact, &request)).await?;
    call.line(format!("compacted revision {revision}"))
}
