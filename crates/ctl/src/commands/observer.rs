//! `observer`: lists the observers of a cluster, which follow its log without being members. Not a command of
//! etcdctl.

use std::collections::{BTreeSet, VecDeque};

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure};
use client::shown;

use super::member::members;
use super::{MAINTENANCE, Run};
use crate::call::Call;
use crate::printer::{Answer, ObserverRow};

/// Maximum number of nodes that are asked, so that a node with made-up observers does not keep the command busy.
const NODES_MAX: usize = 4096;

pub(super) const OBSERVER: Command<Run> = Command {
    name: "observer",
    usage: "observer <subcommand>",
    about: "Observer related commands",
    long: "Observers follow the log of a cluster without being members, and serve reads and watches. Not commands of \
           etcdctl.",
    example: "  mainstay ctl observer list -w table",
    subcommands: &[Command {
        name: "list",
        usage: "list",
        about: "Lists the observers that members and other observers feed",
        long: "Asks each member, and each observer that one of them feeds, for its observers. When --write-out is set to \
               simple, this command prints comma-separated lists.\nThe items in the lists are ID, name, peer addrs, client \
               addrs, zone, fed by, state, entries that it lags, is active.\n",
        example: "  mainstay ctl observer list -w table",
        run: Some(Run::asking(|call| Box::pin(list(call)))),
        ..Command::EMPTY
    }],
    group: MAINTENANCE,
    // etcdctl's help does not have it.
    hidden: true,
    ..Command::EMPTY
};

async fn list(call: &Call) -> Result<(), Failure> {
    let connection = call.connect().await?;
    let listed = call
        .limit(members(&connection, true))
        .await
        .map_err(|status| Failure::error(format!("failed to get the members: {}", shown(&status))))?;
    let mut waiting: VecDeque<Vec<String>> =
        listed.members.iter().map(|member| member.client_urls.clone()).collect();
    let mut rows: Vec<ObserverRow> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut asked = 0;
    let mut failed = false;
    while let Some(urls) = waiting.pop_front() {
        asked += 1;
        if urls.is_empty() || asked > NODES_MAX {
            continue;
        }
        let mut outcome = None;
        for url in &urls {
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
                let fed_by = status.header.as_ref().map_or(0, |header| header.member_id);
                for observer in status.observers {
                    if seen.insert(observer.id) {
                        waiting.push_back(observer.client_urls.clone());
                        rows.push(ObserverRow { fed_by, observer });
                    }
                }
            }
            Some(Err(status)) => {
                call.warn(format!("Failed to get the observers of {} ({})", urls.join(","), shown(&status)));
                failed = true;
            }
            None => {}
        }
    }
    call.show(&Answer::Observers(&rows))?;
    if failed { Err(Failure::said(Failure::ERROR)) } else { Ok(()) }
}
