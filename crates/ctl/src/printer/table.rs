//! `--write-out=table`: prints tables in boxes. Only lists of members and of endpoints, and autopilots,
//! can be printed as tables.

use cli::Table;

use super::{Answer, AutopilotNode, put, rows};

/// Prints the response. Returns false if this format cannot show it.
pub(super) fn print(out: &mut Vec<u8>, answer: &Answer<'_>) -> bool {
    if let Answer::Autopilot(nodes) = *answer {
        autopilot(out, nodes);
        return true;
    }
    let (head, rows) = match *answer {
        Answer::MemberList(r) => (&rows::MEMBER_HEAD[..], rows::members(r)),
        Answer::EndpointHealth(list) => (&rows::HEALTH_HEAD[..], rows::health(list)),
        Answer::EndpointStatus(list) => (&rows::STATUS_HEAD[..], rows::status(list)),
        Answer::EndpointHashKv(list) => (&rows::HASH_HEAD[..], rows::hashes(list)),
        Answer::Observers(list) => (&rows::OBSERVER_HEAD[..], rows::observers(list)),
        _ => return false,
    };
    let mut table = Table::new(head);
    for row in rows {
        table.row(row);
    }
    put!(out, "{table}");
    true
}

/// Prints a table for each kind of row of which there are some.
fn autopilot(out: &mut Vec<u8>, nodes: &[AutopilotNode]) {
    let tables = [
        (&rows::AUTOPILOT_HEAD[..], rows::autopilots(nodes)),
        (&rows::AUTOPILOT_MEMBER_HEAD[..], rows::autopilot_members(nodes)),
        (&rows::AUTOPILOT_STEP_HEAD[..], rows::autopilot_steps(nodes)),
        (&rows::ADVICE_HEAD[..], rows::advice(nodes)),
    ];
    for (head, rows) in tables.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        let mut table = Table::new(head);
        for row in rows {
            table.row(row);
        }
        put!(out, "{table}");
    }
}
