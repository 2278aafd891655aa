//! Sessions, locks, elections and transactions against a small in-memory store.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::etcdserverpb::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use api::{Rpc, Status};
use mainstay_client::concurrency::{
    Election, ElectionError, Isolation, Mutex, MutexError, Session, Stm, StmError, run as transact,
};
use mainstay_client::{Client, Settings};

use crate::run;
use crate::store::Store;

async fn put(client: &Client, key: &'static str, value: &'static str) {
    let put = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
    client.call::<_, PutResponse>(Rpc::KvPut, &put).await.unwrap();
}

async fn get(client: &Client, key: &'static str) -> Option<String> {
    let range = RangeRequest { key: key.into(), ..RangeRequest::default() };
    let found: RangeResponse = client.call(Rpc::KvRange, &range).await.unwrap();
    found.kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
}

/// Returns true if the future is still pending after 100 ms.
async fn waits<T>(future: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_millis(100), future).await.is_err()
}

#[test]
fn a_session_ends_with_its_lease() {
    run(async {
        let server = Store::serve().await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        let session = Session::open(&client, 5).await.unwrap();
        let done = session.done();
        assert!(!session.is_done());
        mainstay_client::lease::revoke(&client, session.lease()).await.unwrap();
        done.await;
        assert!(session.is_done());

        let session = Session::open(&client, 5).await.unwrap();
        let mut mutex = Mutex::new(&session, "l");
        mutex.lock().await.unwrap();
        let done = session.done();
        session.close().await.unwrap();
        done.await;
        assert_eq!(get(&client, "l/1002").await, None);
    });
}

#[test]
fn a_lock_goes_to_who_waited_longest() {
    run(async {
        let server = Store::serve().await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        let mut sessions = Vec::new();
        for _ in 0..3 {
            sessions.push(Session::open(&client, 5).await.unwrap());
        }
        let mut locks: Vec<Mutex> = sessions.iter().map(|session| Mutex::new(session, "l")).collect();
        assert!(matches!(locks[0].unlock().await, Err(MutexError::Released)));
        locks[0].lock().await.unwrap();
        assert_eq!(locks[0].key().map(|key| &key[..]), Some(&b"l/1001"[..]));
        assert!(locks[0].is_owner().is_some());
        // The session that holds the lock may acquire it again.
        locks[0].lock().await.unwrap();
        let refused = locks[1].try_lock().await.unwrap_err();
        assert_eq!(refused.to_string(), "mutex: Locked by another session");
        assert_eq!(get(&client, "l/1002").await, None);

        for (at, key) in [(1, "l/1002"), (2, "l/1003")] {
            // Puts the key of the session into the queue, and drops the future when the key exists.
            let mut waiting = std::pin::pin!(locks[at].lock());
            while get(&client, key).await.is_none() {
                assert!(waits(&mut waiting).await);
            }
        }
        locks[0].unlock().await.unwrap();
        assert!(waits(locks[2].lock()).await);
        locks[1].lock().await.unwrap();
        // `unlock` removes the key of a session that no longer waits for the lock.
        locks[2].unlock().await.unwrap();
        locks[1].unlock().await.unwrap();
        locks[2].try_lock().await.unwrap();
    });
}

#[test]
fn a_waiter_whose_session_expired_does_not_get_the_lock() {
    run(async {
        let server = Store::serve().await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        let (one, two) = (Session::open(&client, 5).await.unwrap(), Session::open(&client, 5).await.unwrap());
        let mut held = Mutex::new(&one, "l");
        held.lock().await.unwrap();
        let mut waiting = Mutex::new(&two, "l");
        let lease = two.lease();
        let waiter = tokio::spawn(async move { waiting.lock().await });
        while get(&client, "l/1002").await.is_none() {
            tokio::task::yield_now().await;
        }
        mainstay_client::lease::revoke(&client, lease).await.unwrap();
        held.unlock().await.unwrap();
        assert!(matches!(waiter.await.unwrap(), Err(MutexError::SessionExpired)));
    });
}

#[test]
fn an_election_has_one_leader_and_observers_hear_of_each() {
    run(async {
        let server = Store::serve().await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        let (one, two) = (Session::open(&client, 5).await.unwrap(), Session::open(&client, 5).await.unwrap());
        let (mut first, mut second) = (Election::new(&one, "e"), Election::new(&two, "e"));
        assert_eq!(first.leader().await.unwrap_err().to_string(), "election: no leader");
        assert!(matches!(first.proclaim("x").await, Err(ElectionError::NotLeader)));
        let mut observer = Election::observe_prefix(&client, "e");
        assert!(waits(observer.next()).await);

        first.campaign("a").await.unwrap();
        let heard = observer.next().await.unwrap();
        assert_eq!((&heard.kv.key[..], &heard.kv.value[..]), (&b"e/1001"[..], &b"a"[..]));
        first.proclaim("b").await.unwrap();
        assert_eq!(&observer.next().await.unwrap().kv.value[..], b"b");
        // A second campaign of the leader only changes its value.
        first.campaign("c").await.unwrap();
        assert_eq!(&observer.next().await.unwrap().kv.value[..], b"c");
        assert_eq!(&second.leader().await.unwrap().kv.value[..], b"c");

        let next = tokio::spawn(async move { second.campaign("d").await.map(|_| second) });
        while get(&client, "e/1002").await.is_none() {
            tokio::task::yield_now().await;
        }
        assert!(!next.is_finished());
        first.resign().await.unwrap();
        let second = next.await.unwrap().unwrap();
        assert_eq!(&observer.next().await.unwrap().kv.value[..], b"d");
        assert_eq!(second.key().map(|key| &key[..]), Some(&b"e/1002"[..]));
        // A leader whose key was deleted gets an error.
        let mut gone = second;
        mainstay_client::lease::revoke(&client, two.lease()).await.unwrap();
        assert!(matches!(gone.proclaim("z").await, Err(ElectionError::NotLeader)));
    });
}

/// Runs a transaction that reads `a` and `b` and writes `c`. In the first run, another write changes `key`
/// between the two reads. Returns the number of runs and the values that the last run read.
async fn disturbed(isolation: Isolation, key: &'static str) -> (usize, String) {
    let server = Store::serve().await;
    let client = Client::new(Settings::of([server.endpoint()])).unwrap();
    for key in ["a", "b", "c"] {
        put(&client, key, "old").await;
    }
    let runs = AtomicUsize::new(0);
    let done = transact(&client, isolation, async |stm: &mut Stm| {
        let a = stm.get("a").await?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            put(&client, key, "new").await;
        }
        let again = stm.get("a").await?;
        assert_eq!(a, again);
        let b = stm.get("b").await?;
        stm.put("c", "mine");
        assert_eq!(stm.get("c").await?.as_deref(), Some(&b"mine"[..]));
        let text = [a, b].map(|value| String::from_utf8_lossy(&value.unwrap_or_default()).into_owned());
        Ok::<_, Status>(text.join(" "))
    });
    let (read, _) = done.await.unwrap();
    assert_eq!(get(&client, "c").await.as_deref(), Some("mine"));
    (runs.into_inner(), read)
}

#[test]
fn each_isolation_forbids_what_it_should() {
    run(async {
        let case = async |isolation, key| {
            let (runs, read) = disturbed(isolation, key).await;
            format!("{runs} {read}")
        };
        use Isolation::*;
        assert_eq!(case(SerializableSnapshot, "a").await, "2 new old");
        assert_eq!(case(SerializableSnapshot, "b").await, "2 old new");
        assert_eq!(case(SerializableSnapshot, "c").await, "2 old old");
        assert_eq!(case(Serializable, "a").await, "2 new old");
        assert_eq!(case(Serializable, "b").await, "2 old new");
        assert_eq!(case(Serializable, "c").await, "1 old old");
        assert_eq!(case(RepeatableReads, "a").await, "2 new old");
        assert_eq!(case(RepeatableReads, "b").await, "1 old new");
        assert_eq!(case(ReadCommitted, "a").await, "1 old old");
        assert_eq!(case(ReadCommitted, "b").await, "1 old new");
    });
}

#[test]
fn a_transaction_may_give_up_prefetch_and_delete() {
    run(async {
        let server = Store::serve().await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        put(&client, "a", "1").await;
        put(&client, "b", "2").await;
        let given_up = transact(&client, Isolation::default(), async |stm: &mut Stm| {
            stm.put("a", "never");
            Err::<(), _>("enough")
        });
        assert!(matches!(given_up.await, Err(StmError::Aborted("enough"))));
        assert_eq!(get(&client, "a").await.as_deref(), Some("1"));

        let calls = server.calls().len();
        let mut stm = Stm::new(&client, Isolation::Serializable);
        stm.prefetch(["a", "b", "none"]).await.unwrap();
        assert_eq!(stm.get("a").await.unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(stm.get("none").await.unwrap(), None);
        assert_eq!((stm.revision("b").await.unwrap(), stm.revision("none").await.unwrap()), (3, 0));
        assert_eq!(server.calls().len(), calls + 1);
        stm.delete("a");
        assert_eq!(stm.get("a").await.unwrap(), None);
        assert!(stm.commit().await.unwrap().is_some());
        assert_eq!(get(&client, "a").await, None);
    });
}
