//! Watches that survive broken connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{ResponseHeader, WatchCreateRequest, WatchRequest, WatchResponse};
use api::mvccpb::{Event, KeyValue};
use api::{Code, error};
use mainstay_client::{Client, Settings, WatchUpdate, Watcher};

use crate::run;
use crate::server::{Call, Server};

/// Starts a server with a script. Each entry of the script contains the responses to one create request,
/// after which the server ends the stream. Also returns the start revisions of the create requests.
async fn scripted(script: Vec<Vec<WatchResponse>>) -> (Server, Arc<Mutex<Vec<i64>>>) {
    let starts = Arc::new(Mutex::new(Vec::new()));
    let (noted, at) = (starts.clone(), Arc::new(AtomicUsize::new(0)));
    let script = Arc::new(script);
    let server = Server::start(move |mut call: Call| {
        let (noted, script, at) = (noted.clone(), script.clone(), at.clone());
        async move {
            let request: WatchRequest = call.requests.next().await.unwrap();
            let Some(RequestUnion::CreateRequest(create)) = request.request_union else {
                panic!("no create")
            };
            noted.lock().unwrap().push(create.start_revision);
            match script.get(at.fetch_add(1, Ordering::SeqCst)) {
                Some(responses) => {
                    for response in responses {
                        call.send(response);
                    }
                    // As if the server had lost its leader. Responses sent before this status still arrive.
                    call.end(Err(api::Status::new(Code::Unavailable, "going down")));
                }
                None => call.cancelled().await,
            }
        }
    })
    .await;
    (server, starts)
}

fn at(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

fn created(revision: i64) -> WatchResponse {
    WatchResponse { header: at(revision), created: true, watch_id: 4, ..WatchResponse::default() }
}

fn events(revision: i64, keys: &[(&'static str, i64)]) -> WatchResponse {
    let event = |(key, mod_revision): &(&'static str, i64)| Event {
        kv: Some(KeyValue { key: (*key).into(), mod_revision: *mod_revision, ..KeyValue::default() }),
        ..Event::default()
    };
    let events = keys.iter().map(event).collect();
    WatchResponse { header: at(revision), watch_id: 4, events, ..WatchResponse::default() }
}

fn watcher(server: &Server, start_revision: i64) -> Watcher {
    let client = Client::new(Settings::of([server.endpoint()])).unwrap();
    Watcher::new(&client, WatchCreateRequest { start_revision, ..WatchCreateRequest::default() })
}

/// Returns a short text for each of the next `count` updates, or fewer if the watch ends before.
async fn heard(watcher: &mut Watcher, count: usize) -> Vec<String> {
    let mut heard = Vec::new();
    while heard.len() < count {
        let revision = |header: ResponseHeader| header.revision;
        heard.push(match watcher.next().await.unwrap() {
            None => break,
            Some(WatchUpdate::Created(header)) => format!("created {}", revision(header)),
            Some(WatchUpdate::Progress(header)) => format!("progress {}", revision(header)),
            Some(WatchUpdate::Canceled(response)) => {
                format!("canceled {} {}", response.compact_revision, response.cancel_reason)
            }
            Some(WatchUpdate::Events(response)) => {
                let keys = response.events.iter().filter_map(|event| event.kv.as_ref());
                keys.map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect::<Vec<_>>().join(" ")
            }
        });
    }
    heard
}

#[test]
fn a_watch_goes_on_after_the_last_revision_seen() {
    run(async {
        let script = vec![
            vec![created(10)],
            vec![created(12), events(13, &[("a", 12), ("b", 13)])],
            vec![created(13), WatchResponse { watch_id: -1, ..events(20, &[]) }],
            vec![created(20), events(21, &[("c", 21)])],
        ];
        let (server, starts) = scripted(script).await;
        let mut watcher = watcher(&server, 0);
        assert_eq!(heard(&mut watcher, 4).await, ["created 10", "a b", "progress 20", "c"]);
        assert_eq!(*starts.lock().unwrap(), [0, 11, 14, 21]);
        assert_eq!((watcher.next_revision(), watcher.times_created()), (22, 4));
    });
}

#[test]
fn fragments_are_told_whole_or_not_at_all() {
    run(async {
        let part = |keys: &[(&'static str, i64)]| WatchResponse { fragment: true, ..events(30, keys) };
        let progress = WatchResponse { watch_id: -1, ..events(30, &[]) };
        let script = vec![
            vec![created(29), part(&[("lost", 30)])],
            vec![created(29), part(&[("a", 30)]), progress, part(&[("b", 30)]), events(30, &[("c", 30)])],
        ];
        let (server, starts) = scripted(script).await;
        assert_eq!(heard(&mut watcher(&server, 5), 2).await, ["created 29", "a b c"]);
        assert_eq!(*starts.lock().unwrap(), [5, 5]);
    });
}

#[test]
fn complete_revisions_of_fragments_are_told_at_once_and_one_revision_is_bounded() {
    run(async {
        let part = |keys: &[(&'static str, i64)]| WatchResponse { fragment: true, ..events(40, keys) };
        let script = vec![
            vec![
                created(29),
                part(&[("a", 30), ("b", 31)]),
                part(&[("c", 31), ("d", 31)]),
                part(&[("e", 32), ("lost", 33)]),
            ],
            vec![created(29), events(40, &[("f", 33), ("g", 34)])],
        ];
        let (server, starts) = scripted(script).await;
        let mut watcher = watcher(&server, 5).by_revision(100);
        assert_eq!(heard(&mut watcher, 4).await, ["created 29", "a", "b c d e", "f g"]);
        assert_eq!(*starts.lock().unwrap(), [5, 33]);

        let many: Vec<(&'static str, i64)> = vec![("key", 30); 20];
        let (server, _) = scripted(vec![vec![created(29), part(&many), part(&many)]]).await;
        let mut watcher = self::watcher(&server, 5).by_revision(300);
        assert_eq!(heard(&mut watcher, 1).await, ["created 29"]);
        let status = watcher.next().await.expect_err("is too large");
        assert!(mainstay_client::is_revision_too_large(&status), "{status:?}");
        assert!(status.message.contains("revision 30"), "{status:?}");
        assert_eq!(watcher.next().await, Ok(None));
    });
}

#[test]
fn the_end_is_told_once() {
    run(async {
        let compacted = WatchResponse { canceled: true, compact_revision: 50, ..events(60, &[]) };
        let refused = WatchResponse {
            canceled: true,
            cancel_reason: "etcdserver: permission denied".to_owned(),
            ..events(60, &[])
        };
        for (last, told) in
            [(compacted, "canceled 50 "), (refused, "canceled 0 etcdserver: permission denied")]
        {
            let (server, _) = scripted(vec![vec![created(60), last]]).await;
            assert_eq!(heard(&mut watcher(&server, 3), 9).await, ["created 60", told]);
        }
    });
}

#[test]
fn a_missing_leader_ends_a_watch_that_requires_one() {
    run(async {
        let server = Server::start(|call: Call| async { call.end(Err(error::NO_LEADER)) }).await;
        let mut watcher = watcher(&server, 0);
        assert_eq!(watcher.next().await, Err(error::NO_LEADER));
        assert_eq!(watcher.next().await, Ok(None));
        assert_eq!(server.calls().len(), 1);
    });
}
