//! make-mirror: the first copy, later changes, and continuing where an earlier run stopped.
//!
//! Real etcdctl puts one key per request and keeps no progress, so these outputs are not compared with it.

use api::etcdserverpb as pb;

use crate::fake_server::Script;
use crate::messages::{canceled, created, event_delete, event_put, events, header, pair, put, range};
use crate::transcript::{Case, check};

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const REASON: &str = "several keys per request, and progress";

/// Source and destination are the same server here; it distinguishes them by their requests.
fn target() -> Script {
    Script::default()
        .says(
            "/etcdserverpb.KV/Txn",
            &pb::TxnResponse { header: header(), succeeded: true, responses: Vec::new() },
        )
        .says("/etcdserverpb.KV/Put", &put(None))
}

fn changes() -> Vec<pb::WatchResponse> {
    vec![
        created(),
        events(vec![
            event_put(b"/a/1", b"new", 43),
            event_put(b"/a/2", b"new", 43),
            event_put(b"/a/3", b"new", 43),
            event_delete(b"/a/1", 44),
        ]),
        canceled("", 50),
    ]
}

fn fresh() -> Script {
    let page = |kvs, more| pb::RangeResponse { more, ..range(kvs) };
    Script::default()
        .says(RANGE, &range(Vec::new()))
        .says(RANGE, &page(vec![pair(b"/a/1", b"1"), pair(b"/a/2", b"2")], true))
        .says(RANGE, &page(vec![pair(b"/a/3", b"3")], false))
        .streams(WATCH, &changes(), false)
        .and(target())
}

/// Returns a case whose destination is the script's own server, since its port is not known in advance.
fn cases(line: &str, script: &Script) -> Case {
    Case::new(line, script).ours_alone(REASON).aimed_at_its_server()
}

#[test]
fn mirror() {
    let key = "--progress-key=/progress";
    let noted = |text: &str| range(vec![pair(b"/progress", text.as_bytes())]);
    let resumed = Script::default()
        .says(RANGE, &noted("revision 42 of cluster cdf818194e3a8c32"))
        .says(RANGE, &range(Vec::new()))
        .streams(WATCH, &changes(), false)
        .and(target());
    let first = Script::default().says(RANGE, &range(Vec::new()));
    let page = pb::RangeResponse { more: false, ..range(vec![pair(b"/a/1", b"1")]) };
    let first = first
        .says(RANGE, &range(Vec::new()))
        .says(RANGE, &page)
        .streams(WATCH, &changes(), false)
        .and(target());
    let other = Script::default()
        .says(RANGE, &noted("revision 42 of cluster 7"))
        .says(RANGE, &range(Vec::new()))
        .and(target());
    let nonsense = Script::default().says(RANGE, &noted("hello")).and(target());
    check(
        "mirror",
        vec![
            cases("make-mirror --prefix /a/", &fresh()),
            cases("make-mirror --prefix /a/ --dest-prefix /b/ --max-txn-ops=2", &fresh()),
            cases("make-mirror --prefix /a/ --no-dest-prefix", &fresh()),
            cases("make-mirror --prefix /a/ --rev=43", &fresh()),
            cases(&format!("make-mirror --prefix /a/ {key}"), &first),
            cases(&format!("make-mirror --prefix /a/ {key}"), &resumed),
            cases(&format!("make-mirror --prefix /a/ {key}"), &other),
            cases(&format!("make-mirror --prefix /a/ {key}"), &nonsense),
            Case::new("make-mirror", &target()),
            Case::new("make-mirror a:1 --dest-prefix=a --no-dest-prefix", &target()),
        ],
    );
}
