//! `backup list`: which moments can be restored.

use cli::{Command, Failure, Table};
use serde_json::json;

use super::{CLUSTER_ID, Call, Run, WRITE_OUT, chain, cluster_of, size};
use crate::chain::clusters;
use crate::plan::shown;

pub(super) const LIST: Command<Run> = Command {
    name: "list",
    usage: "list <URL> [flags]",
    about: "Lists from when to when moments can be restored, for each cluster",
    example: "  mainstay backup list s3://bucket/prefix",
    flags: &[CLUSTER_ID.row(), WRITE_OUT.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(call: &mut Call<'_>) -> Result<(), Failure> {
    let store = call.place()?;
    let writes_json = call.writes_json()?;
    let ids = match call.matches.get(CLUSTER_ID) {
        "" => clusters(&*store)?,
        given => vec![cluster_of(&*store, given)?.0],
    };
    let columns =
        ["cluster", "epoch", "from revision", "from time", "to revision", "to time", "size", "before it"];
    let mut table = Table::new(columns);
    let mut list = Vec::new();
    for id in &ids {
        let chain = chain(&*store, id);
        let Some(head) = chain.head()? else { continue };
        for (_, found) in &head.damaged {
            call.io.err.notice(format!("Warning: {found}\n"));
        }
        let oldest = chain.oldest(&head)?;
        let closed = chain.closed_epochs(&head)?;
        for (sequence, from, to) in chain.epochs(&head)? {
            if sequence < oldest {
                continue;
            }
            let epoch = chain.epoch_among(&head, &closed, sequence)?;
            let bytes = epoch.base.bytes() + epoch.parts.iter().map(|part| part.object.bytes).sum::<u64>();
            table.row(vec![
                id.clone(),
                sequence.to_string(),
                from.revision.to_string(),
                shown(from.time_ms),
                to.revision.to_string(),
                shown(to.time_ms),
                size(bytes),
                epoch.gap.clone().map_or_else(String::new, |reason| format!("gap: {reason}")),
            ]);
            list.push(json!({
                "cluster": id,
                "epoch": sequence,
                "from": from,
                "to": to,
                "bytes": bytes,
                "gap": epoch.gap,
            }));
        }
    }
    match writes_json {
        true => call.print(&format!("{}\n", json!(list))),
        false => call.print(&table.to_string()),
    }
}
