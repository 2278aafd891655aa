//! `--write-out=table`: prints tables in boxes. Only lists of members and of endpoints can be printed as
//! tables.

use cli::Table;

use super::{Answer, put, rows};

/// Prints the response. Returns false if this format cannot show it.
pub(super) fn print(out: &mut Vec<u8>, answer: &Answer<'_>) -> bool {
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
