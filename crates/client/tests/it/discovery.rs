//! SRV records from a name server on the loopback interface.

use std::net::SocketAddr;
use std::time::Duration;

use mainstay_client::discovery::{Resolver, part_insecure};
use simple_dns::rdata::{RData, SRV};
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE, ResourceRecord};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};

use crate::run;

/// SRV records of the name server: name, target, port.
const RECORDS: &[(&str, &str, u16)] = &[
    ("_etcd-client-ssl._tcp.a.example.", "one.a.example.", 2379),
    ("_etcd-client._tcp.a.example.", "two.a.example.", 2479),
    ("_etcd-client-blue._tcp.a.example.", "blue.a.example.", 1),
    ("_etcd-client._tcp.short.b.example.", "three.b.example.", 3),
];

fn answer_to(query: &[u8], truncated: bool) -> Vec<u8> {
    let query = Packet::parse(query).unwrap();
    let question = query.questions[0].clone();
    let asked = format!("{}.", question.qname);
    let mut answer = Packet::new_reply(query.id());
    for (name, target, port) in RECORDS {
        if *name == asked && !truncated {
            let target = Name::new_unchecked(target.trim_end_matches('.'));
            let srv = RData::SRV(SRV { priority: 0, weight: 0, port: *port, target });
            answer.answers.push(ResourceRecord::new(question.qname.clone(), CLASS::IN, 60, srv));
        }
    }
    if !RECORDS.iter().any(|(name, ..)| *name == asked) {
        *answer.rcode_mut() = RCODE::NameError;
    }
    if truncated {
        answer.set_flags(PacketFlag::TRUNCATION);
    }
    answer.questions.push(question.clone());
    answer.build_bytes_vec().unwrap()
}

/// Starts a name server. With `only_tcp`, its UDP responses are truncated, so that the client has to use TCP.
async fn name_server(only_tcp: bool) -> SocketAddr {
    let (udp, tcp) = loop {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
            break (udp, tcp);
        }
    };
    let address = udp.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (len, from) = udp.recv_from(&mut buffer).await.unwrap();
            // First sends a forged response with another query ID, which the client must skip.
            let mut forged = answer_to(&buffer[..len], false);
            forged[0] ^= 0xff;
            udp.send_to(&forged, from).await.unwrap();
            udp.send_to(&answer_to(&buffer[..len], only_tcp), from).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let len = stream.read_u16().await.unwrap();
            let mut query = vec![0; usize::from(len)];
            stream.read_exact(&mut query).await.unwrap();
            let answer = answer_to(&query, false);
            stream.write_u16(answer.len() as u16).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    address
}

fn resolver(servers: Vec<SocketAddr>) -> Resolver {
    Resolver { servers, timeout: Duration::from_secs(5), ..Resolver::default() }
}

#[test]
fn endpoints_are_found_as_etcds_tools_find_them() {
    run(async {
        for only_tcp in [false, true] {
            let resolver = resolver(vec![name_server(only_tcp).await]);
            let found = resolver.client_endpoints("a.example", "").await.unwrap();
            assert_eq!(found, ["https://one.a.example.:2379", "http://two.a.example.:2479"]);
            let blue = resolver.client_endpoints("a.example", "blue").await.unwrap();
            assert_eq!(blue, ["http://blue.a.example.:1"]);
            let (kept, ignored) = part_insecure(found.clone(), false);
            assert_eq!(kept, ["https://one.a.example.:2379"]);
            assert_eq!(ignored, ["http://two.a.example.:2479"]);
            assert_eq!(part_insecure(found.clone(), true), (found, Vec::new()));
        }
    });
}

#[test]
fn what_is_not_there_is_told_as_go_tells_it() {
    run(async {
        let server = name_server(false).await;
        let told = resolver(vec![server]).client_endpoints("c.example", "x").await.unwrap_err();
        let expected = format!(
            "dns lookup errors: lookup _etcd-client-ssl-x._tcp.c.example on {server}: no such host and lookup _etcd-client-x._tcp.c.example on {server}: no such host"
        );
        assert_eq!(told.to_string(), expected);
    });
}

#[test]
fn search_domains_and_further_servers_are_tried() {
    run(async {
        let server = name_server(false).await;
        // The first server never responds: its socket is bound but never read.
        let deaf = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut resolver = resolver(vec![deaf.local_addr().unwrap(), server]);
        resolver.timeout = Duration::from_millis(100);
        resolver.search = vec!["b.example".to_owned()];
        let found = resolver.client_endpoints("short", "").await.unwrap();
        assert_eq!(found, ["http://three.b.example.:3"]);
        resolver.servers.truncate(1);
        let told = resolver.client_endpoints("short.", "").await.unwrap_err().to_string();
        assert!(told.contains("i/o timeout"), "{told}");
    });
}
