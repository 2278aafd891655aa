//! `autopilot`: shows what the autopilot of the leader sees, has done, and leaves to a person. Not a command of
//! etcdctl.

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure};
use client::shown;

use super::member::members;
use super::{MAINTENANCE, Run};
use crate::call::Call;
use crate::printer::{Answer, AutopilotNode};

pub(super) const AUTOPILOT: Command<Run> = Command {
    name: "autopilot",
    usage: "autopilot <subcommand>",
    about: "Autopilot related commands",
    long: "The autopilot of the leader replaces members that are gone, promotes learners and moves leadership \
           (--autopilot). Not commands of etcdctl.",
    example: "  mainstay ctl autopilot status -w table",
    subcommands: &[Command {
        name: "status",
        usage: "status",
        about: "Shows the members as the autopilot sees them, its last steps, and what it leaves to a person",
        long: "Asks each member for its autopilot. When --write-out is set to simple, this command prints \
               comma-separated lists.\nTheir first item says what they are: \"node\" (ID, name, mode, is deciding, is \
               standby, replace after, interval), \"member\" (ID, name, role, silence, is caught up, 99th percentile of \
               syncs, clients), \"step\" (time, step, member ID, outcome, reason) or \"advice\" (a sentence).\n",
        example: "  mainstay ctl autopilot status -w table",
        run: Some(Run::asking(|call| Box::pin(status(call)))),
        ..Command::EMPTY
    }],
    group: MAINTENANCE,
    // etcdctl's help does not have it.
    hidden: true,
    ..Command::EMPTY
};

async fn status(call: &Call) -> Result<(), Failure> {
    let connection = call.connect().await?;
    // The list of a member that has lost the majority is shown as well, because then it matters most.
    let listed = call
        .limit(members(&connection, false))
        .await
        .map_err(|status| Failure::error(format!("failed to get the members: {}", shown(&status))))?;
    let mut nodes = Vec::new();
    let mut failed = false;
    for member in &listed.members {
        let mut outcome = None;
        for url in &member.client_urls {
            let connection = call.connect_to(url).await?;
            let answer =
                connection.call::<_, pb::StatusResponse>(Rpc::MaintenanceStatus, &pb::StatusRequest {});
            let answer = call.limit(answer).await;
            let is_ok = answer.is_ok();
            outcome = Some(answer);
            if is_ok {
                break;
            }
        }
        match outcome {
            Some(Ok(status)) => {
                let off = pb::AutopilotStatus { mode: "off".to_owned(), ..Default::default() };
                let status = status.autopilot.unwrap_or(off);
                nodes.push(AutopilotNode { id: member.id, name: member.name.clone(), status });
            }
            Some(Err(status)) => {
                let urls = member.client_urls.join(",");
                call.warn(format!("Failed to get the autopilot of {urls} ({})", shown(&status)));
                failed = true;
            }
            None => {}
        }
    }
    if differ(&nodes) {
        call.warn("Members have different values of --autopilot flags: those of the leader count");
    }
    call.show(&Answer::Autopilot(&nodes))?;
    if failed { Err(Failure::said(Failure::ERROR)) } else { Ok(()) }
}

/// Returns true if the autopilots of the nodes have different settings. Times of one that is off do not count.
fn differ(nodes: &[AutopilotNode]) -> bool {
    let settings = |node: &AutopilotNode| match node.status.mode.as_str() {
        "off" => ("off".to_owned(), 0, 0),
        mode => (mode.to_owned(), node.status.replace_after_ms, node.status.interval_ms),
    };
    nodes.windows(2).any(|pair| settings(&pair[0]) != settings(&pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_differ_if_modes_or_times_do() {
        let node = |mode: &str, interval_ms| AutopilotNode {
            id: 1,
            name: String::new(),
            status: pb::AutopilotStatus { mode: mode.to_owned(), interval_ms, ..Default::default() },
        };
        assert!(!differ(&[]));
        assert!(!differ(&[node("on", 5), node("on", 5)]));
        assert!(!differ(&[node("off", 0), node("off", 5)]));
        assert!(differ(&[node("on", 5), node("on", 6)]));
        assert!(differ(&[node("on", 5), node("on", 5), node("off", 5)]));
    }
}
