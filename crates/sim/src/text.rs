//! Describes operations in short texts, for the reader of a trace.

use oracle::{Outcome, Request};

const WIDTH_MAX: usize = 220;

fn cut(mut text: String) -> String {
    // Cuts the text at a character boundary.
    if text.len() > WIDTH_MAX {
        let end = (0..=WIDTH_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn name(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Describes a request.
pub fn request(request: &Request) -> String {
    cut(match request {
        Request::Put(p) => format!("put {} = {} lease {:x}", name(&p.key), cut(name(&p.value)), p.lease),
        Request::Range(r) => format!(
            "range {}..{} at {} limit {} serializable {}",
            name(&r.key),
            name(&r.range_end),
            r.revision,
            r.limit,
            r.serializable
        ),
        Request::Delete(d) => format!("delete {}..{}", name(&d.key), name(&d.range_end)),
        Request::Txn(t) => {
            format!("txn {} compares, {} / {} actions", t.compare.len(), t.success.len(), t.failure.len())
        }
        other => format!("{other:?}"),
    })
}

/// Describes an outcome.
pub fn outcome(outcome: &Outcome) -> String {
    cut(match outcome {
        Outcome::Done(header, oracle::Response::Range(r)) => {
            let keys: Vec<String> =
                r.kvs.iter().map(|kv| format!("{}@{}", name(&kv.key), kv.mod_revision)).collect();
            format!("revision {}: {} keys {}", header.revision, r.count, keys.join(" "))
        }
        Outcome::Done(header, oracle::Response::Put(_)) => format!("revision {}", header.revision),
        other => format!("{other:?}"),
    })
}
