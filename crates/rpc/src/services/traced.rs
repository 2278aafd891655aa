//! Makes the trace spans of a call: one for the call, like the span of otelgrpc, with which etcd traces its
//! gRPC server; inside it one for the operation, as etcd makes it; and inside that one, a span for each stage
//! of this server.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use api::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, request_op,
};
use api::{Code, Rpc, Status};
use bytes::Bytes;
use front::{Head, LocalBoxFuture};
use machine::check;
use prost::Message as _;
use telemetry::tracing::{Attribute, GRPC_SCOPE, MEMBER_SCOPE, Parent, Span, SpanContext, Tracer, Within};

use super::Services;
use super::stages::Told;

type Attributes = Vec<(&'static str, Attribute)>;

/// A traced call. If it is dropped before [`Trace::end`], its span says that the call was cancelled.
pub(super) struct Trace {
    tracer: Arc<Tracer>,
    rpc: Rpc,
    context: SpanContext,
    parent: Option<SpanContext>,
    began: Instant,
    wall: SystemTime,
    now: Box<dyn Fn() -> Instant>,
    /// Span of the operation inside the call: its context, name and attributes. `None` for calls for which
    /// etcd makes no such span.
    inner: Option<(SpanContext, &'static str, Attributes)>,
    is_ended: bool,
}

impl Trace {
    /// Starts a trace, if this call is selected for tracing.
    pub(super) fn begin(
        services: &Services,
        tracer: &Arc<Tracer>,
        rpc: Rpc,
        head: &Head,
        message: Option<&Bytes>,
    ) -> Option<Trace> {
        let parent = head.get("traceparent").and_then(Parent::read);
        let context = tracer.begin(parent.as_ref())?;
        let inner = message
            .and_then(|message| told(rpc, message, services.txn_elements_max()))
            .map(|(name, attributes)| (tracer.within(&context), name, attributes));
        let clock = services.shared.member.clock.clone();
        let waited = clock.now().saturating_duration_since(head.arrived);
        let wall = clock.wall();
        Some(Trace {
            tracer: Arc::clone(tracer),
            rpc,
            context,
            parent: parent.map(|parent| parent.context),
            began: head.arrived,
            wall: wall.checked_sub(waited).unwrap_or(wall),
            now: Box::new(move || clock.now()),
            inner,
            is_ended: false,
        })
    }

    /// Returns a factory of spans inside the call's span, for the parts of a stream.
    pub(super) fn within(&self, services: &Services) -> Within {
        Within::new(Arc::clone(&self.tracer), services.shared.member.clock.clone(), self.context)
    }

    /// Returns a span of this member that begins and ends at the given times.
    fn span(
        &self,
        (context, within): (SpanContext, SpanContext),
        name: &str,
        (from, to): (Instant, Instant),
    ) -> Span {
        Span {
            scope: MEMBER_SCOPE,
            context,
            parent: Some(within.span),
            is_parent_remote: false,
            name: name.to_owned(),
            began: self.wall + from.saturating_duration_since(self.began),
            took: to.saturating_duration_since(from),
            attributes: Vec::new(),
            events: Vec::new(),
            error: None,
        }
    }

    /// Ends the trace; `told` contains the stages of the call.
    pub(super) fn end(mut self, result: Result<(), &Status>, told: Option<Told>) {
        self.finish(result, told);
    }

    fn finish(&mut self, result: Result<(), &Status>, told: Option<Told>) {
        self.is_ended = true;
        let ended = (self.now)();
        let mut spans = Vec::new();
        if let Some((context, name, attributes)) = self.inner.take() {
            let mut events = Vec::new();
            if let Some(Told { stages, proposed }) = told {
                // The spans of the stages follow each other, although in reality values are read while the
                // response is encoded.
                let mut from = self.began;
                for (stage, took) in stages {
                    let place = (self.tracer.within(&context), context);
                    spans.push(self.span(place, stage.name(), (from, from + took)));
                    from += took;
                }
                if let Some((asked, answered)) = proposed {
                    events.push(("Send raft proposal", asked.saturating_duration_since(self.began)));
                    events.push(("Receive raft result", answered.saturating_duration_since(self.began)));
                }
            }
            let span = self.span((context, self.context), name, (self.began, ended));
            spans.push(Span { attributes, events, ..span });
        }
        let code = result.map_or_else(|status| status.code, |()| Code::Ok);
        let method = self.rpc.method();
        let name = format!("{}/{}", method.service, method.name);
        spans.push(Span {
            scope: GRPC_SCOPE,
            context: self.context,
            parent: self.parent.map(|parent| parent.span),
            is_parent_remote: true,
            began: self.wall,
            took: ended.saturating_duration_since(self.began),
            attributes: vec![
                ("rpc.method", Attribute::Text(name.clone())),
                ("rpc.system.name", Attribute::Text("grpc".to_owned())),
                ("rpc.response.status_code", Attribute::Text(spelled(code))),
            ],
            name,
            events: Vec::new(),
            error: result.err().filter(|_| is_servers_fault(code)).map(|status| status.message.to_string()),
        });
        self.tracer.ended(spans);
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if !self.is_ended {
            self.finish(Err(&Status::new(Code::Canceled, "context canceled")), None);
        }
    }
}

/// Returns true for the codes with which otelgrpc marks the span of a server as failed.
fn is_servers_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// Returns the name of a code as the gRPC specification spells it, such as `OUT_OF_RANGE`.
fn spelled(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Canceled => "CANCELLED".to_owned(),
        code => {
            let mut spelled = String::new();
            for (at, letter) in code.name().char_indices() {
                if letter.is_ascii_uppercase() && at > 0 {
                    spelled.push('_');
                }
                spelled.push(letter.to_ascii_uppercase());
            }
            spelled
        }
    }
}

/// Returns etcd's span name and attributes for the operation of a call. Returns `None` for other methods, for
/// a message that cannot be decoded, and for a transaction with more than `elements_max` elements.
fn told(rpc: Rpc, message: &Bytes, elements_max: usize) -> Option<(&'static str, Attributes)> {
    let (bytes, int, is) = (Attribute::bytes, Attribute::Int, Attribute::Bool);
    let message = message.clone();
    Some(match rpc {
        Rpc::KvRange => {
            let request = RangeRequest::decode(message).ok()?;
            let attributes = vec![
                ("range_begin", bytes(&request.key)),
                ("range_end", bytes(&request.range_end)),
                ("rev", int(request.revision)),
                ("limit", int(request.limit)),
                ("count_only", is(request.count_only)),
                ("keys_only", is(request.keys_only)),
            ];
            ("range", attributes)
        }
        Rpc::KvPut => ("put", vec![("key", bytes(&PutRequest::decode(message).ok()?.key))]),
        Rpc::KvDeleteRange => {
            let request = DeleteRangeRequest::decode(message).ok()?;
            let attributes =
                vec![("range_begin", bytes(&request.key)), ("range_end", bytes(&request.range_end))];
            ("delete_range", attributes)
        }
        Rpc::KvTxn => ("txn", of_txn(&machine::request::txn(message, elements_max).ok()?.0)),
        Rpc::KvCompact => {
            let request = CompactionRequest::decode(message).ok()?;
            ("compact", vec![("is_physical", is(request.physical)), ("rev", int(request.revision))])
        }
        Rpc::LeaseGrant => {
            let request = LeaseGrantRequest::decode(message).ok()?;
            ("lease_grant", vec![("id", int(request.id)), ("ttl", int(request.ttl))])
        }
        Rpc::LeaseRevoke => ("lease_revoke", vec![("id", int(LeaseRevokeRequest::decode(message).ok()?.id))]),
        _ => return None,
    })
}

fn of_txn(request: &TxnRequest) -> Attributes {
    let key = |operation: &RequestOp| match operation.request.as_ref()? {
        request_op::Request::RequestPut(put) => Some(put.key.clone()),
        request_op::Request::RequestRange(range) => Some(range.key.clone()),
        request_op::Request::RequestDeleteRange(deletion) => Some(deletion.key.clone()),
        request_op::Request::RequestTxn(_) => None,
    };
    let kind = |operation: &RequestOp| {
        Some(match operation.request.as_ref()? {
            request_op::Request::RequestPut(_) => "put",
            request_op::Request::RequestRange(_) => "range",
            request_op::Request::RequestDeleteRange(_) => "delete_range",
            request_op::Request::RequestTxn(_) => "txn",
        })
    };
    let lease = |operation: &RequestOp| match operation.request.as_ref()? {
        request_op::Request::RequestPut(put) => Some(put.lease),
        _ => None,
    };
    let compared = request.compare.iter().map(|compare| &compare.key).find(|key| !key.is_empty());
    let count = |list: usize| Attribute::Int(i64::try_from(list).unwrap_or(i64::MAX));
    let operations = &request.success;
    let first_key = operations.iter().filter_map(key).find(|key| !key.is_empty()).unwrap_or_default();
    let first_kind = operations.iter().find_map(kind).unwrap_or_default();
    vec![
        ("compare_first_key", Attribute::bytes(compared.map_or(&[][..], |key| key))),
        ("success_first_key", Attribute::bytes(&first_key)),
        ("success_first_type", Attribute::Text(first_kind.to_owned())),
        ("success_first_lease", Attribute::Int(operations.iter().find_map(lease).unwrap_or(-1))),
        ("compare_len", count(request.compare.len())),
        ("success_len", count(operations.len())),
        ("failure_len", count(request.failure.len())),
        ("read_only", Attribute::Bool(check::txn_is_read_only(request))),
    ]
}

/// Returns etcd's span attributes for a streamed range.
pub(super) fn told_of_range_stream(request: &RangeRequest) -> Attributes {
    vec![
        ("range_begin", Attribute::bytes(&request.key)),
        ("range_end", Attribute::bytes(&request.range_end)),
        ("rev", Attribute::Int(request.revision)),
        ("limit", Attribute::Int(request.limit)),
        ("count_only", Attribute::Bool(request.count_only)),
    ]
}

/// Ends a trace when its stream ends. Requests of the stream have their own spans inside it.
pub(super) fn traced_stream(
    trace: Trace,
    stream: LocalBoxFuture<Result<(), Status>>,
) -> LocalBoxFuture<Result<(), Status>> {
    Box::pin(async move {
        let result = stream.await;
        trace.end(result.as_ref().map(|_| ()), None);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelled_as_the_specification_has_them() {
        for (code, expected) in [
            (Code::Ok, "OK"),
            (Code::Canceled, "CANCELLED"),
            (Code::OutOfRange, "OUT_OF_RANGE"),
            (Code::Unauthenticated, "UNAUTHENTICATED"),
            (Code::DataLoss, "DATA_LOSS"),
        ] {
            assert_eq!(spelled(code), expected);
        }
    }

    #[test]
    fn requests_are_told_as_etcd_tells_them() {
        let put = PutRequest { key: "k".into(), lease: 7, ..PutRequest::default() };
        let operation = RequestOp { request: Some(request_op::Request::RequestPut(put.clone())) };
        let txn = TxnRequest { success: vec![operation], ..TxnRequest::default() };
        let (name, attributes) = told(Rpc::KvTxn, &txn.encode_to_vec().into(), 9).expect("it is told");
        assert_eq!(name, "txn");
        for expected in [
            ("compare_first_key", Attribute::Text(String::new())),
            ("success_first_key", Attribute::Text("k".to_owned())),
            ("success_first_type", Attribute::Text("put".to_owned())),
            ("success_first_lease", Attribute::Int(7)),
            ("success_len", Attribute::Int(1)),
            ("read_only", Attribute::Bool(false)),
        ] {
            assert!(attributes.contains(&expected), "{expected:?} in {attributes:?}");
        }
        assert_eq!(told(Rpc::KvPut, &put.encode_to_vec().into(), 9).map(|(name, _)| name), Some("put"));
        assert!(told(Rpc::KvTxn, &[0x0a, 0].repeat(10).into(), 9).is_none());
        assert!(told(Rpc::KvPut, &Bytes::from_static(b"\xff"), 9).is_none());
        assert!(told(Rpc::MaintenanceStatus, &Bytes::new(), 9).is_none());
    }
}
