//! What is logged and kept of slow requests, with the time of each stage.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use api::etcdserverpb::RangeRequest;
use api::{Rpc, Status};
use front::Answer;
use numbers::Revision;
use prost::Message as _;
use stdx::calendar::format_rfc3339;
use telemetry::logging::Value;
use telemetry::slow_requests::SlowNote;
use telemetry::stages::Stage;

use super::range::Asked;
use super::stages::{Begun, Confirmed, Making, Told, read_stages};
use super::{AtHand, Services};

/// Bytes that are told of a key.
const KEY_BYTES: usize = 128;

impl Services {
    /// Looks at a request to the core that was answered: notes its stages if they are measured, and tells of it if it was slow.
    #[cold]
    pub(super) fn look_at_write(
        &self,
        (rpc, peer): (Rpc, SocketAddr),
        begun: &Begun,
        (asked, answered): (Instant, Instant),
        revision: Revision,
        answer: &Result<Answer, Status>,
    ) {
        let stages = self.write_stages(begun, (asked, answered), revision);
        let took = answered.saturating_duration_since(begun.arrived);
        if took > self.shared.limits.slow_request {
            let (size, error) = of_answer(answer);
            self.slow((rpc, peer.to_string(), peer.ip()), took, (-1, size), String::new(), &stages, error);
        }
        self.passed(begun, || Told { stages, proposed: Some((asked, answered)) });
    }

    /// Looks at a read other than a range that was answered: notes its stages if they are measured, and tells of it if it was
    /// slow. `began` is when it went to the core, or to the state.
    pub(super) fn look_at_read(
        &self,
        call: &AtHand,
        began: Instant,
        confirmed: Option<&Confirmed>,
        answer: &Result<Answer, Status>,
    ) {
        let AtHand { rpc, peer, begun } = call;
        let (now, limits) = (self.now(), &self.shared.limits);
        let took = now.saturating_duration_since(begun.arrived);
        let applying = now.saturating_duration_since(began);
        let is_slow_apply = applying > limits.slow_apply && *rpc == Rpc::KvTxn;
        let is_slow = took > limits.slow_request;
        if !is_slow && !is_slow_apply && !begun.is_measured() {
            return;
        }
        let went_on = confirmed.map_or(began, |confirmed| confirmed.went_on);
        let making = Making::Whole(now.saturating_duration_since(went_on));
        let stages = read_stages(begun, began, confirmed, making);
        let (size, error) = of_answer(answer);
        if is_slow_apply {
            self.slow_apply_of_read("read-only txn ", "", applying, size, error.as_deref());
        }
        if is_slow {
            self.slow((*rpc, peer.to_string(), peer.ip()), took, (-1, size), String::new(), &stages, error);
        }
        self.passed(begun, || Told { stages, proposed: None });
    }

    /// A request to the core was not answered in time.
    #[cold]
    pub(super) fn gave_up(&self, (rpc, peer): (Rpc, SocketAddr), begun: &Begun) {
        let took = self.shared.clock.now().saturating_duration_since(begun.arrived);
        if took > self.shared.limits.slow_request {
            let error = Some("etcdserver: request timed out".to_owned());
            self.slow((rpc, peer.to_string(), peer.ip()), took, (-1, -1), String::new(), &[], error);
        }
    }

    /// Tells of a range that was answered at this time, if it was slow.
    pub(super) fn slow_range(
        &self,
        request: &RangeRequest,
        asked: &Asked,
        answer: &Result<Answer, Status>,
        now: Instant,
        stages: &[(Stage, Duration)],
    ) {
        let (slow_apply, slow_request) = (self.shared.limits.slow_apply, self.shared.limits.slow_request);
        let applying = now.saturating_duration_since(asked.began);
        let took = now.saturating_duration_since(asked.begun.arrived);
        if applying <= slow_apply && took <= slow_request {
            return;
        }
        let content = shown(request);
        let (size, error) = of_answer(answer);
        if applying > slow_apply {
            self.slow_apply_of_read("read-only range ", &content, applying, size, error.as_deref());
        }
        if took > slow_request {
            let bytes = i64::try_from(request.encoded_len()).unwrap_or(i64::MAX);
            let client = (Rpc::KvRange, asked.client.to_string(), asked.client);
            self.slow(client, took, (bytes, size), content, stages, error);
        }
    }

    /// Logs a read that was slow to be made, in etcd's form; `content` is the request, if it is told.
    fn slow_apply_of_read(
        &self,
        prefix: &str,
        content: &str,
        took: Duration,
        size: i64,
        error: Option<&str>,
    ) {
        let response = format!("size:{size}");
        let mut fields = vec![
            ("took", Value::Duration(took)),
            ("expected-duration", Value::Duration(self.shared.limits.slow_apply)),
            ("prefix", Value::Str(prefix)),
            ("request", Value::Str(content)),
            ("response", Value::Str(&response)),
        ];
        if let Some(error) = error {
            fields.push(("error", Value::Str(error)));
        }
        self.logger.warn("apply request took too long", &fields);
        self.shared.metrics.server.slow_apply.inc();
    }

    /// Logs a slow request in etcd's form, and keeps it for the page that lists them.
    fn slow(
        &self,
        (rpc, remote, client): (Rpc, String, IpAddr),
        took: Duration,
        (request_bytes, response_bytes): (i64, i64),
        content: String,
        stages: &[(Stage, Duration)],
        error: Option<String>,
    ) {
        let (path, ended) = (rpc.method().path, self.shared.clock.wall());
        let began = format_rfc3339(ended.checked_sub(took).unwrap_or(ended));
        let steps: Vec<String> =
            stages.iter().map(|(stage, took)| format!("'{}' (duration: {took:?})", stage.name())).collect();
        let shown: Vec<&str> = steps.iter().map(String::as_str).collect();
        let mut fields = vec![
            ("start time", Value::Str(&began)),
            ("time spent", Value::Duration(took)),
            ("remote", Value::Str(&remote)),
            ("response type", Value::Str(path)),
            ("request count", Value::Int(-1)),
            ("request size", Value::Int(request_bytes)),
            ("response count", Value::Int(-1)),
            ("response size", Value::Int(response_bytes)),
            ("request content", Value::Str(&content)),
        ];
        if !shown.is_empty() {
            fields.push(("steps", Value::List(&shown)));
        }
        if let Some(error) = &error {
            fields.push(("error", Value::Str(error)));
        }
        self.logger.warn("request stats", &fields);
        let stages = stages.to_vec();
        self.shared.slow_requests.slow(SlowNote { client, path, content, ended, took, stages, error });
    }
}

/// Bytes of an answer, and why it is none.
fn of_answer(answer: &Result<Answer, Status>) -> (i64, Option<String>) {
    match answer {
        Ok(Answer::Whole(message)) => (i64::try_from(message.len()).unwrap_or(i64::MAX), None),
        Ok(Answer::Pieces { len, .. }) => (i64::try_from(*len).unwrap_or(i64::MAX), None),
        Err(status) => (-1, Some(status.message.to_string())),
    }
}

/// A range in the text form of protobuf; only the beginnings of long keys.
fn shown(request: &RangeRequest) -> String {
    let mut text = String::new();
    let keys = [("key", &request.key), ("range_end", &request.range_end)];
    for (name, key) in keys.into_iter().filter(|(_, key)| !key.is_empty()) {
        let beginning = key.get(..KEY_BYTES).unwrap_or(key);
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "{name}:\"{}\" ", beginning.escape_ascii());
    }
    for (name, number) in [("limit", request.limit), ("revision", request.revision)] {
        if number != 0 {
            let _ = write!(text, "{name}:{number} ");
        }
    }
    for (name, is) in [
        ("serializable", request.serializable),
        ("keys_only", request.keys_only),
        ("count_only", request.count_only),
    ] {
        if is {
            let _ = write!(text, "{name}:true ");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_told_without_what_is_not_set() {
        let request = RangeRequest {
            key: vec![b'a'; 500].into(),
            range_end: "b\"".into(),
            limit: 3,
            count_only: true,
            ..RangeRequest::default()
        };
        let expected =
            format!("key:\"{}\" range_end:\"b\\\"\" limit:3 count_only:true", "a".repeat(KEY_BYTES));
        assert_eq!(shown(&request), expected);
        assert_eq!(shown(&RangeRequest::default()), "");
    }
}
