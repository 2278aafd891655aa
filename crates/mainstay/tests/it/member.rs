use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::{Duration, Instant};

use crate::client::Client;

/// Longest time that a member may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// Log line for which etcd's users and their scripts wait.
pub const READY: &str = "ready to serve client requests";

/// Returns the path of the binary under test: the binary built with the tests, or the one that
/// `MAINSTAY_TEST_BINARY` names, for example an optimized build to be measured.
pub fn binary() -> &'static Path {
    static NAMED: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("MAINSTAY_TEST_BINARY").map(PathBuf::from));
    NAMED.as_deref().unwrap_or(Path::new(env!("CARGO_BIN_EXE_mainstay")))
}

/// Settings with which a member is started.
#[derive(Clone)]
pub struct Setup {
    pub data_dir: PathBuf,
    pub program: PathBuf,
    pub flags: Vec<String>,
    /// Soft limit on open files for the process; `None` for the limit of this process.
    pub open_files: Option<u64>,
}

impl Setup {
    /// Creates the setup of a member on any free loopback ports, with its data below `dir`.
    pub fn new(dir: &Path) -> Setup {
        Setup {
            data_dir: dir.join("data"),
            program: binary().to_owned(),
            flags: Vec::new(),
            open_files: None,
        }
    }

    pub fn flag(mut self, flag: impl Into<String>) -> Setup {
        self.flags.push(flag.into());
        self
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .arg("--name=m")
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--listen-client-urls=http://127.0.0.1:0", "--advertise-client-urls=http://127.0.0.1:0"])
            .args([
                "--listen-peer-urls=http://127.0.0.1:0",
                "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            ])
            .arg("--initial-cluster=m=http://127.0.0.1:2380")
            .args(&self.flags);
        command
    }

    /// Starts a member, and waits until it serves.
    pub fn start(&self) -> Member {
        let began = Instant::now();
        let mut member = Member::spawn(self);
        member.wait_for(READY);
        member.started_in = began.elapsed();
        member
    }

    /// Starts a member that must refuse; returns its output on standard error.
    pub fn refused(&self) -> String {
        Member::spawn(self).refuses()
    }
}

#[derive(Default)]
struct Output {
    lines: Mutex<(Vec<String>, bool)>,
    grown: Condvar,
}

impl Output {
    fn read(self: Arc<Output>, from: impl Read + Send + 'static) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            for line in BufReader::new(from).split(b'\n') {
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).into_owned();
                self.lines.lock().expect("no reader panics").0.push(line);
                self.grown.notify_all();
            }
            self.lines.lock().expect("no reader panics").1 = true;
            self.grown.notify_all();
        })
    }

    /// Returns the first line with `words`; `None` if the output ended or the time is up.
    fn find(&self, words: &str, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        let mut lines = self.lines.lock().expect("no reader panics");
        loop {
            if let Some(line) = lines.0.iter().find(|line| line.contains(words)) {
                return Some(line.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.1 || left.is_zero() {
                return None;
            }
            lines = self.grown.wait_timeout(lines, left).expect("no reader panics").0;
        }
    }

    fn text(&self) -> String {
        self.lines.lock().expect("no reader panics").0.join("\n")
    }
}

/// A process of the binary, which is killed when this is dropped.
pub struct Member {
    child: Child,
    stdout: Arc<Output>,
    stderr: Arc<Output>,
    readers: Vec<std::thread::JoinHandle<()>>,
    /// Time from the start of the process to its readiness.
    pub started_in: Duration,
}

impl Member {
    /// Starts the process without waiting for it.
    pub fn spawn(setup: &Setup) -> Member {
        Member::launch(setup.command(), setup.open_files)
    }

    /// Starts the process of this command, with this soft limit on open files if there is one.
    pub fn launch(mut command: Command, open_files: Option<u64>) -> Member {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: only plain system calls, which are allowed between fork and exec; the limit is initialized.
        unsafe {
            command.pre_exec(move || {
                let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
                limit.rlim_cur = open_files.unwrap_or(limit.rlim_cur).min(limit.rlim_max);
                let limited = libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0;
                // If the test itself is killed, the kernel kills the member.
                let bound = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0;
                if limited && bound { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let mut child = command.spawn().expect("the built binary can be started");
        let (stdout, stderr) = (Arc::new(Output::default()), Arc::new(Output::default()));
        let readers = vec![
            Arc::clone(&stdout).read(child.stdout.take().expect("it is piped")),
            Arc::clone(&stderr).read(child.stderr.take().expect("it is piped")),
        ];
        Member { child, stdout, stderr, readers, started_in: Duration::ZERO }
    }

    /// Waits for the first log line with `words`, and returns it.
    pub fn wait_for(&self, words: &str) -> String {
        match self.stderr.find(words, PATIENCE) {
            Some(line) => line,
            None => panic!("the member did not say {words:?}, but:\n{}", self.said()),
        }
    }

    /// Returns true if a log line with `words` appears within `patience`.
    pub fn heard(&self, words: &str, patience: Duration) -> bool {
        self.stderr.find(words, patience).is_some()
    }

    /// Waits until the member serves or has ended; returns true if it serves.
    pub fn serves(&mut self) -> bool {
        self.stderr.find(READY, PATIENCE).is_some()
    }

    /// Returns all output on standard error so far.
    pub fn said(&self) -> String {
        self.stderr.text()
    }

    /// Returns all output on standard output so far.
    pub fn printed(&self) -> String {
        self.stdout.text()
    }

    /// Returns the address at which the member serves clients.
    pub fn client_address(&self) -> SocketAddr {
        self.address_in("serving client traffic ")
    }

    /// Returns the address at which the member listens for other members.
    pub fn peer_address(&self) -> SocketAddr {
        self.address_in("serving peer traffic")
    }

    /// Returns the address in the first log line with these words.
    fn address_in(&self, words: &str) -> SocketAddr {
        let line = self.wait_for(words);
        let address = line.split("\"address\":\"").nth(1).and_then(|rest| rest.split('"').next());
        address.and_then(|a| a.parse().ok()).unwrap_or_else(|| panic!("no address in {line}"))
    }

    /// Opens a separate connection to the member.
    pub async fn client(&self) -> Client {
        Client::connect(self.client_address()).await
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the memory that the member holds now, in bytes.
    pub fn rss_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// Returns the most memory that the member ever held, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.memory_bytes("VmHWM:")
    }

    fn memory_bytes(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let status = std::fs::read_to_string(path).expect("the process runs");
        let line = status.lines().find(|line| line.starts_with(field)).expect("it has memory");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        kib * 1024
    }

    pub fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.pid()).expect("a pid");
        // SAFETY: kill is called with the id of a child that has not been waited for, so the id is not reused.
        let outcome = unsafe { libc::kill(pid, signal) };
        assert_eq!(outcome, 0, "the process takes the signal");
    }

    /// Ends the member as a crash would.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        let status = self.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "it had ended before: {}", self.said());
    }

    /// Shuts the member down cleanly.
    pub fn stop(mut self) {
        self.signal(libc::SIGTERM);
        let status = self.wait();
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{status:?}: {}", self.said());
    }

    /// Waits until the member has ended by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status;
            }
            assert!(Instant::now() < deadline, "the member does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the member has refused to run; returns its output on standard error.
    pub fn refuses(mut self) -> String {
        let status = self.wait();
        assert_eq!(status.code(), Some(1), "{status:?}: {}", self.said());
        self.join_readers();
        let said = self.said();
        assert!(!said.contains("panicked"), "{said}");
        said
    }

    /// Waits until the process has ended; returns its exit code, and its output on standard error.
    pub fn exit(mut self) -> (Option<i32>, String) {
        let code = self.wait().code();
        self.join_readers();
        (code, self.said())
    }

    /// Returns true if the member is still running.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_none()
    }

    fn join_readers(&mut self) {
        for reader in self.readers.drain(..) {
            reader.join().expect("no reader panics");
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Both calls fail only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.join_readers();
        if std::thread::panicking() {
            let said = self.said();
            let from = said.len().saturating_sub(4000);
            let from = (from..said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(0);
            eprintln!("the member's last words:\n{}", &said[from..]);
        }
    }
}
