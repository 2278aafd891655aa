//! Tests of the command watch: alone, with a program, and interactive.

use api::Code;
use api::etcdserverpb as pb;

use crate::fake_server::Script;
use crate::messages::{canceled, created, event_delete, event_put, events, header};
use crate::transcript::{Case, check};

const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// Returns the script of a watch with some events, which is then ended.
fn story(last: pb::WatchResponse) -> Script {
    let batches = [
        created(),
        events(vec![event_put(b"w", b"v \"1\" <a>", 40), event_put(b"w2", b"", 40)]),
        pb::WatchResponse { header: header(), ..Default::default() },
        events(vec![event_delete(b"w", 41)]),
        last,
    ];
    Script::default().streams(WATCH, &batches, false)
}

#[test]
fn watch() {
    let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    // The watch ends by a compaction, which both tools report in the same words.
    let ended = story(canceled("", 13));
    let mut cases =
        Case::new("watch --prefix w --rev=7 --prev-kv --progress-notify", &ended).in_all_formats();
    cases.push(Case::new("watch w --hex", &ended));
    let silent = "real etcdctl does not say why";
    cases.push(Case::new("watch w -w json", &story(canceled(denied, 0))).ours_alone(silent));
    cases.push(Case::new("watch w x", &story(canceled("", 0))).ours_alone(silent));
    let refused = pb::WatchResponse { created: true, watch_id: -1, ..canceled(denied, 0) };
    cases.extend(Case::new("watch w", &Script::default().streams(WATCH, &[refused], false)).in_all_formats());
    let compacted = Script::default().streams(WATCH, &[created(), canceled("", 13)], false);
    cases.extend(Case::new("watch w --rev=2", &compacted).in_all_formats());
    cases.push(Case::of(["watch", "--prefix", ""], &ended));
    let no_leader = Script::default().fails(WATCH, Code::Unavailable, "etcdserver: no leader");
    cases.extend(
        Case::new("watch w", &no_leader).without_requests().in_formats(&["simple", "json", "fields"]),
    );

    let env = "env | grep ETCD_WATCH | sort; echo $0 $1";
    cases.push(Case::of(["watch", "w", "--", "sh", "-c", env, "x y", "z"], &ended));
    cases.push(Case::of(["watch", "w", "--rev=3", "x", "--", "echo", "w"], &ended));
    cases.push(Case::of(["watch", "w", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], &ended));
    cases.push(Case::of(["watch", "w", "--", "sh", "-c", "kill -9 $$"], &ended));
    cases.push(Case::of(["watch", "w", "--", "/no/such/program"], &ended));
    cases.push(Case::of(["watch", "w", "--", "no-such-program", "a b"], &ended));

    cases.push(Case::new("watch", &ended).with("ETCDCTL_WATCH_KEY", "w"));
    let range = |case: Case| case.with("ETCDCTL_WATCH_KEY", "w").with("ETCDCTL_WATCH_RANGE_END", "w3");
    cases.push(range(Case::new("watch", &ended)));
    cases.push(range(Case::new("watch --prev-kv -- echo hi", &ended)));
    for line in ["watch", "watch w --", "watch w x --prefix"] {
        cases.push(Case::new(line, &ended));
    }
    cases.push(Case::new("watch w", &ended).with("ETCDCTL_WATCH_KEY", "w"));
    cases.push(Case::new("watch w -- echo 1", &ended).with("ETCDCTL_WATCH_KEY", "w"));
    cases.push(Case::new("watch w", &ended).with("ETCDCTL_WATCH_RANGE_END", "w"));
    check("watch", cases);
}

#[test]
fn interactive() {
    let ended = story(canceled("", 0));
    let alone = |case: Case| case.without_requests();
    let mut cases = Vec::new();
    for text in [
        "",
        "watch\n",
        "foo\n\n",
        "watch w --foo\n",
        "watch w x --prefix\n",
        "watch w --\n",
        "watch \"\\q\"\n",
        "progress\n",
        "last line without an end",
    ] {
        cases.push(alone(Case::new("watch -i", &ended).reading(text)));
    }
    let held = Script::default().streams(
        WATCH,
        &[created(), events(vec![event_put(b"w", b"1", 40), event_delete(b"w", 41)])],
        false,
    );
    // Real etcdctl is killed by the signal; in a test, this tool ends with its input.
    let reason = "how it ends is the test's";
    let interactive =
        Case::new("watch -i", &held).reading("watch 'w' --prev-kv --rev=3\n").interrupted_at("before");
    cases.push(interactive.ours_alone(reason));
    let program = Case::new("watch -i", &held).reading("watch w -- echo hi\n").interrupted_at("hi\nhi\n");
    cases.push(program.ours_alone(reason));
    check("watch_interactive", cases);
}
