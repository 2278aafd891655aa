//! TLS between members: clusters that form, lose members and get new ones, and a cluster that is moved from
//! plain HTTP to TLS and back while clients write.

use std::net::SocketAddr;
use std::sync::Arc;

use api::Rpc;
use api::etcdserverpb::{MemberListRequest, MemberListResponse, MemberUpdateRequest, MemberUpdateResponse};

use testkit::ports::free_address_of;
use testkit::{eventually, http1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::certificates::{Files, Folder, flag};
use crate::client::Client;
use crate::cluster::{Cluster, PATIENCE, is_passing};
use crate::cluster_load::{Load, Record};
use crate::cluster_members::id_of;
use crate::crash::check;
use crate::member::READY;
use crate::run;
use crate::tls::{get, get_with, trusting};

/// Returns the flags of a member that shows this certificate to other members, and requires theirs.
fn mutual(authority: &Folder, own: &Files) -> Vec<String> {
    vec![
        flag("peer-cert-file", &own.cert),
        flag("peer-key-file", &own.key),
        flag("peer-trusted-ca-file", &authority.ca),
        "--peer-client-cert-auth".to_owned(),
    ]
}

/// Creates places whose members have certificates of this authority.
fn plan(name: &str, size: usize, scheme: &'static str) -> (Cluster, Folder) {
    let mut cluster = Cluster::plan(name, size, &[]);
    let authority = Folder::new(cluster.dir.path(), "ours");
    // Connections to the member's address come from 127.0.0.1.
    let own = authority.issue("member", &[1], &["127.0.0.1", &cluster.address().to_string()]);
    cluster.add_flags(&mutual(&authority, &own));
    cluster.slots.iter_mut().for_each(|slot| slot.peer_scheme = scheme);
    (cluster, authority)
}

#[test]
fn members_with_certificates_are_a_cluster_and_no_client_is_a_member() {
    run(async {
        let (mut cluster, authority) = plan("peer-tls", 3, "https");
        cluster.add_flags(&["--peer-cert-allowed-cn=member".to_owned()]);
        cluster.start_all();
        for at in 0..3 {
            cluster.put(at, &format!("k/{at}"), "v").await;
        }
        cluster.kill(2);
        cluster.put(0, "k/alone", "v").await;
        cluster.start_one(2);
        cluster.assert_equal().await;

        // A fourth member queries the others over TLS.
        let at = cluster.add_slot();
        cluster.slots[at].peer_scheme = "https";
        cluster.announce(0, at, false).await;
        cluster.spawn_with(at, cluster.joining(at, &[0, 1, 2, 3]));
        cluster.member(at).wait_for(READY);
        cluster.put(at, "k/new", "v").await;
        cluster.assert_equal().await;

        let peer = cluster.slots[0].peer;
        let path = "/members";
        let member = authority.issue("member", &[1], &["127.0.0.1"]);
        let answer = get(peer, as_one(&authority, Some(&member)), path).await.expect("a member is answered");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let client = authority.issue("client", &[5], &["127.0.0.1"]);
        get(peer, as_one(&authority, Some(&client)), path).await.expect_err("a client is no member");
        get(peer, as_one(&authority, None), path).await.expect_err("nobody is no member");
        // The certificate has the right name, but is for another address.
        let elsewhere = authority.issue("member", &[6], &["10.9.8.7"]);
        get(peer, as_one(&authority, Some(&elsewhere)), path).await.expect_err("it comes from elsewhere");
        let plain = tokio::net::TcpStream::connect(peer).await.expect("somebody listens");
        drop(plain);
        cluster.member(0).wait_for("rejected connection on peer endpoint");
        // The member may still be handling the last connection when its client has the result.
        eventually("all of them are counted", PATIENCE, async || {
            let metrics = http1::get(cluster.member(0).client_address(), "/metrics").text().to_owned();
            let counted = metrics.lines().find_map(|line| {
                line.strip_prefix("mainstay_tls_rejected_connections_total{listener=\"peer\"} ")?
                    .parse::<f64>()
                    .ok()
            });
            counted.filter(|count| *count >= 3.0)
        })
        .await;
        cluster.put(0, "k/after", "v").await;
    });
}

/// Returns the settings of a client that dials the members' address.
fn as_one(authority: &Folder, own: Option<&Files>) -> tls::Settings {
    trusting(authority, own)
}

#[test]
fn members_make_their_certificates_themselves() {
    run(async {
        let mut cluster = Cluster::plan("peer-auto", 3, &["--peer-auto-tls"]);
        cluster.slots.iter_mut().for_each(|slot| slot.peer_scheme = "https");
        cluster.start_all();
        for at in 0..3 {
            cluster.put(at, &format!("k/{at}"), "v").await;
            assert!(cluster.slots[at].data_dir.join("fixtures/peer/key.pem").exists());
        }
        cluster.kill(0);
        cluster.start_one(0);
        cluster.assert_equal().await;
    });
}

/// Updates the peer URL of a member in the cluster.
async fn move_to(cluster: &Cluster, at: usize) {
    let client = cluster.client(at).await;
    let request =
        MemberUpdateRequest { id: id_of(&client).await, peer_urls: vec![cluster.slots[at].peer_url()] };
    eventually("a member's URL is changed", PATIENCE, async || {
        match client.call::<MemberUpdateResponse>(Rpc::ClusterMemberUpdate, &request).await {
            Ok(_) => Some(()),
            Err(status) => {
                assert!(is_passing(&status), "{status}");
                None
            }
        }
    })
    .await;
}

/// Restarts a member, and waits until it has caught up with the others.
async fn restart(cluster: &mut Cluster, at: usize) {
    cluster.take(at).stop();
    cluster.start_one(at);
    let client: Client = cluster.client(at).await;
    eventually("it serves reads of all that was written", PATIENCE, async || client.get("k").await.ok())
        .await;
}

#[test]
fn a_cluster_is_moved_to_tls_and_back_without_losing_a_write() {
    run(async {
        let mut cluster = Cluster::start("rolling", 3, &[]);
        let mut record = Record::new();
        let load = Load::start(&cluster, &record, 4);
        // First all members get the authority's certificate: members that listen with plain HTTP then use TLS
        // to reach those that listen with TLS.
        let authority = Folder::new(cluster.dir.path(), "ours");
        let own = authority.issue("member", &[1], &["127.0.0.1", &cluster.address().to_string()]);
        cluster.add_flags(&mutual(&authority, &own));
        for at in 0..3 {
            restart(&mut cluster, at).await;
        }
        // Then one member after the other is moved to TLS, and later back.
        for scheme in ["https", "http"] {
            for at in 0..3 {
                cluster.slots[at].peer_scheme = scheme;
                move_to(&cluster, at).await;
                restart(&mut cluster, at).await;
                load.more(20).await;
            }
        }
        load.end(&mut record).await;
        cluster.assert_equal().await;
        let client = cluster.client(0).await;
        check(&client, &mut record.history, 0).await;
    });
}

/// Adds a listener with TLS for clients to each place, with one certificate for all; returns the addresses.
fn secure_clients(cluster: &mut Cluster, authority: &Folder) -> Vec<SocketAddr> {
    let address = cluster.address();
    let own = authority.issue("clients", &[2], &[&address.to_string()]);
    cluster.add_flags(&[
        flag("cert-file", &own.cert),
        flag("key-file", &own.key),
        flag("trusted-ca-file", &authority.ca),
        "--client-cert-auth".to_owned(),
    ]);
    let mut secure = Vec::new();
    for slot in &mut cluster.slots {
        let other = free_address_of(address);
        slot.flags.push(format!("--listen-client-urls=http://{},https://{other}", slot.client));
        secure.push(other);
    }
    secure
}

/// Connects, and returns true if the client has resumed a session.
async fn resumes(address: SocketAddr, client: &tls::ClientTls) -> bool {
    let name = client.server_name(&address.ip().to_string()).expect("a name");
    let stream = tokio::net::TcpStream::connect(address).await.expect("the member listens");
    let mut stream = TlsConnector::from(client.config()).connect(name, stream).await.expect("it is let in");
    stream
        .write_all(b"GET /version HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n")
        .await
        .expect("it is open");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    stream.get_ref().1.handshake_kind() == Some(tokio_rustls::rustls::HandshakeKind::Resumed)
}

/// Waits until the metric that tells whether a member shares the secrets for tickets has this value.
async fn until_shared(cluster: &Cluster, at: usize, value: &str) {
    eventually("the secrets are shared, or not", PATIENCE, async || {
        let line = format!("\nmainstay_tls_tickets_shared {value}\n");
        http1::get(cluster.slots[at].client, "/metrics").text().contains(&line).then_some(())
    })
    .await;
}

#[test]
fn a_client_that_lost_its_member_resumes_its_session_at_another() {
    run(async {
        let (mut cluster, authority) = plan("tickets", 3, "https");
        cluster.add_flags(&["--share-tls-tickets", "--peer-cert-allowed-cn=member"].map(str::to_owned));
        let addresses = secure_clients(&mut cluster, &authority);
        cluster.start_all();
        for at in 0..3 {
            until_shared(&cluster, at, "1").await;
        }
        let own = authority.issue("alice", &[3], &["127.0.0.1"]);
        let (tls, _) =
            tls::Tls::load(trusting(&authority, Some(&own)), Arc::new(tls::SystemClock)).expect("files");
        let client = tls.client();
        assert!(!resumes(addresses[0], &client).await, "there is nothing to resume");
        for at in [0, 1, 2, 1] {
            assert!(resumes(addresses[at], &client).await, "member {at}");
        }

        // The secrets outlive the leader that made them, and get to it when it is back.
        let leader = cluster.leader().await;
        cluster.kill(leader);
        let new = cluster.leader().await;
        for at in cluster.running() {
            until_shared(&cluster, at, "1").await;
            assert!(resumes(addresses[at], &client).await, "member {at}");
        }
        cluster.start_one(leader);
        until_shared(&cluster, leader, "1").await;
        assert!(resumes(addresses[leader], &client).await, "member {leader}");
        let page = http1::get(cluster.slots[leader].client, "/metrics").text().to_owned();
        assert!(page.contains("\nmainstay_tls_handshakes_total{kind=\"resumed\"} 1\n"), "{page}");

        // Only a member of this cluster gets the secrets, and only from the leader.
        let member = authority.issue("member", &[1], &["127.0.0.1", &cluster.address().to_string()]);
        let request = MemberListRequest::default();
        let list: MemberListResponse =
            cluster.client(new).await.call(Rpc::ClusterMemberList, &request).await.expect("a list");
        let id = list.header.expect("a header").cluster_id;
        let ours = format!("X-Etcd-Cluster-Id: {id:x}\r\n");
        let ask = async |at: usize, own: &Files, lines: &str| {
            let settings = as_one(&authority, Some(own));
            get_with(cluster.slots[at].peer, settings, "/mainstay/tls-tickets", lines).await
        };
        let followers = (0..3).filter(|at| *at != new);
        for at in followers {
            let refused = ask(at, &member, &ours).await.expect("an answer");
            assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
        }
        let answer = ask(new, &member, &ours).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        for lines in ["", "X-Etcd-Cluster-Id: c1\r\n"] {
            let refused = ask(new, &member, lines).await.expect("an answer");
            assert!(refused.starts_with("HTTP/1.1 412"), "{refused}");
        }
        ask(new, &own, &ours).await.expect_err("a client whose certificate is of the same authority");
        // No log has a secret, not even as hexadecimal digits: the log of the leader has no line about them.
        assert!(!cluster.member(new).said().contains("TLS session tickets from the leader"));
    });
}

#[test]
fn members_share_no_secrets_without_the_flag() {
    run(async {
        let (mut cluster, authority) = plan("no-tickets", 3, "https");
        let addresses = secure_clients(&mut cluster, &authority);
        cluster.start_all();
        let own = authority.issue("alice", &[3], &["127.0.0.1"]);
        let (tls, _) =
            tls::Tls::load(trusting(&authority, Some(&own)), Arc::new(tls::SystemClock)).expect("files");
        let client = tls.client();
        for address in addresses {
            assert!(!resumes(address, &client).await);
            assert!(resumes(address, &client).await, "a member accepts its own tickets");
        }
        let member = authority.issue("member", &[1], &["127.0.0.1"]);
        for at in 0..3 {
            until_shared(&cluster, at, "0").await;
            let settings = as_one(&authority, Some(&member));
            let answer =
                get(cluster.slots[at].peer, settings, "/mainstay/tls-tickets").await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        }
    });
}
