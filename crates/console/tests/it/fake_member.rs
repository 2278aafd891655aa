//! A scripted member: accepts connections, reads heads of requests, and handles each request as its test says.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use testkit::ports::listen;
use testkit::{TIMEOUT, http1};

/// A request of which only the head was read.
pub struct MemberRequest {
    /// Method and path.
    pub line: String,
    /// Header names in lower case, and their values.
    pub headers: Vec<(String, String)>,
    pub stream: TcpStream,
}

impl MemberRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    /// Reads the body, which has a Content-Length or is chunked.
    pub fn body(&mut self) -> Vec<u8> {
        if let Some(length) = self.header("content-length") {
            let mut body = vec![0; length.parse().expect("a number")];
            self.stream.read_exact(&mut body).expect("the body is whole");
            return body;
        }
        let mut body = Vec::new();
        if self.header("transfer-encoding").is_some() {
            while let Some(chunk) = http1::read_chunk(&mut self.stream).filter(|chunk| !chunk.is_empty()) {
                body.extend(chunk);
            }
        }
        body
    }

    /// Responds with a status and a JSON body.
    pub fn answer(&mut self, status: &str, body: &str) {
        let length = body.len();
        self.write(&format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
    }

    pub fn write(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).expect("the console reads");
    }

    /// Waits until the console closes the connection; discards what it sends before.
    pub fn wait_for_close(&mut self) {
        crate::harness::read_to_close(&mut self.stream);
    }
}

/// A member that listens until the process ends.
pub struct FakeMember {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl FakeMember {
    /// Starts a member that handles each request with `script`.
    pub fn start(script: impl Fn(&mut MemberRequest) + Send + Sync + 'static) -> FakeMember {
        let (socket, address) = listen();
        let (connections, lines) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let member = FakeMember { address, connections: Arc::clone(&connections), lines: Arc::clone(&lines) };
        let script = Arc::new(script);
        std::thread::spawn(move || {
            for stream in socket.incoming() {
                let stream = http1::with_timeouts(stream.expect("a connection"));
                connections.fetch_add(1, Ordering::Relaxed);
                let (script, lines) = (Arc::clone(&script), Arc::clone(&lines));
                std::thread::spawn(move || {
                    let mut stream = stream;
                    while let Some(mut asked) = read_request(stream) {
                        lines.lock().expect("no thread panics").push(asked.line.clone());
                        script(&mut asked);
                        stream = asked.stream;
                    }
                });
            }
        });
        member
    }

    /// Starts a member that passes its requests to the test.
    pub fn by_hand() -> (FakeMember, Requests) {
        let (asked, requests): (Sender<MemberRequest>, _) = channel();
        let asked = Mutex::new(asked);
        let member = FakeMember::start(move |request| {
            let stream = request.stream.try_clone().expect("a socket");
            let (line, headers) = (request.line.clone(), request.headers.clone());
            let handed = MemberRequest { line, headers, stream };
            // The test may have ended.
            let _ = asked.lock().expect("no thread panics").send(handed);
            // The test owns the connection from here on, so it is replaced by a dead one.
            request.stream = TcpStream::connect(dead_end()).expect("a connection");
        });
        (member, Requests(requests))
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the first lines of all requests.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no thread panics").clone()
    }
}

/// Requests that are passed to a test.
pub struct Requests(Receiver<MemberRequest>);

impl Requests {
    /// Waits for the next request and returns it.
    pub fn next(&self) -> MemberRequest {
        self.0.recv_timeout(TIMEOUT).expect("the console asks")
    }
}

/// Returns an address at which every connection ends at once.
fn dead_end() -> SocketAddr {
    static ADDRESS: std::sync::OnceLock<SocketAddr> = std::sync::OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let (socket, address) = listen();
        std::thread::spawn(move || socket.incoming().for_each(drop));
        address
    })
}

/// Reads the head of the next request; returns `None` at the end of the connection.
fn read_request(mut stream: TcpStream) -> Option<MemberRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    let text = String::from_utf8(head).expect("a head is text");
    let mut lines = text.trim_end().split("\r\n");
    let line = lines.next().expect("a request line").trim_end_matches(" HTTP/1.1").to_owned();
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_lowercase(), value.to_owned()))
    });
    Some(MemberRequest { line, headers: headers.collect(), stream })
}
