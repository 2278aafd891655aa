use crate::kit::{self, app, heartbeat, pair};

#[test]
fn what_passes_is_counted() {
    let (one, two) = pair(kit::WITHOUT_BEATS);
    // Type, length and message: a whole msgappv2 frame, then the short form, then a frame of a message.
    one.peers.send(vec![app(1, 2, 5, 3)]);
    two.recorder.wait_messages(1);
    let whole = 1 + 8 + 27;
    kit::until("sent", || (one.peers.figures().peers[&2].sent_bytes == whole).then_some(()));
    one.peers.send(vec![app(1, 2, 6, 3)]);
    two.recorder.wait_messages(1);
    let short = whole + 1 + 8 + 8 + 11 + 8;
    kit::until("sent", || (one.peers.figures().peers[&2].sent_bytes == short).then_some(()));
    one.peers.send(vec![heartbeat(1, 2, 9)]);
    two.recorder.wait_messages(1);
    let all = short + 16;
    kit::until("received", || (two.peers.figures().peers[&1].received_bytes == all).then_some(()));
    let figures = one.peers.figures().peers[&2].clone();
    assert!(figures.known && figures.active);
    assert_eq!((figures.sent_bytes, figures.send_failures, figures.disconnected), (all, 0, 0));
    assert_eq!((figures.queued_messages, figures.queued_bytes), (0, 0));
}

#[test]
fn probes_measure_round_trips_with_etcd_s_bounds() {
    let (one, two) = pair(kit::TIMEOUTS);
    for (from, to) in [(&one, &two), (&two, &one)] {
        kit::until("a probe", || (from.peers.figures().peers[&to.id].round_trips.count > 0).then_some(()));
        let round_trips = from.peers.figures().peers[&to.id].round_trips.clone();
        assert_eq!(round_trips.buckets.len(), 16);
        assert_eq!(round_trips.buckets[0].0, 0.0001);
        assert!((round_trips.buckets[15].0 - 3.2768).abs() < 1e-9);
        assert!(round_trips.sum > 0.0);
    }
    let seconds = &one.peers.figures().peers[&2].snapshots_sent.seconds;
    assert_eq!((seconds.buckets.len(), seconds.buckets[0].0), (10, 0.1));
}

#[test]
fn a_clock_that_is_off_is_warned_of() {
    use std::io::{Read, Write};
    let one = kit::member(1);
    let (peer, url) = kit::listen();
    one.peers.set_members(vec![(2, vec![url])]);
    loop {
        let mut stream = kit::accept(&peer);
        let mut request = vec![0; 4096];
        let n = stream.read(&mut request).unwrap();
        if request[..n].starts_with(b"GET /raft/probing HTTP/1.1\r\n") {
            let body = "{\"OK\":true,\"Now\":\"2011-01-01T00:00:00Z\"}\n";
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
            break;
        }
    }
    kit::wait_log(&one, "prober found high clock drift", 2, "");
}
