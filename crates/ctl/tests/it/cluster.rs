//! Tests of the commands member, endpoint, alarm, defrag, move-leader and downgrade.

use api::Code;
use api::etcdserverpb as pb;
use api::mainstaypb;

use crate::fake_server::Script;
use crate::messages::{header, member_header, pair, range};
use crate::transcript::{Case, check};

const CLUSTER: &str = "/etcdserverpb.Cluster";
const MAINTENANCE: &str = "/etcdserverpb.Maintenance";

fn members() -> Vec<pb::Member> {
    let member = |id, name: &str, host: &str| pb::Member {
        id,
        name: name.to_owned(),
        peer_urls: vec![format!("http://{host}:2380")],
        client_urls: if name.is_empty() { Vec::new() } else { vec![format!("http://{host}:2379")] },
        is_learner: false,
        is_witness: false,
    };
    vec![
        member(0x8e9e05c52164694d, "default", "10.0.0.1"),
        pb::Member { is_learner: true, ..member(0xced000fda4d05edf, "", "10.0.0.2") },
        pb::Member {
            peer_urls: vec!["http://a:1".to_owned(), "http://b:2".to_owned()],
            ..member(7, "seven", "10.0.0.3")
        },
    ]
}

#[test]
fn member() {
    let list = pb::MemberListResponse { header: member_header(), members: members() };
    let added = |is_learner| pb::MemberAddResponse {
        header: member_header(),
        member: members().get(1).cloned().map(|member| pb::Member { is_learner, ..member }),
        members: members(),
    };
    let script = Script::default()
        .says(&format!("{CLUSTER}/MemberList"), &list)
        .says(&format!("{CLUSTER}/MemberAdd"), &added(false))
        .says(
            &format!("{CLUSTER}/MemberRemove"),
            &pb::MemberRemoveResponse { header: member_header(), members: members() },
        )
        .says(
            &format!("{CLUSTER}/MemberUpdate"),
            &pb::MemberUpdateResponse { header: member_header(), members: members() },
        )
        .says(
            &format!("{CLUSTER}/MemberPromote"),
            &pb::MemberPromoteResponse { header: member_header(), members: members() },
        );
    let learner = Script::default().says(&format!("{CLUSTER}/MemberAdd"), &added(true));
    let mut cases = Vec::new();
    for line in [
        "member list",
        "member list --hex",
        "member add m2 --peer-urls=http://10.0.0.2:2380,http://10.0.0.2:2382",
        "member add m2 --peer-urls=http://10.0.0.2:2380 --hex",
        "member remove ced000fda4d05edf",
        "member remove 7 --hex",
        "member update 7 --peer-urls=http://10.0.0.2:2380",
        "member update 7 --peer-urls=http://10.0.0.2:2380 --hex",
        "member promote 7",
        "member promote 7 --hex",
    ] {
        cases.extend(Case::new(line, &script).in_all_formats());
    }
    cases.push(Case::new("member add m2 --peer-urls=http://10.0.0.2:2380 --learner", &learner));
    for line in [
        "member list --consistency=s",
        "member add",
        "member add m2",
        "member add m2 http://10.0.0.2:2380",
        "member add m2 --peer-urls=10.0.0.2:2380",
        "member add m2 --peer-urls=http://10.0.0.2",
        "member remove",
        "member remove xyz",
        "member remove +7",
        "member update",
        "member update 7",
        "member update xyz --peer-urls=http://10.0.0.2:2380",
        "member promote",
        "member promote xyz",
    ] {
        cases.push(Case::new(line, &script));
    }
    let reason = "real etcdctl shows the value of the flag of `get`";
    cases.push(Case::new("member list --consistency=x", &script).ours_alone(reason));
    let path = format!("{CLUSTER}/MemberRemove");
    let unknown = Script::default().fails(&path, Code::NotFound, "etcdserver: member not found");
    cases.push(Case::new("member remove 1", &unknown));
    check("member", cases);
}

fn status() -> pb::StatusResponse {
    pb::StatusResponse {
        header: header(),
        version: "3.7.1".to_owned(),
        db_size: 25_000,
        leader: 0x8e9e05c52164694d,
        raft_index: 9,
        raft_term: 3,
        raft_applied_index: 8,
        errors: Vec::new(),
        db_size_in_use: 16_384,
        is_learner: false,
        storage_version: "3.7.0".to_owned(),
        db_size_quota: 2_147_483_648,
        downgrade_info: Some(pb::DowngradeInfo::default()),
        ..Default::default()
    }
}

#[test]
fn endpoint() {
    let status_path = format!("{MAINTENANCE}/Status");
    let hash_path = format!("{MAINTENANCE}/HashKV");
    let alarm_path = format!("{MAINTENANCE}/Alarm");
    let range_path = "/etcdserverpb.KV/Range";
    let troubled = pb::StatusResponse {
        leader: 7,
        is_learner: true,
        errors: vec!["memberID:1 alarm:NOSPACE".to_owned(), "etcdserver: no leader".to_owned()],
        downgrade_info: Some(pb::DowngradeInfo { enabled: true, target_version: "3.6.0".to_owned() }),
        ..status()
    };
    let old = pb::StatusResponse {
        db_size_quota: 0,
        storage_version: String::new(),
        downgrade_info: None,
        ..status()
    };
    let hash =
        pb::HashKvResponse { header: header(), hash: 4_064_120_424, compact_revision: 5, hash_revision: 42 };
    let healthy = Script::default()
        .says(range_path, &range(Vec::new()))
        .says(&alarm_path, &pb::AlarmResponse { header: header(), alarms: Vec::new() });
    let mut cases = Vec::new();
    for answer in [status(), troubled, old] {
        cases.extend(
            Case::new("endpoint status", &Script::default().says(&status_path, &answer)).in_all_formats(),
        );
    }
    let refused =
        Script::default().fails(&status_path, Code::PermissionDenied, "etcdserver: permission denied");
    cases.extend(Case::new("endpoint status", &refused).in_all_formats());
    let empty = Script::default().says(&status_path, &pb::StatusResponse { db_size: 0, ..status() });
    cases.push(Case::new("endpoint status", &empty).ours_alone("real etcdctl crashes (divides by zero)"));
    cases.extend(Case::new("endpoint hashkv", &Script::default().says(&hash_path, &hash)).in_all_formats());
    cases.push(Case::new("endpoint hashkv --rev=7", &Script::default().says(&hash_path, &hash)));
    let future = "etcdserver: mvcc: required revision is a future revision";
    cases.extend(
        Case::new("endpoint hashkv", &Script::default().fails(&hash_path, Code::OutOfRange, future))
            .in_formats(&["simple", "json", "table"]),
    );
    // The width of a table depends on the time that the read took.
    cases
        .extend(Case::new("endpoint health", &healthy).in_formats(&["simple", "fields", "json", "protobuf"]));
    let denied = healthy.clone();
    let denied = Script::default()
        .fails(range_path, Code::PermissionDenied, "etcdserver: permission denied")
        .and(denied);
    cases.push(Case::new("endpoint health", &denied));
    let alarm = |member_id, alarm| pb::AlarmMember { member_id, alarm };
    let alarmed = Script::default().says(range_path, &range(Vec::new())).says(
        &alarm_path,
        &pb::AlarmResponse { header: header(), alarms: vec![alarm(1, 1), alarm(2, 2), alarm(3, 9)] },
    );
    cases.extend(Case::new("endpoint health", &alarmed).in_formats(&["simple", "fields", "json"]));
    let untold = Script::default().says(range_path, &range(Vec::new())).fails(
        &alarm_path,
        Code::PermissionDenied,
        "etcdserver: permission denied",
    );
    cases.push(Case::new("endpoint health", &untold));
    let sick = Script::default().fails(range_path, Code::DataLoss, "etcdserver: corrupt cluster");
    cases.extend(Case::new("endpoint health", &sick).in_formats(&["simple", "json"]));
    let unlisted = Script::default().fails(
        "/etcdserverpb.Cluster/MemberList",
        Code::PermissionDenied,
        "etcdserver: permission denied",
    );
    cases.push(Case::new("endpoint status --cluster", &unlisted));
    check("endpoint", cases);
}

#[test]
fn alarm() {
    let path = format!("{MAINTENANCE}/Alarm");
    let alarms = vec![
        pb::AlarmMember { member_id: 8630161756594109333, alarm: 1 },
        pb::AlarmMember { member_id: 7, alarm: 2 },
    ];
    let answer = |alarms: &[pb::AlarmMember]| pb::AlarmResponse { header: header(), alarms: alarms.to_vec() };
    let raised = Script::default().says(&path, &answer(&alarms));
    let none = Script::default().says(&path, &answer(&[]));
    let disarmed = Script::default()
        .says(&path, &answer(&alarms))
        .says(&path, &answer(&alarms[..1]))
        .says(&path, &answer(&alarms[1..]));
    let spaces = "Go's text form of protobuf has one blank or two between fields, by the build";
    let mut cases = vec![Case::new("alarm list", &raised).ours_alone(spaces)];
    cases.push(Case::new("alarm disarm", &disarmed).ours_alone(spaces));
    let others = ["fields", "json", "protobuf", "table"];
    cases.extend(Case::new("alarm list", &raised).in_formats(&others));
    cases.push(Case::new("alarm list --hex -w fields", &raised));
    cases.extend(Case::new("alarm disarm", &disarmed).in_formats(&others));
    cases.extend(Case::new("alarm list", &none).in_all_formats());
    cases.extend(Case::new("alarm disarm", &none).in_all_formats());
    cases.push(Case::new("alarm list x", &none));
    cases.push(Case::new("alarm disarm x", &none));
    check("alarm", cases);
}

#[test]
fn maintenance() {
    let status_path = format!("{MAINTENANCE}/Status");
    let script = Script::default()
        .says(&format!("{MAINTENANCE}/Defragment"), &pb::DefragmentResponse { header: header() })
        .says(&status_path, &status())
        .says(&format!("{MAINTENANCE}/MoveLeader"), &pb::MoveLeaderResponse { header: header() })
        .says(
            &format!("{MAINTENANCE}/Downgrade"),
            &pb::DowngradeResponse { header: header(), version: "3.7.0".to_owned() },
        );
    let mut cases = vec![Case::new("defrag", &script)];
    let path = format!("{MAINTENANCE}/Defragment");
    let refused = Script::default().fails(&path, Code::PermissionDenied, "etcdserver: permission denied");
    cases.push(Case::new("defrag", &refused));
    cases.extend(Case::new("move-leader c89feb932daef420", &script).in_all_formats());
    for line in ["move-leader", "move-leader xyz"] {
        cases.push(Case::new(line, &script));
    }
    let follower = Script::default().says(&status_path, &pb::StatusResponse { leader: 7, ..status() });
    cases.push(Case::new("move-leader 7", &follower));
    for line in ["downgrade validate 3.6", "downgrade enable 3.6", "downgrade cancel"] {
        cases.extend(Case::new(line, &script).in_all_formats());
    }
    for line in ["downgrade validate", "downgrade enable", "downgrade validate 1 2", "downgrade enable 1 2"] {
        cases.push(Case::new(line, &script));
    }
    cases.push(Case::of(["downgrade", "validate", ""], &script));
    let path = format!("{MAINTENANCE}/Downgrade");
    let invalid = "etcdserver: invalid downgrade target version";
    cases.push(Case::new(
        "downgrade validate 3.0",
        &Script::default().fails(&path, Code::InvalidArgument, invalid),
    ));
    check("maintenance", cases);
}

#[test]
fn connections() {
    const OURS: &str = "etcd has no such calls";
    let (drain, count) = ("/mainstaypb.Connections/Drain", "/mainstaypb.Connections/Count");
    let shard = mainstaypb::ShardConnections { open: 70, http2: 60, to_drain: 6, drained: 9 };
    let script = Script::default()
        .says(drain, &mainstaypb::DrainResponse { header: header(), open: 120, ending: 36 })
        .says(count, &mainstaypb::CountResponse { header: header(), shards: vec![shard; 2] });
    let lines = [
        "connections drain --percent 30",
        "connections drain --percent=100 --over=1h30m --grace 0s",
        "connections drain --percent 0",
        "connections drain",
        "connections drain --percent 101",
        "connections drain --percent=-1",
        "connections drain --percent x",
        "connections drain --percent 30 --over -1s",
        "connections drain --percent 30 member",
        "connections count",
        "connections count member",
        "connections",
        "connections drain --help",
        "connections count --help",
    ];
    let mut cases: Vec<Case> =
        lines.into_iter().map(|line| Case::new(line, &script).ours_alone(OURS)).collect();
    let text = "unknown service mainstaypb.Connections";
    let etcd = Script::default().fails(drain, Code::Unimplemented, text);
    cases.push(Case::new("connections drain --percent 30", &etcd).ours_alone(OURS));
    check("connections", cases);
}

#[test]
fn check_() {
    let used =
        Script::default().says("/etcdserverpb.KV/Range", &range(vec![pair(b"/etcdctl-check-perf/x", b"")]));
    let cases = vec![
        Case::new("check", &used).ours_alone("real etcdctl has no example"),
        Case::new("check perf --load=xxl", &used),
        Case::new("check datascale --load=xxl", &used),
        Case::new("check perf", &used),
        Case::new("check perf --load=medium --prefix=/p/", &used),
        Case::new("check datascale", &used),
    ];
    check("check", cases);
}
