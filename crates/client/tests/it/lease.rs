//! Leases that are kept alive by the client.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use api::{Code, error};
use mainstay_client::lease::{KeepAlive, keep_alive_once};
use mainstay_client::{Client, Settings};

use crate::run;
use crate::server::{Call, Server};

/// Starts a server that answers renewals with these TTLs and then no longer responds. With `hang_up`, it ends
/// the stream after each response.
async fn answering(ttls: &'static [i64], hang_up: bool) -> Server {
    let at = Arc::new(AtomicUsize::new(0));
    Server::start(move |mut call: Call| {
        let at = at.clone();
        async move {
            while let Some(request) = call.requests.next::<LeaseKeepAliveRequest>().await {
                let Some(ttl) = ttls.get(at.fetch_add(1, Ordering::SeqCst)) else { break };
                call.send(&LeaseKeepAliveResponse { id: request.id, ttl: *ttl, ..Default::default() });
                if hang_up {
                    return call.end(Err(api::Status::new(Code::Unavailable, "going down")));
                }
            }
            call.cancelled().await;
        }
    })
    .await
}

fn client(server: &Server) -> Client {
    Client::new(Settings::of([server.endpoint()])).unwrap()
}

const SECONDS: Duration = Duration::from_secs(5);

#[test]
fn a_lease_is_renewed_until_it_is_gone() {
    run(async {
        let server = answering(&[3, 3, 0], false).await;
        let mut kept = KeepAlive::start(&client(&server), 7, SECONDS);
        assert_eq!(kept.next().await.map(|answer| (answer.id, answer.ttl)), Some((7, 3)));
        assert_eq!(kept.next().await.map(|answer| answer.ttl), Some(3));
        assert_eq!(kept.next().await, None);
        assert_eq!(kept.ended(), Some(&error::LEASE_NOT_FOUND));
        assert_eq!(kept.next().await, None);
        assert_eq!(server.calls().len(), 1);
    });
}

#[test]
fn broken_streams_are_opened_again() {
    run(async {
        let server = answering(&[2, 2, 0], true).await;
        let mut kept = KeepAlive::start(&client(&server), 7, SECONDS);
        while kept.next().await.is_some() {}
        assert_eq!(kept.ended(), Some(&error::LEASE_NOT_FOUND));
        assert_eq!(server.calls().len(), 3);
    });
}

#[test]
fn a_lease_that_may_have_run_out_is_given_up() {
    run(async {
        let server = answering(&[1], false).await;
        let mut kept = KeepAlive::start(&client(&server), 7, SECONDS);
        while kept.next().await.is_some() {}
        assert_eq!(kept.ended().map(|status| status.code), Some(Code::DeadlineExceeded));
    });
}

#[test]
fn one_renewal_is_answered_or_refused() {
    run(async {
        let server = answering(&[5, 0], false).await;
        let client = client(&server);
        assert_eq!(keep_alive_once(&client, 7).await.map(|answer| answer.ttl), Ok(5));
        assert_eq!(keep_alive_once(&client, 7).await, Err(error::LEASE_NOT_FOUND));
    });
}
