//! Asks a member now and then whether it leads, for the timeline.

use std::sync::Arc;
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{StatusRequest, StatusResponse};
use client::CallOptions;
use prost::Message;
use tokio::sync::watch;

use crate::chronicle::{Chronicle, Reading};
use crate::load::Phase;
use crate::session::ClientContext;

const EVERY: Duration = Duration::from_millis(150);
const TIME_MAX: Duration = Duration::from_millis(800);

/// Asks until watches are drained.
pub async fn probe(
    context: Arc<ClientContext>,
    chronicle: Arc<Chronicle>,
    member: usize,
    mut phase: watch::Receiver<Phase>,
) {
    let mut link = None;
    loop {
        let over = phase.wait_for(|phase| matches!(phase, Phase::Drain(_) | Phase::Over));
        if tokio::time::timeout(EVERY, over).await.is_ok() {
            return;
        }
        let channel = match &link {
            Some(channel) => channel,
            None => match context.connect(member).await {
                Ok((channel, _)) => link.insert(channel),
                Err(_) => {
                    chronicle.read(member, Reading::default());
                    continue;
                }
            },
        };
        let options = CallOptions::default().within(TIME_MAX);
        let asked = StatusRequest {}.encode_to_vec().into();
        let answer = channel.unary_with(Rpc::MaintenanceStatus.path(), &options, asked).await;
        let status = answer.ok().and_then(|answer| StatusResponse::decode(answer).ok());
        let reading = status.map_or_else(Reading::default, |status| Reading {
            answers: true,
            leads: status.leader != 0
                && status.header.as_ref().is_some_and(|header| header.member_id == status.leader),
            term: status.raft_term,
            sees_leader: status.leader != 0,
        });
        if !reading.answers {
            link = None;
        }
        chronicle.read(member, reading);
    }
}
