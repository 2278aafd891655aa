//! Tests of the commands get, put, del, txn and compaction.

use api::Code;
use api::etcdserverpb::{self as pb, ResponseOp, response_op::Response};
use api::mvccpb::KeyValue;

use crate::fake_server::Script;
use crate::messages::{header, inner_header, pair, put, range};
use crate::transcript::{Case, check};

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";

fn awkward() -> Vec<KeyValue> {
    vec![
        pair(b"a", b"1"),
        pair(b"<html> & \"q\"", "\u{2028}\u{e9}\n\t\u{1}".as_bytes()),
        KeyValue { lease: 0x32695410dcc0ca06, ..pair(b"\x00\xff\xfe", b"") },
    ]
}

#[test]
fn get() {
    let script = Script::default().says(RANGE, &range(awkward()));
    let more = pb::RangeResponse { more: true, count: 9, ..range(vec![pair(b"a", b"1")]) };
    let nothing = Script::default().says(RANGE, &range(Vec::new()));
    let refused = |code, text: &str| Script::default().fails(RANGE, code, text);
    let pieces = [
        pb::RangeStreamResponse {
            range_response: Some(pb::RangeResponse { header: None, ..range(vec![pair(b"a", b"1")]) }),
        },
        pb::RangeStreamResponse {
            range_response: Some(pb::RangeResponse { count: 2, ..range(vec![pair(b"b", b"2")]) }),
        },
    ];
    let streamed = Script::default().streams("/etcdserverpb.KV/RangeStream", &pieces, true);
    let mut cases = Case::new("get a", &script).in_all_formats();
    cases.extend(Case::new("get a --hex", &script).in_all_formats());
    cases.extend(Case::new("get a --limit=1", &Script::default().says(RANGE, &more)).in_all_formats());
    cases.extend(Case::new("get missing", &nothing).in_all_formats());
    cases.extend(Case::new("get a --count-only", &nothing).in_all_formats());
    cases.extend(Case::new("get a --print-value-only", &script).in_all_formats());
    cases.extend(Case::new("get --prefix a --stream", &streamed).in_all_formats());
    cases.push(Case::new("get --prefix a --stream", &Script::default()));
    for line in [
        "get a b",
        "get --prefix a --keys-only",
        "get --from-key a",
        "get a --rev=7 --consistency=s",
        "get a --order=ASCEND --sort-by=KEY",
        "get a --order=descend --sort-by=key",
        "get a --order=ASCEND --sort-by=create",
        "get a --sort-by=MODIFY",
        "get a --sort-by=VALUE --order=DESCEND --limit=3",
        "get a --sort-by=VERSION --order=ascend",
        "get a --min-mod-rev=1 --max-mod-rev=9 --min-create-rev=2 --max-create-rev=8",
        "get a --rev=-1 --limit=-1",
        "get a b c",
    ] {
        cases.push(Case::new(line, &nothing));
    }
    cases.push(Case::of(["get", "--prefix", ""], &nothing));
    cases.push(Case::of(["get", "--from-key", ""], &nothing));
    cases.push(Case::of(["get", ""], &nothing));
    for line in [
        "get",
        "get a --prefix --from-key",
        "get a --keys-only --count-only",
        "get a b --prefix",
        "get a --consistency=x",
        "get a --order=UP",
        "get a --sort-by=SIZE",
        "get a --min-mod-rev=9 --max-mod-rev=3",
        "get a --min-create-rev=9 --max-create-rev=3",
        "get a -w yaml",
        "get -w yaml",
        "get a --cert=",
    ] {
        cases.push(Case::new(line, &Script::default()));
    }
    for (code, text) in [
        (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
        (Code::PermissionDenied, "etcdserver: permission denied"),
        (Code::Internal, "something else"),
    ] {
        cases.push(Case::new("get a", &refused(code, text)));
    }
    check("get", cases);
}

#[test]
fn put_() {
    let script = Script::default().says(PUT, &put(None));
    let before = Script::default().says(PUT, &put(Some(pair(b"a", b"0"))));
    let mut cases = Case::new("put a 1", &script).in_all_formats();
    cases.extend(Case::new("put a 1 --prev-kv", &before).in_all_formats());
    cases.push(Case::new("put a", &script).reading("from stdin\n"));
    cases.push(Case::new("put a", &script));
    cases.push(Case::new("put a -- -v", &script));
    cases.push(Case::new("put a 1 --lease=32695410dcc0ca06", &script));
    cases.push(Case::new("put a --ignore-value", &script));
    cases.push(Case::new("put a 2 --ignore-lease", &script));
    cases.push(Case::new("put a b c", &script));
    for line in ["put", "put a b --ignore-value", "put a b --lease=xyz", "put a b --lease=ffffffffffffffff"] {
        cases.push(Case::new(line, &script));
    }
    cases.push(Case::new("put a", &script).reading(vec![b'x'; 3 << 20]).without_stdin());
    let full =
        Script::default().fails(PUT, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
    cases.push(Case::new("put a 1", &full));
    check("put", cases);
}

#[test]
fn del() {
    let deleted = |kvs: Vec<KeyValue>| {
        let answer = pb::DeleteRangeResponse { header: header(), deleted: 3, prev_kvs: kvs };
        Script::default().says(DELETE, &answer)
    };
    let none =
        Script::default().says(DELETE, &pb::DeleteRangeResponse { header: header(), ..Default::default() });
    let mut cases = Case::new("del a", &none).in_all_formats();
    cases.extend(Case::new("del --prefix a --prev-kv", &deleted(awkward())).in_all_formats());
    cases.push(Case::new("del --prefix a --prev-kv --hex", &deleted(awkward())));
    cases.push(Case::new("del a c --range", &deleted(Vec::new())));
    cases.push(Case::new("del a c", &deleted(Vec::new())));
    cases.push(Case::new("del --from-key a", &deleted(Vec::new())));
    cases.push(Case::of(["del", "--prefix", ""], &deleted(Vec::new())));
    cases.push(Case::of(["del", "--from-key", ""], &deleted(Vec::new())));
    for line in ["del", "del a b c", "del a --prefix --from-key", "del a b --prefix"] {
        cases.push(Case::new(line, &none));
    }
    check("del", cases);
}

#[test]
fn txn() {
    let op = |response| ResponseOp { response: Some(response) };
    let answer = |succeeded| pb::TxnResponse {
        header: header(),
        succeeded,
        responses: vec![
            op(Response::ResponsePut(pb::PutResponse {
                header: inner_header(),
                prev_kv: Some(pair(b"a", b"0")),
            })),
            op(Response::ResponseRange(pb::RangeResponse { header: inner_header(), ..range(awkward()) })),
            op(Response::ResponseDeleteRange(pb::DeleteRangeResponse {
                header: inner_header(),
                deleted: 1,
                prev_kvs: vec![pair(b"c", b"2")],
            })),
        ],
    };
    let script = Script::default().says(TXN, &answer(true));
    let failed = Script::default().says(TXN, &answer(false));
    let empty = Script::default().says(TXN, &pb::TxnResponse { header: header(), ..Default::default() });
    let all = "mod(\"a\") > \"0\"\nc(\"a\") != \"1\"\nver(\"a\") < \"5\"\nval(\"a b\") = \"x\\ty\"\n\n\
               put a \"x y\" --lease=7b --prev-kv\nget 'a b' --limit=3\ndel c --prefix\n\nget --from-key a\n\n";
    let mut cases = Case::new("txn", &script).reading(all).in_all_formats();
    cases.extend(Case::new("txn", &failed).reading(all).in_all_formats());
    cases.extend(Case::new("txn", &empty).reading("\n\n\n").in_all_formats());
    cases.push(Case::new("txn -i", &script).reading(all));
    cases.push(Case::new("txn --hex", &script).reading(all));
    cases.push(Case::new("txn x", &script));
    let blocks = [
        "",
        "foo\n",
        "mod(\"a\") > \"0\"",
        "mod(\"a\") > \"0\"\n\nput a 1\n",
        "mod(k) = 1\n\n\n\n",
        "mod(\"k\") = \"x\"\n\n\n\n",
        "size(\"k\") = \"1\"\n\n\n\n",
        "\nget\n\n\n",
        "\nfoo bar\n\n\n",
        "\nput \"\\q\" a\n\n\n",
        "\nput --prev-kv a\n\n\n",
        "\nget a --order=UP\n\n\n",
        "\nget a --prefix --from-key\n\n\n",
        "\nput a b --lease=xyz\n\n\n",
        "\n p  pp 1 \n\n\n",
    ];
    cases.extend(blocks.map(|block| Case::new("txn", &empty).reading(block)));
    let crash = "real etcdctl crashes";
    cases.push(Case::new("txn", &empty).reading("mod(\"k\") == \"1\"\n\n\n\n").ours_alone(crash));
    let lease = "lease(\"k\") = \"7b\"\n\n\n\n";
    cases.push(
        Case::new("txn", &empty)
            .reading(lease)
            .ours_alone("real etcdctl crashes up to 3.7, and compares in 3.8"),
    );
    let usage = "real etcdctl prints the usage of a nameless command first";
    cases.push(Case::new("txn", &empty).reading("\nget --foo a\n\n\n").ours_alone(usage));
    let help = "real etcdctl hangs";
    cases.push(Case::new("txn", &empty).reading("\nget --help\n\n\n").ours_alone(help));
    check("txn", cases);
}

#[test]
fn compaction() {
    let script =
        Script::default().says("/etcdserverpb.KV/Compact", &pb::CompactionResponse { header: header() });
    let past = Script::default().fails(
        "/etcdserverpb.KV/Compact",
        Code::OutOfRange,
        "etcdserver: mvcc: required revision has been compacted",
    );
    let mut cases = Case::new("compaction 12", &script).in_all_formats();
    for line in
        ["compaction 12 --physical", "compaction", "compaction x", "compaction 1 2", "compaction -- -1"]
    {
        cases.push(Case::new(line, &script));
    }
    cases.push(Case::new("compaction 1", &past));
    check("compaction", cases);
}
