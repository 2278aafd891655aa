//! Connections over TLS: what comes before, in and behind a handshake, in records of any content.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, OnceLock};

use rustls::{ClientConfig, ClientConnection, ServerConnection};
use tls::fuzzing::{Files, load};
use tls::{Settings, Tls};

use crate::certificates::{ALICE, ALICE_KEY, AUTHORITY, Still, pem, sound};
use crate::script::{Scribe, Script};

/// What comes next in a script.
const SAY: u8 = 0;
const RAW: u8 = 1;
const FLIP: u8 = 2;
const CUT: u8 = 3;
const REPEAT: u8 = 4;
const KEYS: u8 = 5;
const STEPS: u8 = 6;

/// Most bytes that a connection is told in one input.
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

/// A listener's end, and what it has understood.
struct Listener {
    connection: ServerConnection,
    understood: Vec<u8>,
    /// The error that ended the connection; `None` while it goes on.
    failed: Option<rustls::Error>,
}

impl Listener {
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.failed.is_none() {
            let before = bytes.len();
            let _ = self.connection.read_tls(&mut bytes);
            if let Err(error) = self.connection.process_new_packets() {
                assert!(!tls::explain(&error).is_empty());
                self.failed = Some(error);
            }
            let _ = self.connection.reader().read_to_end(&mut self.understood);
            if bytes.len() == before {
                break;
            }
        }
    }

    fn answer(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() && self.connection.write_tls(&mut bytes).is_ok() {}
        bytes
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

/// The target: what a listener understands is what the client has said, in that order, and nothing behind a record that was
/// changed on its way.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let ends = ends();
    let server = ends.server.server().expect("it has a certificate");
    let connection = ServerConnection::new(server.config()).expect("a connection");
    let mut listener = Listener { connection, understood: Vec::new(), failed: None };
    let name = ends.server.client().server_name("member.example").expect("a name");
    let mut client = ClientConnection::new(ends.client.clone(), name).expect("a connection");
    // How many flights of the handshake go over before the script does.
    let flights = script.below(4);
    for _ in 0..flights {
        listener.take(&said(&mut client));
        hand(&mut client, &listener.answer());
    }
    let done = !client.is_handshaking() && !listener.connection.is_handshaking();
    assert!(done == (flights >= 2) || listener.failed.is_some(), "{flights} flights");
    let (mut told, mut last, mut is_sound, mut bytes) = (Vec::new(), Vec::new(), true, 0);
    while !script.is_done() && bytes < BYTES_MAX {
        let step = script.below(STEPS);
        let part = script.run();
        let at = usize::from(script.u16());
        let records = match step {
            RAW | CUT | REPEAT => Vec::new(),
            KEYS => {
                let _ = client.refresh_traffic_keys();
                said(&mut client)
            }
            _ => {
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
        assert!(listener.failed.is_none() && listener.understood == told);
    }
    if listener.connection.is_handshaking() {
        // Whoever is not through cannot be let in.
        assert!(server.admit(None).is_err());
    } else {
        let session = server.admit(listener.connection.peer_certificates()).expect("alice");
        assert_eq!(session.common_name(), Some("alice"));
    }
}

/// Connections that go well, and some that were hurt.
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
    // Records of each type: change of cipher, alert, handshake, data, heartbeat; and one that is too long.
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
