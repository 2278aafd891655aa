//! Operations that a member allows or refuses while the CORRUPT alarm is raised, for another member or for itself.

use api::error;
use api::etcdserverpb::*;
use api::{Code, Rpc};

use testkit::TempDir;

use crate::client::{Client, put_op};
use crate::member::Setup;
use crate::run;

async fn raise(client: &Client, member_id: u64, alarm: AlarmType) {
    let action = alarm_request::AlarmAction::Activate as i32;
    let request = AlarmRequest { action, member_id, alarm: alarm as i32 };
    let answer: AlarmResponse =
        client.call(Rpc::MaintenanceAlarm, &request).await.expect("an alarm can be raised");
    assert_eq!(answer.alarms, [AlarmMember { member_id, alarm: alarm as i32 }]);
}

/// Makes reads of all kinds; returns the status code of each.
async fn reads(client: &Client) -> Vec<Code> {
    let code = |failed: Option<api::Status>| failed.map_or(Code::Ok, |status| status.code);
    let range = |serializable| RangeRequest { key: "k".into(), serializable, ..RangeRequest::default() };
    let op = RequestOp { request: Some(request_op::Request::RequestRange(range(false))) };
    let txn = TxnRequest { success: vec![op], ..TxnRequest::default() };
    let watched = match client.watch_all(1).await {
        Ok(mut watch) => watch.next().await.err(),
        Err(status) => Some(status),
    };
    vec![
        code(client.call::<RangeResponse>(Rpc::KvRange, &range(false)).await.err()),
        code(client.call::<RangeResponse>(Rpc::KvRange, &range(true)).await.err()),
        code(client.call::<TxnResponse>(Rpc::KvTxn, &txn).await.err()),
        code(watched),
    ]
}

/// Asserts that writes are refused with etcd's text, and that calls an operator needs still work.
async fn assert_no_writes(client: &Client, lease: i64) {
    assert_eq!(client.put("k", "x").await, Err(error::CORRUPT));
    assert_eq!(client.delete("k").await, Err(error::CORRUPT));
    let txn = TxnRequest { success: vec![put_op("k", "x")], ..TxnRequest::default() };
    assert_eq!(client.call::<TxnResponse>(Rpc::KvTxn, &txn).await, Err(error::CORRUPT));
    assert_eq!(client.compact(1, false).await, Err(error::CORRUPT));
    assert_eq!(client.compact(1 << 40, false).await, Err(error::CORRUPT));
    assert_eq!(client.grant(60).await, Err(error::CORRUPT));
    let revoke = LeaseRevokeRequest { id: lease };
    assert_eq!(client.call::<LeaseRevokeResponse>(Rpc::LeaseRevoke, &revoke).await, Err(error::CORRUPT));
    let left = client.time_to_live(lease, true).await.expect("leases are told of");
    assert!(left.ttl > 0, "{left:?}");
    let status = client.status().await.expect("a status");
    assert!(status.errors.iter().any(|text| text.ends_with(" alarm:CORRUPT")), "{:?}", status.errors);
    client.hash_kv(0).await.expect("a hash");
}

#[test]
fn a_corrupt_cluster_takes_no_writes_and_its_corrupt_member_answers_no_reads() {
    let dir = TempDir::new("corrupt");
    let setup = Setup::new(dir.path());
    run(async {
        let member = setup.start();
        let client = member.client().await;
        let own = client.status().await.expect("a status").header.expect("has a header").member_id;
        client.put("k", "v").await.expect("writes are served");
        let lease = client.grant(600).await.expect("leases are granted");
        for other in [0, own ^ 1] {
            raise(&client, other, AlarmType::Corrupt).await;
            assert_no_writes(&client, lease).await;
            assert_eq!(reads(&client).await, [Code::Ok; 4]);
            client.disarm().await.expect("the alarm is taken back");
            client.put("k", "v").await.expect("writes are served again");
        }

        let mut open = client.watch_all(0).await.expect("a watch");
        raise(&client, own, AlarmType::Corrupt).await;
        assert_no_writes(&client, lease).await;
        assert_eq!(reads(&client).await, [Code::DataLoss; 4]);
        let ended = loop {
            if let Err(status) = open.next().await {
                break status;
            }
        };
        assert_eq!(ended, error::CORRUPT, "a watch from before ends");
        member.kill();

        // The alarm survives a restart.
        let member = setup.start();
        let client = member.client().await;
        assert_no_writes(&client, lease).await;
        assert_eq!(reads(&client).await, [Code::DataLoss; 4]);
        // With both alarms raised, the refusal has the text of the CORRUPT alarm.
        raise(&client, own, AlarmType::Nospace).await;
        assert_eq!(client.put("k", "x").await, Err(error::CORRUPT));
        client.disarm().await.expect("the alarms are taken back");
        client.put("k", "w").await.expect("writes are served again");
        assert_eq!(reads(&client).await, [Code::Ok; 4]);
        member.stop();
    });
}
