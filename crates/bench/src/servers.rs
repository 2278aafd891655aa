//! Starts the servers of a comparison and stops them: programs, each in its own directory and on its own
//! ports, and the built-in responder. Servers that are already running are only connected to.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::loadgen::ask::Asker;
use crate::loadgen::calls::Target;
use crate::loadgen::responder::{self, Responder};
use crate::loadgen::socket::Endpoint;
use api::Rpc;
use cli::Failure;

use crate::usage::Meter;
use crate::{Error, tls};

/// Origin of a server of a comparison: a program to start, a running server, or the built-in responder.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Start this program, with these additional flags.
    Program(PathBuf, Vec<String>),
    /// Connect to a server that is already running.
    Running {
        /// Endpoint of the server.
        endpoint: String,
        /// Process id, if known.
        pid: Option<u32>,
    },
    /// Start the built-in responder, a server that does no work.
    Responder,
}

/// A server that takes part in a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    /// Name of the server in the results.
    pub name: String,
    /// Origin of the server.
    pub source: Source,
    /// True if the server uses TLS, with a certificate that is generated for it.
    pub tls: bool,
}

/// Parses words of the form `NAME=PATH` or `-flag`. A word that begins with a dash is a flag for the server
/// before it.
pub fn programs(words: &[String]) -> Result<Vec<Contestant>, Failure> {
    let mut all: Vec<Contestant> = Vec::new();
    for word in words {
        if word.starts_with('-') {
            match all.last_mut().map(|one| &mut one.source) {
                Some(Source::Program(_, flags)) => flags.push(word.clone()),
                _ => {
                    return Err(Failure::usage(format!(
                        "--server: the flag {word:?} does not belong to a server; give NAME=PATH first"
                    )));
                }
            }
            continue;
        }
        let (name, path) = named("--server", word, "NAME=PATH")?;
        all.push(Contestant { name, source: Source::Program(path.into(), Vec::new()), tls: false });
    }
    Ok(all)
}

/// Parses words of the form `NAME=ENDPOINT` or `pid=N`. A process id belongs to the server before it.
pub fn running(words: &[String]) -> Result<Vec<Contestant>, Failure> {
    let mut all: Vec<Contestant> = Vec::new();
    for word in words {
        if let Some(number) = word.strip_prefix("pid=") {
            let parsed =
                number.parse().map_err(|_| Failure::usage(format!("--at: {number:?} is not a process")))?;
            match all.last_mut().map(|one| &mut one.source) {
                Some(Source::Running { pid, .. }) => *pid = Some(parsed),
                _ => {
                    return Err(Failure::usage(format!(
                        "--at: {word:?} does not belong to a server; give NAME=ENDPOINT first"
                    )));
                }
            }
            continue;
        }
        let (name, endpoint) = named("--at", word, "NAME=ENDPOINT")?;
        all.push(Contestant { name, source: Source::Running { endpoint, pid: None }, tls: false });
    }
    Ok(all)
}

fn named(flag: &str, word: &str, form: &str) -> Result<(String, String), Failure> {
    match word.split_once('=') {
        Some((name, rest)) if !name.is_empty() && !rest.is_empty() => Ok((name.to_owned(), rest.to_owned())),
        _ => Err(Failure::usage(format!("{flag}: {word:?} is not of the form {form}"))),
    }
}

/// A server that answers requests. When this value is dropped, a server that was started for the comparison
/// is stopped, and its data is removed.
pub struct Server {
    /// Address and settings for clients.
    pub target: Target,
    /// Meter of the server's resource usage.
    pub meter: Meter,
    /// Version of the server; empty if unknown.
    pub version: String,
    child: Option<Child>,
    /// Directory of the server. It is removed when this value is dropped, after the process has ended.
    directory: Option<Place>,
    responder: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Server {
    /// Starts the server or connects to it, and waits until it answers. `place` is the directory in which a
    /// started server gets a directory of its own. `given` has the TLS settings for servers without a
    /// generated certificate.
    pub fn start(contestant: &Contestant, place: &Path, given: &tls::Files) -> Result<Self, Error> {
        let said = Error::at(&contestant.name);
        let place = Place(place.join(format!("mainstay-bench-{}-{}", file_name(&contestant.name), unique())));
        let directory = &place.0;
        let certificates = if contestant.tls {
            std::fs::create_dir_all(directory).map_err(&said)?;
            Some(tls::make(directory)?)
        } else {
            None
        };
        let client = match &certificates {
            Some((cert, _)) => tls::Files { cacert: cert.clone(), ..tls::Files::default() },
            None => given.clone(),
        };
        let endpoint_of = |text: &str| -> Result<Endpoint, Error> {
            let config = client.client(text.starts_with("https://") || text.starts_with("unixs://"))?;
            Ok(Endpoint::parse(text, config.as_ref())?)
        };
        let mut server = match &contestant.source {
            Source::Running { endpoint, pid } => {
                let endpoint = endpoint_of(endpoint)?;
                let meter = Meter::new(&endpoint, *pid);
                Self::of(endpoint, meter)
            }
            Source::Responder => Self::responder(contestant, certificates.as_ref(), &endpoint_of)?,
            Source::Program(path, flags) => {
                Self::program(contestant, path, flags, directory, certificates.as_ref(), &endpoint_of)?
            }
        };
        server.directory = Some(place);
        server.wait(&contestant.name)?;
        Ok(server)
    }

    /// Starts the responder in a thread of this process.
    fn responder(
        contestant: &Contestant,
        certificates: Option<&(String, String)>,
        endpoint_of: &dyn Fn(&str) -> Result<Endpoint, Error>,
    ) -> Result<Self, Error> {
        let said = Error::at(&contestant.name);
        let scheme = scheme(contestant);
        let tls = certificates.map(|(cert, key)| tls::server(cert, key)).transpose()?;
        let options = responder::Options { tls, ..responder::Options::default() };
        let mut responder = Responder::bind("127.0.0.1:0", options).map_err(&said)?;
        let endpoint = endpoint_of(&format!("{scheme}://{}", responder.address().map_err(&said)?))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, (tell, told)) = (stop.clone(), std::sync::mpsc::channel());
        let thread = std::thread::Builder::new()
            .name("responder".to_owned())
            .spawn(move || {
                let _ = tell.send(std::fs::read_link("/proc/thread-self").unwrap_or_default());
                // Ignore the result. The responder runs until `stop` is set; if it fails earlier, the calls
                // to it fail, and these errors are reported.
                let _ = responder.run(&seen);
            })
            .map_err(&said)?;
        let task = told.recv().unwrap_or_default();
        let mut server = Self::of(endpoint, Meter::thread(&task.to_string_lossy()));
        server.responder = Some((stop, thread));
        Ok(server)
    }

    /// Starts the program of a server in its own directory and on unused ports.
    fn program(
        contestant: &Contestant,
        path: &Path,
        flags: &[String],
        directory: &Path,
        certificates: Option<&(String, String)>,
        endpoint_of: &dyn Fn(&str) -> Result<Endpoint, Error>,
    ) -> Result<Self, Error> {
        let said = Error::at(&contestant.name);
        let scheme = scheme(contestant);
        let unused = || stdx::unused_port(Ipv4Addr::LOCALHOST.into()).map_err(&said);
        let (port, peer_port) = (unused()?, unused()?);
        let url = format!("{scheme}://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        std::fs::create_dir_all(directory).map_err(&said)?;
        let log = std::fs::File::create(directory.join("log")).map_err(&said)?;
        let mut command = Command::new(path);
        command
            .args(["--name", "default", "--data-dir"])
            .arg(directory.join("data"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--quota-backend-bytes", "8589934592", "--log-level", "error"]);
        if let Some((cert, key)) = certificates {
            command.args(["--cert-file", cert, "--key-file", key]);
        }
        // Start the process last: if a later step failed, the process would be left running.
        let endpoint = endpoint_of(&url)?;
        let child = command
            .args(flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(&said)?)
            .stderr(log)
            .spawn()
            .map_err(|error| Error::Program {
                name: contestant.name.clone(),
                path: path.display().to_string(),
                error,
            })?;
        let mut server = Self::of(endpoint.clone(), Meter::new(&endpoint, Some(child.id())));
        server.child = Some(child);
        Ok(server)
    }

    fn of(endpoint: Endpoint, meter: Meter) -> Self {
        Self {
            target: Target::new(vec![endpoint]),
            meter,
            version: String::new(),
            child: None,
            directory: None,
            responder: None,
        }
    }

    /// Waits until the server answers a linearizable read, for at most a minute.
    fn wait(&mut self, name: &str) -> Result<(), Error> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let asked = Asker::new(self.target.clone()).and_then(|mut asker| {
                asker.ask(Rpc::KvRange, |message| {
                    message.bytes(1, b"ready");
                })?;
                asker.status()
            });
            let error = match asked {
                Ok((version, _)) => {
                    self.version = version;
                    return Ok(());
                }
                Err(error) => error,
            };
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                let log = self.directory.as_ref().map(|place| place.0.join("log"));
                let log = log.and_then(|log| std::fs::read_to_string(log).ok()).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                let last: Vec<&str> = last.into_iter().rev().collect();
                return Err(Error::NotReady { name: name.to_owned(), error, log: last.join("\n") });
            }
            // Wait before the next attempt, because the server is still starting.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Kill the process instead of stopping it gracefully, because its data is removed anyway.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some((stop, thread)) = self.responder.take() {
            stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
    }
}

/// Returns the scheme of the server's client URLs.
fn scheme(contestant: &Contestant) -> &'static str {
    if contestant.tls { "https" } else { "http" }
}

/// The directory of one server, which is removed on drop. The server creates it, so it possibly does not
/// exist.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        // Ignore errors. The directory may not exist; if it cannot be removed, it stays among the temporary
        // files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

fn unique() -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(all: &[&str]) -> Vec<String> {
        all.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn servers_are_read_with_their_flags() {
        let all = programs(&words(&["a=/x", "--y=1", "--z", "b=/w"])).unwrap();
        assert_eq!(all[0].source, Source::Program("/x".into(), words(&["--y=1", "--z"])));
        assert_eq!((all[1].name.as_str(), all.len()), ("b", 2));
        let at = running(&words(&["a=127.0.0.1:1", "pid=12", "b=https://h:2"])).unwrap();
        assert_eq!(at[0].source, Source::Running { endpoint: "127.0.0.1:1".to_owned(), pid: Some(12) });
        for broken in [&["--y"][..], &["a"], &["=b"], &["a="]] {
            assert!(programs(&words(broken)).is_err(), "{broken:?}");
        }
        for broken in [&["pid=1"][..], &["a=b:1", "pid=x"]] {
            assert!(running(&words(broken)).is_err(), "{broken:?}");
        }
    }
}
