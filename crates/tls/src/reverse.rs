//! Looks up the names of an IP address in the hosts file, or else at the name servers.
//!
//! The system function `getnameinfo` is not sufficient, because it returns only one name per address. An
//! address may have several names, and a certificate may be valid for any of them.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of names that are returned for an address.
const NAMES_MAX: usize = 64;
/// Maximum number of bytes read from the hosts file and from the list of name servers.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of name servers that are asked, the same as in the system library.
const SERVERS_MAX: usize = 3;
/// Number of times that each name server is asked. Each time it has [`TIMEOUT`] to answer.
const ATTEMPTS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size in bytes of an answer over UDP. A longer answer is fetched over TCP.
const UDP_BYTES_MAX: usize = 4096;
/// Maximum length of a domain name in bytes.
const NAME_BYTES_MAX: usize = 255;

const PTR: u16 = 12;
const INTERNET: u16 = 1;
/// Size in bytes of the header of a DNS message: id, flags, and the numbers of questions, answers and other
/// records.
const HEAD_BYTES: usize = 12;

/// Sources for the names of an address: the hosts file, and the name servers.
#[derive(Debug)]
pub(crate) struct Sources {
    hosts: PathBuf,
    servers: Vec<SocketAddr>,
    timeout: Duration,
}

impl Sources {
    /// Returns the sources that the system's configuration names.
    pub(crate) fn of_system() -> Sources {
        let servers = read(Path::new("/etc/resolv.conf")).map_or_else(|_| Vec::new(), |text| servers(&text));
        Sources { hosts: "/etc/hosts".into(), servers, timeout: TIMEOUT }
    }

    /// Returns the names of an address, at most [`NAMES_MAX`]. Returns none if no source knows a name, or if
    /// no server answers.
    pub(crate) fn names(&self, address: IpAddr) -> Vec<String> {
        let address = address.to_canonical();
        let listed = read(&self.hosts).map_or_else(|_| Vec::new(), |text| hosts(&text, address));
        if !listed.is_empty() {
            return listed;
        }
        for server in self.servers.iter().cycle().take(ATTEMPTS * self.servers.len()) {
            // If a server does not answer or fails, ask the next one. The answer that no name exists is
            // final.
            if let Ok(Some(names)) = ask(*server, address, self.timeout) {
                return names;
            }
        }
        Vec::new()
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the words of each line of a configuration file, without comments.
fn lines(text: &str) -> impl Iterator<Item = std::str::SplitWhitespace<'_>> {
    text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default().split_whitespace())
}

fn servers(text: &str) -> Vec<SocketAddr> {
    let server = |mut words: std::str::SplitWhitespace<'_>| {
        let is_server = words.next() == Some("nameserver");
        let address = words.next().filter(|_| is_server)?.parse::<IpAddr>().ok()?;
        Some(SocketAddr::new(address, 53))
    };
    let mut servers: Vec<SocketAddr> = lines(text).filter_map(server).take(SERVERS_MAX).collect();
    if servers.is_empty() {
        servers.push(SocketAddr::from((Ipv4Addr::LOCALHOST, 53)));
    }
    servers
}

fn hosts(text: &str, address: IpAddr) -> Vec<String> {
    let names = |mut words: std::str::SplitWhitespace<'_>| {
        let is_here = words
            .next()
            .and_then(|word| word.parse::<IpAddr>().ok())
            .is_some_and(|listed| listed.to_canonical() == address);
        words.filter(move |name| is_here && is_name(name)).map(str::to_owned).collect::<Vec<_>>()
    };
    lines(text).flat_map(names).take(NAMES_MAX).collect()
}

/// Returns true if `name` can be a host name.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Returns the domain name whose PTR records contain the names of the address.
fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let mut name = String::new();
            for byte in address.octets().iter().rev() {
                name.push_str(&format!("{:x}.{:x}.", byte & 15, byte >> 4));
            }
            name + "ip6.arpa"
        }
    }
}

fn question(id: u16, address: IpAddr) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    // The flag "recursion desired", and the numbers of records: one question.
    bytes.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in reverse_name(address).split('.') {
        // The cast is lossless, because the labels of these names are short.
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&PTR.to_be_bytes());
    bytes.extend_from_slice(&INTERNET.to_be_bytes());
    bytes
}

/// Asks a name server for the names of an address. Returns `None` if the server answers that it has failed,
/// or sends only unrelated datagrams.
fn ask(server: SocketAddr, address: IpAddr, timeout: Duration) -> io::Result<Option<Vec<String>>> {
    // Choose a random id, so that an attacker who does not see the question must guess it to forge the
    // answer.
    let id = RandomState::new().hash_one(address) as u16;
    let question = question(id, address);
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    let deadline = Instant::now() + timeout;
    socket.send(&question)?;
    let mut bytes = vec![0; UDP_BYTES_MAX];
    // Before the answer a few unrelated datagrams may arrive, which are skipped.
    for _ in 0..8 {
        socket.set_read_timeout(Some(left(deadline)?))?;
        let len = socket.recv(&mut bytes)?;
        match answer(&bytes[..len], &question) {
            Answer::Foreign => {}
            Answer::CutOff => return ask_at_length(server, &question, deadline),
            Answer::Names(names) => return Ok(names),
        }
    }
    Ok(None)
}

/// Returns the time left until the deadline.
///
/// # Errors
///
/// Returns `TimedOut` if the deadline has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Asks a name server over TCP, for an answer that is too long for UDP.
fn ask_at_length(server: SocketAddr, question: &[u8], deadline: Instant) -> io::Result<Option<Vec<String>>> {
    let mut stream = TcpStream::connect_timeout(&server, left(deadline)?)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&[&(question.len() as u16).to_be_bytes()[..], question].concat())?;
    let mut len = [0; 2];
    read_by(deadline, &mut stream, &mut len)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
    read_by(deadline, &mut stream, &mut bytes)?;
    match answer(&bytes, question) {
        Answer::Names(names) => Ok(names),
        Answer::Foreign | Answer::CutOff => Ok(None),
    }
}

/// Fills the buffer. Fails if that is not complete at the deadline, even if single bytes arrive from time to
/// time.
fn read_by(deadline: Instant, stream: &mut TcpStream, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => bytes = &mut bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The message is not an answer to this question.
    Foreign,
    /// The server has truncated the answer, because it does not fit into a datagram.
    CutOff,
    /// The names in the answer; `None` if the server reports a failure.
    Names(Option<Vec<String>>),
}

fn answer(bytes: &[u8], question: &[u8]) -> Answer {
    let is_ours = bytes.len() >= question.len()
        && bytes[..2] == question[..2]
        // The response bit must be set, and the opcode must be that of a standard query.
        && bytes[2] & 0xf8 == 0x80
        && bytes[4..6] == [0, 1]
        && bytes[HEAD_BYTES..question.len()].eq_ignore_ascii_case(&question[HEAD_BYTES..]);
    if !is_ours {
        return Answer::Foreign;
    }
    if bytes[2] & 2 != 0 {
        return Answer::CutOff;
    }
    match bytes[3] & 15 {
        0 => {}
        // There is no such name (NXDOMAIN), so the list of names is empty.
        3 => return Answer::Names(Some(Vec::new())),
        _ => return Answer::Names(None),
    }
    let records = u16::from_be_bytes([bytes[6], bytes[7]]);
    let (mut at, mut names) = (question.len(), Vec::new());
    for _ in 0..records {
        let Some(record) = record(bytes, &mut at) else { break };
        names.extend(record);
        if names.len() == NAMES_MAX {
            break;
        }
    }
    Answer::Names(Some(names))
}

/// Reads the record at `at`, and sets `at` to the offset after it. Returns `None` if the record is malformed,
/// and `Some(None)` if it is not a PTR record with a valid host name.
fn record(bytes: &[u8], at: &mut usize) -> Option<Option<String>> {
    let (_, behind) = name(bytes, *at)?;
    let fixed = bytes.get(behind..behind + 10)?;
    let (kind, class) = (u16::from_be_bytes([fixed[0], fixed[1]]), u16::from_be_bytes([fixed[2], fixed[3]]));
    let len = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
    let data = behind + 10;
    *at = data + len;
    bytes.get(data..*at)?;
    if (kind, class) != (PTR, INTERNET) {
        return Some(None);
    }
    let (found, _) = name(bytes, data)?;
    Some(Some(found).filter(|name| is_name(name)))
}

/// Reads the domain name at `at`. Returns the name, and the offset after it.
fn name(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut name, mut behind) = (String::new(), None);
    // A name may continue at an earlier offset (compression pointer). Each pointer must point to an offset
    // before the previous one, so that the loop ends.
    let mut earliest = at;
    loop {
        let len = usize::from(*bytes.get(at)?);
        match len {
            0 => return Some((name, behind.unwrap_or(at + 1))),
            1..=63 => {
                let label = bytes.get(at + 1..at + 1 + len)?;
                if !name.is_empty() {
                    name.push('.');
                }
                // Replace a dot within a label by an invalid character, because it would look like the end of
                // the label. `is_name` later rejects names with invalid characters.
                name.extend(label.iter().map(|byte| if *byte == b'.' { '?' } else { char::from(*byte) }));
                if name.len() > NAME_BYTES_MAX {
                    return None;
                }
                at += 1 + len;
            }
            192.. => {
                let place = (len & 63) << 8 | usize::from(*bytes.get(at + 1)?);
                behind.get_or_insert(at + 2);
                if place >= earliest {
                    return None;
                }
                (at, earliest) = (place, place);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::{Random, TempDir};

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));

    /// Returns an answer with these names; the last part of each is a compression pointer.
    fn told(question: &[u8], names: &[&str]) -> Vec<u8> {
        let mut bytes = question.to_vec();
        bytes[2] = 0x81;
        bytes[7] = names.len() as u8;
        for name in names {
            bytes.extend_from_slice(&[0xc0, HEAD_BYTES as u8, 0, 12, 0, 1, 0, 0, 0, 9]);
            let mut data = Vec::new();
            for label in name.split('.') {
                data.push(label.len() as u8);
                data.extend_from_slice(label.as_bytes());
            }
            // Pointer to `in-addr.arpa` in the question.
            data.extend_from_slice(&[0xc0, HEAD_BYTES as u8 + 9]);
            bytes.extend_from_slice(&(data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    /// Starts a name server on loopback that answers over UDP with `answers`.
    fn server(answers: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut bytes) {
                let _ = socket.send_to(&answers(&bytes[..len]), from);
            }
        });
        address
    }

    fn sources(dir: &TempDir, hosts: &str, servers: Vec<SocketAddr>) -> Sources {
        let path = dir.join("hosts");
        std::fs::write(&path, hosts).unwrap();
        Sources { hosts: path, servers, timeout: Duration::from_secs(30) }
    }

    #[test]
    fn all_names_of_an_address_are_found() {
        let dir = TempDir::in_memory("names");
        let listed =
            "127.0.0.1 localhost # 10.1.2.3 no\n10.1.2.3 one.example one\n::ffff:10.1.2.3\ttwo.example\n";
        assert_eq!(sources(&dir, listed, Vec::new()).names(ADDRESS), ["one.example", "one", "two.example"]);
        let known = server(|question| told(question, &["one.x", "two.x", "three.x"]));
        let names = sources(&dir, "127.0.0.1 localhost", vec![known]).names(ADDRESS);
        assert_eq!(names, ["one.x.in-addr.arpa", "two.x.in-addr.arpa", "three.x.in-addr.arpa"]);
    }

    #[test]
    fn a_server_that_fails_is_followed_by_the_next_one() {
        let dir = TempDir::in_memory("names");
        let failing = server(|question| {
            let mut bytes = question.to_vec();
            (bytes[2], bytes[3]) = (0x81, 2);
            bytes
        });
        let unknown = server(|question| {
            let mut bytes = question.to_vec();
            (bytes[2], bytes[3]) = (0x81, 3);
            bytes
        });
        let known = server(|question| told(question, &["one"]));
        assert_eq!(sources(&dir, "", vec![failing, known]).names(ADDRESS), ["one.in-addr.arpa"]);
        assert!(sources(&dir, "", vec![unknown, known]).names(ADDRESS).is_empty());
        assert!(sources(&dir, "", Vec::new()).names(ADDRESS).is_empty());
    }

    #[test]
    fn a_long_answer_is_fetched_over_tcp() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).unwrap();
        let serving = std::thread::spawn(move || {
            let mut bytes = [0; 512];
            let (len, from) = socket.recv_from(&mut bytes).unwrap();
            let mut cut = bytes[..len].to_vec();
            cut[2] = 0x83;
            // An unrelated datagram arrives first.
            socket.send_to(b"nothing", from).unwrap();
            socket.send_to(&cut, from).unwrap();
            let mut stream = listener.accept().unwrap().0;
            let mut asked = vec![0; len + 2];
            stream.read_exact(&mut asked).unwrap();
            let told = told(&asked[2..], &["long"; 200]);
            stream.write_all(&[&(told.len() as u16).to_be_bytes()[..], &told].concat()).unwrap();
        });
        let names = ask(address, ADDRESS, Duration::from_secs(30)).unwrap().unwrap();
        assert_eq!(names, ["long.in-addr.arpa"; NAMES_MAX]);
        serving.join().unwrap();
    }

    #[test]
    fn an_answer_that_comes_byte_by_byte_is_waited_for_no_longer_than_others() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).unwrap();
        let serving = std::thread::spawn(move || {
            let mut bytes = [0; 512];
            let (len, from) = socket.recv_from(&mut bytes).unwrap();
            bytes[2] = 0x83;
            socket.send_to(&bytes[..len], from).unwrap();
            let mut stream = listener.accept().unwrap().0;
            let mut asked = vec![0; len + 2];
            stream.read_exact(&mut asked).unwrap();
            let told = told(&asked[2..], &["slow"; 8]);
            // The client sends nothing more, so each read waits for its timeout, as a pause.
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            for byte in [&(told.len() as u16).to_be_bytes()[..], &told].concat() {
                if stream.write_all(&[byte]).is_err() || matches!(stream.read(&mut [0]), Ok(0)) {
                    return;
                }
            }
        });
        let told = ask(address, ADDRESS, Duration::from_secs(2));
        told.expect_err("the time is over before the answer is whole");
        serving.join().unwrap();
    }

    #[test]
    fn answers_of_any_content_are_judged() {
        let question = question(7, ADDRESS);
        let sound = told(&question, &["one.x", "two"]);
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let mut bytes = sound.clone();
            for _ in 0..1 + random.below(6) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            bytes.truncate(1 + random.below(bytes.len() as u64) as usize);
            if let Answer::Names(Some(names)) = answer(&bytes, &question) {
                assert!(names.len() <= NAMES_MAX && names.iter().all(|name| is_name(name)));
            }
        }
        assert_eq!(name(&[0xc0, 0], 0), None, "a name that goes on at itself");
    }

    #[test]
    fn servers_and_reverse_names_are_as_the_system_has_them() {
        let read = "# x\nnameserver 10.0.0.1\nsearch a b\n nameserver ::1 ; y\nnameserver x\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n";
        let found: Vec<String> = servers(read).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[::1]:53", "10.0.0.2:53"]);
        assert_eq!(servers(""), [SocketAddr::from(([127, 0, 0, 1], 53))]);
        assert_eq!(reverse_name(ADDRESS), "3.2.1.10.in-addr.arpa");
        assert!(reverse_name("2001:db8::1".parse().unwrap()).starts_with("1.0.0.0."));
        assert!(reverse_name("2001:db8::1".parse().unwrap()).ends_with(".8.b.d.0.1.0.0.2.ip6.arpa"));
    }
}
