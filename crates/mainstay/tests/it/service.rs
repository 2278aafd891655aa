//! The process in its environment: the service manager, log files, and the manifests that start etcd in other
//! systems.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::ports::free_address;
use testkit::{TempDir, http1};

use crate::certificates::Folder;
use crate::cluster::PATIENCE;
use crate::member::{Member, READY, Setup, binary};
use crate::run;

/// Returns the command of the binary under the name `etcd`, with an empty environment.
fn etcd(dir: &Path) -> Command {
    let program = dir.join("etcd");
    std::os::unix::fs::symlink(binary(), &program).expect("a link can be made");
    let mut command = Command::new(program);
    command.env_clear().current_dir(dir);
    command
}

fn served(command: Command) -> Member {
    let member = Member::launch(command, None);
    member.wait_for(READY);
    member
}

fn puts(address: SocketAddr) {
    run(async {
        let client = crate::client::Client::connect(address).await;
        client.put("k", "v").await.expect("it serves");
    });
}

/// Returns free addresses for clients and for members.
fn addresses() -> (SocketAddr, SocketAddr) {
    (free_address(), free_address())
}

#[test]
fn systemd_hears_that_a_member_is_ready_alive_and_stops() {
    let dir = TempDir::in_memory("systemd");
    let socket = dir.path().join("notify");
    let systemd = UnixDatagram::bind(&socket).expect("a socket");
    systemd.set_read_timeout(Some(PATIENCE)).expect("it takes a time");
    let heard = || {
        let mut buffer = [0; 64];
        let filled = systemd.recv(&mut buffer).expect("the member tells in time");
        String::from_utf8_lossy(&buffer[..filled]).into_owned()
    };
    let mut command = Setup::new(dir.path()).command();
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "20000");
    let member = Member::launch(command, None);
    assert_eq!(heard(), "READY=1");
    assert_eq!((heard(), heard()), ("WATCHDOG=1".to_owned(), "WATCHDOG=1".to_owned()));
    member.stop();
    let rest: Vec<String> = std::iter::from_fn(|| {
        systemd.set_nonblocking(true).expect("it can be asked");
        let mut buffer = [0; 64];
        let filled = systemd.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..filled]).into_owned())
    })
    .collect();
    assert_eq!(rest.last().map(String::as_str), Some("STOPPING=1"), "{rest:?}");
}

#[test]
fn signals_change_the_level_of_the_log() {
    let dir = TempDir::in_memory("level");
    let (address, _) = addresses();
    let mut member = Member::spawn(
        &Setup::new(dir.path())
            .flag("--log-level=error")
            .flag(format!("--listen-client-urls=http://{address}")),
    );
    run(async {
        let listens = async || tokio::net::TcpStream::connect(address).await.ok();
        testkit::eventually("it listens", PATIENCE, listens).await;
    });
    puts(address);
    assert!(!member.said().contains("\"level\":\"info\""), "{}", member.said());
    member.signal(libc::SIGUSR1);
    member.wait_for("logging all lines until SIGUSR2");
    member.signal(libc::SIGUSR2);
    member.wait_for("logging at --log-level again");
    member.signal(libc::SIGTERM);
    member.wait();
    let said = member.said();
    assert!(!said.contains("received signal; shutting down"), "{said}");
}

#[test]
fn a_port_is_shared_by_members_that_reuse_it_only() {
    let dir = TempDir::in_memory("reuse");
    let (address, _) = addresses();
    let setup = |name: &str| {
        Setup::new(&dir.path().join(name)).flag(format!("--listen-client-urls=http://{address}"))
    };
    let first = setup("one").flag("--socket-reuse-port").start();
    for plain in ["--socket-reuse-address", "--socket-reuse-port=false"] {
        let said = setup("two").flag(plain).refused();
        assert!(said.contains(&format!("cannot listen on http://{address}")), "{said}");
    }
    let second = setup("two").flag("--socket-reuse-port").flag("--socket-reuse-address").start();
    first.stop();
    puts(address);
    second.stop();
}

#[test]
fn memory_is_locked_or_the_start_refused() {
    let dir = TempDir::in_memory("mlock");
    let mut member = Member::spawn(&Setup::new(dir.path()).flag("--memory-mlock"));
    if member.serves() {
        member.wait_for("locked the memory of this process");
        let status = std::fs::read_to_string(format!("/proc/{}/status", member.pid())).expect("it runs");
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line");
        assert_ne!(locked.trim(), "0 kB");
        member.stop();
    } else {
        let said = member.refuses();
        assert!(said.contains("--memory-mlock: this process may lock "), "{said}");
    }
}

#[test]
fn the_log_is_rotated() {
    let dir = TempDir::in_memory("rotated");
    let log = dir.path().join("log/member.log");
    let start = || {
        let json = r#"{"maxsize": 1, "maxbackups": 1, "compress": true}"#;
        let setup = Setup::new(dir.path())
            .flag("--enable-log-rotation")
            .flag(format!("--log-outputs=stderr,{}", log.display()))
            .flag(format!("--log-rotation-config-json={json}"));
        setup.start().stop();
    };
    start();
    let first = std::fs::read(&log).expect("the directory is made");
    assert!(String::from_utf8_lossy(&first).contains(READY));
    // A log file as large as after a long run.
    std::fs::write(&log, vec![b'\n'; 1 << 20]).expect("it can be written");
    start();
    assert!(std::fs::metadata(&log).expect("a new one").len() < 100 << 10);
    let others: Vec<PathBuf> = std::fs::read_dir(log.parent().expect("a directory"))
        .expect("it is there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| *path != log)
        .collect();
    assert_eq!(others.len(), 1, "{others:?}");
    let name = others[0].file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("member-2") && name.contains('T'), "{name}");
}

#[test]
fn debians_unit_and_defaults_start_it() {
    let dir = TempDir::in_memory("debian");
    let (client, peer) = addresses();
    // `Environment` of the unit, settings of an operator in /etc/default/etcd, and the empty `DAEMON_ARGS`.
    let mut command = etcd(dir.path());
    command
        .env("DAEMON_ARGS", "")
        .env("ETCD_NAME", "host.example")
        .env("ETCD_DATA_DIR", dir.path().join("default"))
        .env("ETCD_LISTEN_CLIENT_URLS", format!("http://{client}"))
        .env("ETCD_ADVERTISE_CLIENT_URLS", format!("http://{client}"))
        .env("ETCD_LISTEN_PEER_URLS", format!("http://{peer}"))
        .env("ETCD_INITIAL_ADVERTISE_PEER_URLS", format!("http://{peer}"))
        .env("ETCD_INITIAL_CLUSTER", format!("host.example=http://{peer}"))
        .env("ETCD_INITIAL_CLUSTER_STATE", "new")
        .env("ETCD_INITIAL_CLUSTER_TOKEN", "etcd-cluster")
        .env("ETCD_LOG_OUTPUTS", "stderr")
        .env("ETCD_SNAPSHOT_COUNT", "10000");
    let member = served(command);
    puts(client);
    assert!(dir.path().join("default/member/lock").exists());
    member.stop();
}

#[test]
fn kubeadms_static_pod_starts_it() {
    let dir = TempDir::in_memory("kubeadm");
    let authority = Folder::new(dir.path(), "ca");
    let hosts = &["127.0.0.1", "127.0.0.2", "localhost", "control-plane"];
    let (server, peer_pair) = (authority.issue("server", &[1], hosts), authority.issue("peer", &[2], hosts));
    let (client, peer) = addresses();
    let (metrics, port) = (free_address(), client.port());
    // The manifest of kubeadm 1.34, and the flags that 1.30 and earlier spell differently.
    for (generation, gates) in [
        ["--feature-gates=InitialCorruptCheck=true", "--watch-progress-notify-interval=5s"],
        ["--experimental-initial-corrupt-check=true", "--experimental-watch-progress-notify-interval=5s"],
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = match generation {
            0 => etcd(dir.path()),
            _ => {
                let mut command = Command::new(dir.path().join("etcd"));
                command.env_clear();
                command
            }
        };
        command
            .env("GOGC", "100")
            .env("GOMAXPROCS", "1")
            .env("GOMEMLIMIT", "512MiB")
            .arg(format!("--advertise-client-urls=https://127.0.0.2:{port}"))
            .arg(format!("--cert-file={}", server.cert.display()))
            .arg("--client-cert-auth=true")
            .arg(format!("--data-dir={}", dir.path().join("data").display()))
            .args(gates)
            .arg(format!("--initial-advertise-peer-urls=https://{peer}"))
            .arg(format!("--initial-cluster=control-plane=https://{peer}"))
            .arg(format!("--key-file={}", server.key.display()))
            .arg(format!("--listen-client-urls=https://{client},https://127.0.0.2:{port}"))
            .arg(format!("--listen-metrics-urls=http://{metrics}"))
            .arg(format!("--listen-peer-urls=https://{peer}"))
            .arg("--name=control-plane")
            .arg(format!("--peer-cert-file={}", peer_pair.cert.display()))
            .arg("--peer-client-cert-auth=true")
            .arg(format!("--peer-key-file={}", peer_pair.key.display()))
            .arg(format!("--peer-trusted-ca-file={}", authority.ca.display()))
            .arg("--snapshot-count=10000")
            .arg(format!("--trusted-ca-file={}", authority.ca.display()));
        let member = served(command);
        member.wait_for("GOMAXPROCS limits the threads");
        member.wait_for("\"bytes\":536870912");
        // The health probes of the manifest.
        for path in ["/livez", "/readyz", "/health?exclude=NOSPACE&serializable=true"] {
            assert_eq!(http1::get(metrics, path).status, 200, "{path}");
        }
        member.stop();
    }
}

#[test]
fn bitnamis_variables_start_it() {
    let dir = TempDir::in_memory("bitnami");
    let (client, peer) = addresses();
    let mut command = etcd(dir.path());
    command
        .env("BITNAMI_DEBUG", "false")
        .env("MY_POD_NAME", "etcd-0")
        .env("MY_STS_NAME", "etcd")
        .env("ETCDCTL_API", "3")
        .env("ETCD_ON_K8S", "yes")
        .env("ETCD_START_FROM_SNAPSHOT", "no")
        .env("ETCD_DISASTER_RECOVERY", "no")
        .env("ETCD_NAME", "etcd-0")
        .env("ETCD_DATA_DIR", dir.path().join("data"))
        .env("ETCD_LOG_LEVEL", "info")
        .env("ALLOW_NONE_AUTHENTICATION", "yes")
        .env("ETCD_AUTH_TOKEN", "simple")
        .env("ETCD_ADVERTISE_CLIENT_URLS", format!("http://etcd-0.example:2379,http://{client}"))
        .env("ETCD_LISTEN_CLIENT_URLS", format!("http://0.0.0.0:{}", client.port()))
        .env("ETCD_INITIAL_ADVERTISE_PEER_URLS", format!("http://{peer}"))
        .env("ETCD_LISTEN_PEER_URLS", format!("http://{peer}"))
        .env("ETCD_INITIAL_CLUSTER", format!("etcd-0=http://{peer}"))
        .env("ETCD_INITIAL_CLUSTER_TOKEN", "etcd-cluster-k8s")
        .env("ETCD_INITIAL_CLUSTER_STATE", "new")
        .env("ETCD_AUTO_COMPACTION_MODE", "periodic")
        .env("ETCD_AUTO_COMPACTION_RETENTION", "10h")
        .env("ETCD_AUTO_TLS", "false")
        .env("ETCD_PEER_AUTO_TLS", "false");
    let member = served(command);
    puts(client);
    member.wait_for("unrecognized environment variable");
    member.stop();
}

#[test]
fn etcd_operators_and_patronis_configurations_start_it() {
    let dir = TempDir::in_memory("operator");
    let (client, peer) = addresses();
    let mut command = etcd(dir.path());
    // The pod template of the operator.
    command.args([
        format!("--data-dir={}", dir.path().join("data").display()),
        "--name=example-0".to_owned(),
        format!("--initial-advertise-peer-urls=http://{peer}"),
        format!("--listen-peer-urls=http://{peer}"),
        format!("--listen-client-urls=http://{client}"),
        format!("--advertise-client-urls=http://{client}"),
        format!("--initial-cluster=example-0=http://{peer}"),
        "--initial-cluster-state=new".to_owned(),
        "--initial-cluster-token=1f1a5f3c-example".to_owned(),
    ]);
    let member = served(command);
    puts(client);
    member.stop();

    // Patroni's users write a configuration file.
    let dir = TempDir::in_memory("patroni");
    let (client, peer) = addresses();
    let file = dir.path().join("etcd.yml");
    let text = format!(
        "# etcd of a PostgreSQL node\n\
         name: 'node1'\n\
         data-dir: '{data}'\n\
         wal-dir:\n\
         initial-cluster-token: PostgreSQL_HA_Cluster_1\n\
         initial-cluster-state: new\n\
         initial-cluster: node1=http://{peer}\n\
         initial-advertise-peer-urls: http://{peer}\n\
         listen-peer-urls: http://{peer}\n\
         advertise-client-urls: http://{client}\n\
         listen-client-urls: http://{client}\n\
         enable-v2: true\n\
         proxy: 'off'\n\
         log-outputs: [stderr]\n\
         auto-compaction-retention: \"1\"\n\
         client-transport-security:\n  cert-file:\n  client-cert-auth: false\n\
         peer-transport-security:\n  cert-file:\n  auto-tls: false\n",
        data = dir.path().join("data").display()
    );
    std::fs::write(&file, text).expect("a file can be written");
    let mut command = etcd(dir.path());
    command.env("ETCD_CONFIG_FILE", &file).env("ETCD_NAME", "not-this");
    let member = served(command);
    puts(client);
    member.wait_for("loaded server configuration, other configuration command line flags");
    assert!(member.heard("unrecognized key in the configuration file", Duration::ZERO));
    member.stop();
}

#[test]
fn etcds_sample_of_a_configuration_file_starts_it() {
    let dir = TempDir::in_memory("sample");
    let (client, peer) = addresses();
    let file = dir.path().join("etcd.conf.yml");
    // All keys of etcd.conf.yml.sample with its values, except for paths and ports.
    let text = format!(
        "name: 'default'\ndata-dir: {data}\nwal-dir: {wal}\nsnapshot-count: 10000\nheartbeat-interval: 100\n\
         election-timeout: 1000\nquota-backend-bytes: 0\nlisten-peer-urls: http://{peer}\n\
         listen-client-urls: http://{client}\nmax-snapshots: 5\nmax-wals: 5\ncors:\n\
         initial-advertise-peer-urls: http://{peer}\nadvertise-client-urls: http://{client}\ndiscovery:\n\
         discovery-fallback: 'proxy'\ndiscovery-proxy:\ndiscovery-srv:\ninitial-cluster: default=http://{peer}\n\
         initial-cluster-token: 'etcd-cluster'\ninitial-cluster-state: 'new'\nstrict-reconfig-check: false\n\
         enable-pprof: true\nproxy: 'off'\nproxy-failure-wait: 5000\nproxy-refresh-interval: 30000\n\
         proxy-dial-timeout: 1000\nproxy-write-timeout: 5000\nproxy-read-timeout: 0\n\
         client-transport-security:\n  cert-file:\n  key-file:\n  client-cert-auth: false\n  trusted-ca-file:\n  \
         auto-tls: false\n\
         peer-transport-security:\n  cert-file:\n  key-file:\n  client-cert-auth: false\n  trusted-ca-file:\n  \
         auto-tls: false\n\
         self-signed-cert-validity: 1\nlog-level: debug\nlogger: zap\nlog-outputs: [stderr]\nforce-new-cluster: false\n\
         auto-compaction-mode: periodic\nauto-compaction-retention: \"1\"\n\
         cipher-suites: [\n  TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\n  TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384\n]\n\
         tls-min-version: 'TLS1.2'\ntls-max-version: 'TLS1.3'\n",
        data = dir.path().join("data").display(),
        wal = dir.path().join("wal").display()
    );
    std::fs::write(&file, text).expect("a file can be written");
    let mut command = etcd(dir.path());
    command.arg("--config-file").arg(&file);
    let member = served(command);
    puts(client);
    assert!(dir.path().join("wal/0000000000000000.seg").exists());
    member.stop();
}

#[test]
fn pages_may_have_listeners_of_their_own() {
    let dir = TempDir::in_memory("pages");
    let (grpc, pages) = addresses();
    let setup = Setup::new(dir.path())
        .flag(format!("--listen-client-urls=http://{grpc}"))
        .flag(format!("--listen-client-http-urls=http://{pages}"));
    let member = setup.start();
    member.wait_for(&format!("\"traffic\":\"grpc\",\"address\":\"{grpc}\""));
    member.wait_for(&format!("\"traffic\":\"http\",\"address\":\"{pages}\""));
    puts(grpc);
    assert_eq!(http1::get(pages, "/health").status, 200);
    assert_eq!(http1::get(pages, "/version").status, 200);
    // A request for the other listener's protocol is not served: the connection is closed without a response.
    let said = |address: SocketAddr, bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it takes a time");
        stream.write_all(bytes).expect("it is open");
        let mut answer = Vec::new();
        // Some systems report the close as a reset.
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert_eq!(said(grpc, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"), b"");
    assert_eq!(said(pages, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"), b"");
    member.stop();
    let both = setup.flag(format!("--listen-client-http-urls=http://{grpc}")).refused();
    let words = "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url http://";
    assert!(both.contains(words), "{both}");
}
