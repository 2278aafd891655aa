//! Command lines with all their output and requests, compared with golden files.
//!
//! The files in `golden/` are the output of etcdctl 3.7 against the same script. With
//! `MAINSTAY_CTL_RECORD=PATH` of a real etcdctl, the tests write them again, except for the few cases that
//! differ from etcdctl.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{Cursor, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cli::{Input, Io, Output};
use ctl::Interruption;

use crate::fake_server::{FakeServer, Script};

/// All output formats.
pub const FORMATS: [&str; 5] = ["simple", "fields", "json", "protobuf", "table"];

/// Time after which a case counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// One command line with its script.
#[derive(Clone)]
pub struct Case {
    words: Vec<String>,
    stdin: Vec<u8>,
    environment: Vec<(String, String)>,
    script: Script,
    /// Reason why real etcdctl behaves differently and the golden text is that of this tool; `None` if they agree.
    ours_alone: Option<&'static str>,
    shows_requests: bool,
    shows_stdin: bool,
    aimed_at_its_server: bool,
    interrupt_at: Option<&'static str>,
    /// Directory of this run, shown as `/DIR`.
    directory: Option<String>,
}

impl Case {
    /// Creates a case from a command line, split at blanks.
    pub fn new(line: &str, script: &Script) -> Case {
        Case::of(line.split_whitespace(), script)
    }

    /// Creates a case from a command line, given word by word.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>, script: &Script) -> Case {
        Case {
            words: words.into_iter().map(str::to_owned).collect(),
            stdin: Vec::new(),
            environment: Vec::new(),
            script: script.clone(),
            ours_alone: None,
            shows_requests: true,
            shows_stdin: true,
            aimed_at_its_server: false,
            interrupt_at: None,
            directory: None,
        }
    }

    /// Sets the standard input.
    pub fn reading(mut self, stdin: impl AsRef<[u8]>) -> Case {
        self.stdin = stdin.as_ref().to_vec();
        self
    }

    /// Sets an environment variable.
    pub fn with(mut self, name: &str, value: &str) -> Case {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Marks the case as not comparable with real etcdctl, for this reason.
    pub fn ours_alone(mut self, reason: &'static str) -> Case {
        self.ours_alone = Some(reason);
        self
    }

    /// Hides the requests, since they depend on time.
    pub fn without_requests(mut self) -> Case {
        self.shows_requests = false;
        self
    }

    /// Adds the address of the server as an argument.
    pub fn aimed_at_its_server(mut self) -> Case {
        self.aimed_at_its_server = true;
        self
    }

    /// Sets the directory for which `/DIR` in the words stands.
    pub fn within(mut self, directory: &std::path::Path) -> Case {
        let directory = directory.to_str().unwrap();
        for word in &mut self.words {
            *word = word.replace("/DIR", directory);
        }
        self.directory = Some(directory.to_owned());
        self
    }

    /// Hides the standard input, since it is too long to be shown.
    pub fn without_stdin(mut self) -> Case {
        self.shows_stdin = false;
        self
    }

    /// Interrupts the command when it has printed this text.
    pub fn interrupted_at(mut self, text: &'static str) -> Case {
        self.interrupt_at = Some(text);
        self
    }

    /// Returns the case in each format.
    pub fn in_all_formats(&self) -> Vec<Case> {
        self.in_formats(&FORMATS)
    }

    /// Returns the case in these formats.
    pub fn in_formats(&self, formats: &[&str]) -> Vec<Case> {
        let with = |format: &&str| {
            let mut case = self.clone();
            // The flag comes before `--`, since everything after that is an argument.
            let at = case.words.iter().position(|word| word == "--").unwrap_or(case.words.len());
            case.words.splice(at..at, ["-w".to_owned(), (*format).to_owned()]);
            case
        };
        formats.iter().map(with).collect()
    }
}

/// Result of one run.
struct Run {
    out: Vec<u8>,
    err: Vec<u8>,
    code: i32,
}

/// Runs the cases and compares the results with `golden/NAME.txt`.
pub fn check(name: &str, cases: Vec<Case>) {
    let real = std::env::var_os("MAINSTAY_CTL_RECORD").map(PathBuf::from);
    let mut text = String::new();
    for case in &cases {
        text.push_str(&transcript(case, real.as_deref().filter(|_| case.ours_alone.is_none())));
        text.push('\n');
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(format!("{name}.txt"));
    if real.is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let first = golden.lines().zip(text.lines()).position(|(golden, ours)| golden != ours);
    let at = first.unwrap_or(golden.lines().count().min(text.lines().count()));
    if golden != text {
        let around = |text: &str| {
            let lines: Vec<&str> = text.lines().skip(at.saturating_sub(12)).take(24).collect();
            lines.join("\n")
        };
        let (golden, ours) = (around(&golden), around(&text));
        panic!("{name}.txt differs at line {}:\n--- golden\n{golden}\n--- ours\n{ours}\n---", at + 1);
    }
}

fn transcript(case: &Case, real: Option<&std::path::Path>) -> String {
    let server = FakeServer::start(case.script.clone());
    let mut case = case.clone();
    if case.aimed_at_its_server {
        case.words.push(server.address.to_string());
    }
    let case = &case;
    let mut environment = vec![
        ("ETCDCTL_ENDPOINTS".to_owned(), server.address.to_string()),
        ("PATH".to_owned(), std::env::var("PATH").unwrap_or_default()),
    ];
    environment.extend(case.environment.iter().cloned());
    // A flag may replace the variable, but not contradict it.
    if case.words.iter().any(|word| word.starts_with("--endpoints")) {
        environment.remove(0);
    }
    let run = match real {
        Some(real) => run_real(real, case, environment),
        None => run_ours(case, environment),
    };
    let port = format!("127.0.0.1:{}", server.address.port());
    let own = |text: String| {
        let text = text.replace(&port, "127.0.0.1:00000");
        case.directory.as_ref().map_or(text.clone(), |directory| text.replace(directory, "/DIR"))
    };
    let masked = |bytes: &[u8]| times_masked(&own(shown(bytes)));
    let mut text = String::new();
    writeln!(text, "$ etcdctl {}", own(quoted(&case.words))).unwrap();
    if let Some(reason) = case.ours_alone {
        writeln!(text, "# ours alone: {reason}").unwrap();
    }
    for (name, value) in &case.environment {
        writeln!(text, "# {name}={value}").unwrap();
    }
    for line in shown(if case.shows_stdin { &case.stdin } else { b"(much)" }).lines() {
        writeln!(text, "< {line}").unwrap();
    }
    if case.shows_requests {
        for (path, message) in server.requests() {
            let hex: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "> {path} {hex}").unwrap();
        }
    }
    text.push_str(&masked(&run.out));
    if !text.ends_with('\n') {
        text.push_str("%\n");
    }
    for line in masked(&run.err).lines().filter(|line| !line.starts_with("{\"level\":")) {
        writeln!(text, "2> {line}").unwrap();
    }
    writeln!(text, "exit {}", run.code).unwrap();
    text
}

fn quoted(words: &[String]) -> String {
    let word = |word: &String| {
        let is_plain =
            !word.is_empty() && word.chars().all(|c| c.is_ascii_graphic() && !"'\"\\$`<>&|;()*".contains(c));
        if is_plain { word.clone() } else { format!("'{word}'") }
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Returns bytes as text; bytes that are not UTF-8 are escaped.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() && c != '\n' && c != '\t' {
                write!(text, "\\x{:02x}", c as u32).unwrap();
            } else {
                text.push(c);
            }
        }
        chunk.invalid().iter().for_each(|byte| write!(text, "\\x{byte:02x}").unwrap());
    }
    text
}

/// Replaces durations after the words that announce them.
fn times_masked(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    loop {
        let found = ["took = ", "took ", "\"took\":\"", "\"Took\" : "]
            .iter()
            .filter_map(|mark| rest.find(mark).map(|at| (at, std::cmp::Reverse(mark.len()))))
            .min();
        let Some((at, std::cmp::Reverse(length))) = found else { break };
        let at = at + length;
        let (before, behind) = rest.split_at(at);
        out.push_str(before);
        let is_part = |c: char| c.is_ascii_digit() || ".µmnsh".contains(c);
        let end = behind.find(|c| !is_part(c)).unwrap_or(behind.len());
        if behind.starts_with(|c: char| c.is_ascii_digit()) {
            out.push_str("<TIME>");
            // A full stop belongs to the sentence, not to the number.
            let number = behind[..end].trim_end_matches('.');
            rest = &behind[number.len()..];
        } else {
            rest = behind;
        }
    }
    out.push_str(rest);
    out
}

fn run_real(real: &std::path::Path, case: &Case, environment: Vec<(String, String)>) -> Run {
    let mut child = Command::new(real)
        .args(&case.words)
        .env_clear()
        .envs(environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let _ = stdin.write_all(&case.stdin);
    // A command that is to be interrupted keeps its standard input open, since the end of input would end it
    // differently.
    let kept = case.interrupt_at.map(|_| stdin.try_clone_owned());
    drop(stdin);
    let out = Arc::new(Mutex::new(Vec::new()));
    let collected = out.clone();
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stdout.read(&mut piece) {
            collected.lock().unwrap().extend_from_slice(&piece[..count]);
        }
    });
    if let Some(mark) = case.interrupt_at {
        wait_for(&out, mark);
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    }
    let mut err = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut err).unwrap();
    let status = child.wait().unwrap();
    reader.join().unwrap();
    drop(kept);
    let out = out.lock().unwrap().clone();
    Run { out, err, code: status.code().unwrap_or(-1) }
}

trait CloneOwned {
    fn try_clone_owned(&self) -> std::os::fd::OwnedFd;
}

impl CloneOwned for std::process::ChildStdin {
    fn try_clone_owned(&self) -> std::os::fd::OwnedFd {
        use std::os::fd::AsFd;
        self.as_fd().try_clone_to_owned().unwrap()
    }
}

fn wait_for(out: &Mutex<Vec<u8>>, mark: &str) {
    testkit::wait_until(&format!("{mark:?} is printed"), PATIENCE, || {
        String::from_utf8_lossy(&out.lock().unwrap()).contains(mark).then_some(())
    });
}

/// A buffer that collects the output.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Standard input that does not end while the sender lives.
struct Held(Cursor<Vec<u8>>, std::sync::mpsc::Receiver<()>);

impl Read for Held {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buffer)?;
        if count == 0 {
            // An error means that the sender was dropped, which ends the input.
            let _ = self.1.recv();
        }
        Ok(count)
    }
}

fn run_ours(case: &Case, environment: Vec<(String, String)>) -> Run {
    let (out, err) = (Buffer::default(), Buffer::default());
    let (interrupt, interruption) = tokio::sync::watch::channel(false);
    let (kept, end) = std::sync::mpsc::channel();
    let kept = case.interrupt_at.map(|_| kept);
    let io = Io {
        input: Input::new(std::io::BufReader::new(Held(Cursor::new(case.stdin.clone()), end))),
        out: Output::new(out.clone()),
        err: Output::new(err.clone()),
        environment: environment.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
        ..Io::in_memory().0
    };
    let interruption = Some(Interruption::from_channel(interruption));
    let words: Vec<OsString> = case.words.iter().map(OsString::from).collect();
    let running = std::thread::spawn(move || ctl::run_in(&words, &io, interruption));
    if let Some(mark) = case.interrupt_at {
        wait_for(&out.0, mark);
        // A command that does not wait for interruptions has dropped the receiver.
        let _ = interrupt.send(true);
    }
    drop(kept);
    let code = i32::from(running.join().unwrap());
    let (out, err) = (out.0.lock().unwrap().clone(), err.0.lock().unwrap().clone());
    Run { out, err, code }
}
