//! Users with passwords, and the tokens that the server returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::Rpc;
use api::error;
use api::etcdserverpb::{AuthenticateRequest, AuthenticateResponse, PutRequest, PutResponse};
use mainstay_client::{Client, Settings, shown};

use crate::run;
use crate::server::{Call, Server};

const PUT: &str = "/etcdserverpb.KV/Put";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// Starts a server that issues the tokens 1, 2, ... and accepts only the newest. The first `expire` tokens
/// are never accepted, as if they had expired.
async fn server(expire: usize) -> Server {
    let given = Arc::new(AtomicUsize::new(0));
    Server::start(move |mut call: Call| {
        let given = given.clone();
        async move {
            if call.path == AUTHENTICATE {
                let request: AuthenticateRequest = call.requests.next().await.unwrap();
                if request.password != "secret" {
                    return call.end(Err(error::AUTH_FAILED));
                }
                assert_eq!(call.header("token"), None);
                let token = (given.fetch_add(1, Ordering::SeqCst) + 1).to_string();
                return call.reply(Ok(AuthenticateResponse { token, ..Default::default() }));
            }
            let token = call.header("token").and_then(|token| token.parse().ok()).unwrap_or(0);
            if token > expire && token == given.load(Ordering::SeqCst) {
                call.reply(Ok(PutResponse::default()));
            } else {
                call.end(Err(error::INVALID_AUTH_TOKEN));
            }
        }
    })
    .await
}

fn user(server: &Server, password: &str) -> Client {
    let user = Some(("root".to_owned(), password.to_owned()));
    Client::new(Settings { user, ..Settings::of([server.endpoint()]) }).unwrap()
}

async fn put(client: &Client) -> Result<PutResponse, String> {
    client.call(Rpc::KvPut, &PutRequest::default()).await.map_err(|status| shown(&status))
}

#[test]
fn a_token_is_got_first_and_again_when_it_expired() {
    run(async {
        let fresh = server(0).await;
        let client = user(&fresh, "secret");
        put(&client).await.unwrap();
        put(&client).await.unwrap();
        assert_eq!(fresh.calls(), [AUTHENTICATE, PUT, PUT]);

        let stale = server(1).await;
        put(&user(&stale, "secret")).await.unwrap();
        assert_eq!(stale.calls(), [AUTHENTICATE, PUT, AUTHENTICATE, PUT]);
    });
}

#[test]
fn one_authentication_serves_all_who_wait() {
    run(async {
        let server = server(0).await;
        let client = user(&server, "secret");
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let client = client.clone();
            calls.spawn(async move { put(&client).await });
        }
        for result in calls.join_all().await {
            result.unwrap();
        }
        assert_eq!(server.calls().iter().filter(|path| *path == AUTHENTICATE).count(), 1);
    });
}

#[test]
fn a_wrong_password_is_told() {
    run(async {
        let server = server(0).await;
        let client = user(&server, "wrong");
        let told = "etcdserver: authentication failed, invalid user ID or password";
        assert_eq!(put(&client).await.unwrap_err(), told);
        assert_eq!(shown(&client.authenticate().await.unwrap_err()), told);
        assert_eq!(server.calls(), [AUTHENTICATE, AUTHENTICATE]);
    });
}

#[test]
fn without_authentication_calls_go_without_a_token() {
    run(async {
        let server = Server::start(|call: Call| async {
            if call.path == AUTHENTICATE {
                return call.end(Err(error::AUTH_NOT_ENABLED));
            }
            assert_eq!(call.header("token"), None);
            call.reply(Ok(PutResponse::default()));
        })
        .await;
        let client = user(&server, "secret");
        client.authenticate().await.unwrap();
        put(&client).await.unwrap();
        assert_eq!(server.calls(), [AUTHENTICATE, PUT]);
    });
}

#[test]
fn a_token_given_by_hand_is_not_renewed() {
    run(async {
        let server = server(0).await;
        let settings = Settings { token: Some("99".to_owned()), ..Settings::of([server.endpoint()]) };
        let client = Client::new(settings).unwrap();
        assert_eq!(put(&client).await.unwrap_err(), "etcdserver: invalid auth token");
        assert_eq!(server.calls(), [PUT]);
    });
}

#[test]
fn streams_begin_with_a_fresh_token() {
    run(async {
        let server = server(0).await;
        let client = user(&server, "secret").within(Duration::from_secs(5));
        put(&client).await.unwrap();
        let mut stream = client.open::<PutRequest, PutResponse>(Rpc::Watch).await.unwrap();
        stream.finish();
        assert!(stream.next().await.unwrap().is_some());
        assert!(stream.next().await.unwrap().is_none());
        assert_eq!(server.calls(), [AUTHENTICATE, PUT, AUTHENTICATE, "/etcdserverpb.Watch/Watch"]);
    });
}
