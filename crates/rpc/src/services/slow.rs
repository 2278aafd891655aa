//! Reports slow requests, with the time of each stage, in the log and in the list of slow requests.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use api::Status;
use api::etcdserverpb::RangeRequest;
use front::Answer;
use numbers::Revision;
use stdx::calendar::format_rfc3339;
use telemetry::logging::Value;
use telemetry::slow_requests::SlowNote;
use telemetry::stages::Stage;

use super::Services;
use super::call::{Call, ReadPath};
use super::stages::{Making, Told, read_stages};

/// Maximum number of bytes of a key that a report shows.
const KEY_BYTES: usize = 128;

impl Call {
    /// Reports the stages of a request that the core has answered, and the request itself if it was slow.
    #[cold]
    pub(super) fn report_core(
        &self,
        (asked, answered): (Instant, Instant),
        revision: Revision,
        answer: &Result<Answer, Status>,
    ) -> Option<Told> {
        let stages = self.services.write_stages(&self.begun, (asked, answered), revision);
        let took = answered.saturating_duration_since(self.begun.arrived);
        if took > self.shared().member.limits.slow_request {
            self.slow(took, (-1, String::new()), answer, &stages);
        }
        self.services.passed(&self.begun, || Told { stages, proposed: Some((asked, answered)) })
    }

    /// Reports a request to which the core has not replied, if the request took longer than the limit for
    /// slow requests.
    #[cold]
    pub(super) fn report_timeout(&self, answer: &Result<Answer, Status>) -> Option<Told> {
        let took = self.services.now().saturating_duration_since(self.begun.arrived);
        if took > self.shared().member.limits.slow_request {
            self.slow(took, (-1, String::new()), answer, &[]);
        }
        None
    }

    /// Reports the stages of an answered read, and the read itself if it was slow.
    pub(super) fn report_read(&self, read: &ReadPath, answer: &Result<Answer, Status>) -> Option<Told> {
        let now = read.answered.unwrap_or_else(|| self.services.now());
        let limits = &self.shared().member.limits;
        let took = now.saturating_duration_since(self.begun.arrived);
        let applying = now.saturating_duration_since(read.began);
        let slow_apply = read.applied_as.filter(|_| applying > limits.slow_apply);
        let is_slow = took > limits.slow_request;
        if !is_slow && slow_apply.is_none() && !self.begun.is_measured() {
            return None;
        }
        let went_on = read.confirmed.as_ref().map_or(read.began, |confirmed| confirmed.went_on);
        let making = read.making.unwrap_or(Making::Whole(now.saturating_duration_since(went_on)));
        let stages = read_stages(&self.begun, read.began, read.confirmed.as_ref(), making);
        let (bytes, content) = match &read.shown {
            Some((bytes, content)) => (i64::try_from(*bytes).unwrap_or(i64::MAX), content.clone()),
            None => (-1, String::new()),
        };
        if let Some(prefix) = slow_apply {
            self.services.slow_apply_of_read(prefix, &content, applying, answer);
        }
        if is_slow {
            self.slow(took, (bytes, content), answer, &stages);
        }
        self.services.passed(&self.begun, || Told { stages, proposed: None })
    }

    /// Logs a slow request in etcd's form and adds it to the list of slow requests. The second parameter is
    /// the length of the request in bytes and the request as a string; the length is -1 and the string is
    /// empty if they are not known.
    fn slow(
        &self,
        took: Duration,
        (request_bytes, content): (i64, String),
        answer: &Result<Answer, Status>,
        stages: &[(Stage, Duration)],
    ) {
        let (path, ended) = (self.rpc.method().path, self.shared().member.clock.wall());
        let began = format_rfc3339(ended.checked_sub(took).unwrap_or(ended));
        let remote = self.peer.to_string();
        let (response_bytes, error) = of_answer(answer);
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
        self.services.logger.warn("request stats", &fields);
        let (client, stages) = (self.client(), stages.to_vec());
        self.shared().diagnostics.slow_requests.slow(SlowNote {
            client,
            path,
            content,
            ended,
            took,
            stages,
            error,
        });
    }
}

impl Services {
    /// Logs a read whose response took long to make, in etcd's form. `content` is the request as a string;
    /// empty if it is not known.
    fn slow_apply_of_read(
        &self,
        prefix: &str,
        content: &str,
        took: Duration,
        answer: &Result<Answer, Status>,
    ) {
        let (size, error) = of_answer(answer);
        let response = format!("size:{size}");
        let mut fields = vec![
            ("took", Value::Duration(took)),
            ("expected-duration", Value::Duration(self.shared.member.limits.slow_apply)),
            ("prefix", Value::Str(prefix)),
            ("request", Value::Str(content)),
            ("response", Value::Str(&response)),
        ];
        if let Some(error) = &error {
            fields.push(("error", Value::Str(error)));
        }
        self.logger.warn("apply request took too long", &fields);
        self.shared.diagnostics.metrics.server.slow_apply.inc();
    }
}

/// Returns the length of a response in bytes; -1 and the message of the error if the call failed.
fn of_answer(answer: &Result<Answer, Status>) -> (i64, Option<String>) {
    match answer {
        Ok(Answer::Whole(message)) => (i64::try_from(message.len()).unwrap_or(i64::MAX), None),
        Ok(Answer::Pieces { len, .. }) => (i64::try_from(*len).unwrap_or(i64::MAX), None),
        Err(status) => (-1, Some(status.message.to_string())),
    }
}

/// Returns a range request in protobuf text form. Long keys are cut off.
pub(super) fn shown(request: &RangeRequest) -> String {
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
