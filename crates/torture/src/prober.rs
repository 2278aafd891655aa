//! Asks a member at intervals for its status, for the timeline.

use std::sync::Arc;
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{StatusRequest, StatusResponse};
use prost::Message;
use tokio::sync::watch;

use crate::chronicle::{Chronicle, Reading};
use crate::phase::Phase;
use crate::security::{Identity, wants_login};
use crate::session::ClientContext;

const EVERY: Duration = Duration::from_millis(150);
const TIME_MAX: Duration = Duration::from_millis(800);

/// Asks one member at intervals for its status, and records the answers, until watches begin to drain.
pub async fn probe(
    context: Arc<ClientContext>,
    chronicle: Arc<Chronicle>,
    number: u64,
    member: usize,
    mut phase: watch::Receiver<Phase>,
) {
    let mut link = None;
    loop {
        let over = phase.wait_for(|phase| matches!(phase, Phase::Drain(_) | Phase::Over));
        if tokio::time::timeout(EVERY, over).await.is_ok() {
            return;
        }
        let open = match &link {
            Some(open) => open,
            None => match context.open(member, Identity::Root, number).await {
                Ok(opened) => link.insert(opened),
                Err(_) => {
                    chronicle.read(member, Reading::default());
                    continue;
                }
            },
        };
        let options = open.options().within(TIME_MAX);
        let asked = StatusRequest {}.encode_to_vec().into();
        let answer = open.channel.unary_with(Rpc::MaintenanceStatus.path(), &options, asked).await;
        if let Err(status) = &answer
            && wants_login(status)
        {
            context.failed(open, number, status);
            link = None;
            continue;
        }
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
