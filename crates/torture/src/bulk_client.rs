//! Runs a client that writes large values, so that within minutes logs grow, log segments are completed,
//! checkpoints are written, and space is reclaimed.

use std::sync::Arc;
use std::time::Duration;

use oracle::{Put, Range, Request};
use tokio::sync::watch;

use crate::phase::{Phase, pause};
use crate::rng::Rng;
use crate::session::{ClientContext, Session};

/// Number of keys, which are overwritten in random order.
const KEYS: u64 = 12;
/// Interval between two requests. With values of average size, the client writes about 2 MB/s.
const EVERY: Duration = Duration::from_millis(150);
const KIB_LEAST: u64 = 64;
const KIB_MOST: u64 = 512;

/// Sends requests until the phase ends: nine puts for each read on average.
pub async fn work(context: Arc<ClientContext>, number: u64, mut rng: Rng, mut phase: watch::Receiver<Phase>) {
    let mut session = Session::new(&context, number, 0);
    while pause(&mut phase, EVERY).await {
        session.move_to(rng.index(context.addresses.len()));
        let id = context.record.number();
        let key = format!("bulk/{:02}", rng.below(KEYS)).into_bytes();
        if rng.percent(10) {
            session.ask(Request::Range(Range { key, ..Range::default() })).await;
            continue;
        }
        let len = rng.between(KIB_LEAST, KIB_MOST) as usize * 1024;
        let mut value = format!("v{id}:").into_bytes();
        while value.len() < len {
            value.extend(rng.word().to_le_bytes());
        }
        session.ask_numbered(id, Request::Put(Put { key, value, ..Put::default() }), None).await;
    }
}
