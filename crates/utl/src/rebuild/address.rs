//! Prevents a running member from being replaced: [`refuse_alive`] connects to the addresses of the member to
//! find out whether it runs.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;

use api::etcdserverpb::Member;
use config::Url;
use replica::other_members;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{CALL_TIMEOUT, RebuildError};

/// Returns an error if the member `own` is running, because a running member must not be removed from the
/// cluster.
///
/// The member counts as down only if none of its addresses accepts a connection. A process that refuses the
/// certificate of this command, or answers with an error, may be the member, so it is an error too.
pub(super) fn refuse_alive(own: &Member, tls: &tls::ClientTls) -> Result<(), RebuildError> {
    for url in &own.peer_urls {
        let error = match other_members::version_of(url, CALL_TIMEOUT, Some(tls)) {
            Ok(_) => {
                return Err(RebuildError::Alive {
                    member_id: own.id,
                    name: own.name.clone(),
                    url: url.clone(),
                });
            }
            Err(error) => error,
        };
        let what = match accepts(url) {
            Ok(false) => continue,
            Ok(true) => format!("something accepts connections at {url}"),
            Err(error) => format!("it cannot be ruled out that something runs at {url} ({error})"),
        };
        return Err(RebuildError::Refused(format!(
            "{what}, the address of member {:x} ({}), which does not answer correctly ({error}): make sure \
             that the member is stopped and that nothing else listens there, and run this again",
            own.id, own.name
        )));
    }
    Ok(())
}

/// Returns true if a process accepts connections at a URL. Returns an error if this cannot be determined.
fn accepts(url: &str) -> io::Result<bool> {
    let url =
        Url::parse(url).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    if url.scheme().is_unix() {
        return accepts_at(Path::new(url.host()));
    }
    for address in (url.host(), url.port()).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CALL_TIMEOUT) {
            Ok(_) => return Ok(true),
            Err(error) if is_down(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns true if a process accepts connections at a Unix socket. Returns an error if this cannot be
/// determined.
fn accepts_at(path: &Path) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Non-blocking, so that a process that listens but does not accept connections cannot block this check.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) if is_down(&error) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_absolute() => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(io::Error::new(
            error.kind(),
            "the socket does not exist, but its path is relative to the directory in which the member was \
             started, which may be different: give the member an absolute path with `etcdctl member \
             update`",
        )),
        Err(error) => Err(error),
    }
}

/// Returns true if connecting failed with an error after which the address counts as down: the connection was
/// refused, or the host or network did not answer.
fn is_down(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server counts as running even if it refuses this member's TLS, answers with an error, or closes the
    /// connection.
    #[test]
    fn only_a_member_that_accepts_no_connection_is_taken_for_down() {
        let (tls, _) = tls::Tls::load(tls::Settings::default(), std::sync::Arc::new(tls::SystemClock))
            .expect("nothing is needed to connect");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let server = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            // Four connections: for each of the two URLs one for the request, and one to check whether a
            // process listens.
            for _ in 0..4 {
                let (mut stream, _) = listener.accept().expect("connections are accepted");
                let mut first = [0];
                if stream.read(&mut first).is_ok_and(|bytes| bytes > 0) {
                    let answer: &[u8] = match first[0] {
                        b'G' => b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
                        // A fatal alert: `bad_certificate`.
                        _ => &[21, 3, 3, 0, 2, 2, 42],
                    };
                    let _ = stream.write_all(answer);
                    // Reads until the client closes the connection, so that the client gets the answer.
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
            }
        });
        let refused = |url: String| {
            let own = Member { id: 0xabc, name: "m".to_owned(), peer_urls: vec![url], ..Member::default() };
            refuse_alive(&own, &tls.client()).map_err(|error| error.to_string())
        };
        let text = refused(format!("https://{address}")).expect_err("it refuses TLS, so it runs");
        assert!(
            text.contains("something accepts connections at https://") && text.contains("abc (m)"),
            "{text}"
        );
        assert!(text.contains("tls: bad certificate"), "{text}");
        let text = refused(format!("http://{address}")).expect_err("it answers, so it runs");
        assert!(text.contains("503"), "{text}");
        server.join().expect("it ends");
        for scheme in ["http", "https"] {
            assert_eq!(refused(format!("{scheme}://{address}")), Ok(()), "nobody listens any more");
        }
        let text = refused("http://nowhere.invalid:2380".to_owned()).expect_err("that cannot be told");
        assert!(text.contains("it cannot be ruled out"), "{text}");
    }

    #[test]
    fn a_socket_is_asked_without_waiting() {
        let dir = testkit::TempDir::new("accepts");
        let path = dir.join("m.sock");
        assert!(!accepts_at(&path).expect("nothing is there"));
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
        listener.bind(&SockAddr::unix(&path).expect("a path")).expect("is free");
        assert!(!accepts_at(&path).expect("nobody listens"));
        listener.listen(0).expect("listens");
        // Connects until the queue of connections that are not accepted is full.
        let mut waiting = Vec::new();
        loop {
            let client = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
            client.set_nonblocking(true).expect("is set");
            if client.connect(&SockAddr::unix(&path).expect("a path")).is_err() {
                break;
            }
            waiting.push(client);
        }
        assert!(accepts_at(&path).expect("it listens"));
        drop(listener);
        assert!(!accepts_at(&path).expect("nobody listens any more"));
        // A relative path must give an error, because only the member knows the directory to which it refers.
        let error = accepts_at(Path::new("no-such-directory/m.sock")).expect_err("that cannot be told");
        assert!(error.to_string().contains("member update"), "{error}");
    }
}
