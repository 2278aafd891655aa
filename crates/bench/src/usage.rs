//! Measures the resources that a server uses: from `/proc` if its process is on this machine, otherwise from
//! its metrics.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::loadgen::socket::Endpoint;

/// Resource counters of a server at one point in time; `None` for those that are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time in user and kernel mode, in seconds.
    pub cpu_s: Option<f64>,
    /// Resident memory in bytes.
    pub rss_bytes: Option<u64>,
    /// Number of bytes that the server has written to its disk so far.
    pub written_bytes: Option<u64>,
    /// Number of log syncs that the server has made so far.
    pub fsyncs: Option<f64>,
    /// Number of bytes that the server has written to its log so far, according to its metrics.
    pub log_bytes: Option<u64>,
}

/// CPU time of one thread of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadTime {
    /// Number of the thread.
    pub id: u32,
    /// Name of the thread; equal for several threads of some servers.
    pub name: String,
    /// CPU time in user and kernel mode, in seconds.
    pub cpu_s: f64,
}

/// Returns what each thread has used since `before`, most first. Threads that have ended meanwhile are
/// missing.
pub fn threads_since(now: &[ThreadTime], before: &[ThreadTime]) -> Vec<ThreadTime> {
    let mut all: Vec<ThreadTime> = now
        .iter()
        .map(|thread| {
            let then = before.iter().find(|then| then.id == thread.id).map_or(0.0, |then| then.cpu_s);
            ThreadTime { cpu_s: (thread.cpu_s - then).max(0.0), ..thread.clone() }
        })
        .collect();
    all.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s));
    all
}

impl Usage {
    /// Returns the increase of each counter since `before`. The memory is not a counter; it stays the current
    /// value.
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_s: self.cpu_s.zip(before.cpu_s).map(|(now, then)| (now - then).max(0.0)),
            rss_bytes: self.rss_bytes,
            written_bytes: self
                .written_bytes
                .zip(before.written_bytes)
                .map(|(now, then)| now.saturating_sub(then)),
            fsyncs: self.fsyncs.zip(before.fsyncs).map(|(now, then)| (now - then).max(0.0)),
            log_bytes: self.log_bytes.zip(before.log_bytes).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// Reads the resource counters of one server.
#[derive(Clone, Debug)]
pub struct Meter {
    pid: Option<u32>,
    task: Option<String>,
    endpoint: Option<Endpoint>,
}

impl Meter {
    /// Creates a meter that reads the metrics of the endpoint, and the process `pid`. Without `pid`, it reads
    /// the process that listens at the endpoint, if the endpoint is a loopback address.
    pub fn new(endpoint: &Endpoint, pid: Option<u32>) -> Self {
        let pid = pid.or_else(|| is_local(endpoint).then(|| listener(endpoint)).flatten());
        Self { pid, task: None, endpoint: Some(endpoint.clone()) }
    }

    /// Creates a meter for one thread of this process, which is the responder's. It measures only CPU time.
    pub fn thread(task: &str) -> Self {
        Self { pid: None, task: Some(format!("/proc/{task}/schedstat")), endpoint: None }
    }

    /// Reads the counters before a load. Reads the metrics first: serving them is work too, and must not be
    /// counted.
    pub fn before(&self) -> Usage {
        let metrics = self.metrics();
        self.counters(&metrics)
    }

    /// Returns the resources used since `before`, and the current memory. Reads the metrics last, because
    /// serving them is work too, and must not be counted.
    pub fn since(&self, before: Usage) -> Usage {
        let told = self.counters("");
        let metrics = self.metrics();
        let from_metrics = self.counters(&metrics);
        Usage {
            // Prefer `/proc`, which is more precise; use a metric only if `/proc` does not have the value.
            cpu_s: told.cpu_s.or(from_metrics.cpu_s),
            rss_bytes: told.rss_bytes.or(from_metrics.rss_bytes),
            written_bytes: told.written_bytes,
            fsyncs: from_metrics.fsyncs,
            log_bytes: from_metrics.log_bytes,
        }
        .since(before)
    }

    /// Returns the id of the server's process; `None` if it is not known, or on another machine.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Returns the server's resident memory in bytes, without reading its metrics; `None` if unknown.
    pub fn rss_bytes(&self) -> Option<u64> {
        self.pid.and_then(rss_bytes)
    }

    /// Returns the CPU time of each thread of the server; empty if its process is not known.
    pub fn threads(&self) -> Vec<ThreadTime> {
        let Some(pid) = self.pid else { return Vec::new() };
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| {
                let id = task.file_name().to_str()?.parse().ok()?;
                let name = fs::read_to_string(task.path().join("comm")).ok()?.trim_end().to_owned();
                let told = fs::read_to_string(task.path().join("schedstat")).ok()?;
                let nanos: f64 = told.split_ascii_whitespace().next()?.parse().ok()?;
                Some(ThreadTime { id, name, cpu_s: nanos / 1e9 })
            })
            .collect()
    }

    fn metrics(&self) -> String {
        self.endpoint.as_ref().and_then(|endpoint| get(endpoint, "/metrics").ok()).unwrap_or_default()
    }

    fn counters(&self, metrics: &str) -> Usage {
        let mut usage = Usage {
            cpu_s: metric(metrics, "process_cpu_seconds_total"),
            rss_bytes: metric(metrics, "process_resident_memory_bytes").map(|bytes| bytes as u64),
            written_bytes: None,
            fsyncs: metric(metrics, "etcd_disk_wal_fsync_duration_seconds_count"),
            log_bytes: metric(metrics, "etcd_disk_wal_write_bytes_total").map(|bytes| bytes as u64),
        };
        if let Some(pid) = self.pid {
            usage.cpu_s = cpu_s(&format!("/proc/{pid}/stat")).or(usage.cpu_s);
            usage.rss_bytes = rss_bytes(pid).or(usage.rss_bytes);
            usage.written_bytes = written_bytes(pid);
        } else if let Some(task) = &self.task {
            let told = fs::read_to_string(task).unwrap_or_default();
            let nanos = told.split_ascii_whitespace().next().and_then(|word| word.parse::<f64>().ok());
            usage.cpu_s = nanos.map(|nanos| nanos / 1e9);
        }
        usage
    }
}

fn cpu_s(stat: &str) -> Option<f64> {
    let text = fs::read_to_string(stat).ok()?;
    // Skip the name of the process, in parentheses: it may contain any character, including parentheses and
    // spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    // Linux reports CPU time in ticks of 1/100 s (USER_HZ) on every architecture.
    Some(ticks as f64 / 100.0)
}

fn rss_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

fn written_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()
}

fn is_local(endpoint: &Endpoint) -> bool {
    // Treat only loopback addresses as local. Other addresses of this machine are harder to recognize; for
    // them, the metrics or `--pid` are used.
    endpoint.unix
        || (endpoint.address.as_str())
            .to_socket_addrs()
            .is_ok_and(|mut all| all.any(|address| address.ip().is_loopback()))
}

/// Returns the id of the process that listens on the endpoint's port; `None` if there is none that this
/// process can see.
fn listener(endpoint: &Endpoint) -> Option<u32> {
    let port: u16 = endpoint.address.rsplit_once(':')?.1.parse().ok()?;
    let mut inodes = Vec::new();
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(file).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let listens = fields.get(3) == Some(&"0A");
            let at = fields.get(1).and_then(|local| local.rsplit_once(':'));
            if listens && at.is_some_and(|(_, text)| u16::from_str_radix(text, 16) == Ok(port)) {
                inodes.extend(fields.get(9).map(|inode| format!("socket:[{inode}]")));
            }
        }
    }
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        for fd in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let is = |link: std::path::PathBuf| inodes.iter().any(|inode| link.to_str() == Some(inode));
            if fs::read_link(fd.path()).is_ok_and(is) {
                return Some(pid);
            }
        }
    }
    None
}

/// Returns the value of a metric without labels from the text of a metrics page.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Sends a GET request to the endpoint, and returns the body of the response. Each wait for the network is
/// limited to five seconds.
pub fn get(endpoint: &Endpoint, path: &str) -> io::Result<String> {
    if endpoint.unix {
        return Err(io::Error::other("metrics over a Unix socket are not asked for"));
    }
    let longest = Duration::from_secs(5);
    let address = endpoint.address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, longest)?;
    stream.set_read_timeout(Some(longest))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", endpoint.address);
    let mut answer = Vec::new();
    match &endpoint.tls {
        None => {
            stream.write_all(request.as_bytes())?;
            stream.read_to_end(&mut answer)?;
        }
        Some(tls) => {
            let mut tls = rustls::ClientConfig::clone(tls);
            tls.alpn_protocols = vec![b"http/1.1".to_vec()];
            let name = rustls::pki_types::ServerName::try_from(endpoint.host().to_owned())
                .map_err(io::Error::other)?;
            let client = rustls::ClientConnection::new(Arc::new(tls), name).map_err(io::Error::other)?;
            let mut stream = rustls::StreamOwned::new(client, stream);
            stream.write_all(request.as_bytes())?;
            // Ignore an error, such as a missing close_notify alert at the end of the stream: whether the
            // response is complete is checked below.
            let _ = stream.read_to_end(&mut answer);
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("no answer"))?;
    if !head.starts_with("HTTP/1.1 200") && !head.starts_with("HTTP/1.0 200") {
        return Err(io::Error::other(head.lines().next().unwrap_or_default()));
    }
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return Ok(unchunked(body));
    }
    Ok(body.to_owned())
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        let (Some(chunk), true) = (rest.get(..size), size > 0) else { break };
        out += chunk;
        body = rest.get(size + 2..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_its_port_and_uses_something() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint::parse(&listener.local_addr().unwrap().to_string(), None).unwrap();
        assert_eq!(super::listener(&endpoint), Some(std::process::id()));
        // Accept the connection and close it, so that reading the metrics fails.
        let thread = std::thread::spawn(move || {
            for _ in 0..1 {
                drop(listener.accept())
            }
        });
        let usage = Meter::new(&endpoint, None).before();
        thread.join().unwrap();
        assert!(usage.rss_bytes.unwrap() > 100_000, "{usage:?}");
        assert!(usage.cpu_s.is_some());
    }

    #[test]
    fn each_thread_of_a_process_is_measured_by_its_name() {
        let meter = Meter { pid: Some(std::process::id()), task: None, endpoint: None };
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (ran, has_run) = std::sync::mpsc::channel();
        let before = meter.threads();
        let work = move || {
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(30) {
                std::hint::black_box(began);
            }
            ran.send(()).unwrap();
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("busy-one".to_owned()).spawn(work).unwrap();
        has_run.recv().unwrap();
        let since = threads_since(&meter.threads(), &before);
        drop(stop);
        thread.join().unwrap();
        let one = since.iter().find(|thread| thread.name == "busy-one").unwrap();
        assert!(one.cpu_s > 0.003, "{one:?}");
        assert!(since.windows(2).all(|two| two[0].cpu_s >= two[1].cpu_s), "most first");
    }

    #[test]
    fn metrics_are_read() {
        let text =
            "# HELP a b\nprocess_cpu_seconds_total 12.5\nx{a=\"b\"} 1\nprocess_cpu_seconds_total_more 3\n";
        assert_eq!(metric(text, "process_cpu_seconds_total"), Some(12.5));
        assert_eq!(metric(text, "x"), None);
        assert_eq!(unchunked("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), "abcde");
    }
}
