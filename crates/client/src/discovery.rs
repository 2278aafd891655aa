//! Finds endpoints by DNS SRV records, as `--discovery-srv` of etcd's tools does.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::retry::random;

/// DNS resolver settings: name servers, search domains, timeout and number of attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolver {
    /// Name servers, in the order in which they are queried.
    pub servers: Vec<SocketAddr>,
    /// Domains that are appended to a name that does not resolve by itself.
    pub search: Vec<String>,
    /// Time limit for the response of one server.
    pub timeout: Duration,
    /// Number of times that all servers are tried.
    pub attempts: u32,
}

impl Default for Resolver {
    /// Returns a resolver that queries a name server on this machine, as a `resolv.conf` without a
    /// `nameserver` line requires.
    fn default() -> Resolver {
        Resolver {
            servers: vec![SocketAddr::from(([127, 0, 0, 1], 53))],
            search: Vec::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
        }
    }
}

/// Error returned when no endpoints were found. The message is that of Go's resolver.
#[derive(Debug)]
pub struct DiscoveryError(String);

impl fmt::Display for DiscoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DiscoveryError {}

/// DNS SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Priority. Lower values are preferred.
    pub priority: u16,
    /// Weight: among the records of the same priority, each gets clients in proportion to its weight.
    pub weight: u16,
    /// Host name, including the final dot of the root domain.
    pub target: String,
    /// TCP port of the service.
    pub port: u16,
}

impl Resolver {
    /// Returns the settings in `/etc/resolv.conf`, or the defaults if the file cannot be read.
    pub fn system() -> Resolver {
        Resolver::from_file(Path::new("/etc/resolv.conf")).unwrap_or_default()
    }

    /// Reads a file in the format of `/etc/resolv.conf`: `nameserver`, `search`, `domain`, and the `options`
    /// `timeout` and `attempts`. Invalid lines are skipped, as system resolvers do.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn from_file(path: &Path) -> io::Result<Resolver> {
        Ok(Resolver::from_text(&String::from_utf8_lossy(&std::fs::read(path)?)))
    }

    fn from_text(text: &str) -> Resolver {
        let mut resolver = Resolver::default();
        let mut servers = Vec::new();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or(line);
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    servers.extend(address.map(|address| SocketAddr::new(address, 53)));
                }
                Some("search" | "domain") => resolver.search = words.map(str::to_owned).collect(),
                Some("options") => {
                    for (name, value) in words.filter_map(|word| word.split_once(':')) {
                        match (name, value.parse::<u32>().ok()) {
                            ("timeout", Some(value)) => {
                                resolver.timeout = Duration::from_secs(u64::from(value.clamp(1, 30)));
                            }
                            ("attempts", Some(value)) => resolver.attempts = value.clamp(1, 5),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if !servers.is_empty() {
            resolver.servers = servers;
        }
        resolver
    }

    /// Returns the client endpoints of a domain: `https` endpoints from `_etcd-client-ssl._tcp`, then `http`
    /// endpoints from `_etcd-client._tcp`. If `name` is not empty, `-name` is appended to the service name.
    /// Host names keep the final dot, as in etcd's tools.
    ///
    /// # Errors
    /// Returns an error if neither service name could be resolved.
    pub async fn client_endpoints(&self, domain: &str, name: &str) -> Result<Vec<String>, DiscoveryError> {
        let found = self.client_services(domain, name).await?;
        Ok(found.into_iter().map(|(url, _)| url).collect())
    }

    /// Returns the endpoints of [`Resolver::client_endpoints`], each with its SRV record.
    ///
    /// # Errors
    /// Returns the same errors as [`Resolver::client_endpoints`].
    pub async fn client_services(
        &self,
        domain: &str,
        name: &str,
    ) -> Result<Vec<(String, Service)>, DiscoveryError> {
        let suffix = if name.is_empty() { String::new() } else { format!("-{name}") };
        let secure = self.services(&format!("_etcd-client-ssl{suffix}._tcp.{domain}")).await;
        let plain = self.services(&format!("_etcd-client{suffix}._tcp.{domain}")).await;
        let (secure, plain) = match (secure, plain) {
            (Err(secure), Err(plain)) => {
                return Err(DiscoveryError(format!("dns lookup errors: {secure} and {plain}")));
            }
            (secure, plain) => (secure.unwrap_or_default(), plain.unwrap_or_default()),
        };
        let url = |scheme: &str, found: &Service| format!("{scheme}://{}:{}", found.target, found.port);
        let secure = secure.into_iter().map(|found| (url("https", &found), found));
        Ok(secure.chain(plain.into_iter().map(|found| (url("http", &found), found))).collect())
    }

    /// Returns host (with the final dot) and port of each SRV record of a name.
    ///
    /// # Errors
    /// Returns an error if the name could not be resolved or has no SRV records.
    pub async fn servers_of(&self, name: &str) -> Result<Vec<(String, u16)>, DiscoveryError> {
        let found = self.services(name).await?;
        Ok(found.into_iter().map(|service| (service.target, service.port)).collect())
    }

    /// Returns the SRV records of a name by priority. Records of the same priority are in random order by
    /// weight (RFC 2782).
    async fn services(&self, name: &str) -> Result<Vec<Service>, DiscoveryError> {
        let rooted = |name: &str| if name.ends_with('.') { name.to_owned() } else { format!("{name}.") };
        let mut names = vec![rooted(name)];
        if !name.ends_with('.') {
            names.extend(self.search.iter().map(|domain| rooted(&format!("{name}.{domain}"))));
        }
        let mut first_fault = None;
        for full in names {
            match self.ask_all(&full).await {
                Ok(found) => return Ok(ordered(found, random)),
                Err(fault) => _ = first_fault.get_or_insert(fault),
            }
        }
        let (server, why) = first_fault.unwrap_or((None, "no such host".to_owned()));
        let on = server.map_or(String::new(), |server| format!(" on {server}"));
        Err(DiscoveryError(format!("lookup {name}{on}: {why}")))
    }

    /// Queries the servers one after another, until one returns records or says that the name has none.
    async fn ask_all(&self, name: &str) -> Result<Vec<Service>, (Option<SocketAddr>, String)> {
        let asked = Name::new(name.trim_end_matches('.')).map_err(|_| (None, "no such host".to_owned()))?;
        let mut fault = (None, "no such host".to_owned());
        for _ in 0..self.attempts {
            for server in &self.servers {
                let answer = match self.ask(*server, &asked).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        let why = if error.kind() == io::ErrorKind::TimedOut {
                            "i/o timeout"
                        } else {
                            "server misbehaving"
                        };
                        fault = (Some(*server), why.to_owned());
                        continue;
                    }
                };
                match answer.code {
                    RCODE::NoError if !answer.services.is_empty() => return Ok(answer.services),
                    RCODE::NoError | RCODE::NameError => {
                        return Err((Some(*server), "no such host".to_owned()));
                    }
                    _ => fault = (Some(*server), "server misbehaving".to_owned()),
                }
            }
        }
        Err(fault)
    }

    /// Sends a query to one server over UDP. If the response is truncated, sends the query again over TCP.
    async fn ask(&self, server: SocketAddr, name: &Name<'_>) -> io::Result<Answer> {
        #[allow(clippy::cast_possible_truncation, reason = "any 16 of its bits do")]
        let mut query = Packet::new_query(random() as u16);
        query.set_flags(PacketFlag::RECURSION_DESIRED);
        query.questions.push(Question::new(name.clone(), TYPE::SRV.into(), CLASS::IN.into(), false));
        let bytes = query.build_bytes_vec().map_err(io::Error::other)?;
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let answer = timeout(self.timeout, by_udp(server, &query, &bytes)).await.map_err(late)??;
        if answer.is_cut_off {
            return timeout(self.timeout, by_tcp(server, &query, &bytes)).await.map_err(late)?;
        }
        Ok(answer)
    }
}

/// Response of a name server.
struct Answer {
    is_cut_off: bool,
    code: RCODE,
    services: Vec<Service>,
}

impl Answer {
    /// Parses a DNS message. Returns `None` if the message is not a response to `query`.
    fn read(query: &Packet<'_>, bytes: &[u8]) -> Option<Answer> {
        let answer = Packet::parse(bytes).ok()?;
        let is_answer = answer.has_flags(PacketFlag::RESPONSE) && answer.id() == query.id();
        let names = |packet: &Packet<'_>| -> Vec<String> {
            packet.questions.iter().map(|question| question.qname.to_string().to_lowercase()).collect()
        };
        if !is_answer || names(&answer) != names(query) {
            return None;
        }
        let service = |data: &RData<'_>| match data {
            RData::SRV(srv) => Some(Service {
                priority: srv.priority,
                weight: srv.weight,
                target: format!("{}.", srv.target),
                port: srv.port,
            }),
            _ => None,
        };
        Some(Answer {
            is_cut_off: answer.has_flags(PacketFlag::TRUNCATION),
            code: answer.rcode(),
            services: answer.answers.iter().filter_map(|record| service(&record.rdata)).collect(),
        })
    }
}

async fn by_udp(server: SocketAddr, query: &Packet<'_>, bytes: &[u8]) -> io::Result<Answer> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let len = socket.recv(&mut buffer).await?;
        // Ignore any other datagram, which may be forged, because the real response may still arrive.
        if let Some(answer) = Answer::read(query, &buffer[..len]) {
            return Ok(answer);
        }
    }
}

async fn by_tcp(server: SocketAddr, query: &Packet<'_>, bytes: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(server).await?;
    let len = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), bytes].concat()).await?;
    let len = stream.read_u16().await?;
    let mut buffer = vec![0; usize::from(len)];
    stream.read_exact(&mut buffer).await?;
    Answer::read(query, &buffer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn ordered(mut services: Vec<Service>, mut random: impl FnMut() -> u64) -> Vec<Service> {
    services.sort_by_key(|service| (service.priority, service.weight));
    let mut ordered = Vec::with_capacity(services.len());
    while let Some(first) = services.first() {
        let alike = services.iter().take_while(|service| service.priority == first.priority);
        let weights: Vec<u64> = alike.map(|service| u64::from(service.weight)).collect();
        let mut drawn = random() % (weights.iter().sum::<u64>() + 1);
        let mut at = 0;
        while at + 1 < weights.len() && drawn > weights[at] {
            drawn -= weights[at];
            at += 1;
        }
        ordered.push(services.remove(at));
    }
    ordered
}

/// Splits endpoints into those to use, and those to ignore because they are not encrypted. If
/// `insecure_allowed` is true, none is ignored. For each ignored endpoint, the caller should print etcd's
/// message: ``ignoring discovered insecure endpoint "http://…"``.
pub fn part_insecure(endpoints: Vec<String>, insecure_allowed: bool) -> (Vec<String>, Vec<String>) {
    endpoints.into_iter().partition(|endpoint| insecure_allowed || !endpoint.starts_with("http://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_as_resolvers_do() {
        let text = "# ours\nnameserver 10.0.0.1 ; x\nnameserver nonsense\nnameserver ::1\nsearch a.example b.example\noptions ndots:1 timeout:3 attempts:99\n";
        let resolver = Resolver::from_text(text);
        let servers = ["10.0.0.1:53", "[::1]:53"].map(|text| text.parse().unwrap());
        assert_eq!(resolver.servers, servers);
        assert_eq!(resolver.search, ["a.example", "b.example"]);
        assert_eq!((resolver.timeout, resolver.attempts), (Duration::from_secs(3), 5));
        assert_eq!(Resolver::from_text(""), Resolver::default());
    }

    #[test]
    fn records_come_by_priority_and_all_of_them() {
        let service = |priority, weight, port| Service { priority, weight, target: String::new(), port };
        let all = vec![service(2, 0, 4), service(1, 0, 1), service(1, 90, 3), service(1, 10, 2)];
        let ports =
            |drawn: u64| ordered(all.clone(), || drawn).iter().map(|found| found.port).collect::<Vec<_>>();
        assert_eq!(ports(0), [1, 2, 3, 4]);
        // The draw of 100 selects the record of weight 90. Then 100 % 11 = 1 selects the record of weight 10.
        assert_eq!(ports(100), [3, 2, 1, 4]);
    }
}
