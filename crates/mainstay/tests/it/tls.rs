//! TLS for clients, end to end: which clients are admitted, which user a certificate stands for, and changed files.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use api::{Code, error};
use client::TlsFiles;
use testkit::ports::free_address;
use testkit::{TempDir, eventually, http1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::auth::{CHEAP, secured, user_add};
use crate::certificates::{Files, Folder, files, flag};
use crate::client::Client;
use crate::cluster::PATIENCE;
use crate::member::{Member, READY, Setup, binary};
use crate::run;

const LOOPBACK: &[&str] = &["127.0.0.1", "localhost"];

/// Returns the setup of a member with an `https` client URL on any port.
pub fn https(dir: &Path) -> Setup {
    Setup::new(dir)
        .flag("--listen-client-urls=https://127.0.0.1:0")
        .flag("--advertise-client-urls=https://127.0.0.1:0")
}

/// Returns the setup of [`https`] with a certificate.
fn with_certificate(dir: &Path, own: &Files) -> Setup {
    https(dir).flag(flag("cert-file", &own.cert)).flag(flag("key-file", &own.key))
}

/// Returns the setup of [`with_certificate`] that also requires client certificates.
fn mutual(dir: &Path, own: &Files, authority: &Folder) -> Setup {
    with_certificate(dir, own).flag("--client-cert-auth").flag(flag("trusted-ca-file", &authority.ca))
}

fn ctl(endpoint: &str, files: &TlsFiles, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_clear().args(["ctl", "--endpoints", endpoint, "--command-timeout=10s", "--dial-timeout=5s"]);
    for (name, path) in [("--cacert", &files.cacert), ("--cert", &files.cert), ("--key", &files.key)] {
        if let Some(path) = path {
            command.arg(name).arg(path);
        }
    }
    command.args(words).output().expect("the binary runs")
}

/// Returns the response to a GET over TLS, or the reason why it failed.
pub async fn get(address: SocketAddr, settings: tls::Settings, path: &str) -> Result<String, String> {
    get_with(address, settings, path, "").await
}

/// Like [`get`], with more lines in the head of the request, each of which ends with CR LF.
pub async fn get_with(
    address: SocketAddr,
    settings: tls::Settings,
    path: &str,
    lines: &str,
) -> Result<String, String> {
    let (tls, _) = tls::Tls::load(settings, Arc::new(tls::SystemClock)).map_err(|error| error.to_string())?;
    let client = tls.client();
    let name = client.server_name("127.0.0.1").map_err(|error| error.to_string())?;
    let stream = tokio::net::TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let exchange = async {
        let mut stream = TlsConnector::from(client.config()).connect(name, stream).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer).await {
            Err(error) if answer.is_empty() => Err(error),
            Ok(_) if answer.is_empty() => Err(std::io::Error::other("closed without an answer")),
            _ => Ok(answer),
        }
    };
    let answer =
        tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| "no answer in time".to_owned())?;
    answer.map(|answer| String::from_utf8_lossy(&answer).into_owned()).map_err(|error| error.to_string())
}

/// Returns the settings of a client that trusts this authority and shows this certificate.
pub fn trusting(authority: &Folder, own: Option<&Files>) -> tls::Settings {
    tls::Settings {
        client_cert_file: own.map(|own| own.cert.clone()),
        client_key_file: own.map(|own| own.key.clone()),
        trusted_ca_file: Some(authority.ca.clone()),
        ..tls::Settings::default()
    }
}

/// Returns true if requests on the connection work.
async fn works(client: &Client) -> bool {
    client.get("k").await.is_ok()
}

/// Returns the reason why no connection with these files works. With TLS 1.3, the client gets the error after
/// its handshake.
async fn refused(address: SocketAddr, files: &TlsFiles) -> String {
    match Client::secured(address, files).await {
        Err(error) => error,
        Ok(client) => client.get("k").await.expect_err("nobody is let in with these").to_string(),
    }
}

#[test]
fn clients_and_tools_come_in_over_tls_and_no_other_way() {
    let dir = TempDir::new("tls");
    let (authority, other) = (Folder::new(dir.path(), "ours"), Folder::new(dir.path(), "other"));
    let member = with_certificate(dir.path(), &authority.issue("server", &[1], LOOPBACK)).start();
    member.wait_for("serving client traffic securely");
    member.wait_for("starting with client TLS");
    let address = member.client_address();
    run(async {
        let client = Client::secured(address, &files(&authority, None)).await.expect("is let in");
        client.put("k", "v").await.expect("puts are served");
        assert_eq!(client.get("k").await.expect("reads are served").expect("it is there").value, "v");
        let members = client.members().await.expect("members are listed");
        assert_eq!(members[0].client_urls, ["https://127.0.0.1:0"]);

        assert!(Client::secured(address, &files(&other, None)).await.is_err(), "it is not of that authority");
        let plain = Client::within(Duration::from_secs(10), address).await;
        assert!(match plain {
            Err(_) => true,
            Ok(plain) => plain.get("k").await.is_err(),
        });
        member.wait_for("rejected connection on client endpoint");
        assert!(works(&client).await, "others' failures are not felt");
        for offered in [&["http/1.1"][..], &[]] {
            let client_alpn = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
            let settings = tls::Settings { client_alpn, ..trusting(&authority, None) };
            let answer = get(address, settings, "/health").await.expect("is answered");
            assert!(answer.ends_with("{\"health\":\"true\",\"reason\":\"\"}"), "{offered:?}: {answer}");
        }
    });
    let endpoint = format!("https://{address}");
    let done = ctl(&endpoint, &files(&authority, None), &["get", "k"]);
    assert_eq!(String::from_utf8_lossy(&done.stdout), "k\nv\n");
    let failed = ctl(&endpoint, &files(&other, None), &["get", "k"]);
    assert!(!failed.status.success());
    member.stop();
}

/// etcd's listeners do the same.
#[test]
fn one_port_serves_http_and_https_and_a_certificate_without_a_name_is_that_of_no_user() {
    let dir = TempDir::new("both-by-one-port");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let nameless = authority.issue("", &[2], &[]);
    let urls = "client-urls=http://127.0.0.1:0,https://127.0.0.1:0";
    let member = mutual(dir.path(), &own, &authority)
        .flag(format!("--listen-{urls}"))
        .flag(format!("--advertise-{urls}"))
        .flag(CHEAP)
        .start();
    member.wait_for("serving client traffic securely");
    member.wait_for("serving client traffic insecurely; this is strongly discouraged!");
    let address = member.client_address();
    run(async {
        let plain = Client::connect(address).await;
        let nameless =
            Client::secured(address, &files(&authority, Some(&nameless))).await.expect("is let in");
        plain.put("k", "v").await.expect("puts are served");
        assert_eq!(nameless.get("k").await.expect("reads are served").expect("it is there").value, "v");
        secured(&plain).await;
        // A client without a certificate and a password may not even list the members.
        assert_eq!(plain.get("k").await.map(drop), Err(error::USER_EMPTY));
        assert_eq!(plain.members().await.map(drop), Err(error::USER_EMPTY));
        assert_eq!(nameless.get("k").await.map(drop), Err(error::PERMISSION_DENIED));
        assert_eq!(nameless.put("k", "w").await, Err(error::PERMISSION_DENIED));
        assert_eq!(nameless.members().await.expect("any user may see them").len(), 1);
        assert_eq!(user_add(&nameless, "eve", "evepw").await, Err(error::USER_EMPTY));
    });
    let page = http1::get(address, "/health");
    assert!(page.text().contains("\"health\":\"true\""), "{}", page.text());
    member.stop();
}

#[test]
fn certificates_of_clients_are_required_and_revoked_while_the_member_runs() {
    let dir = TempDir::new("mtls");
    let (authority, other) = (Folder::new(dir.path(), "ours"), Folder::new(dir.path(), "other"));
    let own = authority.issue("server", &[1], LOOPBACK);
    let (good, bad) = (authority.issue("good", &[2], &[]), authority.issue("bad", &[3], &[]));
    let stranger = other.issue("stranger", &[4], &[]);
    let list = authority.revoke(&[]);
    let member = mutual(dir.path(), &own, &authority).flag(flag("client-crl-file", &list)).start();
    let address = member.client_address();
    run(async {
        refused(address, &files(&authority, None)).await;
        member.wait_for("tls: client didn't provide a certificate");
        refused(address, &TlsFiles { cacert: Some(authority.ca.clone()), ..files(&other, Some(&stranger)) })
            .await;
        member.wait_for("x509: certificate signed by unknown authority");
        let good = files(&authority, Some(&good));
        let bad = files(&authority, Some(&bad));
        let remaining = Client::secured(address, &good).await.expect("is let in");
        let revoked = Client::secured(address, &bad).await.expect("is let in");
        remaining.put("k", "v").await.expect("puts are served");
        assert!(works(&revoked).await);

        authority.revoke(&[&[3]]);
        member.wait_for("reloaded TLS files");
        eventually("the revoked client is cut off", PATIENCE, async || {
            (!works(&revoked).await).then_some(())
        })
        .await;
        refused(address, &bad).await;
        member.wait_for("certificate serial 03 revoked");
        assert!(works(&remaining).await, "the others stay");
        assert!(works(&Client::secured(address, &good).await.expect("is let in")).await);
    });
    member.stop();
}

#[test]
fn files_that_are_cut_do_not_replace_sound_ones_and_are_refused_at_start() {
    let dir = TempDir::new("cut");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let metrics = free_address();
    let setup = with_certificate(dir.path(), &own).flag(format!("--listen-metrics-urls=https://{metrics}"));
    let member = setup.start();
    let address = member.client_address();
    let whole = std::fs::read(&own.cert).expect("it is there");
    run(async {
        let shown = async || get(metrics, trusting(&authority, None), "/metrics").await.expect("is answered");
        let before = shown().await;
        assert!(before.contains("mainstay_tls_generation{listener=\"client\"} 1\n"), "{before}");
        assert!(before.contains("mainstay_tls_reload_failing{listener=\"client\"} 0\n"));
        let ends = "mainstay_tls_certificate_not_after_seconds{certificate=\"server\",listener=\"client\"} ";
        assert!(before.lines().any(|line| line.starts_with(ends)), "{before}");

        std::fs::write(&own.cert, &whole[..whole.len() / 2]).expect("is written");
        let said = member.wait_for("cannot use changed TLS files; those loaded before stay in use");
        assert!(said.contains("server.crt"), "{said}");
        let failing = shown().await;
        assert!(failing.contains("mainstay_tls_reload_failing{listener=\"client\"} 1\n"));
        assert!(failing.contains("mainstay_tls_reload_failures_total{listener=\"client\"} 1\n"));
        let client = Client::secured(address, &files(&authority, None)).await.expect("is let in");
        client.put("k", "v").await.expect("puts are served");

        // A new certificate is used only once its key is in place, too.
        let new = authority.issue("new", &[9], LOOPBACK);
        std::fs::copy(&new.cert, &own.cert).expect("is written");
        std::fs::copy(&new.key, &own.key).expect("is written");
        member.wait_for("reloaded TLS files");
        assert!(works(&client).await, "connections stay");
        eventually("the new certificate is shown", PATIENCE, async || {
            let now = shown().await;
            (now.contains("mainstay_tls_generation{listener=\"client\"} 2\n")
                && now.contains("mainstay_tls_reload_failing{listener=\"client\"} 0\n"))
            .then_some(())
        })
        .await;
    });
    member.stop();

    let whole = std::fs::read(&own.cert).expect("it is there");
    std::fs::write(&own.cert, &whole[..whole.len() / 2]).expect("is written");
    let said = setup.refused();
    assert!(said.contains("cannot set up client TLS") && said.contains("server.crt"), "{said}");
    std::fs::remove_file(&own.cert).expect("is removed");
    let said = setup.refused();
    assert!(said.contains("no such file or directory") && said.contains("server.crt"), "{said}");
}

#[test]
fn options_that_contradict_each_other_are_refused_as_etcd_refuses_them() {
    let dir = TempDir::new("options");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let said = |flags: &[String]| {
        let setup = flags.iter().fold(https(dir.path()), |setup, one| setup.flag(one.clone()));
        setup.refused()
    };
    let (cert, key) = (flag("cert-file", &own.cert), flag("key-file", &own.key));
    let none = said(&[]);
    assert!(
        none.contains("TLS key/cert (--cert-file, --key-file) must be provided for client url"),
        "{none}"
    );
    let half = said(std::slice::from_ref(&cert));
    assert!(half.contains("KeyFile and CertFile must both be present"), "{half}");
    let suite = said(&[cert.clone(), key.clone(), "--cipher-suites=NONE".to_owned()]);
    assert!(suite.contains("unexpected TLS cipher suite \\\"NONE\\\""), "{suite}");
    let cbc = "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA".to_owned();
    assert!(said(&[cert.clone(), key.clone(), cbc]).contains("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"));
    let peers = said(&[cert, key, "--listen-peer-urls=https://127.0.0.1:0".to_owned()]);
    assert!(peers.contains("KeyFile and CertFile are not presented"), "{peers}");
    let years = said(&["--auto-tls".to_owned(), "--self-signed-cert-validity=0".to_owned()]);
    assert!(years.contains("selfSignedCertValidity is invalid,it should be greater than 0"), "{years}");
}

#[test]
fn options_without_effect_are_warned_of_as_etcd_warns() {
    let dir = TempDir::new("warnings");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let setup = Setup::new(dir.path())
        .flag(flag("cert-file", &own.cert))
        .flag(flag("key-file", &own.key))
        .flag("--client-cert-auth")
        .flag("--auto-tls")
        .flag("--peer-client-cert-auth");
    let member = setup.start();
    for words in [
        "ignoring client auto TLS since certs given",
        "scheme is http or unix while key and cert files are present; ignoring key and cert files",
        "scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL",
        "scheme is HTTP while --peer-client-cert-auth is enabled; ignoring client cert auth for this URL",
        "serving client traffic insecurely; this is strongly discouraged!",
    ] {
        member.wait_for(words);
    }
    member.stop();
}

#[test]
fn the_common_name_of_a_clients_certificate_is_its_user() {
    let dir = TempDir::new("cn");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let member = mutual(dir.path(), &own, &authority).flag(CHEAP).start();
    let address = member.client_address();
    run(async {
        let connect = async |name: &str, serial| {
            let shown = authority.issue(name, &[serial], &[]);
            Client::secured(address, &files(&authority, Some(&shown))).await.expect("is let in")
        };
        let root = connect("root", 2).await;
        let (_, with_password) = secured(&root).await;
        let (bob, nobody) = (connect("bob", 3).await, connect("nobody", 4).await);
        bob.put("b", "1").await.expect("bob may write it");
        let denied = bob.put("z", "1").await.expect_err("bob may not write it");
        assert_eq!(denied.code, Code::PermissionDenied, "{denied}");
        user_add(&root, "carol", "pw").await.expect("root may do everything");
        let denied = user_add(&bob, "dave", "pw").await.expect_err("bob may not add users");
        assert_eq!(denied.code, Code::PermissionDenied, "{denied}");
        nobody.put("b", "1").await.expect_err("nobody is no user");
        // A token takes precedence over the certificate: the certificate is root's, but the token is bob's,
        // so the user is bob.
        with_password.put("b", "2").await.expect("bob may write it");
        with_password.put("z", "2").await.expect_err("bob may not write it");
    });
    member.stop();
}

#[test]
fn a_generated_certificate_is_kept_and_is_nobody_elses_to_read() {
    let dir = TempDir::new("auto");
    let setup = https(dir.path()).flag("--auto-tls");
    let member = setup.start();
    let any = TlsFiles { insecure_skip_verify: true, ..TlsFiles::default() };
    let exchange = |member: &Member| {
        let address = member.client_address();
        run(async {
            let client = Client::secured(address, &any).await.expect("is let in");
            client.put("k", "v").await.expect("puts are served");
        });
    };
    exchange(&member);
    let fixtures = dir.path().join("data/fixtures/client");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&fixtures), 0o700);
    assert_eq!(mode(&fixtures.join("key.pem")), 0o600);
    assert_eq!(mode(&fixtures.join("cert.pem")), 0o600);
    let made = std::fs::read(fixtures.join("cert.pem")).expect("it is there");
    member.stop();

    let member = setup.start();
    exchange(&member);
    assert!(!member.said().contains("created cert file"), "it is used again");
    assert_eq!(std::fs::read(fixtures.join("cert.pem")).expect("it is there"), made);
    member.stop();
}

#[test]
fn who_shows_no_certificate_learns_no_keys_from_a_listener_for_metrics() {
    let dir = TempDir::new("strangers");
    let authority = Folder::new(dir.path(), "ours");
    let (own, user) = (authority.issue("server", &[1], LOOPBACK), authority.issue("user", &[2], LOOPBACK));
    let (plain, secure) = (free_address(), free_address());
    let member = mutual(dir.path(), &own, &authority)
        .flag("--metrics=extensive")
        .flag(format!("--listen-metrics-urls=http://{plain},https://{secure}"))
        .start();
    run(async {
        let client = Client::secured(member.client_address(), &files(&authority, Some(&user))).await;
        let client = client.expect("is let in");
        client.put("s3cret", vec![7; 200 << 10]).await.expect("puts are served");
        for path in ["/debug/mainstay", "/debug/requests", "/metrics"] {
            let told = http1::get(plain, path).text().to_owned();
            assert!(!told.contains("s3cret"), "{path}: {told}");
        }
        let told =
            get(secure, trusting(&authority, Some(&user)), "/debug/mainstay").await.expect("is answered");
        assert!(told.contains("s3cret"), "{told}");
    });
    member.stop();
}

#[test]
fn old_versions_are_refused_and_metrics_have_a_listener_of_their_own() {
    let dir = TempDir::new("versions");
    let authority = Folder::new(dir.path(), "ours");
    let own = authority.issue("server", &[1], LOOPBACK);
    let metrics = free_address();
    let member = with_certificate(dir.path(), &own)
        .flag("--tls-min-version=TLS1.3")
        .flag(format!("--listen-metrics-urls=https://{metrics}"))
        .start();
    run(async {
        for address in [member.client_address(), metrics] {
            let old = tls::Settings { max_version: Some(tls::Version::Tls12), ..trusting(&authority, None) };
            let refused = get(address, old, "/health").await.expect_err("TLS 1.2 is too old");
            assert!(refused.contains("ProtocolVersion"), "{refused}");
            let answer = get(address, trusting(&authority, None), "/health").await.expect("is answered");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        member.wait_for("tls: client offered only unsupported versions");
    });
    assert!(member.said().contains(READY));
    member.stop();
}
