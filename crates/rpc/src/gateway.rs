//! Answers calls in JSON under `/v3/` as etcd's gateway does. A request becomes the same call that a gRPC
//! client makes, within this process, without a connection to itself.
//!
//! This module does not handle sockets. The crate `gateway` defines the JSON format.
//!
//! Tests: `mainstay/tests/it/gateway.rs`; against real etcd `interop/gateway_same.py`.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use ::http::request::Parts;
use ::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use accounting::{Account, ShardCounters};
use api::descriptor::{self, Message};
use api::{Code, Kind, Rpc, Status};
use base64::{DecodeError, Engine as _};
use bytes::Bytes;
use front::{
    Answer, Exchange, Head, Metadata, NextMessage, PieceSource, RequestBody, ResponseBody, Service as _,
};
use gateway::{Next, RangeEncoder, Values};

use crate::local_call::{
    Counted, LATE, Running, Said, answered_in_time, check_len, check_sent_len, read_timeout,
};
use crate::services::Services;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const METADATA_CONTENT_TYPE: HeaderName = HeaderName::from_static("grpc-metadata-content-type");
/// Headers with this prefix are metadata of the call.
const METADATA_PREFIX: &str = "grpc-metadata-";

/// Error for a response of this server that cannot be converted to JSON.
const UNREADABLE: Status = Status::new(Code::Internal, "mainstay: an answer could not be encoded as JSON");

/// Approximate size in bytes of the chunks in which a large response, or the responses of a stream, are
/// written.
const PIECE_BYTES: usize = 64 * 1024;

/// Number of bytes of a large response that are read before other calls run. That many bytes may be read
/// before any JSON is written, because a large value is written only as a whole.
const TURN_BYTES: usize = 4 * PIECE_BYTES;

/// Answers a request for a path under `/v3/`.
pub(crate) async fn answer(
    services: Rc<Services>,
    path: &str,
    mut exchange: Exchange,
) -> Response<ResponseBody> {
    let overridden = overridden(&exchange.head);
    let routed = gateway::route(path).and_then(|rpc| Some((rpc, descriptor::of(rpc)?)));
    let Some((rpc, (request, response))) = routed else {
        return refused(&Status::new(Code::NotFound, "Not Found"));
    };
    let is_post = match &overridden {
        Some(method) => method == Method::POST.as_str(),
        None => exchange.head.method == Method::POST,
    };
    if !is_post {
        return refused(&Status::new(Code::Unimplemented, "Method Not Allowed"));
    }
    let Headed { head, timeout, unsent } = match headed(rpc, &exchange, services.now()) {
        Ok(headed) => headed,
        Err(status) => return refused(&status),
    };
    let unsent = unsent.or_else(|| (timeout == Some(Duration::ZERO)).then_some(LATE));
    let call = Call { rpc, response, head, timeout };
    let bytes_max = exchange.message_bytes_max();
    let elements_max = services.txn_elements_max();
    if rpc.method().kind == Kind::BidiStream && overridden.is_none() {
        if let Err(status) = unsent.map_or(Ok(()), Err).and_then(|()| exchange.check()) {
            return refused(&status);
        }
        let (counters, account) = (Arc::clone(&exchange.counters), Rc::clone(&exchange.account));
        exchange.keep(|| services.connected(&exchange.origin));
        let long_turns = exchange.long_turns();
        let next = move |body| requests(request, body, bytes_max, elements_max, long_turns);
        return call.stream(services, exchange, counters, account, next).await;
    }
    // The memory limits are checked before any part of the body is held in memory, and again below, when the
    // size of the decoded message is known.
    if let Err(status) = exchange.check() {
        return refused(&status);
    }
    exchange.body.allow(json_bytes_max(bytes_max, elements_max));
    let body = match exchange.body.gather().await {
        // The body is dropped, as in etcd: Go has read it there as a form, to look for the method, so nothing
        // of it is left for the call.
        Ok(_) if overridden.is_some() => Bytes::new(),
        Ok(body) => body,
        Err(StatusCode::PAYLOAD_TOO_LARGE) => {
            let text = format!("mainstay: the body is larger than {} bytes", exchange.body_bytes_max());
            return refused(&Status::with(Code::ResourceExhausted, text));
        }
        Err(status) => return empty(status),
    };
    if is_long(body.len()) {
        exchange.long_turn().await;
    }
    // Reserves memory for the body and for the decoded message, which takes no more memory than the body.
    exchange.body.hold(2 * body.len());
    let decoded = gateway::decode(request, &body, elements_max);
    // If decoding fails, the body is read a second time to find the error.
    let times = if decoded.is_ok() { 1 } else { 2 };
    accounting::note_work(0, (times * CODED_WORK * body.len()) as u64);
    let message = match decoded {
        Ok(message) => Bytes::from(message),
        Err(why) => return refused(&why.status()),
    };
    drop(body);
    exchange.body.hold(message.len());
    let allowed = unsent.map_or(Ok(()), Err);
    if let Err(status) =
        allowed.and_then(|()| check_len(message.len(), bytes_max)).and_then(|()| exchange.check())
    {
        return refused(&status);
    }
    exchange.keep(|| services.connected(&exchange.origin));
    let (counters, account) = (Arc::clone(&exchange.counters), Rc::clone(&exchange.account));
    if rpc.method().kind == Kind::Unary {
        let answer_bytes_max = exchange.answer_message_bytes_max();
        return call.unary(services, counters, account, message, answer_bytes_max).await;
    }
    let mut message = Some(message);
    let next = |_| -> NextMessage { Box::new(move |_| Poll::Ready(Ok(message.take()))) };
    call.stream(services, exchange, counters, account, next).await
}

/// Bytes of JSON per list element, in addition to the contents of keys and values: field names, numbers,
/// punctuation and some white space.
const ELEMENT_JSON_BYTES: usize = 512;

/// Returns the maximum size in bytes of a JSON body for a message of at most `message_bytes_max` bytes with
/// at most `elements_max` list elements. Any such message fits, unless the client escapes many characters:
///
/// * Keys and values are a third longer in base64.
/// * Most strings have the same length as in the message. Control characters, `<` and `>` as Go writes them,
///   and characters that a client chooses to escape take six bytes each. So a string fits if at most a third
///   of its characters are escaped.
/// * A field name is much longer than the one byte of a field's tag. But even an element that consists only
///   of names is less than sixteen times as long as in the message.
fn json_bytes_max(message_bytes_max: usize, elements_max: usize) -> usize {
    let names = elements_max.saturating_mul(ELEMENT_JSON_BYTES);
    message_bytes_max.saturating_mul(3).saturating_add(names).min(message_bytes_max.saturating_mul(16))
}

/// Work in bytes that is counted for one byte of JSON. Reading or writing JSON takes longer than copying it.
const CODED_WORK: usize = 4;

/// Returns true if decoding `json_bytes` bytes of JSON, which happens in one step, exceeds the work left in
/// the turn. In that case the request has to wait for a long turn. Otherwise many clients, even
/// unauthenticated ones, could make the shard decode large bodies one after the other, because bodies are
/// decoded before the user is identified.
fn is_long(json_bytes: usize) -> bool {
    json_bytes.saturating_mul(CODED_WORK) > accounting::work_left()
}

/// A call that arrived in JSON.
struct Call {
    rpc: Rpc,
    response: &'static Message,
    head: Head,
    timeout: Option<Duration>,
}

impl Call {
    async fn unary(
        self,
        services: Rc<Services>,
        counters: Arc<ShardCounters>,
        account: Rc<Account>,
        message: Bytes,
        answer_bytes_max: usize,
    ) -> Response<ResponseBody> {
        let counted = Counted::begin(counters, self.rpc as u16);
        counted.counters.received(counted.method, message.len());
        let late = self.timeout.map(|timeout| services.sleep(timeout));
        let answered = answered_in_time(services.unary(self.head, message), late).await;
        let answered = answered.and_then(|answer| {
            let len = match &answer {
                Answer::Whole(message) => message.len(),
                Answer::Pieces { len, .. } => *len,
            };
            check_sent_len(len, answer_bytes_max).map(|()| answer)
        });
        match answered {
            Err(status) => {
                counted.end(status.code);
                refused(&status)
            }
            Ok(Answer::Whole(message)) => {
                let mut json = Vec::with_capacity(64 + message.len() * 2);
                if gateway::encode(self.response, &message, &mut json).is_err() {
                    counted.end(UNREADABLE.code);
                    return refused(&UNREADABLE);
                }
                accounting::note_work(0, (CODED_WORK * json.len()) as u64);
                counted.counters.sent(counted.method, message.len());
                counted.end(Code::Ok);
                good(ResponseBody::Whole(json.into()))
            }
            Ok(Answer::Pieces { len, source, held, .. }) => {
                let mut json = Vec::new();
                let encoder = Some(RangeEncoder::new(self.response, &mut json));
                let charge = account.hold(held.get());
                let counted = Some(counted);
                let mut pieces =
                    Pieces { source, held, left: len, len, encoder, json, counted, account, charge };
                // Makes the first bytes before the response begins, because an error status can be sent only
                // before them.
                match poll_fn(|cx| pieces.poll(cx)).await {
                    Some(Ok(first)) => {
                        let mut first = Some(first);
                        good(ResponseBody::Chunks(Box::new(move |cx| match first.take() {
                            Some(first) => {
                                pieces.charge();
                                Poll::Ready(Some(Ok(first)))
                            }
                            None => pieces.poll(cx).map_err(|_| io::ErrorKind::Other.into()),
                        })))
                    }
                    Some(Err(status)) => refused(&status),
                    None => refused(&UNREADABLE),
                }
            }
        }
    }

    async fn stream(
        self,
        services: Rc<Services>,
        exchange: Exchange,
        counters: Arc<ShardCounters>,
        account: Rc<Account>,
        next: impl FnOnce(RequestBody) -> NextMessage,
    ) -> Response<ResponseBody> {
        let counted = Counted::begin(counters, self.rpc as u16);
        let late = self.timeout.map(|timeout| services.sleep(timeout));
        let (inbound, outbound, local) = exchange.open_stream(counted.method, next);
        let future = services.stream(self.head, inbound, outbound);
        let mut running = Running { future, local, late, over: None, counted: Some(counted) };
        let response = self.response;
        let first = match poll_fn(|cx| running.poll(cx)).await {
            Said::Message(message) => gateway::result_line(response, &message),
            // A stream that ends without a message and without an error has an empty response.
            Said::Over(Ok(())) => return empty(StatusCode::OK),
            Said::Over(Err(status)) => {
                let mut answer = refused(&status);
                // etcd's responses to streams do not have this header, so it is removed.
                answer.headers_mut().remove(WWW_AUTHENTICATE);
                *answer.body_mut() = ResponseBody::Whole(gateway::error_line(&status).into());
                return answer;
            }
        };
        let Ok(first) = first else { return refused(&UNREADABLE) };
        let mut first_held = Some(account.hold(first.len()));
        let mut made = first;
        let mut is_over = false;
        let chunks = move |cx: &mut Context<'_>| {
            let _turn = account.begin_turn();
            drop(first_held.take());
            while !is_over && made.len() < PIECE_BYTES {
                match running.poll(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Said::Message(message)) => match gateway::result_line(response, &message) {
                        Ok(line) => made.extend_from_slice(&line),
                        Err(_) => return Poll::Ready(Some(Err(io::ErrorKind::Other.into()))),
                    },
                    Poll::Ready(Said::Over(result)) => {
                        is_over = true;
                        if let Err(status) = result {
                            made.extend_from_slice(&gateway::error_line(&status));
                        }
                    }
                }
            }
            match (made.is_empty(), is_over) {
                (false, _) => Poll::Ready(Some(Ok(Bytes::from(std::mem::take(&mut made))))),
                (true, true) => Poll::Ready(None),
                (true, false) => Poll::Pending,
            }
        };
        good(ResponseBody::Chunks(Box::new(chunks)))
    }
}

/// A large response that is written as JSON while its pieces are made.
struct Pieces {
    source: PieceSource,
    /// Number of bytes that the source holds.
    held: Rc<Cell<usize>>,
    left: usize,
    len: usize,
    encoder: Option<RangeEncoder>,
    /// JSON that is written and not yet returned to the caller.
    json: Vec<u8>,
    counted: Option<Counted>,
    account: Rc<Account>,
    /// Reservation of memory for the source, the encoder, and the JSON that is not yet returned.
    charge: accounting::Held,
}

impl Pieces {
    /// Returns the next JSON bytes; `None` at the end. The memory for the bytes stays reserved until the next
    /// call of this function or of [`Pieces::charge`].
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let account = Rc::clone(&self.account);
        let _turn = account.begin_turn();
        let Some(encoder) = &mut self.encoder else {
            self.charge.set(0);
            return Poll::Ready(None);
        };
        let mut taken = 0;
        while self.left > 0 && self.json.len() < PIECE_BYTES {
            if taken >= TURN_BYTES {
                self.charge();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let piece = match (self.source)(self.left.min(PIECE_BYTES), cx) {
                // While nothing of the message is encoded, `json` contains only the opening brace of the
                // response, which is not sent alone, so that the response can still become an error.
                Poll::Pending if self.left == self.len || self.json.is_empty() => {
                    self.charge();
                    return Poll::Pending;
                }
                Poll::Pending => break,
                Poll::Ready(Ok(Some(piece))) => piece,
                Poll::Ready(Ok(None)) => Bytes::new(),
                Poll::Ready(Err(status)) => return Poll::Ready(Some(Err(self.fail(status)))),
            };
            if piece.is_empty() || encoder.push(&piece, &mut self.json).is_err() {
                return Poll::Ready(Some(Err(self.fail(UNREADABLE))));
            }
            taken += piece.len();
            self.left -= piece.len().min(self.left);
        }
        if self.left == 0
            && let Some(encoder) = self.encoder.take()
        {
            if encoder.finish(&mut self.json).is_err() {
                return Poll::Ready(Some(Err(self.fail(UNREADABLE))));
            }
            if let Some(counted) = self.counted.take() {
                counted.counters.sent(counted.method, self.len);
                counted.end(Code::Ok);
            }
        }
        self.charge();
        Poll::Ready(Some(Ok(std::mem::take(&mut self.json).into())))
    }

    /// Sets the reservation to the number of bytes that are held now.
    fn charge(&mut self) {
        let encoder = self.encoder.as_ref().map_or(0, RangeEncoder::held_bytes);
        self.charge.set(self.held.get() + encoder + self.json.capacity());
    }

    fn fail(&mut self, status: Status) -> Status {
        self.encoder = None;
        self.counted.take().into_iter().for_each(|counted| counted.end(status.code));
        status
    }
}

/// Returns the requests of a stream, which follow each other in the body. As in etcd, a request that cannot
/// be decoded ends the requests but not the responses.
fn requests(
    message: &'static Message,
    mut body: RequestBody,
    bytes_max: usize,
    elements_max: usize,
    mut long_turns: impl FnMut(&mut Context<'_>) -> Poll<()> + 'static,
) -> NextMessage {
    let (mut values, mut is_end) = (Values::default(), false);
    // A JSON value that may be decoded only in a long turn.
    let mut waiting: Option<Vec<u8>> = None;
    Box::new(move |cx| {
        loop {
            let next = match waiting.take() {
                Some(value) => match long_turns(cx) {
                    Poll::Ready(()) => Next::Value(value),
                    Poll::Pending => {
                        waiting = Some(value);
                        return Poll::Pending;
                    }
                },
                None => match values.next(is_end) {
                    Next::Value(value) if is_long(value.len()) => {
                        body.hold(values.capacity() + value.len());
                        waiting = Some(value);
                        continue;
                    }
                    next => next,
                },
            };
            match next {
                Next::Value(value) => {
                    // Reserves memory for the JSON value and the message decoded from it. The message is
                    // estimated at twice the length of the value.
                    body.hold(values.capacity() + 2 * value.len());
                    let decoded = gateway::decode_value(message, &value, elements_max);
                    accounting::note_work(0, (CODED_WORK * value.len()) as u64);
                    let Ok(request) = decoded else {
                        return Poll::Ready(Ok(None));
                    };
                    drop(value);
                    // The memory for the decoded message stays reserved until the next message is requested.
                    body.hold(values.capacity() + request.len());
                    return Poll::Ready(check_len(request.len(), bytes_max).map(|()| Some(request.into())));
                }
                Next::End | Next::Wrong(_) => return Poll::Ready(Ok(None)),
                Next::More if values.held_bytes() > json_bytes_max(bytes_max, elements_max) => {
                    return Poll::Ready(check_len(values.held_bytes(), bytes_max).map(|()| None));
                }
                Next::More => body.hold(values.capacity()),
            }
            match ready!(body.poll_chunk(cx)) {
                Some(Ok(data)) => values.push(&data),
                Some(Err(_)) => return Poll::Ready(Err(Status::new(Code::Canceled, "context canceled"))),
                None => is_end = true,
            }
            body.hold(values.capacity());
        }
    })
}

/// Returns the HTTP method that replaces the method of a request whose body is a form; `None` if the client
/// requests no replacement. The header is read as grpc-gateway reads it.
fn overridden(head: &Parts) -> Option<String> {
    let is = |name: HeaderName, text: &str| head.headers.get(name).is_some_and(|value| value == text);
    let method = head.headers.get("x-http-method-override").filter(|method| !method.is_empty())?;
    let is_form = head.method == Method::POST && is(CONTENT_TYPE, "application/x-www-form-urlencoded");
    is_form.then(|| String::from_utf8_lossy(method.as_bytes()).to_uppercase())
}

/// Result of reading the headers of a request.
struct Headed {
    head: Head,
    /// Timeout of the call.
    timeout: Option<Duration>,
    /// Error with which grpc-go's client would refuse to send a call with these headers.
    unsent: Option<Status>,
}

/// Reads the headers of a request as grpc-gateway and grpc-go's client do.
///
/// # Errors
///
/// Returns an error if the timeout, or metadata in base64, cannot be parsed.
fn headed(rpc: Rpc, exchange: &Exchange, arrived: Instant) -> Result<Headed, Status> {
    let given = &exchange.head.headers;
    // The common name of the client's certificate is not used: the client may be a gateway that presents its
    // own certificate for many users.
    let mut head = Head::new(rpc as u16, exchange.origin.peer, arrived);
    let timeout = match given.get("grpc-timeout").filter(|value| !value.is_empty()) {
        None => None,
        Some(value) => value.to_str().ok().and_then(read_timeout).ok_or_else(|| {
            match std::str::from_utf8(value.as_bytes()) {
                Ok(value) => Status::with(Code::InvalidArgument, format!("invalid grpc-timeout: {value}")),
                // The error message must be UTF-8, so it cannot contain this value; grpc-gateway fails with
                // this error.
                Err(_) => Status::new(Code::Internal, "failed to marshal error message"),
            }
        })?,
    };
    let (mut metadata, mut unsent) = (HeaderMap::new(), None);
    for (name, value) in given {
        if name == AUTHORIZATION {
            metadata.append(AUTHORIZATION, value.clone());
        }
        // grpc-go's client refuses a call in which one of these headers has a value that is not printable
        // ASCII. Other headers with such a value are left out.
        if (name == AUTHORIZATION || name == "x-forwarded-for" || name == "x-forwarded-host")
            && value.to_str().is_err()
        {
            let text = format!("header key \"{name}\" contains value with non-printable ASCII characters");
            unsent = Some(Status::with(Code::Internal, text));
        }
        let Some(key) = name.as_str().strip_prefix(METADATA_PREFIX) else { continue };
        if key.bytes().any(|byte| !(byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))) {
            continue;
        }
        if key.ends_with("-bin") {
            check_binary(name, value)?;
        } else if value.to_str().is_ok() {
            match HeaderName::from_bytes(key.as_bytes()) {
                Ok(key) => drop(metadata.append(key, value.clone())),
                Err(_) => {
                    unsent = Some(Status::new(Code::Internal, "there is an empty key in the header"));
                }
            }
        }
    }
    head.requires_leader = metadata.get("hasleader").is_some_and(|value| value == "true");
    head.metadata = Metadata::from(&metadata);
    Ok(Headed { head, timeout, unsent })
}

/// Checks that a value is base64. The value itself is not used: no binary metadata has a meaning for a
/// member.
fn check_binary(name: &HeaderName, value: &HeaderValue) -> Result<(), Status> {
    let engine = match value.len() % 4 {
        0 => &base64::engine::general_purpose::STANDARD,
        _ => &base64::engine::general_purpose::STANDARD_NO_PAD,
    };
    // As in Go's decoder, unused bits of the last character do not matter.
    let at = match engine.decode(value.as_bytes()) {
        Ok(_) | Err(DecodeError::InvalidLastSymbol { .. }) => return Ok(()),
        Err(DecodeError::InvalidByte(at, _)) => at,
        Err(DecodeError::InvalidLength(_) | DecodeError::InvalidPadding) => value.len(),
    };
    let name = canonical(name.as_str());
    let text = format!("invalid binary header {name}: illegal base64 data at input byte {at}");
    Err(Status::with(Code::InvalidArgument, text))
}

/// Returns the name of a header in Go's canonical form.
fn canonical(name: &str) -> String {
    let mut is_first = true;
    let write = |c: char| {
        let written = if is_first { c.to_ascii_uppercase() } else { c };
        is_first = c == '-';
        written
    };
    name.chars().map(write).collect()
}

fn good(body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(METADATA_CONTENT_TYPE, GRPC);
    response
}

fn refused(status: &Status) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(gateway::error(status).into()));
    *response.status_mut() =
        StatusCode::from_u16(gateway::status(status.code)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if status.code == Code::Unauthenticated
        && let Ok(message) = HeaderValue::from_str(&status.message)
    {
        response.headers_mut().insert(WWW_AUTHENTICATE, message);
    }
    response
}

fn empty(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Bytes::new()));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    #[test]
    fn what_is_more_than_is_left_of_a_turn_is_read_in_a_long_one() {
        assert!(!is_long(usize::MAX / CODED_WORK), "there is no turn");
        let account = accounting::Budget::new(1 << 20).open([127, 0, 0, 1].into());
        let _turn = account.begin_turn();
        account.allow_work(64 << 10);
        assert_eq!([16 << 10, (16 << 10) + 1, usize::MAX].map(is_long), [false, true, true]);
        accounting::note_work(0, 60 << 10);
        assert_eq!([1 << 10, (1 << 10) + 1].map(is_long), [false, true]);
    }

    /// Returns the JSON of a response that comes in two pieces. Before each piece and at the end, the source
    /// returns pending `waits` times.
    fn written(waits: usize) -> String {
        let message = b"\x0a\x04\x08\x01\x18\x02\x12\x03\x0a\x01a\x20\x02";
        let (_, response) = descriptor::of(Rpc::KvRange).expect("it has messages");
        let account = accounting::Budget::new(1 << 20).open([127, 0, 0, 1].into());
        let (one, two) = message.split_at(5);
        let mut left = VecDeque::new();
        for piece in [one, two] {
            left.extend(std::iter::repeat_n(None, waits));
            left.push_back(Some(Bytes::from_static(piece)));
        }
        let source: PieceSource = Box::new(move |_, _| match left.pop_front() {
            Some(None) => Poll::Pending,
            Some(Some(piece)) => Poll::Ready(Ok(Some(piece))),
            None => Poll::Ready(Ok(None)),
        });
        let mut json = Vec::new();
        let encoder = Some(RangeEncoder::new(response, &mut json));
        let (held, charge, len) = (Rc::default(), account.hold(0), message.len());
        let mut pieces =
            Pieces { source, held, left: len, len, encoder, json, counted: None, account, charge };
        let (mut text, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
        loop {
            match pieces.poll(&mut cx) {
                Poll::Pending => assert!(text.is_empty() || waits > 0),
                Poll::Ready(None) => break,
                Poll::Ready(Some(part)) => {
                    let part = part.expect("it can be written");
                    text.extend_from_slice(&part);
                }
            }
        }
        assert_eq!(pieces.charge.bytes(), 0);
        String::from_utf8(text).expect("JSON is text")
    }

    #[test]
    fn an_answer_whose_pieces_come_late_is_whole() {
        let at_once = written(0);
        assert_eq!(
            at_once,
            r#"{"header":{"cluster_id":"1","revision":"2"},"kvs":[{"key":"YQ=="}],"count":"2"}"#
        );
        for waits in 1..3 {
            assert_eq!(written(waits), at_once, "{waits}");
        }
    }

    /// Writes a response as JSON. Returns the maximum bytes that one poll read from the source, and the
    /// maximum reservation.
    fn taken(rpc: Rpc, message: Bytes) -> (usize, usize) {
        let (_, response) = descriptor::of(rpc).expect("it has messages");
        let account = accounting::Budget::new(64 << 20).open([127, 0, 0, 1].into());
        let (mut left, of_poll) = (message.clone(), Rc::new(Cell::new(0)));
        let counting = Rc::clone(&of_poll);
        let source: PieceSource = Box::new(move |room, _| {
            let piece = left.split_to(room.min(left.len()));
            counting.set(counting.get() + piece.len());
            Poll::Ready(Ok(Some(piece)))
        });
        let mut json = Vec::new();
        let encoder = Some(RangeEncoder::new(response, &mut json));
        let (held, charge, len) = (Rc::default(), account.hold(0), message.len());
        let mut pieces =
            Pieces { source, held, left: len, len, encoder, json, counted: None, account, charge };
        let (mut taken_max, mut charged_max) = (0, 0);
        let (mut text, mut cx) = (Vec::new(), Context::from_waker(Waker::noop()));
        loop {
            of_poll.set(0);
            let polled = pieces.poll(&mut cx);
            taken_max = taken_max.max(of_poll.get());
            charged_max = charged_max.max(pieces.charge.bytes());
            let held = pieces.encoder.as_ref().map_or(0, RangeEncoder::held_bytes) + pieces.json.len();
            assert!(pieces.charge.bytes() >= held, "what waits is charged");
            match polled {
                Poll::Pending => {}
                Poll::Ready(None) => break,
                Poll::Ready(Some(part)) => text.extend_from_slice(&part.expect("it can be written")),
            }
        }
        let mut whole = Vec::new();
        gateway::encode(response, &message, &mut whole).expect("it is a message");
        assert!(text == whole, "it is the same as when it is written at once");
        (taken_max, charged_max)
    }

    #[test]
    fn a_poll_takes_and_holds_a_bounded_part_of_an_answer() {
        use prost::Message as _;
        let kv = |value_bytes| api::mvccpb::KeyValue {
            key: "k".into(),
            value: vec![1; value_bytes].into(),
            ..Default::default()
        };
        let range = |values, value_bytes| api::etcdserverpb::RangeResponse {
            kvs: vec![kv(value_bytes); values],
            count: 1,
            ..Default::default()
        };
        let txn = |range| api::etcdserverpb::TxnResponse {
            responses: vec![api::etcdserverpb::ResponseOp {
                response: Some(api::etcdserverpb::response_op::Response::ResponseRange(range)),
            }],
            ..Default::default()
        };
        let large = 1 << 20;
        for (rpc, message) in [
            (Rpc::KvRange, range(100, 40_000).encode_to_vec()),
            (Rpc::KvTxn, txn(range(100, 40_000)).encode_to_vec()),
            (Rpc::KvRange, range(3, large).encode_to_vec()),
            (Rpc::KvTxn, txn(range(3, large)).encode_to_vec()),
        ] {
            let len = message.len();
            let (taken, charged) = taken(rpc, message.into());
            assert!(taken <= 256 * 1024, "{taken} of {len} bytes in one poll of {rpc:?}");
            assert!(charged <= 4 * large, "{charged} of {len} bytes charged for {rpc:?}");
        }
    }

    #[test]
    fn metadata_in_base64_is_looked_at_as_go_does() {
        let name = HeaderName::from_static("grpc-metadata-x-bin");
        let said = |value: &'static str| {
            check_binary(&name, &HeaderValue::from_static(value)).map_err(|why| why.message)
        };
        for good in ["", "YQ", "YQ==", "YR", "YWJj"] {
            assert_eq!(said(good), Ok(()), "{good}");
        }
        let text = "invalid binary header Grpc-Metadata-X-Bin: illegal base64 data at input byte 1";
        assert_eq!(said("Y!"), Err(text.into()));
    }
}
