//! Optional layers of `grpc-proxy`: ownership of keys (leasing), ordered reads, and a list of proxies.

use api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use api::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, MemberListRequest, MemberListResponse, RangeRequest,
    RangeResponse, TxnRequest, TxnResponse,
};
use api::{Code, Rpc, Status};
use testkit::{TIMEOUT, TempDir, eventually};

use crate::client::{Client, delete_op, put_op, revision};
use crate::member::Setup;
use crate::proxy::{Proxy, figure};
use crate::run;

/// Number of range requests that a member has answered.
const RANGES: &str = "etcd_mvcc_range_total";

/// Waits until the condition is true, up to the tests' timeout.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    eventually(what, TIMEOUT, async || is_so().await.then_some(())).await;
}

async fn value(client: &Client, key: &str) -> Option<String> {
    let kv = client.get(key.to_owned()).await.unwrap()?;
    Some(String::from_utf8(kv.value.to_vec()).unwrap())
}

/// Reads a key through a leasing proxy until the proxy owns it.
async fn own(proxy: &Client, member: &Client, key: &str) {
    until("the proxy owns the key", async || {
        proxy.get(key.to_owned()).await.unwrap();
        member.get(format!("l/{key}")).await.unwrap().is_some()
    })
    .await;
}

/// Sets a key to a value if the key has this version. Returns true if the key was set.
async fn set_at(client: &Client, key: &str, version: i64, value: &str) -> Result<bool, Status> {
    let compare = Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Version as i32,
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::Version(version)),
        ..Compare::default()
    };
    let request = TxnRequest {
        compare: vec![compare],
        success: vec![put_op(key.to_owned(), value.to_owned())],
        failure: Vec::new(),
    };
    Ok(client.call::<TxnResponse>(Rpc::KvTxn, &request).await?.succeeded)
}

#[test]
fn a_leasing_proxy_owns_what_is_read_until_another_writes_it() {
    run(async {
        let dir = TempDir::new("proxy-leasing");
        let member = Setup::new(dir.path()).start();
        let (address, real) = (member.client_address(), member.client().await);
        let flags = ["--experimental-leasing-prefix=l/".to_owned()];
        let proxies = [0, 1].map(|_| Proxy::start(dir.path(), &address.to_string(), &flags));
        let (a, b) = (proxies[0].client().await, proxies[1].client().await);
        for key in ["k", "m", "n"] {
            real.put(key, "v").await.unwrap();
            own(&a, &real, key).await;
        }
        // Reads of an owned key are answered from the proxy's copy, without a request to the member.
        let before = figure(address, RANGES).await;
        for _ in 0..50 {
            assert_eq!(value(&a, "k").await.as_deref(), Some("v"));
        }
        let last = real.put("other", "x").await.unwrap();
        assert_eq!(a.put("k", "w").await.unwrap(), last + 1, "one write is one revision");
        assert_eq!(value(&a, "k").await.as_deref(), Some("w"));
        assert_eq!(a.delete("m").await.unwrap().1, 1);
        assert_eq!(value(&a, "m").await, None);
        assert!(!set_at(&a, "m", 1, "x").await.unwrap() && set_at(&a, "m", 0, "y").await.unwrap());
        assert_eq!(value(&a, "m").await.as_deref(), Some("y"));
        assert!(figure(address, RANGES).await <= before + 4.0, "only writes ask");
        // Another proxy takes over a key that it writes, and its writes are visible at once.
        for (key, number) in [("k", 1), ("m", 2), ("n", 3)] {
            match number {
                1 => _ = b.put(key, "b").await.unwrap(),
                2 => assert!(set_at(&b, key, 1, "b").await.unwrap()),
                _ => {
                    let request = DeleteRangeRequest {
                        key: "n".into(),
                        range_end: "\0".into(),
                        ..DeleteRangeRequest::default()
                    };
                    let deleted: DeleteRangeResponse = b.call(Rpc::KvDeleteRange, &request).await.unwrap();
                    // The count includes `other`, but not the leasing keys.
                    assert_eq!(deleted.deleted, 2);
                }
            }
            let expected = if number == 3 { None } else { Some("b") };
            assert_eq!(value(&a, key).await.as_deref(), expected, "{key}");
            assert_eq!(real.get(format!("l/{key}")).await.unwrap(), None);
        }
        // A client that deletes all keys deletes the leasing keys, too.
        real.put("all", "v").await.unwrap();
        own(&a, &real, "all").await;
        let request =
            DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), ..DeleteRangeRequest::default() };
        b.call::<DeleteRangeResponse>(Rpc::KvDeleteRange, &request).await.unwrap();
        assert_eq!((value(&a, "all").await, value(&b, "all").await), (None, None));
        // Errors are those of the member.
        let status = a.put("", "x").await.unwrap_err();
        assert_eq!(&*status.message, "etcdserver: key is not provided");
        assert_eq!(a.get("").await.unwrap_err().message, status.message);
        // The transaction has as many operations as a member allows.
        let all = |count: usize| TxnRequest {
            success: (0..count).map(|key| put_op(format!("many/{key}"), "x")).collect(),
            ..TxnRequest::default()
        };
        a.call::<TxnResponse>(Rpc::KvTxn, &all(128)).await.unwrap();
        let many = a.call::<TxnResponse>(Rpc::KvTxn, &all(129)).await.unwrap_err();
        assert_eq!(&*many.message, "etcdserver: too many operations in txn request");
        let twice = TxnRequest { success: vec![put_op("k", "1"), delete_op("k")], ..TxnRequest::default() };
        let twice = a.call::<TxnResponse>(Rpc::KvTxn, &twice).await.unwrap_err();
        assert_eq!(&*twice.message, "etcdserver: duplicate key given in txn request");
    });
}

#[test]
fn keys_with_a_lease_are_not_owned() {
    run(async {
        let dir = TempDir::new("proxy-leasing-lease");
        let member = Setup::new(dir.path()).start();
        let real = member.client().await;
        let flags = ["--experimental-leasing-prefix=l/".to_owned(), "--namespace=ns/".to_owned()];
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &flags);
        let client = proxy.client().await;
        let lease = client.grant(60).await.unwrap();
        client.put_leased("leased", "v", lease).await.unwrap();
        // Leasing keys are inside the namespace.
        until("the proxy owns the key", async || {
            client.get("plain").await.unwrap();
            real.get("ns/l/plain").await.unwrap().is_some()
        })
        .await;
        assert_eq!(value(&client, "leased").await.as_deref(), Some("v"));
        assert_eq!(real.get("ns/l/leased").await.unwrap(), None);
        client.put_leased("plain", "v", lease).await.unwrap();
        assert_eq!(value(&client, "plain").await.as_deref(), Some("v"));
        client.revoke(lease).await.unwrap();
        assert_eq!((value(&client, "leased").await, value(&client, "plain").await), (None, None));
    });
}

#[test]
fn counting_through_two_leasing_proxies_loses_nothing() {
    const EACH: usize = 30;
    run(async {
        let dir = TempDir::new("proxy-leasing-count");
        let member = Setup::new(dir.path()).start();
        let real = member.client().await;
        let flags = ["--experimental-leasing-prefix=l/".to_owned()];
        let address = member.client_address().to_string();
        let proxies = [0, 1].map(|_| Proxy::start(dir.path(), &address, &flags));
        real.put("count", "0").await.unwrap();
        for proxy in &proxies {
            own(&proxy.client().await, &real, "warm").await;
            proxy.client().await.put("warm", "x").await.unwrap();
        }
        let mut tasks = Vec::new();
        for number in 0..4 {
            let client = proxies[number % 2].client().await;
            tasks.push(tokio::spawn(async move {
                let mut highest = 0;
                for _ in 0..EACH {
                    loop {
                        let kv = client.get("count").await.unwrap().expect("it is there");
                        assert!(kv.version >= highest, "version {} after {highest}", kv.version);
                        highest = kv.version;
                        let value: i64 = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
                        assert_eq!(value + 1, kv.version);
                        if set_at(&client, "count", kv.version, &(value + 1).to_string()).await.unwrap() {
                            highest = kv.version + 1;
                            break;
                        }
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let expected = (4 * EACH).to_string();
        for client in [&real, &proxies[0].client().await, &proxies[1].client().await] {
            assert_eq!(value(client, "count").await.as_ref(), Some(&expected));
        }
    });
}

#[test]
fn ordered_reads_never_go_back() {
    run(async {
        // Two independent members: one stays far behind forever.
        let (dir, other) = (TempDir::new("proxy-ordered"), TempDir::new("proxy-ordered-behind"));
        let (ahead, behind) = (Setup::new(dir.path()).start(), Setup::new(other.path()).start());
        for number in 0..9 {
            ahead.client().await.put("k", number.to_string()).await.unwrap();
        }
        let endpoints = format!("{},{}", ahead.client_address(), behind.client_address());
        let read = |client: Client| async move {
            let request = RangeRequest { key: "k".into(), serializable: true, ..RangeRequest::default() };
            client.call::<RangeResponse>(Rpc::KvRange, &request).await.map(|answer| revision(answer.header))
        };
        let flags = ["--experimental-serializable-ordering".to_owned()];
        let proxy = Proxy::start(dir.path(), &endpoints, &flags);
        let client = proxy.client().await;
        until("the member ahead answers", async || read(client.with_header("x", "y")).await.unwrap() == 10)
            .await;
        for _ in 0..20 {
            assert_eq!(read(client.with_header("x", "y")).await.unwrap(), 10);
        }
        let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        let (mut sender, mut receiver) = client.open(Rpc::KvRangeStream).await.unwrap();
        sender.send_last(prost::Message::encode_to_vec(&request).into()).await.unwrap();
        assert_eq!(receiver.next().await.unwrap_err().code, Code::Unimplemented);
        ahead.kill();
        let mut refused = Status::new(Code::Ok, "");
        until("only the member behind is left", async || {
            refused = read(client.with_header("x", "y")).await.unwrap_err();
            refused.code == Code::Unknown
        })
        .await;
        let text =
            "etcdclient: no cluster members have a revision higher than the previously received revision";
        assert_eq!(&*refused.message, text);
        // A write is made only once, whatever its revision is.
        let request = TxnRequest { success: vec![put_op("w", "x")], ..TxnRequest::default() };
        let written: TxnResponse = client.call(Rpc::KvTxn, &request).await.unwrap();
        assert_eq!(revision(written.header), 2);
        assert_eq!(behind.client().await.get("w").await.unwrap().unwrap().version, 1);
    });
}

#[test]
fn proxies_with_the_same_prefix_list_each_other() {
    run(async {
        let dir = TempDir::new("proxy-resolver");
        let member = Setup::new(dir.path()).start();
        let real = member.client().await;
        let start = |advertise: &str| {
            let flags = [
                "--resolver-prefix=proxies".to_owned(),
                "--resolver-ttl=2".to_owned(),
                "--namespace=ns/".to_owned(),
                format!("--advertise-client-url={advertise}"),
            ];
            Proxy::start(dir.path(), &member.client_address().to_string(), &flags)
        };
        let (one, two) = (start("127.0.0.1:1"), start("127.0.0.1:2"));
        let listed = |client: Client| async move {
            let request = MemberListRequest::default();
            let list: MemberListResponse = client.call(Rpc::ClusterMemberList, &request).await.unwrap();
            let urls = |member: api::etcdserverpb::Member| {
                assert!(!member.name.is_empty(), "{member:?}");
                member.client_urls
            };
            list.members.into_iter().flat_map(urls).collect::<Vec<_>>()
        };
        let clients = [one.client().await, two.client().await];
        for client in &clients {
            until("both are listed", async || {
                listed(client.with_header("x", "y")).await == ["127.0.0.1:1", "127.0.0.1:2"]
            })
            .await;
        }
        let kept = real.get("ns/proxies/127.0.0.1:1").await.unwrap().expect("a registration");
        assert!(kept.lease != 0);
        let start = r#"{"Op":0,"Addr":"127.0.0.1:1","Metadata":"{\"name\":"#;
        assert!(kept.value.starts_with(start.as_bytes()), "{:?}", kept.value);
        // A key that is not a valid registration is left out.
        real.put("ns/proxies/x", "{}").await.unwrap();
        drop(two);
        until("the other one's lease is over", async || {
            listed(clients[0].with_header("x", "y")).await == ["127.0.0.1:1"]
        })
        .await;
    });
}
