//! Makes TLS connections to the client port's code for handshakes and connections. The targets send arbitrary
//! bytes before, during and after a handshake, change records in transit, and make calls after a handshake.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use front::fuzzing::Secure;
use rustls::{ClientConfig, ClientConnection};
use tls::fuzzing::{Files, load};
use tls::{ServerTls, Settings, Tls};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use crate::certificates::{ALICE, ALICE_KEY, AUTHORITY, Still, pem, sound};
use crate::front_port;
use crate::script::{Scribe, Script, pieces};

/// Numbers that select the kind of a step in a script.
const SAY: u8 = 0;
const RAW: u8 = 1;
const FLIP: u8 = 2;
const CUT: u8 = 3;
const REPEAT: u8 = 4;
const KEYS: u8 = 5;
const STEPS: u8 = 6;

/// Number of consecutive key updates after which the listener may close a connection, because they carry no
/// data.
const KEYS_MAX: usize = 12;

/// Maximum number of bytes that one input sends on a connection.
const BYTES_MAX: usize = 256 * 1024;

struct Ends {
    server: Tls,
    client: Arc<ClientConfig>,
}

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| {
        let alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let (own, key) = (pem("CERTIFICATE", ALICE), pem("PRIVATE KEY", ALICE_KEY));
        let authority = pem("CERTIFICATE", AUTHORITY);
        let files = Files {
            certificate: Some(&own),
            key: Some(&key),
            authorities: Some(&authority),
            revocations: None,
        };
        let settings = Settings { client_alpn: alpn.clone(), ..Settings::default() };
        let client = load(settings, files, Arc::new(Still), None).expect("sound files");
        let server = Settings { client_cert_auth: true, alpn, ..Settings::default() };
        Ends { server: sound(server), client: client.client().config() }
    })
}

/// Bytes in flight between a client and a listener.
#[derive(Default)]
struct Between {
    to_listener: VecDeque<u8>,
    to_client: Vec<u8>,
    /// True if the client will send nothing more.
    has_ended: bool,
}

/// The listener's end of a connection. It never wakes a task, because the test polls again whenever bytes
/// have arrived.
struct End(Rc<RefCell<Between>>);

impl AsyncRead for End {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut between = self.0.borrow_mut();
        if between.to_listener.is_empty() && !between.has_ended {
            return Poll::Pending;
        }
        let n = between.to_listener.len().min(into.remaining());
        between.to_listener.drain(..n).for_each(|byte| into.put_slice(&[byte]));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().to_client.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

type Meeting = Pin<Box<dyn Future<Output = Result<Secure<End>, String>>>>;

enum Stage {
    /// The handshake is in progress.
    Meeting(Meeting),
    Open(Box<Secure<End>>),
    /// The connection has ended, because of the client or an error.
    Over,
}

/// A listener with one connection. The test performs the handshake as the handshake threads of a member do,
/// and then reads as a member reads from a connection.
struct Listener {
    between: Rc<RefCell<Between>>,
    stage: Stage,
    /// Common name of the accepted client.
    common_name: Option<String>,
    understood: Vec<u8>,
}

impl Listener {
    fn new(server: ServerTls) -> Listener {
        let between = Rc::new(RefCell::new(Between::default()));
        let end = End(between.clone());
        let meeting: Meeting = Box::pin(async move { Secure::meet(end, &server).await });
        Listener { between, stage: Stage::Meeting(meeting), common_name: None, understood: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.between.borrow_mut().to_listener.extend(bytes);
        self.go_on();
    }

    fn end(&mut self) {
        self.between.borrow_mut().has_ended = true;
        self.go_on();
    }

    fn go_on(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let next = match &mut self.stage {
                Stage::Over => return,
                Stage::Meeting(meeting) => match meeting.as_mut().poll(&mut cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(secure)) => {
                        self.common_name = secure.common_name().map(str::to_owned);
                        Stage::Open(Box::new(secure))
                    }
                    Poll::Ready(Err(why)) => {
                        assert!(!why.is_empty());
                        Stage::Over
                    }
                },
                Stage::Open(secure) => {
                    // A small buffer, so that reads end in the middle of records.
                    let mut room = [0; 700];
                    let mut space = ReadBuf::new(&mut room);
                    match secure.poll_read(&mut cx, &mut space) {
                        Poll::Pending => return,
                        Poll::Ready(Ok(())) if space.filled().is_empty() => Stage::Over,
                        Poll::Ready(Ok(())) => {
                            self.understood.extend_from_slice(space.filled());
                            continue;
                        }
                        Poll::Ready(Err(error)) => {
                            assert!(!error.to_string().is_empty());
                            Stage::Over
                        }
                    }
                }
            };
            self.stage = next;
        }
    }

    fn answer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.between.borrow_mut().to_client)
    }

    fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open(_))
    }

    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }
}

fn hand(client: &mut ClientConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() && matches!(client.read_tls(&mut bytes), Ok(1..)) {
        let _ = client.process_new_packets();
    }
}

fn said(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() && client.write_tls(&mut bytes).is_ok() {}
    bytes
}

/// Fuzz target: the listener must receive the bytes that the client has sent, in the same order. It must
/// accept no bytes after a record that was changed in transit.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let ends = ends();
    let server = ends.server.server().expect("it has a certificate");
    let mut listener = Listener::new(server.clone());
    let mut client = client();
    // Number of exchanges of handshake messages before the steps of the script begin; with 0, the script
    // disturbs the whole handshake.
    let flights = script.below(4);
    for _ in 0..flights {
        listener.take(&said(&mut client));
        hand(&mut client, &listener.answer());
    }
    let done = !client.is_handshaking() && listener.is_open();
    assert!(done == (flights >= 2), "{flights} flights");
    let (mut told, mut last, mut is_sound, mut bytes) = (Vec::new(), Vec::new(), true, 0);
    let mut keys = 0;
    while !script.is_done() && bytes < BYTES_MAX {
        let step = script.below(STEPS);
        let part = script.run();
        let at = usize::from(script.u16());
        let records = match step {
            RAW | CUT | REPEAT => Vec::new(),
            KEYS => {
                keys += 1;
                is_sound &= keys <= KEYS_MAX;
                let _ = client.refresh_traffic_keys();
                said(&mut client)
            }
            _ => {
                if !part.is_empty() {
                    keys = 0;
                }
                let _ = client.writer().write_all(part);
                told.extend_from_slice(part);
                said(&mut client)
            }
        };
        let records = match step {
            FLIP if !records.is_empty() => {
                is_sound = false;
                let mut records = records;
                let at = at % records.len();
                records[at] ^= part.first().copied().unwrap_or(1).max(1);
                records
            }
            RAW => {
                is_sound &= part.is_empty();
                part.to_vec()
            }
            CUT => {
                is_sound = false;
                last.get(..at % (last.len() + 1)).unwrap_or_default().to_vec()
            }
            REPEAT => {
                is_sound &= last.is_empty();
                last.clone()
            }
            _ => records,
        };
        bytes += records.len();
        listener.take(&records);
        hand(&mut client, &listener.answer());
        last = records;
        assert!(told.starts_with(&listener.understood), "it understood what nobody has said");
    }
    if done && is_sound {
        assert!(listener.is_open() && listener.understood == told);
    }
    listener.end();
    assert!(listener.is_over(), "it outlives its client");
    // The listener must not accept a client, or pass on bytes from it, before the handshake is complete. It
    // must accept only the known client "alice".
    let is_in = listener.common_name.is_some();
    assert!(is_in || (!done && listener.understood.is_empty()));
    assert!(listener.common_name.is_none_or(|name| name == "alice"));
    assert!(server.admit(None).is_err());
}

fn client() -> ClientConnection {
    let name = ends().server.client().server_name("member.example").expect("a name");
    ClientConnection::new(ends().client.clone(), name).expect("a connection")
}

/// Makes a connection with a valid handshake and sends `bytes`, which are HTTP/2 or HTTP/1. Each piece of the
/// bytes is in one or more TLS records of its own, so a record may contain a part of a frame, or many frames.
/// `how` decides whether the client closes the connection with a close_notify alert, and whether it first
/// reads the responses.
fn call(bytes: &[u8], cut: u8, how: u8) {
    front_port::block_on(async {
        let (near, far) = tokio::io::duplex(front_port::PIPE_BYTES);
        let server = ends().server.server().expect("it has a certificate");
        let pieces: Vec<Vec<u8>> = pieces(bytes, cut).map(<[u8]>::to_vec).collect();
        let (mut answers, mut requests) = tokio::io::split(near);
        let client = Rc::new(RefCell::new(client()));
        let at_client = client.clone();
        let calling = tokio::task::spawn_local(async move {
            let mut room = vec![0; 16 * 1024];
            while client.borrow().is_handshaking() {
                let said = said(&mut client.borrow_mut());
                requests.write_all(&said).await.expect("a server that shakes hands");
                if client.borrow().is_handshaking() {
                    let n = answers.read(&mut room).await.expect("a flight");
                    assert!(n > 0, "the handshake does not end");
                    hand(&mut client.borrow_mut(), &room[..n]);
                }
            }
            // Depending on `how`, send the last message of the handshake now, or later together with the
            // first piece.
            if how & 1 == 0 {
                let said = said(&mut client.borrow_mut());
                let _ = requests.write_all(&said).await;
            }
            let reading = tokio::task::spawn_local(async move {
                let mut room = vec![0; 16 * 1024];
                while let Ok(n @ 1..) = answers.read(&mut room).await {
                    let (mut bytes, mut client) = (&room[..n], at_client.borrow_mut());
                    while !bytes.is_empty() {
                        client.read_tls(&mut bytes).expect("room for what was understood");
                        client.process_new_packets().expect("a member's records are sound");
                        let _ = client.reader().read_to_end(&mut Vec::new());
                    }
                }
            });
            for piece in pieces {
                let records = {
                    let mut client = client.borrow_mut();
                    let _ = client.writer().write_all(&piece);
                    said(&mut client)
                };
                // An error is not a failure of the target: the server may close the connection, for example
                // after a protocol error.
                if requests.write_all(&records).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if how & 2 == 0 {
                let records = {
                    let mut client = client.borrow_mut();
                    client.send_close_notify();
                    said(&mut client)
                };
                let _ = requests.write_all(&records).await;
            }
            let _ = requests.shutdown().await;
            let _ = reading.await;
        });
        let secure = Secure::meet(far, &server).await.expect("alice is let in");
        front_port::served(secure.serve(front_port::options(), front_port::service())).await;
        calling.await.expect("the client");
    });
}

/// Fuzz target for calls after a handshake: HTTP/2 in the format of `front_http2`, or HTTP/1.
pub fn run_calls(data: &[u8]) {
    let mut script = Script::new(data);
    let how = script.u8();
    let cut = if how & 4 == 0 { script.u8() } else { 0 };
    if how & 8 == 0 {
        call(&front_port::http2(script.rest()).0, cut, how);
    } else {
        call(script.rest(), cut, how);
    }
}

/// Returns the seeds of the HTTP targets, combined with the different ways in which a TLS connection begins
/// and ends.
pub fn seeds_calls() -> Vec<Vec<u8>> {
    let with = |flags: u8, inputs: Vec<Vec<u8>>| {
        inputs.into_iter().enumerate().map(move |(number, input)| {
            let how = flags | (number % 8) as u8;
            let cut = if how & 4 == 0 { vec![how, 7] } else { vec![how] };
            [cut, input].concat()
        })
    };
    with(0, front_port::seeds_http2()).chain(with(8, front_port::seeds_http1())).collect()
}

/// Returns connections that succeed, and some with damaged records.
pub fn seeds() -> Vec<Vec<u8>> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let step = |scribe: Scribe, kind: u8, bytes: &[u8]| scribe.u8(kind).run(bytes).u8(5).u8(0);
    let begin = |flights: u8| Scribe::default().u8(flights);
    let mut seeds = Vec::new();
    for flights in 0..4 {
        for kind in SAY..STEPS {
            let said = step(begin(flights), SAY, preface);
            seeds.push(step(step(said, kind, b"GET /version HTTP/1.1\r\n\r\n"), SAY, b"more").done());
        }
    }
    // Records of each type (change cipher spec, alert, handshake, application data, heartbeat), a record that
    // is too long, and bytes that are not TLS.
    for raw in [
        &b"\x14\x03\x03\x00\x01\x01"[..],
        b"\x15\x03\x03\x00\x02\x01\x00",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        b"\x17\x03\x03\x00\x00",
        b"\x18\x03\x03\x00\x03\x01\x40\x00",
        b"\x17\x03\x03\xff\xff",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        seeds.push(step(step(begin(3), SAY, b"a"), RAW, raw).done());
        seeds.push(step(begin(0), RAW, raw).done());
    }
    seeds
}
