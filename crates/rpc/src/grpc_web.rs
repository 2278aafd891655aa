//! Answers calls in gRPC-Web, from browsers, which do not support HTTP/2 trailers. The messages and the final
//! status are frames ([`frames`]) in the bodies of a plain request and its response, over HTTP/1 or HTTP/2,
//! in binary (`application/grpc-web`) or in base64 (`application/grpc-web-text`). A request becomes the same
//! call that a gRPC client makes, within this process.
//!
//! The HTTP status is 200 whatever the status of the call. A body contains all requests of a stream, since
//! browsers cannot stream a request body; the responses of a stream are sent one by one.
//!
//! This module does not handle sockets, the rules for which pages may call (`http::browsers`), or the
//! contents of messages.
//!
//! Tests: beside the code of [`frames`], and `mainstay/tests/it/grpc_web.rs`.

pub mod frames;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use ::http::{Response, StatusCode};
use accounting::Account;
use api::{Code, Status};
use bytes::Bytes;
use front::{Answer, Exchange, Head, Kind, Metadata, NextMessage, PieceSource, ResponseBody, Service as _};

use self::frames::{Form, Writer, decoded, next_message, only};
use crate::local_call::{Counted, LATE, Running, Said, answered_in_time, check_sent_len, read_timeout};
use crate::services::Services;

/// Maximum number of bytes of a large response that are taken from its source at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// Error for a response whose pieces have fewer bytes in total than its announced length.
const CUT: Status = Status::new(Code::Internal, "mainstay: an answer ended early");

/// Answers a request for which [`Form::is_asked`] is true.
pub(crate) async fn answer(services: Rc<Services>, exchange: Exchange) -> Response<ResponseBody> {
    let form = Form::of(&exchange.head.headers).unwrap_or(Form::Bytes);
    match call(services, exchange, form).await {
        Ok(response) => response,
        Err(Refused::Http(status)) => {
            let mut response = Response::new(ResponseBody::Whole(Bytes::new()));
            *response.status_mut() = status;
            response
        }
        Err(Refused::Call(status)) => good(form, ResponseBody::Whole(ended(form, &Err(status)))),
    }
}

/// Reason why a request cannot be made a call, or a call gets no response message.
enum Refused {
    Http(StatusCode),
    Call(Status),
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused::Call(status)
    }
}

async fn call(
    services: Rc<Services>,
    mut exchange: Exchange,
    form: Form,
) -> Result<Response<ResponseBody>, Refused> {
    let path = exchange.head.uri.path();
    let Some(method) = services.method(path) else {
        return Err(Status::with(Code::Unimplemented, format!("unknown method {path}")).into());
    };
    let (head, timeout) = headed(method.id, &exchange, services.now())?;
    if timeout == Some(Duration::ZERO) {
        return Err(LATE.into());
    }
    exchange.check()?;
    let body = exchange.body.gather().await.map_err(|status| match status {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let text = format!("mainstay: the body is larger than {} bytes", exchange.body_bytes_max());
            Refused::Call(Status::with(Code::ResourceExhausted, text))
        }
        status => Refused::Http(status),
    })?;
    let mut body = match form {
        Form::Bytes => body,
        Form::Base64 => {
            // Decoding happens in one step, and its cost is counted as one unit of work per byte.
            if body.len() > accounting::work_left() {
                exchange.long_turn().await;
            }
            accounting::note_work(0, body.len() as u64);
            let bytes = decoded(&body)?;
            // The base64 text is freed now, because the reservation below replaces the one for this text, and
            // the call may wait for a long time.
            drop(body);
            bytes
        }
    };
    exchange.body.hold(body.len());
    // The memory limits are checked again now that the body is in memory: many calls may have passed the
    // first check before their bodies arrived.
    exchange.check()?;
    let bytes_max = exchange.message_bytes_max();
    exchange.keep(|| services.connected(&exchange.origin));
    let (counters, account) = (Arc::clone(&exchange.counters), Rc::clone(&exchange.account));
    if method.kind == Kind::Unary {
        let message = only(body, bytes_max)?;
        let counted = Counted::begin(counters, method.id);
        counted.counters.received(counted.method, message.len());
        let late = timeout.map(|timeout| services.sleep(timeout));
        let answered = answered_in_time(services.unary(head, message), late).await;
        return unary(form, answered, counted, account, exchange.answer_message_bytes_max()).await;
    }
    let counted = Counted::begin(counters, method.id);
    let late = timeout.map(|timeout| services.sleep(timeout));
    let next = move |gathered| -> NextMessage {
        Box::new(move |_| {
            // Keeps the reservation of memory for the body until the call ends.
            let _charge = &gathered;
            Poll::Ready(next_message(&mut body, bytes_max))
        })
    };
    let (inbound, outbound, local) = exchange.open_stream(counted.method, next);
    let future = services.stream(head, inbound, outbound);
    let running = Running { future, local, late, over: None, counted: Some(counted) };
    Ok(good(form, ResponseBody::Chunks(stream(form, running, account))))
}

/// Reads the headers as gRPC does: all of them are metadata. The name in a client certificate is not used as
/// the user, because a browser presents its certificate for every page that makes a request.
fn headed(method: u16, exchange: &Exchange, arrived: Instant) -> Result<(Head, Option<Duration>), Refused> {
    let given = &exchange.head.headers;
    let timeout = match given.get("grpc-timeout") {
        None => None,
        Some(value) => value.to_str().ok().and_then(read_timeout).ok_or_else(|| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            Status::with(Code::InvalidArgument, format!("invalid grpc-timeout: {value}"))
        })?,
    };
    let encoded = given.get("grpc-encoding").filter(|value| !value.is_empty() && *value != "identity");
    if let Some(encoding) = encoded.or_else(|| given.get(CONTENT_ENCODING)) {
        let name = String::from_utf8_lossy(encoding.as_bytes());
        let text = format!("grpc: Decompressor is not installed for grpc-encoding \"{name}\"");
        return Err(Status::with(Code::Unimplemented, text).into());
    }
    let mut head = Head::new(method, exchange.origin.peer, arrived);
    head.metadata = Metadata::from(given);
    head.requires_leader = given.get("hasleader").is_some_and(|value| value == "true");
    Ok((head, timeout))
}

/// Returns the frame with the final status, as the whole rest of a response.
fn ended(form: Form, result: &Result<(), Status>) -> Bytes {
    let mut writer = Writer::new(form);
    writer.end(result);
    writer.flush()
}

async fn unary(
    form: Form,
    answered: Result<Answer, Status>,
    counted: Counted,
    account: Rc<Account>,
    answer_bytes_max: usize,
) -> Result<Response<ResponseBody>, Refused> {
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
            Err(status.into())
        }
        Ok(Answer::Whole(message)) => {
            counted.counters.sent(counted.method, message.len());
            counted.end(Code::Ok);
            let mut writer = Writer::new(form);
            writer.message(&message);
            writer.end(&Ok(()));
            Ok(good(form, ResponseBody::Whole(writer.flush())))
        }
        Ok(Answer::Pieces { len, source, held, .. }) => {
            let charge = account.hold(held.get());
            let mut writer = Writer::new(form);
            writer.begin_message(len);
            let mut pieces =
                Pieces { source, held, left: len, len, writer, counted: Some(counted), account, charge };
            // Makes the first bytes before the response begins, because an error status can be sent only
            // before them.
            let mut first = match poll_fn(|cx| pieces.poll(cx)).await {
                Some(first) => Some(first?),
                None => return Err(CUT.into()),
            };
            Ok(good(
                form,
                ResponseBody::Chunks(Box::new(move |cx| match first.take() {
                    Some(first) => Poll::Ready(Some(Ok(first))),
                    None => pieces.poll(cx).map_err(|_| io::ErrorKind::Other.into()),
                })),
            ))
        }
    }
}

/// A large response that is sent while its pieces are made.
struct Pieces {
    source: PieceSource,
    /// Number of bytes that the source holds.
    held: Rc<Cell<usize>>,
    left: usize,
    len: usize,
    writer: Writer,
    /// Counts the call and its result; `None` once the response is complete or has failed.
    counted: Option<Counted>,
    account: Rc<Account>,
    /// Reservation of memory for the bytes that the source holds and for the bytes returned last, which may
    /// wait to be sent.
    charge: accounting::Held,
}

impl Pieces {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let _turn = self.account.begin_turn();
        if self.counted.is_none() {
            self.charge.set(0);
            return Poll::Ready(None);
        }
        if self.left > 0 {
            let piece = match ready!((self.source)(self.left.min(PIECE_BYTES), cx)) {
                Ok(Some(piece)) if !piece.is_empty() && piece.len() <= self.left => piece,
                Ok(_) => return Poll::Ready(Some(Err(self.fail(CUT)))),
                Err(status) => return Poll::Ready(Some(Err(self.fail(status)))),
            };
            self.left -= piece.len();
            self.writer.put(&piece);
        }
        let (bytes, held) = if self.left > 0 {
            (self.writer.take(), self.held.get())
        } else {
            self.writer.end(&Ok(()));
            if let Some(counted) = self.counted.take() {
                counted.counters.sent(counted.method, self.len);
                counted.end(Code::Ok);
            }
            (self.writer.flush(), 0)
        };
        self.charge.set(held + bytes.len());
        Poll::Ready(Some(Ok(bytes)))
    }

    fn fail(&mut self, status: Status) -> Status {
        self.counted.take().into_iter().for_each(|counted| counted.end(status.code));
        status
    }
}

/// Returns the responses of a streaming call, followed by its final status.
fn stream(form: Form, mut running: Running, account: Rc<Account>) -> front::ChunkSource {
    let mut writer = Writer::new(form);
    let mut is_over = false;
    Box::new(move |cx| {
        let _turn = account.begin_turn();
        while !is_over && writer.len() < PIECE_BYTES {
            match running.poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Said::Message(message)) => writer.message(&message),
                Poll::Ready(Said::Over(result)) => {
                    is_over = true;
                    writer.end(&result);
                }
            }
        }
        let written = writer.flush();
        match (written.is_empty(), is_over) {
            (false, _) => Poll::Ready(Some(Ok(written))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    })
}

fn good(form: Form, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, form.content_type());
    response
}
