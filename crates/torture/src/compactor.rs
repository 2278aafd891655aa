//! Runs a client that compacts the store again and again, each time through a random member.

use std::sync::Arc;
use std::time::Duration;

use oracle::Request;
use tokio::sync::watch;

use crate::phase::{Phase, pause};
use crate::rng::Rng;
use crate::security::Identity;
use crate::session::{ClientContext, Session};

/// Sends compactions until the phase ends.
pub async fn work(context: Arc<ClientContext>, number: u64, mut rng: Rng, mut phase: watch::Receiver<Phase>) {
    let mut session = Session::of(&context, Identity::Root, number, 0);
    while pause(&mut phase, Duration::from_millis(rng.between(1000, 6000))).await {
        session.move_to(rng.index(context.addresses.len()));
        let Ok(newest) = session.revision().await else { continue };
        let behind = rng.between(0, 1000) as i64;
        let physical = rng.percent(40);
        // The revision may be compacted already, or may not exist yet. In both cases the server must refuse
        // the request, which the oracle checks as well.
        let revision = (newest + 5 - behind).max(1);
        session.ask(Request::Compact { revision, physical }).await;
    }
}
