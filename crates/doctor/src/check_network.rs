//! Implements the command `check network`: reads its flags, measures the network to each endpoint, and prints
//! the result and the verdict.

use std::fmt::Write as _;
use std::time::Duration;

use api::Rpc;
use api::etcdserverpb::{MemberListRequest, MemberListResponse};
use cli::{Command, Failure, Flag, Io, Matches, json};
use client::{Client, Endpoint};

use crate::arguments::no_arguments;
use crate::connection::{Connection, wants_json};
use crate::evidence::Unseen;
use crate::exposition::Exposition;
use crate::launch::{Run, concluded};
use crate::network_trial::{NetworkResult, NetworkTrial};
use crate::{http1, launch, show};

const CLUSTER: Flag<bool> =
    Flag::on("cluster", "measure all client URLs of all members, not only --endpoints");
const COUNT: Flag<u64> = Flag::uint("count", "100", "round trips to measure per endpoint");
const FOR: Flag<Duration> = Flag::duration("for", "2s", "how long to send, and to receive, per endpoint");
const LIMIT_RTT: Flag<Duration> = Flag::duration("limit-rtt", "100ms", "maximum p99 of a round trip");
const LIMIT_LOSS: Flag<f64> = Flag::float("limit-loss", "0.01", "maximum share of retransmitted segments");

pub(crate) const NETWORK: Command<Run> = Command {
                name: "network",
                usage: "network --endpoints=HOST:PORT,... [flags]",
                about: "Measures the network to the members, and reports the links between them",
                long: "\
Measures from here to each client URL: connection time, round trips, lost segments, bandwidth in both directions and the
path's MTU, with and without TLS if a member has URLs of both kinds. Then it shows the round trips that the members report
between each other. To measure between two machines, run it on one of them. Nothing is written: the data is sent to the
health service, which ignores it.

Exit codes: 0 passed; 1 failed, or could not be measured.",
                example: "  mainstay check network --endpoints=10.0.0.1:2379
  mainstay check network --cluster=false --endpoints=https://10.0.0.2:2379 --cacert=ca.crt -w json",
                flags: &[CLUSTER.row(), COUNT.row(), FOR.row(), LIMIT_RTT.row(), LIMIT_LOSS.row()],
    run: Some(Run(|matches, io| Box::pin(run(matches, io)))),
                ..Command::EMPTY
            };

/// The link from one member to another, as the first member's metrics describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerLink {
    /// Member that reports the link.
    pub from: String,
    /// Member at the other end.
    pub to: String,
    /// Number of round trips that the reporting member has measured since it started.
    pub probes: f64,
    /// Median round trip, in seconds.
    pub p50: f64,
    /// 99th percentile of the round trip, in seconds.
    pub p99: f64,
    /// Number of messages that could not be sent since the reporting member started.
    pub failures: f64,
}

/// All results of the command.
#[derive(Clone, Debug, Default)]
pub struct NetworkReport {
    /// Results from this machine to each endpoint.
    pub endpoints: Vec<NetworkResult>,
    /// Links between members.
    pub links: Vec<PeerLink>,
    /// Endpoints whose member does not report its links, each with the reason.
    pub silent: Vec<(String, String)>,
}

/// The limits that a network has to meet.
#[derive(Clone, Copy, Debug)]
pub struct NetworkLimits {
    /// Upper limit for the 99th percentile of the round-trip time, in seconds.
    pub rtt: f64,
    /// Upper limit for the share of TCP segments that are retransmitted, from 0 to 1.
    pub loss: f64,
}

const RTT: &str = "etcd_network_peer_round_trip_time_seconds";
const FAILURES: &str = "etcd_network_peer_sent_failures_total";
/// Smallest MTU, in bytes, that is accepted without a complaint. It is the minimum that IPv6 requires, so
/// common networks have a larger one.
const MTU_USUAL: u32 = 1280;

async fn run(matches: &Matches, io: &Io) -> Result<(), Failure> {
    no_arguments(matches)?;
    let is_json = wants_json(matches)?;
    let connection = Connection::of(matches).await?;
    let client = Client::new(connection.settings.clone()).map_err(Failure::error)?;
    let client = client.within(connection.within);
    let mut names: Vec<(u64, String)> = Vec::new();
    let mut endpoints = connection.settings.endpoints.clone();
    let request = MemberListRequest { linearizable: false };
    let list: Result<MemberListResponse, _> = client.call(Rpc::ClusterMemberList, &request).await;
    for member in list.map(|list| list.members).unwrap_or_default() {
        names.push((member.id, member.name));
        let others = member.client_urls.into_iter().filter(|_| matches.get(CLUSTER));
        // Without TLS, `host:port` and `http://host:port` are the same endpoint. Add the scheme before
        // comparing the two, so that an endpoint is not measured twice.
        let scheme = if connection.is_secure { "https://" } else { "http://" };
        let full =
            |text: &str| if text.contains("://") { text.to_owned() } else { format!("{scheme}{text}") };
        for url in others {
            if !endpoints.iter().any(|known| full(known) == full(&url)) {
                endpoints.push(url);
            }
        }
    }
    let round_trips = usize::try_from(matches.get(COUNT)).unwrap_or(usize::MAX).clamp(1, 100_000);
    let trial = NetworkTrial {
        transport: connection.transport.clone(),
        within: connection.within,
        round_trips,
        time: matches.get(FOR),
    };
    let mut report = NetworkReport::default();
    // Measure the endpoints one after the other: parallel measurements would share this machine's bandwidth
    // and slow each other down.
    for text in endpoints {
        let endpoint = Endpoint::new(&*text);
        let result = trial.run(&endpoint, &client.at(&text)).await;
        let is_reached = result.call.count() > 0;
        report.endpoints.push(result);
        if !is_reached {
            continue;
        }
        match http1::get(&endpoint, &connection.transport, "/metrics", connection.within).await {
            Ok(answer) => {
                let page = Exposition::read(&String::from_utf8_lossy(&answer.body));
                for link in peer_links(&page, &text, &names) {
                    // A member with several URLs reports the same links at each URL, so add each link only
                    // once.
                    if !report.links.iter().any(|known| (&known.from, &known.to) == (&link.from, &link.to)) {
                        report.links.push(link);
                    }
                }
            }
            Err(error) => report.silent.push((text, error.to_string())),
        }
    }
    let limits = NetworkLimits { rtt: matches.get(LIMIT_RTT).as_secs_f64(), loss: matches.get(LIMIT_LOSS) };
    let code = if report.complaints(limits).is_empty() { 0 } else { launch::COULD_NOT_LOOK };
    concluded(io, &if is_json { report.json(limits) } else { report.text(limits) }, code)
}

/// Returns the links to peers that a member's metrics describe.
fn peer_links(page: &Exposition, endpoint: &str, names: &[(u64, String)]) -> Vec<PeerLink> {
    let name_of = |hex: &str| {
        let id = u64::from_str_radix(hex, 16).ok();
        let known = names.iter().find(|(known, name)| Some(*known) == id && !name.is_empty());
        known.map_or_else(|| hex.to_owned(), |(_, name)| name.clone())
    };
    let own = page.samples("etcd_server_id").first().and_then(|sample| sample.label("server_id"));
    let from = own.map_or_else(|| endpoint.to_owned(), name_of);
    let mut links = Vec::new();
    for sample in page.samples(&format!("{RTT}_count")) {
        let Some(peer) = sample.label("To") else { continue };
        let Some(times) = page.histogram(RTT, &[("To", peer)]).filter(|times| times.count > 0.0) else {
            continue;
        };
        links.push(PeerLink {
            from: from.clone(),
            to: name_of(peer),
            probes: times.count,
            p50: times.quantile(0.5).unwrap_or(0.0),
            p99: times.quantile(0.99).unwrap_or(0.0),
            failures: page.sum(FAILURES, &[("To", peer)]).unwrap_or(0.0),
        });
    }
    links
}

impl NetworkReport {
    /// Returns the problems as text for people: limits that are exceeded, endpoints that could not be
    /// measured, large messages that are lost, and paths with an unusually small MTU.
    pub fn complaints(&self, limits: NetworkLimits) -> Vec<String> {
        let mut complaints = Vec::new();
        for result in &self.endpoints {
            let at = &result.endpoint;
            if let Some(why) = &result.error {
                complaints.push(format!("{at}: {why}"));
            }
            let p99 = result.call.at(0.99);
            if p99 > limits.rtt {
                let (p99, limit) = (show::seconds(p99), show::seconds(limits.rtt));
                complaints.push(format!("{at}: the p99 of a round trip is {p99}, the limit {limit}"));
            }
            if let Some(loss) = result.loss().filter(|loss| *loss > limits.loss) {
                let (loss, limit) = (share(loss), share(limits.loss));
                complaints
                    .push(format!("{at}: {loss} of the segments were retransmitted, the limit is {limit}"));
            }
            if result.is_black_hole {
                complaints.push(format!(
                    "{at}: large segments are lost, small ones arrive: a device on the path silently drops \
                     packets larger than its MTU; lower the interface's MTU, or allow ICMP \"fragmentation \
                     needed\""
                ));
            } else if let Some(Err(why)) = &result.upload {
                complaints.push(format!("{at}: sending large messages failed: {why}"));
            }
            if let Some(mtu) = result.mtu.filter(|mtu| *mtu < MTU_USUAL) {
                complaints.push(format!("{at}: the path's MTU is only {mtu}"));
            }
        }
        for link in self.links.iter().filter(|link| link.p99 > limits.rtt) {
            let (p99, limit) = (show::seconds(link.p99), show::seconds(limits.rtt));
            complaints.push(format!(
                "between {} and {}: the p99 of a round trip is {p99}, the limit {limit}",
                link.from, link.to
            ));
        }
        complaints
    }

    /// Formats the report as text for people.
    pub fn text(&self, limits: NetworkLimits) -> String {
        let mut out = String::new();
        let mut line =
            |text: String| writeln!(out, "{}", show::clean(&text)).expect("strings take everything");
        for result in &self.endpoints {
            line(match result.tls {
                Some(version) => format!("{} ({version})", result.endpoint),
                None => result.endpoint.clone(),
            });
            if result.connect.count() > 0 {
                let (p50, p99) =
                    (show::seconds(result.connect.at(0.5)), show::seconds(result.connect.at(0.99)));
                line(format!("  connecting takes {p50} (median), {p99} (p99)"));
            }
            if result.call.count() > 0 {
                let (p50, p99) = (show::seconds(result.call.at(0.5)), show::seconds(result.call.at(0.99)));
                line(format!("  a call takes {p50} (median), {p99} (p99)"));
                line(format!(
                    "  setting up HTTP/2 and TLS, if any, takes {}",
                    show::seconds(result.handshake)
                ));
                line(match result.loss() {
                    Some(loss) => format!(
                        "  {} of {} segments retransmitted ({})",
                        result.figures.resent,
                        result.figures.data_segments_sent,
                        share(loss)
                    ),
                    None => "  loss not measured: the kernel does not count segments, or too few were sent"
                        .to_owned(),
                });
            }
            for (word, rate) in [("sending", &result.upload), ("receiving", &result.download)] {
                match rate {
                    Some(Ok(rate)) => line(format!("  {word} {}/s", show::bytes(*rate))),
                    Some(Err(why)) => line(format!("  {word} not measured: {why}")),
                    None => {}
                }
            }
            if let Some(mtu) = result.mtu {
                line(format!("  path MTU {mtu}, segments of {} bytes", result.figures.segment_bytes));
            }
        }
        for (tls, plain) in self.pairs() {
            line(format!(
                "{} compared with {}: TLS costs {} per call (median), {} to set up",
                tls.endpoint,
                plain.endpoint,
                show::seconds(tls.call.at(0.5) - plain.call.at(0.5)),
                show::seconds(tls.handshake - plain.handshake)
            ));
        }
        if !self.links.is_empty() {
            line("between members, since they started:".to_owned());
        }
        for link in &self.links {
            line(format!(
                "  {} to {}: {} (median), {} (p99) of {} probes, {} messages not sent",
                link.from,
                link.to,
                show::seconds(link.p50),
                show::seconds(link.p99),
                show::count(link.probes),
                show::count(link.failures)
            ));
        }
        for (endpoint, why) in &self.silent {
            line(format!("{endpoint} does not report its links to other members: {why}"));
        }
        let complaints = self.complaints(limits);
        for complaint in &complaints {
            line(format!("FAIL: {complaint}"));
        }
        if complaints.is_empty() {
            line("PASS".to_owned());
        }
        out
    }

    /// Returns pairs of endpoints on the same host, the first of each pair without TLS and the second with
    /// TLS.
    fn pairs(&self) -> impl Iterator<Item = (&NetworkResult, &NetworkResult)> {
        let host = |result: &NetworkResult| Endpoint::new(&*result.endpoint).host_name().to_owned();
        let measured = |result: &&NetworkResult| result.call.count() > 0;
        let with_tls = self.endpoints.iter().filter(measured).filter(|result| result.tls.is_some());
        with_tls.filter_map(move |tls| {
            let mut plain = self.endpoints.iter().filter(measured).filter(|plain| plain.tls.is_none());
            Some((tls, plain.find(|plain| host(plain) == host(tls))?))
        })
    }

    /// Formats the report as JSON: one object on one line.
    pub fn json(&self, limits: NetworkLimits) -> String {
        let complaints = self.complaints(limits);
        let quoted: Vec<String> = complaints.iter().map(json::string).collect();
        let rate = |rate: &Option<Result<f64, Unseen>>| match rate {
            Some(Ok(rate)) => format!("{rate:.0}"),
            _ => "null".to_owned(),
        };
        let endpoints: Vec<String> = self
            .endpoints
            .iter()
            .map(|result| {
                format!(
                    "{{\"endpoint\":{},\"tls\":{},\"error\":{},\"connect_p50_seconds\":{:.6},\"connect_p99_seconds\":{:.6},\
                     \"call_p50_seconds\":{:.6},\"call_p99_seconds\":{:.6},\"handshake_seconds\":{:.6},\
                     \"segments_sent\":{},\"segments_resent\":{},\"upload_bytes_per_second\":{},\
                     \"download_bytes_per_second\":{},\"mtu\":{},\"segment_bytes\":{},\"black_hole\":{}}}",
                    json::string(&result.endpoint),
                    result.tls.map_or("null".to_owned(), json::string),
                    result.error.as_ref().map_or("null".to_owned(), |why| json::string(why.to_string())),
                    result.connect.at(0.5),
                    result.connect.at(0.99),
                    result.call.at(0.5),
                    result.call.at(0.99),
                    result.handshake,
                    result.figures.data_segments_sent,
                    result.figures.resent,
                    rate(&result.upload),
                    rate(&result.download),
                    result.mtu.map_or("null".to_owned(), |mtu| mtu.to_string()),
                    result.figures.segment_bytes,
                    result.is_black_hole
                )
            })
            .collect();
        let links: Vec<String> = self
            .links
            .iter()
            .map(|link| {
                format!(
                    "{{\"from\":{},\"to\":{},\"probes\":{:.0},\"p50_seconds\":{:.6},\"p99_seconds\":{:.6},\"send_failures\":{:.0}}}",
                    json::string(&link.from),
                    json::string(&link.to),
                    link.probes,
                    link.p50,
                    link.p99,
                    link.failures
                )
            })
            .collect();
        let silent: Vec<String> = self
            .silent
            .iter()
            .map(|(endpoint, why)| {
                format!("{{\"endpoint\":{},\"because\":{}}}", json::string(endpoint), json::string(why))
            })
            .collect();
        format!(
            "{{\"passed\":{},\"complaints\":[{}],\"endpoints\":[{}],\"between_members\":[{}],\"not_told\":[{}]}}\n",
            complaints.is_empty(),
            quoted.join(","),
            endpoints.join(","),
            links.join(","),
            silent.join(",")
        )
    }
}

fn share(value: f64) -> String {
    format!("{:.2} %", value * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantiles::Quantiles;
    use crate::socket::TcpFigures;

    const LIMITS: NetworkLimits = NetworkLimits { rtt: 0.1, loss: 0.01 };

    fn measured(endpoint: &str) -> NetworkResult {
        NetworkResult {
            endpoint: endpoint.to_owned(),
            connect: Quantiles::of(vec![0.0002; 20]),
            handshake: 0.0005,
            call: Quantiles::of(vec![0.0004; 100]),
            upload: Some(Ok(1e8)),
            download: Some(Err("the store's first keys have only 0 bytes, too few to measure".into())),
            figures: TcpFigures {
                segment_bytes: 1448,
                path_mtu: 1500,
                rtt_micros: 200,
                resent: 5,
                data_segments_sent: 1000,
            },
            mtu: Some(1500),
            ..NetworkResult::default()
        }
    }

    #[test]
    fn a_path_that_passes_in_both_forms() {
        let link = PeerLink {
            from: "m1".to_owned(),
            to: "m2".to_owned(),
            probes: 40.0,
            p50: 0.0003,
            p99: 0.0009,
            failures: 1.0,
        };
        let tls = NetworkResult {
            tls: Some("TLS 1.3"),
            handshake: 0.0025,
            call: Quantiles::of(vec![0.00045; 100]),
            ..measured("https://10.0.0.1:2380")
        };
        let report = NetworkReport {
            endpoints: vec![measured("http://10.0.0.1:2379"), tls],
            links: vec![link],
            silent: vec![("10.0.0.3:2379".to_owned(), "HTTP status 404".to_owned())],
        };
        assert_eq!(
            report.text(LIMITS),
            "http://10.0.0.1:2379
  connecting takes 200 µs (median), 200 µs (p99)
  a call takes 400 µs (median), 400 µs (p99)
  setting up HTTP/2 and TLS, if any, takes 500 µs
  5 of 1000 segments retransmitted (0.50 %)
  sending 100 MB/s
  receiving not measured: the store's first keys have only 0 bytes, too few to measure
  path MTU 1500, segments of 1448 bytes
https://10.0.0.1:2380 (TLS 1.3)
  connecting takes 200 µs (median), 200 µs (p99)
  a call takes 450 µs (median), 450 µs (p99)
  setting up HTTP/2 and TLS, if any, takes 2.5 ms
  5 of 1000 segments retransmitted (0.50 %)
  sending 100 MB/s
  receiving not measured: the store's first keys have only 0 bytes, too few to measure
  path MTU 1500, segments of 1448 bytes
https://10.0.0.1:2380 compared with http://10.0.0.1:2379: TLS costs 50 µs per call (median), 2.0 ms to set up
between members, since they started:
  m1 to m2: 300 µs (median), 900 µs (p99) of 40 probes, 1 messages not sent
10.0.0.3:2379 does not report its links to other members: HTTP status 404
PASS
"
        );
        let one = NetworkReport { endpoints: vec![measured("a:1")], ..report };
        assert_eq!(
            one.json(LIMITS),
            "{\"passed\":true,\"complaints\":[],\"endpoints\":[{\"endpoint\":\"a:1\",\"tls\":null,\"error\":null,\
             \"connect_p50_seconds\":0.000200,\"connect_p99_seconds\":0.000200,\"call_p50_seconds\":0.000400,\
             \"call_p99_seconds\":0.000400,\"handshake_seconds\":0.000500,\"segments_sent\":1000,\"segments_resent\":5,\
             \"upload_bytes_per_second\":100000000,\"download_bytes_per_second\":null,\"mtu\":1500,\"segment_bytes\":1448,\
             \"black_hole\":false}],\"between_members\":[{\"from\":\"m1\",\"to\":\"m2\",\"probes\":40,\
             \"p50_seconds\":0.000300,\"p99_seconds\":0.000900,\"send_failures\":1}],\"not_told\":[{\
             \"endpoint\":\"10.0.0.3:2379\",\"because\":\"HTTP status 404\"}]}\n"
        );
    }

    #[test]
    fn what_does_not_pass() {
        let complaints = |change: &dyn Fn(&mut NetworkResult)| {
            let mut result = measured("a:1");
            change(&mut result);
            NetworkReport { endpoints: vec![result], ..NetworkReport::default() }.complaints(LIMITS)
        };
        assert_eq!(complaints(&|_| ()), Vec::<String>::new());
        assert_eq!(complaints(&|result| result.figures.resent = 10), Vec::<String>::new());
        assert_eq!(
            complaints(&|result| result.figures.resent = 11),
            ["a:1: 1.10 % of the segments were retransmitted, the limit is 1.00 %"]
        );
        assert_eq!(complaints(&|result| result.call = Quantiles::of(vec![0.1; 9])), Vec::<String>::new());
        assert_eq!(
            complaints(&|result| result.call = Quantiles::of(vec![0.101; 9])),
            ["a:1: the p99 of a round trip is 101.0 ms, the limit 100.0 ms"]
        );
        assert_eq!(complaints(&|result| result.mtu = Some(1279)), ["a:1: the path's MTU is only 1279"]);
        assert_eq!(complaints(&|result| result.error = Some("refused".into())), ["a:1: refused"]);
        let lost = complaints(&|result| {
            result.upload = Some(Err("late".into()));
            result.is_black_hole = true;
        });
        assert!(lost.len() == 1 && lost[0].contains("large segments are lost"));
    }

    #[test]
    fn links_are_read_from_a_member_s_metrics() {
        let page = Exposition::read(
            "etcd_server_id{server_id=\"a\"} 1\n\
             etcd_network_peer_round_trip_time_seconds_bucket{To=\"b\",le=\"0.1\"} 4\n\
             etcd_network_peer_round_trip_time_seconds_bucket{To=\"b\",le=\"+Inf\"} 4\n\
             etcd_network_peer_round_trip_time_seconds_count{To=\"b\"} 4\n\
             etcd_network_peer_round_trip_time_seconds_count{To=\"c\"} 0\n\
             etcd_network_peer_sent_failures_total{To=\"b\"} 2\n",
        );
        let names = [(10, "m1".to_owned()), (11, "m2".to_owned())];
        let links = peer_links(&page, "x:1", &names);
        assert_eq!(links.len(), 1);
        assert_eq!(
            (&*links[0].from, &*links[0].to, links[0].p50, links[0].failures),
            ("m1", "m2", 0.05, 2.0)
        );
    }
}
