//! Answers the calls about the connections of clients to this member, which etcd does not have.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use accounting::ShardCounters;
use api::mainstaypb::{CountRequest, CountResponse, DrainRequest, DrainResponse, ShardConnections};
use api::{Code, Status};
use bytes::Bytes;
use front::{Answer, Drain};
use telemetry::logging::Value;

use super::call::Call;
use super::{decode, whole};

/// Maximum of `DrainRequest.over_ms`: a day.
const OVER_MAX: Duration = Duration::from_secs(24 * 3600);
/// Used if `DrainRequest.grace_ms` is 0, so that a caller that leaves it out aborts no call.
const GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// Maximum of `DrainRequest.grace_ms`: an hour.
const GRACE_MAX: Duration = Duration::from_secs(3600);

/// Answers a Drain: begins to end a share of this member's connections, and does not wait for their end.
pub(super) async fn drain(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: DrainRequest = decode(message)?;
    call.root()?;
    let drain = order(&request)?;
    let services = &call.services;
    let draining = services.drains.begin(drain);
    // The autopilot moves leadership away from a member that sends all its clients elsewhere.
    let now = services.shared.member.clock.now();
    let until = (drain.percent == 100).then_some(now + drain.over + drain.grace);
    services.shared.clients.draining.set(until);
    services.logger.info(
        "draining client connections",
        &[
            ("percent", Value::Uint(drain.percent.into())),
            ("open", Value::Uint(draining.open)),
            ("ending", Value::Uint(draining.ending)),
            ("over-ms", Value::Uint(request.over_ms)),
            ("grace-ms", Value::Uint(u64::try_from(drain.grace.as_millis()).unwrap_or(u64::MAX))),
        ],
    );
    let (open, ending) = (draining.open, draining.ending);
    Ok(whole(&DrainResponse { header: Some(services.newest_header()), open, ending }))
}

/// Answers a Count.
pub(super) async fn count(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let CountRequest {} = decode(message)?;
    call.root()?;
    let services = &call.services;
    let of_shard = |shard: &Arc<ShardCounters>| ShardConnections {
        open: shard.connections.load(Relaxed) as u64,
        http2: shard.http2_connections.load(Relaxed),
        to_drain: shard.connections_to_drain.load(Relaxed),
        drained: shard.connections_drained.load(Relaxed),
    };
    let shards = services.drains.shards().iter().map(of_shard).collect();
    Ok(whole(&CountResponse { header: Some(services.newest_header()), shards }))
}

/// Checks a request, and returns it as an order for the front.
fn order(request: &DrainRequest) -> Result<Drain, Status> {
    let refused = |text: String| Status::with(Code::InvalidArgument, text);
    let percent = u8::try_from(request.percent).ok().filter(|percent| *percent <= 100);
    let percent = percent.ok_or_else(|| {
        refused(format!("mainstay: percent must be between 0 and 100, but is {}", request.percent))
    })?;
    let time = |name: &str, ms: u64, max: Duration| {
        let time = Duration::from_millis(ms);
        let text = || format!("mainstay: {name} must be at most {} ms, but is {ms}", max.as_millis());
        if time <= max { Ok(time) } else { Err(refused(text())) }
    };
    let over = time("over_ms", request.over_ms, OVER_MAX)?;
    let grace = time("grace_ms", request.grace_ms, GRACE_MAX)?;
    let grace = if grace.is_zero() { GRACE_DEFAULT } else { grace };
    Ok(Drain { percent, over, grace })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_out_of_range_is_refused_with_the_reason() {
        let text = |percent, over_ms, grace_ms| {
            order(&DrainRequest { percent, over_ms, grace_ms }).map_err(|status| {
                assert_eq!(status.code, Code::InvalidArgument);
                status.message.into_owned()
            })
        };
        let (over, grace) = (Duration::from_millis(5), Duration::from_millis(7));
        assert_eq!(text(30, 5, 7), Ok(Drain { percent: 30, over, grace }));
        assert_eq!(text(30, 5, 0), Ok(Drain { percent: 30, over, grace: GRACE_DEFAULT }));
        assert!(text(0, 86_400_000, 3_600_000).is_ok() && text(100, 0, 0).is_ok());
        let refused = |text: &str| Err(text.to_owned());
        assert_eq!(text(101, 0, 0), refused("mainstay: percent must be between 0 and 100, but is 101"));
        assert_eq!(text(300, 0, 0), refused("mainstay: percent must be between 0 and 100, but is 300"));
        let long = "mainstay: over_ms must be at most 86400000 ms, but is 86400001";
        assert_eq!(text(1, 86_400_001, 0), refused(long));
        let long = "mainstay: grace_ms must be at most 3600000 ms, but is 18446744073709551615";
        assert_eq!(text(1, 0, u64::MAX), refused(long));
    }
}
