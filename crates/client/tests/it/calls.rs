//! Failover, retries, size limits, and the errors that callers get.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::etcdserverpb::{MemberListResponse, PutRequest, PutResponse, RangeRequest, RangeResponse};
use api::{Code, Rpc, Status, error};
use mainstay_client::{
    CallOptions, Channel, Client, Endpoint, Keepalive, Settings, SettingsError, Transport, shown,
};
use testkit::ports::free_address;
use tokio::net::{TcpListener, UnixListener};

use crate::run;
use crate::server::{Call, Server, serve_unix};

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";

async fn answers(count: i64) -> Server {
    Server::start(move |call: Call| async move {
        call.reply(Ok(RangeResponse { count, ..RangeResponse::default() }));
    })
    .await
}

async fn count(client: &Client) -> Result<i64, Status> {
    let answer: RangeResponse = client.call(Rpc::KvRange, &RangeRequest::default()).await?;
    Ok(answer.count)
}

/// Returns a client that is connected to all servers.
async fn connected(servers: &[&Server]) -> Client {
    let client = Client::new(Settings::of(servers.iter().map(|server| server.endpoint()))).unwrap();
    for server in servers {
        let bound = client.at(&server.endpoint()).within(Duration::from_secs(5));
        assert_eq!(bound.peer().await, Ok(None));
    }
    client
}

#[test]
fn calls_go_round_robin_over_what_stands_and_around_what_does_not() {
    run(async {
        let (one, two) = (answers(1).await, answers(2).await);
        let client = connected(&[&one, &two]).await;
        let mut counts = Vec::new();
        for _ in 0..4 {
            counts.push(count(&client).await.unwrap());
        }
        assert_eq!(counts[0], counts[2]);
        assert_eq!(counts[1], counts[3]);
        assert_ne!(counts[0], counts[1]);

        let settings = Settings::of([free_address().to_string(), two.endpoint()]);
        let client = Client::new(settings).unwrap();
        for _ in 0..4 {
            assert_eq!(count(&client).await, Ok(2));
        }
        let bound = client.at(&one.endpoint());
        assert_eq!(count(&bound).await, Ok(1));
        assert_eq!(bound.endpoints(), [one.endpoint()]);
    });
}

#[test]
fn reads_go_to_the_next_endpoint_and_writes_do_not() {
    run(async {
        let broken = Server::start(|call: Call| async { call.hang_up() }).await;
        let client = connected(&[&broken]).await;
        let lost = client.call::<_, PutResponse>(Rpc::KvPut, &PutRequest::default()).await.unwrap_err();
        assert_eq!(lost.code, Code::Unavailable, "{lost}");
        assert_eq!(broken.calls(), [PUT]);

        let good = answers(7).await;
        let client = connected(&[&broken, &good]).await;
        for _ in 0..4 {
            assert_eq!(count(&client).await, Ok(7));
        }
        let reads = broken.calls().iter().filter(|path| *path == RANGE).count();
        assert!(reads >= 1, "the broken server was never asked");
    });
}

#[test]
fn writes_that_were_refused_unread_are_repeated() {
    run(async {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let server = Server::start(move |call: Call| {
            let before = counted.fetch_add(1, Ordering::Relaxed);
            async move { if before < 3 { call.refuse() } else { call.reply(Ok(PutResponse::default())) } }
        })
        .await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        client.call::<_, PutResponse>(Rpc::KvPut, &PutRequest::default()).await.unwrap();
        assert_eq!(server.calls().len(), 4);
    });
}

#[test]
fn no_leader_is_waited_out_by_reads_only() {
    run(async {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let server = Server::start(move |call: Call| {
            let before = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                if before < 3 {
                    call.end(Err(error::NO_LEADER));
                } else {
                    call.reply(Ok(RangeResponse { count: 3, ..RangeResponse::default() }));
                }
            }
        })
        .await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        let refused = client.call::<_, PutResponse>(Rpc::KvPut, &PutRequest::default()).await.unwrap_err();
        assert_eq!((refused.code, shown(&refused).as_str()), (Code::Unavailable, "etcdserver: no leader"));
        assert_eq!(count(&client).await, Ok(3));
        assert_eq!(server.calls().len(), 4);
    });
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    run(async {
        let server = answers(1).await;
        let address = server.address;
        let client = Client::new(Settings::of([address.to_string()])).unwrap();
        assert_eq!(count(&client).await, Ok(1));
        drop(server);
        let short = client.within(Duration::from_millis(200));
        while count(&short).await.is_ok() {}
        let refused = format!("dial tcp {address}: connect: connection refused");
        testkit::eventually("the refusal is told", testkit::TIMEOUT, async || {
            client.dial_errors().iter().any(|(_, why)| why.contains(&refused)).then_some(())
        })
        .await;
        let listener = TcpListener::bind(address).await.unwrap();
        let _again = Server::on(listener, None, |call: Call| async {
            call.reply(Ok(RangeResponse { count: 2, ..RangeResponse::default() }));
        });
        assert_eq!(count(&client.within(Duration::from_secs(10))).await, Ok(2));
    });
}

#[test]
fn a_server_that_goes_away_gets_no_new_calls_while_old_ones_end() {
    run(async {
        let server = Server::start(|mut call: Call| async move {
            if call.path != RANGE {
                call.send(&PutResponse::default());
                call.go_away();
                call.cancelled().await;
                return;
            }
            call.reply(Ok(RangeResponse { count: 1, ..RangeResponse::default() }));
        })
        .await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        let mut old = client.open::<PutRequest, PutResponse>(Rpc::Watch).await.unwrap();
        assert!(old.next().await.unwrap().is_some());
        for _ in 0..200 {
            assert_eq!(count(&client.within(Duration::from_secs(5))).await, Ok(1));
        }
        let waiting = tokio::time::timeout(Duration::from_millis(50), old.next()).await;
        assert!(waiting.is_err(), "the old call was cut off: {waiting:?}");
    });
}

#[test]
fn what_cannot_be_reached_is_told_as_etcds_tools_tell_it() {
    run(async {
        let gone = free_address();
        let client = Client::new(Settings::of([gone.to_string()])).unwrap().within(Duration::from_secs(1));
        let late = count(&client).await.unwrap_err();
        assert_eq!((late.code, shown(&late).as_str()), (Code::DeadlineExceeded, "context deadline exceeded"));
        let refused = format!(
            "connection error: desc = \"transport: Error while dialing: dial tcp {gone}: connect: connection refused\""
        );
        assert_eq!(client.dial_errors(), [(gone.to_string(), refused)]);
        for (endpoint, why) in [
            ("foo://127.0.0.1:1", "dial tcp: address foo://127.0.0.1:1: too many colons in address"),
            ("http://", "dial tcp: missing address"),
            ("127.0.0.1", "dial tcp: address 127.0.0.1: missing port in address"),
            ("127.0.0.1:http", "dial tcp: lookup tcp/http: unknown port"),
            ("unix:///nowhere/at/all", "dial unix /nowhere/at/all: connect: no such file or directory"),
        ] {
            let error = Channel::open(&Endpoint::new(endpoint), &Transport::default()).await.err().unwrap();
            assert_eq!(error.to_string(), why);
        }
        assert_eq!(shown(&Status::new(Code::Internal, "x")), "rpc error: code = Internal desc = x");
    });
}

#[test]
fn settings_that_make_no_client_say_so() {
    assert_eq!(Client::new(Settings::default()).err(), Some(SettingsError::NoEndpoints));
    let both = Settings {
        user: Some(("a".to_owned(), "b".to_owned())),
        token: Some("t".to_owned()),
        ..Settings::of(["a:1"])
    };
    let said = Client::new(both).err().unwrap().to_string();
    assert_eq!(said, "Username/Password and Token configurations are mutually exclusive");
    let small = Settings { receive_bytes_max: 10, ..Settings::of(["a:1"]) };
    let said = Client::new(small).err().unwrap().to_string();
    assert_eq!(said, "gRPC message recv limit (10 bytes) must be greater than send limit (2097152 bytes)");
}

#[test]
fn messages_are_held_to_the_limits() {
    run(async {
        let server = Server::start(|call: Call| async {
            let kvs = vec![api::mvccpb::KeyValue { value: vec![0; 300].into(), ..Default::default() }];
            call.reply(Ok(RangeResponse { kvs, ..RangeResponse::default() }));
        })
        .await;
        let settings =
            Settings { send_bytes_max: 100, receive_bytes_max: 200, ..Settings::of([server.endpoint()]) };
        let client = Client::new(settings).unwrap();
        let put = PutRequest { value: vec![0; 101].into(), ..PutRequest::default() };
        let refused = client.call::<_, PutResponse>(Rpc::KvPut, &put).await.unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert_eq!(refused.message, "trying to send message larger than max (103 vs. 100)");
        let refused = count(&client).await.unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert_eq!(refused.message, "grpc: received message larger than max (306 vs. 200)");
    });
}

#[test]
fn metadata_goes_along() {
    run(async {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = heard.clone();
        let server = Server::start(move |call: Call| {
            let names = ["client-api-version", "hasleader", "token"];
            let seen = names.map(|name| call.header(name).map(str::to_owned));
            hearing.lock().unwrap().push(seen);
            async { call.reply(Ok(RangeResponse::default())) }
        })
        .await;
        // White space around the token is removed.
        let settings = Settings { token: Some(" by.hand ".to_owned()), ..Settings::of([server.endpoint()]) };
        let client = Client::new(settings).unwrap().with_require_leader();
        count(&client).await.unwrap();
        let plain = Client::new(Settings::of([server.endpoint()])).unwrap();
        count(&plain).await.unwrap();
        let some = |text: &str| Some(text.to_owned());
        let version = some(api::API_VERSION);
        let expected = [[version.clone(), some("true"), some("by.hand")], [version, None, None]];
        assert_eq!(*heard.lock().unwrap(), expected);
    });
}

#[test]
fn a_connection_that_falls_silent_is_given_up() {
    run(async {
        // The kernel accepts connections on this socket, but no server reads or writes.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::new(silent.local_addr().unwrap().to_string());
        let brief = Duration::from_millis(50);
        let keepalive = Some(Keepalive { time: brief, timeout: brief, without_calls: false });
        let transport = Transport { keepalive, ..Transport::default() };
        let channel = Channel::open(&endpoint, &transport).await.unwrap();
        let lost = channel.unary(Rpc::KvRange.path(), bytes::Bytes::new()).await.unwrap_err();
        assert_eq!(lost.code, Code::Unavailable);
        channel.closed().await;
        assert!(channel.is_closed());

        // A connection whose server answers pings stays open, however long a call takes.
        let server = Server::start(|mut call: Call| async move {
            call.cancelled().await;
        })
        .await;
        let keepalive = Some(Keepalive { time: brief, timeout: brief * 100, without_calls: false });
        let transport = Transport { keepalive, ..Transport::default() };
        let channel = Channel::open(&Endpoint::new(server.endpoint()), &transport).await.unwrap();
        let call = tokio::time::timeout(brief * 10, channel.unary(Rpc::KvRange.path(), bytes::Bytes::new()));
        assert!(call.await.is_err());
        assert!(!channel.is_closed());
    });
}

#[test]
fn pings_are_never_more_frequent_than_servers_allow() {
    let seconds = Duration::from_secs;
    let taken = Keepalive::for_grpc(seconds(2), seconds(6));
    assert_eq!(taken, Some(Keepalive { time: seconds(10), timeout: seconds(6), without_calls: false }));
    assert_eq!(Keepalive::for_grpc(Duration::ZERO, seconds(6)), None);
}

#[test]
fn a_socket_in_the_file_system_is_an_endpoint() {
    run(async {
        let dir = testkit::TempDir::in_memory("socket");
        let path = dir.join("client.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = tokio::spawn(serve_unix(listener, |call: Call| async {
            call.reply(Ok(RangeResponse { count: 5, ..RangeResponse::default() }));
        }));
        let client = Client::new(Settings::of([format!("unix://{}", path.display())])).unwrap();
        assert_eq!(count(&client).await, Ok(5));
        server.abort();
    });
}

#[test]
fn endpoints_come_from_the_member_list() {
    run(async {
        let server = Server::start(|call: Call| async {
            let member = |name: &str, url: &str, is_learner| api::etcdserverpb::Member {
                name: name.to_owned(),
                client_urls: vec![url.to_owned()],
                is_learner,
                ..Default::default()
            };
            let members = vec![
                member("a", "http://a:1", false),
                member("", "http://b:1", false),
                member("c", "http://c:1", true),
            ];
            call.reply(Ok(MemberListResponse { members, ..MemberListResponse::default() }));
        })
        .await;
        let client = Client::new(Settings::of([server.endpoint()])).unwrap();
        client.sync().await.unwrap();
        assert_eq!(client.endpoints(), ["http://a:1"]);
    });
}

/// The calls need more output than the client writes before it reads again. With some call counts, the socket
/// accepts all of the output at once.
#[test]
fn thousands_of_calls_at_once_are_all_answered() {
    run(async {
        let server = Server::start(|mut call: Call| async move {
            let _ = call.requests.next::<RangeRequest>().await;
            call.reply(Ok(RangeResponse::default()));
        })
        .await;
        let long = http::HeaderValue::from_str(&"x".repeat(300)).unwrap();
        let options = CallOptions::default().with(http::HeaderName::from_static("long"), long);
        for count in [400, 425, 450, 500, 600, 2000] {
            let channel =
                Channel::open(&Endpoint::new(server.endpoint()), &Transport::default()).await.unwrap();
            // After this response, the client has received the server's settings.
            channel.unary(RANGE, bytes::Bytes::new()).await.unwrap();
            let mut calls = tokio::task::JoinSet::new();
            for _ in 0..count {
                let (channel, options) = (channel.clone(), options.clone());
                calls.spawn(async move { channel.unary_with(RANGE, &options, bytes::Bytes::new()).await });
            }
            let mut answered = 0;
            while let Some(answer) = calls.join_next().await {
                answer.unwrap().unwrap();
                answered += 1;
            }
            assert_eq!(answered, count);
        }
    });
}

/// If a client cancels many calls at once, it has more output than it writes before it reads again. Other
/// calls must still finish.
#[test]
fn calls_that_are_given_up_at_once_silence_no_other() {
    run(async {
        let go = Arc::new(tokio::sync::Notify::new());
        let gone = go.clone();
        let server = Server::start(move |mut call: Call| {
            let gone = gone.clone();
            async move {
                if call.path == PUT {
                    gone.notified().await;
                    call.reply(Ok(PutResponse::default()));
                } else {
                    call.cancelled().await;
                }
            }
        })
        .await;
        let channel = Channel::open(&Endpoint::new(server.endpoint()), &Transport::default()).await.unwrap();
        let (mut sender, mut receiver) = channel.stream(PUT).await.unwrap();
        sender.send_last(bytes::Bytes::new()).await.unwrap();
        let mut others = Vec::new();
        for _ in 0..10_500 {
            others.push(channel.stream(RANGE).await.unwrap());
        }
        while server.calls().len() <= others.len() {
            tokio::task::yield_now().await;
        }
        // The resets for the cancelled calls exceed the output that a connection may hold while it reads.
        drop(others);
        // Lets the client write all of its output before the server responds.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        go.notify_one();
        assert!(receiver.next().await.unwrap().is_some());
        assert_eq!(receiver.next().await, Ok(None));
    });
}

/// A stream whose receiver does not read may occupy only its own flow-control window, not the window of other
/// streams.
#[test]
fn a_receiver_that_takes_nothing_keeps_no_other_call_waiting() {
    run(async {
        let server = Server::start(|mut call: Call| async move {
            if call.path == PUT {
                let kvs =
                    vec![api::mvccpb::KeyValue { value: vec![0; 1 << 20].into(), ..Default::default() }];
                let answer = RangeResponse { kvs, ..RangeResponse::default() };
                (0..6).for_each(|_| call.send(&answer));
                call.cancelled().await;
            } else {
                call.reply(Ok(RangeResponse::default()));
            }
        })
        .await;
        let channel = Channel::open(&Endpoint::new(server.endpoint()), &Transport::default()).await.unwrap();
        let (mut sender, mut receiver) = channel.stream(PUT).await.unwrap();
        sender.send_last(bytes::Bytes::new()).await.unwrap();
        assert!(receiver.next().await.unwrap().is_some());
        for _ in 0..100 {
            channel.unary(RANGE, bytes::Bytes::new()).await.unwrap();
        }
    });
}
