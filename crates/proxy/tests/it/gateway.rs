//! The TCP gateway, between sockets of the test.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use proxy::{Gateway, GatewayOptions, Remote, ZoneOptions};
use stdx::zones::ZoneNetworks;
use telemetry::logging::{Format, Level, Logger};
use testkit::ports::{free_address, free_address_of};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const LIMIT: Duration = Duration::from_secs(30);

/// Starts a gateway to these endpoints; returns its address.
async fn gateway(endpoints: &[SocketAddr], connections_max: usize) -> SocketAddr {
    gateway_in(ZoneOptions::default(), endpoints, connections_max).await
}

async fn gateway_in(zone: ZoneOptions, endpoints: &[SocketAddr], connections_max: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let options = GatewayOptions {
        remotes: endpoints.iter().map(|address| Remote::new(address.to_string())).collect(),
        zone,
        retry_delay: Duration::from_millis(5),
        connections_max,
    };
    let logger = Logger::to(Level::Error, Format::Json, Vec::new());
    tokio::spawn(Gateway::new(options, logger).run(listener));
    address
}

#[test]
fn the_end_of_one_direction_is_passed_on_and_the_other_goes_on() {
    testkit::block_on(LIMIT, async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = gateway(&[server.local_addr().unwrap()], 10).await;
        let serving = tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut asked = Vec::new();
            stream.read_to_end(&mut asked).await.unwrap();
            stream.write_all(&asked.len().to_be_bytes()).await.unwrap();
        });
        let mut client = TcpStream::connect(gateway).await.unwrap();
        client.write_all(&[7; 300_000]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, 300_000_usize.to_be_bytes());
        serving.await.unwrap();
    });
}

/// Connects through the gateway; returns the byte with which the server greets.
async fn greeting(gateway: SocketAddr) -> Option<u8> {
    let mut client = TcpStream::connect(gateway).await.unwrap();
    client.read_u8().await.ok()
}

async fn greet(server: TcpListener, byte: u8) {
    loop {
        let (mut stream, _) = server.accept().await.unwrap();
        let _ = stream.write_all(&[byte]).await;
    }
}

#[test]
fn an_endpoint_that_is_down_is_left_out_until_it_is_back() {
    testkit::block_on(LIMIT, async {
        let down = free_address();
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = gateway(&[down, server.local_addr().unwrap()], 10).await;
        tokio::spawn(greet(server, b'u'));
        for _ in 0..4 {
            assert_eq!(greeting(gateway).await, Some(b'u'));
        }
        tokio::spawn(greet(TcpListener::bind(down).await.unwrap(), b'b'));
        // The endpoint is tried again every few milliseconds.
        while greeting(gateway).await != Some(b'b') {}
    });
}

#[test]
fn endpoints_of_another_zone_serve_only_while_none_of_the_own_can_be_reached() {
    testkit::block_on(LIMIT, async {
        let near = free_address_of(Ipv4Addr::new(127, 1, 0, 1));
        let far = TcpListener::bind("127.2.0.1:0").await.unwrap();
        let networks = ["a=127.1.0.0/16".to_owned(), "b=127.2.0.0/16".to_owned()];
        let zone = ZoneOptions { zone: "a".to_owned(), networks: ZoneNetworks::parse(&networks).unwrap() };
        let first = TcpListener::bind(near).await.unwrap();
        let gateway = gateway_in(zone, &[far.local_addr().unwrap(), near], 10).await;
        tokio::spawn(greet(far, b'f'));
        let serving = tokio::spawn(greet(first, b'n'));
        for _ in 0..6 {
            assert_eq!(greeting(gateway).await, Some(b'n'));
        }
        serving.abort();
        assert!(serving.await.is_err_and(|ended| ended.is_cancelled()));
        // The listener is closed, so connecting to it fails and the next endpoint is taken.
        for _ in 0..6 {
            assert_eq!(greeting(gateway).await, Some(b'f'));
        }
        tokio::spawn(greet(TcpListener::bind(near).await.unwrap(), b'n'));
        while greeting(gateway).await != Some(b'n') {}
        for _ in 0..6 {
            assert_eq!(greeting(gateway).await, Some(b'n'));
        }
    });
}

#[test]
fn with_all_endpoints_down_a_connection_is_closed() {
    testkit::block_on(LIMIT, async {
        let gateway = gateway(&[free_address()], 10).await;
        assert_eq!(greeting(gateway).await, None);
    });
}

#[test]
fn connections_beyond_the_limit_wait() {
    testkit::block_on(LIMIT, async {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gateway = gateway(&[server.local_addr().unwrap()], 1).await;
        let first = TcpStream::connect(gateway).await.unwrap();
        let (held, _) = server.accept().await.unwrap();
        let _second = TcpStream::connect(gateway).await.unwrap();
        // The second connection reaches the server only when the first has ended.
        drop(first);
        drop(held);
        server.accept().await.unwrap();
    });
}

#[test]
fn distances_are_measured_by_connections_that_end_at_once() {
    testkit::block_on(LIMIT, async {
        let servers = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        let zone = ZoneOptions {
            zone: "a".to_owned(),
            networks: ZoneNetworks::parse(&["a=127.0.0.0/8".to_owned()]).unwrap(),
        };
        gateway_in(zone, &servers.each_ref().map(|server| server.local_addr().unwrap()), 10).await;
        for server in servers {
            let (mut stream, _) = server.accept().await.expect("it is measured although no client has come");
            assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
        }
    });
}
