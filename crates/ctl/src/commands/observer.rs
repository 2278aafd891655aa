//! `observer`: lists the observers of a cluster, which follow its log without being members. Not a command of
//! etcdctl.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

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
    let mut list = List::default();
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
                    let client_urls = observer.client_urls.clone();
                    if list.add(ObserverRow { fed_by, observer }) {
                        waiting.push_back(client_urls);
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
    call.show(&Answer::Observers(&list.rows))?;
    if failed { Err(Failure::said(Failure::ERROR)) } else { Ok(()) }
}

/// The observers found so far, each once.
#[derive(Default)]
struct List {
    rows: Vec<ObserverRow>,
    /// Where in `rows` an observer is, by its id.
    places: BTreeMap<u64, usize>,
}

impl List {
    /// Adds an observer. Returns whether it is new.
    ///
    /// An observer that has left a feeder stays in the list of that feeder, inactive, until its registration has
    /// expired. So the row of a feeder to which it answers counts.
    fn add(&mut self, row: ObserverRow) -> bool {
        match self.places.entry(row.observer.id) {
            Entry::Vacant(place) => {
                place.insert(self.rows.len());
                self.rows.push(row);
                true
            }
            Entry::Occupied(place) => {
                if let Some(known) = self.rows.get_mut(*place.get())
                    && row.observer.active
                    && !known.observer.active
                {
                    *known = row;
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{List, ObserverRow, pb};

    #[test]
    fn an_observer_that_has_left_its_feeder_is_listed_with_its_new_one() {
        let row = |id, fed_by, active| ObserverRow {
            fed_by,
            observer: pb::ObserverStatus { id, active, ..Default::default() },
        };
        let listed = |list: &List| -> Vec<_> {
            list.rows.iter().map(|row| (row.observer.id, row.fed_by, row.observer.active)).collect()
        };
        let mut list = List::default();
        assert!(list.add(row(7, 1, false)) && list.add(row(8, 1, true)));
        assert!(!list.add(row(7, 2, true)) && !list.add(row(8, 2, false)));
        // Also if it is not the first one that is asked.
        assert!(!list.add(row(7, 3, false)));
        assert_eq!(listed(&list), [(7, 2, true), (8, 1, true)]);
    }
}
