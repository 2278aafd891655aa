use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::SystemTime;

use console::Source;
use testkit::certificates::{Clock, Files, Folder};
use testkit::{TempDir, http1};
use tls::{Settings, Tls};
use tokio_rustls::rustls::{ClientConnection, ServerConnection, Stream, StreamOwned};

use crate::harness::{Setup, url};

const LOOPBACK: &[&str] = &["127.0.0.1", "localhost"];

fn load(settings: Settings) -> Tls {
    Tls::load(settings, Clock::new()).expect("the files are sound").0
}

/// Returns the settings of a listener with this certificate.
fn serving(own: &Files) -> Settings {
    Settings { cert_file: Some(own.cert.clone()), key_file: Some(own.key.clone()), ..Settings::default() }
}

/// Returns the settings of a client that trusts this authority and shows this certificate.
fn trusting(authority: &Folder, own: Option<&Files>) -> Settings {
    Settings {
        trusted_ca_file: Some(authority.ca.clone()),
        client_cert_file: own.map(|own| own.cert.clone()),
        client_key_file: own.map(|own| own.key.clone()),
        ..Settings::default()
    }
}

/// Returns the status of a response over TLS and the negotiated protocol, or the reason why there is none.
fn get(address: SocketAddr, settings: Settings, path: &str) -> Result<(u16, Option<Vec<u8>>), String> {
    let mut stream = connect(address, settings);
    let head = format!("GET {path} HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or("no answer")?, stream.conn.alpn_protocol().map(<[u8]>::to_vec)))
}

fn connect(address: SocketAddr, settings: Settings) -> StreamOwned<ClientConnection, TcpStream> {
    let tls = load(settings).client();
    let name = tls.server_name("127.0.0.1").expect("an address");
    let connection = ClientConnection::new(tls.config(), name).expect("the settings are sound");
    StreamOwned::new(connection, http1::connect(address))
}

#[test]
fn browsers_show_certificates_where_clients_have_to() {
    let dir = TempDir::new("console-tls");
    let authority = Folder::new(dir.path(), "authority");
    let stranger = Folder::new(dir.path(), "stranger");
    let own = authority.issue("server", &[1], LOOPBACK);
    let browser = authority.issue("browser", &[2], &[]);
    let other = stranger.issue("other", &[3], &[]);
    let mut setup = Setup::endpoints(&[testkit::ports::free_address()]);
    setup.serving = Some(load(Settings {
        trusted_ca_file: Some(authority.ca.clone()),
        client_cert_auth: true,
        // As on the listeners for clients, which offer HTTP/2.
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        ..serving(&own)
    }));
    let console = setup.start();
    let ask = |settings: Settings| get(console.address, settings, "/");
    let with = |own: Option<&Files>| Settings {
        client_alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        ..trusting(&authority, own)
    };
    assert_eq!(ask(with(Some(&browser))), Ok((200, Some(b"http/1.1".to_vec()))));
    assert!(ask(with(None)).is_err(), "no certificate");
    assert!(ask(with(Some(&other))).is_err(), "one of another authority");
    // Plain HTTP is not served on this port.
    let mut plain = http1::connect(console.address);
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the console reads");
    let answer = crate::harness::read_to_close(&mut plain);
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_certificate_that_is_revoked_ends_its_connection() {
    let dir = TempDir::new("console-revoked");
    let authority = Folder::new(dir.path(), "authority");
    let own = authority.issue("server", &[1], LOOPBACK);
    let (good, bad) = (authority.issue("good", &[2], &[]), authority.issue("bad", &[3], &[]));
    let settings = Settings {
        trusted_ca_file: Some(authority.ca.clone()),
        crl_file: Some(authority.revoke(&[&[9]])),
        ..serving(&own)
    };
    let (tls, mut reloader) = Tls::load(settings, Clock::new()).expect("the files are sound");
    let mut setup = Setup::endpoints(&[testkit::ports::free_address()]);
    setup.serving = Some(tls);
    let console = setup.start();
    let connect = |own: &Files| {
        let mut stream = connect(console.address, trusting(&authority, Some(own)));
        let mut ask = move || {
            stream.write_all(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
            let mut answer = Vec::new();
            while !answer.ends_with(b"}") {
                let mut byte = [0];
                (stream.read(&mut byte).ok()? == 1).then(|| answer.push(byte[0]))?;
            }
            Some(())
        };
        ask().expect("it is served");
        ask
    };
    let (mut good, mut bad) = (connect(&good), connect(&bad));
    authority.revoke(&[&[3]]);
    testkit::wait_until("the list is taken over", testkit::TIMEOUT, || reloader.poll(SystemTime::now()));
    console.console.tls_reloaded();
    testkit::wait_until("it is closed", testkit::TIMEOUT, || bad().is_none().then_some(()));
    good().expect("the other stays");
}

/// Starts a member over TLS that answers every request with its name.
fn member(own: &Files, authority: Option<&Folder>) -> SocketAddr {
    let settings =
        Settings { trusted_ca_file: authority.map(|authority| authority.ca.clone()), ..serving(own) };
    let tls = load(settings).server().expect("it has a certificate");
    let (socket, address) = testkit::ports::listen();
    std::thread::spawn(move || {
        for stream in socket.incoming() {
            let mut stream = http1::with_timeouts(stream.expect("a connection"));
            let mut connection = ServerConnection::new(tls.config()).expect("the settings are sound");
            let mut stream = Stream::new(&mut connection, &mut stream);
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) => asked.push(byte[0]),
                    _ => break,
                }
            }
            // A client that does not trust the member reads no response.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nit");
            let _ = stream.flush();
        }
    });
    address
}

#[test]
fn members_are_trusted_by_their_certificates() {
    let dir = TempDir::new("console-members");
    let authority = Folder::new(dir.path(), "authority");
    let stranger = Folder::new(dir.path(), "stranger");
    let own = authority.issue("member", &[1], LOOPBACK);
    let foreign = stranger.issue("foreign", &[1], LOOPBACK);
    let misnamed = authority.issue("misnamed", &[2], &["elsewhere.example"]);
    let shown = authority.issue("console", &[3], &[]);
    let status = |address: SocketAddr, dialing: Settings| {
        let mut setup = Setup::of(Source::Endpoints(vec![url(&format!("https://{address}"))]));
        setup.dialing = load(dialing);
        let answer = setup.start().page("metrics");
        (answer.status, answer.text().to_owned())
    };
    let trusted = |own| trusting(&authority, own);
    assert_eq!(status(member(&own, Some(&authority)), trusted(Some(&shown))), (200, "it".to_owned()));
    assert_eq!(status(member(&own, Some(&authority)), trusted(None)).0, 502, "it wants a certificate");
    for (address, why) in [(member(&foreign, None), "unknown"), (member(&misnamed, None), "not 127.0.0.1")] {
        let (status, text) = status(address, trusted(Some(&shown)));
        assert_eq!(status, 502, "{text}");
        assert!(text.contains("cannot be reached"), "{why}: {text}");
    }
}

#[test]
fn a_members_own_listener_is_known_by_its_certificate() {
    let dir = TempDir::new("console-own");
    let stranger = Folder::new(dir.path(), "stranger");
    // A certificate of an unknown authority, and for another address.
    let own = stranger.issue("own", &[1], &["db.example"]);
    let other = stranger.issue("other", &[2], &["127.0.0.1"]);
    let status = |address: SocketAddr| {
        let listens_at = url(&format!("https://{address}"));
        let mut setup = Setup::of(Source::Member { id: 1, listens_at, list: Arc::new(Vec::new) });
        setup.dialing = load(serving(&own));
        setup.start().page("metrics").status
    };
    assert_eq!(status(member(&own, None)), 200);
    assert_eq!(status(member(&other, None)), 502, "another process has taken its place");
}
