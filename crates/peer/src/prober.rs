use std::rc::Rc;
use std::time::{Duration, SystemTime};
use stdx::calendar;

use bytes::Bytes;
use http::Request;
use tokio::time::Instant;

use crate::local_member::LocalMember;
use crate::options::{CLOCK_DRIFT_MAX, Level, PROBE_INTERVAL};
use crate::paths;
use crate::peer::Peer;

/// Minimum time between two warnings about clock drift.
const DRIFT_WARNING_INTERVAL: Duration = Duration::from_secs(30);

/// Probes a peer every 4 s, to measure the round trip time and the difference between the clocks of the two
/// members. Runs until the task is aborted.
pub(crate) async fn run(local: Rc<LocalMember>, peer: Rc<Peer>) {
    let mut ticks = tokio::time::interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut warned: Option<Instant> = None;
    loop {
        ticks.tick().await;
        let Ok(endpoint) = peer.endpoint() else { continue };
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = http::Uri::from_static(paths::PROBES);
        let (begun, begun_clock) = (Instant::now(), SystemTime::now());
        let Ok(answer) = local.client.exchange(&endpoint, request, local.read_timeout).await else {
            continue;
        };
        let took = begun.elapsed();
        let Some(now) = read(answer.body()) else { continue };
        peer.account.counters.round_trips.add(took);
        let drift = drift(begun_clock + took / 2, now);
        if drift > CLOCK_DRIFT_MAX && warned.is_none_or(|then| then.elapsed() >= DRIFT_WARNING_INTERVAL) {
            warned = Some(Instant::now());
            local.log_peer(Level::Warn, "prober found high clock drift", peer.id, &format!("{drift:?}"));
        }
    }
}

/// Returns the time of the peer's clock from the body of an answer to a probe; `None` if the answer is not
/// valid or does not report a healthy peer.
fn read(body: &[u8]) -> Option<SystemTime> {
    let answer: serde_json::Value = serde_json::from_slice(body).ok()?;
    (answer.get("OK")?.as_bool()?).then(|| calendar::parse_rfc3339(answer.get("Now")?.as_str()?))?
}

fn drift(ours: SystemTime, theirs: SystemTime) -> Duration {
    ours.duration_since(theirs).unwrap_or_else(|later| later.duration())
}

/// Returns the body of the answer to a probe of another member.
pub(crate) fn answer() -> String {
    format!("{{\"OK\":true,\"Now\":\"{}\"}}\n", calendar::format_rfc3339(SystemTime::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_etcd_is_read_and_ours_too() {
        let etcd = b"{\"OK\":true,\"Now\":\"2026-11-21T10:50:53.873938335Z\"}\n";
        let seconds = read(etcd).unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(seconds, 1_795_258_253);
        assert!(drift(SystemTime::now(), read(answer().as_bytes()).unwrap()) < CLOCK_DRIFT_MAX);
        for bad in
            ["", "{}", "[]", "{\"OK\":false,\"Now\":\"2026-11-21T10:50:53Z\"}", "{\"OK\":true,\"Now\":7}"]
        {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }
}
