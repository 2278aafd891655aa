//! `grpc-proxy` and `gateway` as processes, in front of members.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use api::v3lockpb::{LockRequest, LockResponse};
use api::{Code, Rpc};
use testkit::TempDir;

use crate::auth::{CHEAP, log_in, secured};
use crate::certificates::{Folder, files, flag};
use crate::client::{Client, Watch};
use crate::member::{Member, Setup, binary};
use crate::run;
use crate::tls::https;

/// A gRPC proxy as a process of its own.
struct Proxy {
    process: Member,
    address: SocketAddr,
}

impl Proxy {
    fn command(dir: &Path, endpoints: &str, flags: &[String]) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .args(["grpc-proxy", "start", "--listen-addr=127.0.0.1:0"])
            .arg(format!("--endpoints={endpoints}"))
            .arg(format!("--data-dir={}", dir.join("proxy").display()))
            .args(flags);
        command
    }

    fn start(dir: &Path, endpoints: &str, flags: &[String]) -> Proxy {
        let process = Member::launch(Proxy::command(dir, endpoints, flags), None);
        let address = address_in(&process.wait_for("started gRPC proxy"));
        Proxy { process, address }
    }

    async fn client(&self) -> Client {
        Client::connect(self.address).await
    }
}

fn address_in(line: &str) -> SocketAddr {
    let address = line.split("\"address\":\"").nth(1).and_then(|rest| rest.split('"').next());
    address.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address in {line}"))
}

/// The events of the next response that has some, as `key=value@revision`.
async fn next_events(watch: &mut Watch) -> Vec<String> {
    loop {
        let response = watch.next().await.expect("the watch stands");
        assert!(!response.canceled, "{response:?}");
        if !response.events.is_empty() {
            let shown = |event: &api::mvccpb::Event| {
                let kv = event.kv.as_ref().expect("an event has a key");
                let text = |bytes: &bytes::Bytes| String::from_utf8_lossy(bytes).into_owned();
                format!("{}={}@{}", text(&kv.key), text(&kv.value), kv.mod_revision)
            };
            return response.events.iter().map(shown).collect();
        }
    }
}

#[test]
fn every_service_answers_through_a_proxy() {
    run(async {
        let dir = TempDir::new("proxy-plain");
        let member = Setup::new(dir.path()).start();
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &[]);
        let client = proxy.client().await;
        let mut watch = client.watch_all(0).await.unwrap();
        let revision = client.put("k", "v").await.unwrap();
        assert_eq!(next_events(&mut watch).await, [format!("k=v@{revision}")]);
        assert_eq!(client.get("k").await.unwrap().unwrap().value, "v");
        let lease = client.grant(60).await.unwrap();
        assert_eq!(client.time_to_live(lease, false).await.unwrap().granted_ttl, 60);
        let request = LockRequest { name: "l".into(), lease };
        let lock: LockResponse = client.call(Rpc::Lock, &request).await.unwrap();
        assert!(lock.key.starts_with(b"l/"));
        assert!(client.status().await.unwrap().raft_index > 0);
        client.compact(revision, true).await.unwrap();
        client.delete("k").await.unwrap();
        let (own, real) = (client.hash_kv(0).await.unwrap(), member.client().await.hash_kv(0).await.unwrap());
        assert_eq!((own.hash, own.hash_revision), (real.hash, real.hash_revision));
        // The member list keeps clients at the proxy.
        let urls: Vec<_> = client.members().await.unwrap().into_iter().flat_map(|m| m.client_urls).collect();
        assert_eq!(urls, ["127.0.0.1:23790"]);
        // Errors come with the member's code and text.
        let status = client.get("").await.unwrap_err();
        assert_eq!(
            (status.code, &*status.message),
            (Code::InvalidArgument, "etcdserver: key is not provided")
        );
        let (_, mut snapshot) = {
            let (mut sender, receiver) = client.open(Rpc::MaintenanceSnapshot).await.unwrap();
            sender.send_last(bytes::Bytes::new()).await.unwrap();
            (sender, receiver)
        };
        assert!(snapshot.next().await.unwrap().is_some());
    });
}

#[test]
fn pages_tell_of_the_cluster_and_of_the_proxy() {
    run(async {
        let dir = TempDir::new("proxy-pages");
        let member = Setup::new(dir.path()).start();
        let own = testkit::ports::free_address();
        let flags = [
            format!("--advertise-client-url={own}"),
            "--metrics-addr=http://127.0.0.1:0".to_owned(),
            format!("--listen-addr={own}"),
        ];
        let proxy = Proxy::start(dir.path(), &member.client_address().to_string(), &flags);
        assert_eq!(proxy.address, own);
        proxy.client().await.put("k", "v").await.unwrap();
        let pages = |path: &'static str| async move {
            tokio::task::spawn_blocking(move || testkit::http1::get(own, path)).await.unwrap()
        };
        for path in ["/health", "/proxy/health"] {
            assert_eq!(pages(path).await.text(), "{\"health\":\"true\",\"reason\":\"\"}", "{path}");
        }
        assert!(pages("/metrics").await.text().contains("\netcd_server_has_leader 1\n"));
        let put = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1\n";
        assert!(pages("/proxy/metrics").await.text().contains(put));
        assert_eq!(pages("/v2/keys").await.status, 404);
        drop(member);
        assert!(pages("/health").await.text().starts_with("{\"health\":\"false\",\"reason\":\"GET ERROR:"));
    });
}

#[test]
fn tls_and_users_hold_on_both_sides_of_a_proxy() {
    run(async {
        let dir = TempDir::new("proxy-tls");
        let authority = Folder::new(dir.path(), "authority");
        let own = authority.issue("server", &[1], &["127.0.0.1", "localhost"]);
        // A name would make every client of the proxy the user of that name.
        let named = authority.issue("root", &[2], &["127.0.0.1"]);
        let member = https(dir.path())
            .flag(flag("cert-file", &own.cert))
            .flag(flag("key-file", &own.key))
            .flag(CHEAP)
            .start();
        let endpoint = format!("https://{}", member.client_address());
        let ca = flag("cacert", &authority.ca);
        let with_name = [ca.clone(), flag("cert", &named.cert), flag("key", &named.key)];
        let refusal = Member::launch(Proxy::command(dir.path(), &endpoint, &with_name), None).refuses();
        assert!(refusal.contains("cert has non empty Common Name"), "{refusal}");

        let flags = [
            ca,
            flag("cert-file", &own.cert),
            flag("key-file", &own.key),
            flag("trusted-ca-file", &authority.ca),
        ];
        let proxy = Proxy::start(dir.path(), &endpoint, &flags);
        let trusted = files(&authority, Some(&own));
        let client = Client::secured(proxy.address, &trusted).await.unwrap();
        let (root, bob) = secured(&client).await;
        // Each call has the rights of its own token.
        assert_eq!(client.put("b", "x").await.unwrap_err().message, "etcdserver: user name is empty");
        bob.put("b", "x").await.unwrap();
        assert_eq!(bob.put("k", "x").await.unwrap_err().code, Code::PermissionDenied);
        root.put("k", "x").await.unwrap();
        assert_eq!(log_in(&client, "bob", "wrong").await.err().unwrap().code, Code::InvalidArgument);
        // Who shows no certificate is not let in.
        assert!(
            Client::secured(proxy.address, &files(&authority, None)).await.is_err() || {
                let stranger = Client::secured(proxy.address, &files(&authority, None)).await.unwrap();
                stranger.get("b").await.is_err()
            }
        );
        assert!(!proxy.process.heard("panicked", Duration::ZERO));
    });
}

#[test]
fn what_is_not_supported_is_refused_with_its_name() {
    let dir = TempDir::new("proxy-refused");
    for flag in ["--enable-pprof", "--experimental-serializable-ordering", "--experimental-leasing-prefix=l"]
    {
        let refusal =
            Member::launch(Proxy::command(dir.path(), "127.0.0.1:1", &[flag.to_owned()]), None).refuses();
        let name = flag.split('=').next().unwrap();
        assert!(refusal.contains(&format!("{name} is not supported yet")), "{refusal}");
    }
}

#[test]
fn a_gateway_with_itself_as_endpoint_does_not_start() {
    let address = testkit::ports::free_address();
    let mut command = Command::new(binary());
    command
        .env_clear()
        .args(["gateway", "start"])
        .arg(format!("--listen-addr={address}"))
        .arg(format!("--endpoints=http://{address}"));
    let refusal = Member::launch(command, None).refuses();
    assert!(refusal.contains("should not resolve to the gateway listen addr"), "{refusal}");
}
