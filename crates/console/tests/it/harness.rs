//! A console for tests, and a minimal browser.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use api::url::Url;
use console::{Console, Limits, Listener, ListenerSocket, Options, Source};
use telemetry::logging::{Format, Level, Logger};
use testkit::http1::{self, Answer};
use testkit::ports::listen;
use tls::{SystemClock, Tls};

/// Header that the console's own pages send.
pub const OWN: (&str, &str) = ("X-Mainstay-Console", "1");

/// Settings of a console on a free port.
pub struct Setup {
    pub source: Source,
    pub limits: Limits,
    pub hosts: Vec<String>,
    /// TLS settings of the listener.
    pub serving: Option<Tls>,
    /// TLS settings of connections to members.
    pub dialing: Tls,
}

impl Setup {
    pub fn of(source: Source) -> Setup {
        let (dialing, _) =
            Tls::load(::tls::Settings::default(), Arc::new(SystemClock)).expect("there are no files");
        Setup { source, limits: Limits::default(), hosts: Vec::new(), serving: None, dialing }
    }

    /// Creates settings for these endpoints.
    pub fn endpoints(addresses: &[SocketAddr]) -> Setup {
        let urls = addresses.iter().map(|address| url(&format!("http://{address}")));
        Setup::of(Source::Endpoints(urls.collect()))
    }

    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Setup {
        change(&mut self.limits);
        self
    }

    pub fn start(self) -> Running {
        let (socket, address) = listen();
        let listener = Listener {
            socket: ListenerSocket::Tcp(socket),
            tls: self.serving.as_ref().map(|tls| tls.server().expect("it has a certificate")),
            host: "127.0.0.1".to_owned(),
        };
        let options = Options {
            listeners: vec![listener],
            hosts: self.hosts,
            source: self.source,
            dialing: self.dialing.client(),
            reloaders: Vec::new(),
            limits: self.limits,
        };
        let logger = Logger::to(Level::Error, Format::Json, Vec::new());
        Running { console: Console::start(options, logger).expect("a thread can be had"), address }
    }
}

pub fn url(text: &str) -> Url {
    Url::parse(text).expect("a URL")
}

/// A running console, which stops at the end of its test.
pub struct Running {
    pub console: Console,
    pub address: SocketAddr,
}

impl Running {
    /// Sends a request on a separate connection and reads the response.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.ask(method, path, headers, body);
        let mut answer = http1::read_head(&mut stream);
        if method == "HEAD" || answer.status == 304 {
            return answer;
        }
        if answer.header("transfer-encoding").is_some() {
            while let Some(chunk) = http1::read_chunk(&mut stream).filter(|chunk| !chunk.is_empty()) {
                answer.body.extend(chunk);
            }
        } else if let Some(length) = answer.header("content-length") {
            answer.body = vec![0; length.parse().expect("a number")];
            stream.read_exact(&mut answer.body).expect("the body is whole");
        } else {
            stream.read_to_end(&mut answer.body).expect("the body ends");
        }
        answer
    }

    /// Sends a request; returns the connection on which the response arrives.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = http1::connect(self.address);
        let length = body.len().to_string();
        let mut headers = headers.to_vec();
        if !body.is_empty() {
            headers.push(("Content-Length", &length));
        }
        self.send(&mut stream, method, path, &headers);
        stream.write_all(body).expect("the console reads");
        stream
    }

    /// Sends the head of a request on a connection.
    pub fn send(&self, stream: &mut TcpStream, method: &str, path: &str, headers: &[(&str, &str)]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all((head + "\r\n").as_bytes()).expect("the console reads");
    }

    /// Makes a call of the JSON gateway at the first endpoint.
    pub fn call(&self, call: &str, body: &str) -> Answer {
        self.request("POST", &format!("/api/endpoint/0/v3/{call}"), &[OWN], body.as_bytes())
    }

    /// Requests a page of the first endpoint.
    pub fn page(&self, page: &str) -> Answer {
        self.request("GET", &format!("/api/endpoint/0/{page}"), &[OWN], b"")
    }

    /// Asserts that the pages are served: nothing before has stopped the console.
    pub fn serves(&self) {
        assert_eq!(self.request("GET", "/", &[], b"").status, 200);
    }
}

/// Reads until the peer closes; panics if that takes too long. A reset counts as closing.
pub fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let (mut bytes, mut space) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut space) {
            Ok(0) => return bytes,
            Ok(count) => bytes.extend(&space[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("the connection is not closed: {error}"),
        }
    }
}

/// A short time limit, for tests that wait until a limit passes.
pub const SHORT: Duration = Duration::from_millis(100);
