//! Endpoints in the client's own zone are used first.

use std::collections::HashMap;

use api::Rpc;
use api::etcdserverpb::{RangeRequest, RangeResponse};
use mainstay_client::{Client, Settings};

use crate::run;
use crate::server::{Call, Server};

async fn answers(count: i64) -> Server {
    Server::start(move |call: Call| async move {
        call.reply(Ok(RangeResponse { count, ..RangeResponse::default() }));
    })
    .await
}

#[test]
fn others_are_used_only_when_none_of_ours_stands() {
    run(async {
        let (near, far) = (answers(1).await, answers(2).await);
        let settings =
            Settings { zone: Some("east".to_owned()), ..Settings::of([far.endpoint(), near.endpoint()]) };
        let client = Client::new(settings).unwrap();
        let zone = |server: &Server, zone: &str| (server.endpoint(), zone.to_owned());
        client.set_zones(HashMap::from([zone(&near, "east"), zone(&far, "west")]));
        let ask = async || {
            let answer: RangeResponse = client.call(Rpc::KvRange, &RangeRequest::default()).await.unwrap();
            answer.count
        };
        for _ in 0..5 {
            assert_eq!(ask().await, 1);
        }
        assert_eq!(far.calls().len(), 0);
        drop(near);
        while ask().await != 2 {}
    });
}
