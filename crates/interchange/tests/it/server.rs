//! Real etcd, if it is installed, called through its JSON gateway.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::ports::free_address;

/// Directory of etcd's programs, named `etcd-3.6`, `etcdctl-3.6` and so on.
pub struct Programs(PathBuf);

impl Programs {
    /// Returns `None` and prints a note if the environment does not name the directory.
    pub fn find(test: &str) -> Option<Programs> {
        match std::env::var_os("MAINSTAY_TEST_ETCD_DIR") {
            Some(dir) => Some(Programs(dir.into())),
            None => {
                // Written directly to stderr, because the test harness hides what a passing test prints.
                let mut out = std::io::stderr();
                let _ = writeln!(
                    out,
                    "\nSKIPPED {test}: set MAINSTAY_TEST_ETCD_DIR to a directory with etcd-3.5, etcdctl-3.5 … etcdutl-3.7"
                );
                None
            }
        }
    }

    /// Returns the releases whose programs are installed.
    pub fn releases(&self) -> Vec<&'static str> {
        let found: Vec<_> =
            ["3.4", "3.5", "3.6", "3.7"].into_iter().filter(|r| self.path("etcd", r).exists()).collect();
        assert!(!found.is_empty(), "there is no etcd in {}", self.0.display());
        found
    }

    pub fn path(&self, program: &str, release: &str) -> PathBuf {
        self.0.join(format!("{program}-{release}"))
    }

    /// Runs a program and returns its output.
    pub fn run(&self, program: &str, release: &str, args: &[&str]) -> String {
        let output = Command::new(self.path(program, release))
            .env("ETCDCTL_API", "3")
            .args(args)
            .output()
            .unwrap_or_else(|e| panic!("{program}-{release}: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{program}-{release} {args:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }
}

/// A running etcd, the only member of its cluster.
pub struct Etcd {
    child: Child,
    pub client: String,
    pub release: &'static str,
    token: Option<String>,
    user: Option<String>,
}

impl Etcd {
    pub fn start(programs: &Programs, release: &'static str, dir: &Path) -> Etcd {
        let (client, peer) = (free_address(), free_address());
        let (client, peer) = (client.to_string(), format!("http://{peer}"));
        let log = std::fs::File::create(dir.with_extension(format!("log-{release}"))).expect("a log file");
        let url = format!("http://{client}");
        let child = Command::new(programs.path("etcd", release))
            .arg("--data-dir")
            .arg(dir)
            .args(["--name", "golden", "--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("golden={peer}"), "--snapshot-count", "100"])
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .expect("etcd starts");
        let mut etcd = Etcd { child, client, release, token: None, user: None };
        let what = format!("etcd-{release} on {} answers", dir.display());
        testkit::wait_until(&what, testkit::TIMEOUT, || {
            if let Ok(Some(status)) = etcd.child.try_wait() {
                panic!("etcd-{release} on {} ended: {status}", dir.display());
            }
            etcd.exchange("GET", "/health", "").filter(|health| health["health"] == "true").map(drop)
        });
        etcd
    }

    pub fn call(&self, path: &str, request: &Value) -> Value {
        let answer = self.try_call(path, request).unwrap_or_else(|| panic!("{path} is not answered"));
        assert!(answer.get("error").is_none(), "{path} {request}: {answer}");
        answer
    }

    /// Returns the response, if there is one.
    pub fn try_call(&self, path: &str, request: &Value) -> Option<Value> {
        self.exchange("POST", path, &request.to_string())
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.client).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let token = self.token.as_ref().map(|t| format!("Authorization: {t}\r\n")).unwrap_or_default();
        // HTTP version 1.0, so that the response is not chunked.
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: etcd\r\n{token}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Authenticates; later calls use this user's token.
    pub fn log_in(&mut self, name: &str, password: &str) {
        let token = self.call("/v3/auth/authenticate", &json!({ "name": name, "password": password }));
        self.token = token["token"].as_str().map(str::to_owned);
        self.user = Some(format!("{name}:{password}"));
    }

    /// Returns hash, compact revision and revision from HashKV, called through etcdctl because the gateway
    /// does not offer it.
    pub fn hash_kv(&self, programs: &Programs, revision: i64) -> (u32, i64, i64) {
        let revision_asked = revision.to_string();
        let mut args =
            vec!["--endpoints", &self.client, "endpoint", "hashkv", "--rev", &revision_asked, "-w", "json"];
        if let Some(user) = &self.user {
            args.extend(["--user", user]);
        }
        let answer = programs.run("etcdctl", self.release, &args);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let answer = &answer[0]["HashKV"];
        let number = |value: &Value| value.as_i64().unwrap_or_default();
        let current = number(&answer["header"]["revision"]);
        let revision = if revision == 0 { current } else { revision };
        (number(&answer["hash"]) as u32, number(&answer["compact_revision"]), revision)
    }

    /// Kills etcd, as a power cut would, except that the operating system still writes its page cache.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
