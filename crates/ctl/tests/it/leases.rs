//! Tests of the commands lease grant, revoke, timetolive, list and keep-alive.

use api::Code;
use api::etcdserverpb as pb;

use crate::fake_server::Script;
use crate::messages::header;
use crate::transcript::{Case, check};

const ID: i64 = 0x32695410dcc0ca06;
const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const TTL: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
const LIST: &str = "/etcdserverpb.Lease/LeaseLeases";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

#[test]
fn lease() {
    let granted = pb::LeaseGrantResponse { header: header(), id: ID, ttl: 60, error: String::new() };
    let script = Script::default()
        .says(GRANT, &granted)
        .says(REVOKE, &pb::LeaseRevokeResponse { header: header() })
        .says(
            LIST,
            &pb::LeaseLeasesResponse {
                header: header(),
                leases: vec![pb::LeaseStatus { id: ID }, pb::LeaseStatus { id: 7 }],
            },
        );
    let ttl = |ttl, granted_ttl, keys: &[&'static str]| {
        let keys = keys.iter().map(|key| (*key).into()).collect();
        let answer = pb::LeaseTimeToLiveResponse { header: header(), id: ID, ttl, granted_ttl, keys };
        Script::default().says(TTL, &answer)
    };
    let not_found =
        |path| Script::default().fails(path, Code::NotFound, "etcdserver: requested lease not found");
    let mut cases = Case::new("lease grant 60", &script).in_all_formats();
    cases.extend(Case::new("lease grant 60 --hex", &script).in_formats(&["simple", "fields", "json"]));
    for line in ["lease grant", "lease grant x", "lease grant 1 2"] {
        cases.push(Case::new(line, &script));
    }
    let many = Script::default().fails(GRANT, Code::OutOfRange, "etcdserver: too large lease TTL");
    cases.push(Case::new("lease grant 9000000001", &many));

    cases.extend(
        Case::new("lease revoke 32695410dcc0ca06", &script)
            .in_formats(&["simple", "fields", "json", "table"]),
    );
    cases.push(
        Case::new("lease revoke 32695410dcc0ca06 -w protobuf", &script)
            .ours_alone("real etcdctl says that it cannot, with an address in memory"),
    );
    for line in ["lease revoke", "lease revoke xyz", "lease revoke ffffffffffffffff"] {
        cases.push(Case::new(line, &script));
    }
    cases.push(Case::new("lease revoke 1", &not_found(REVOKE)));

    cases.extend(Case::new("lease timetolive 32695410dcc0ca06", &ttl(57, 60, &[])).in_all_formats());
    let keys = ttl(57, 60, &["a", "b <c>"]);
    cases.extend(Case::new("lease timetolive 32695410dcc0ca06 --keys", &keys).in_all_formats());
    cases.push(Case::new("lease timetolive 32695410dcc0ca06 --keys --hex -w fields", &keys));
    cases.extend(Case::new("lease timetolive 32695410dcc0ca06", &ttl(-1, 0, &[])).in_all_formats());
    for line in ["lease timetolive", "lease timetolive xyz"] {
        cases.push(Case::new(line, &script));
    }
    let refused = Script::default().fails(TTL, Code::PermissionDenied, "etcdserver: permission denied");
    cases.push(Case::new("lease timetolive 1", &refused));

    cases.extend(Case::new("lease list", &script).in_all_formats());
    cases.push(Case::new("lease list --hex -w fields", &script));
    let none =
        Script::default().says(LIST, &pb::LeaseLeasesResponse { header: header(), leases: Vec::new() });
    cases.extend(Case::new("lease list", &none).in_all_formats());
    cases.push(Case::new("lease list", &not_found(LIST)));

    let renewed = |ttl| pb::LeaseKeepAliveResponse { header: header(), id: ID, ttl };
    let kept = Script::default().streams(KEEP_ALIVE, &[renewed(60)], false);
    let gone = Script::default().streams(KEEP_ALIVE, &[renewed(0)], false);
    let renewed_once =
        Script::default().streams(KEEP_ALIVE, &[renewed(1)], false).streams(KEEP_ALIVE, &[renewed(0)], false);
    cases.extend(Case::new("lease keep-alive --once 32695410dcc0ca06", &kept).in_all_formats());
    cases.push(Case::new("lease keep-alive --once 32695410dcc0ca06 --hex -w fields", &kept));
    cases.push(Case::new("lease keep-alive --once 32695410dcc0ca06", &gone));
    cases.extend(
        Case::new("lease keep-alive 32695410dcc0ca06", &gone).in_formats(&["simple", "fields", "json"]),
    );
    let once = Case::new("lease keep-alive 32695410dcc0ca06", &renewed_once).without_requests();
    cases.extend(once.in_formats(&["simple", "fields", "json"]));
    for line in ["lease keep-alive", "lease keep-alive xyz", "lease keep-alive --once xyz"] {
        cases.push(Case::new(line, &script));
    }
    check("lease", cases);
}
