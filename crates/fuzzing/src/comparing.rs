//! Checks the parsers of the messages with which members compare their states, on arbitrary input.

use consistency::comparison::{read_hash, read_trail, write_trail};
use http::Response;
use numbers::{Index, Revision};

/// Fuzz target: reads the input as a state trail (hashes of a member's state at several indexes) and as a
/// response with a hash. A trail that can be read must be the same after it was written and read again.
pub fn run(data: &[u8]) {
    if let Some(trail) = read_trail(data) {
        assert_eq!(read_trail(write_trail(&trail).as_bytes()).as_ref(), Some(&trail));
        let _ = trail.compare(&trail);
    }
    for status in [200, 400, 412] {
        let mut response = Response::new(bytes::Bytes::copy_from_slice(data));
        *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
        let _ = read_hash(Ok(response));
    }
}

/// Returns valid messages of both kinds.
pub fn seeds() -> Vec<Vec<u8>> {
    let point = |index: u64, hash| machine::StatePoint {
        index: Index(index),
        revision: Revision(index as i64),
        hash,
    };
    let trail =
        machine::StateTrail { applied_index: Index(9), points: vec![point(3, 7), point(5, u64::MAX)] };
    vec![
        write_trail(&trail).into_bytes(),
        br#"{"header":{"revision":9},"hash":7,"compact_revision":3,"hash_revision":9}"#.to_vec(),
        b"mvcc: required revision is a future revision".to_vec(),
        b"{}".to_vec(),
    ]
}
