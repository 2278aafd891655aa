use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use console::{Member, Source};
use testkit::ports::free_address;

use crate::fake_member::FakeMember;
use crate::harness::{OWN, Running, Setup, url};

/// Starts a member that reports its id and a list, which may change.
fn member(id: u64, list: &Arc<Mutex<String>>) -> FakeMember {
    member_of(1, id, list)
}

/// Starts a member like [`member`], in this cluster.
fn member_of(cluster: u64, id: u64, list: &Arc<Mutex<String>>) -> FakeMember {
    teller(cluster, move || id, list, |authorization| authorization != Some("bad"))
}

/// Starts a member that shows a list to permitted callers, and its id to everybody, also in its metrics.
fn teller(
    cluster: u64,
    id: impl Fn() -> u64 + Send + Sync + 'static,
    list: &Arc<Mutex<String>>,
    may_see: impl Fn(Option<&str>) -> bool + Send + Sync + 'static,
) -> FakeMember {
    let list = Arc::clone(list);
    FakeMember::start(move |asked| {
        asked.body();
        let is_refused = !may_see(asked.header("authorization"));
        match asked.line.as_str() {
            "POST /v3/cluster/member/list" if is_refused => {
                asked.answer("401 Unauthorized", r#"{"code":16,"message":"etcdserver: invalid auth token"}"#);
            }
            "POST /v3/cluster/member/list" => {
                let members = list.lock().expect("no thread panics").clone();
                asked.answer(
                    "200 OK",
                    &format!(
                        r#"{{"header":{{"cluster_id":"{cluster}","member_id":"{}"}},"members":[{members}]}}"#,
                        id()
                    ),
                );
            }
            "GET /metrics" => {
                asked.answer("200 OK", &format!("etcd_server_id{{server_id=\"{:x}\"}} 1\n", id()))
            }
            _ => asked.answer("200 OK", &format!("\"{}\"", id())),
        }
    })
}

fn row(id: u64, address: SocketAddr) -> String {
    format!(r#"{{"ID":"{id}","name":"m{id}","clientURLs":["http://{address}"]}}"#)
}

/// Starts a console for these endpoints that requests the list from members for every browser request.
fn always_asking(addresses: &[SocketAddr]) -> Running {
    Setup::endpoints(addresses).limits(|limits| limits.members_fresh = Duration::ZERO).start()
}

fn told(console: &Running, headers: &[(&str, &str)]) -> String {
    let answer = console.request("GET", "/api/members", &[&[OWN], headers].concat(), b"");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    answer.text().to_owned()
}

/// Returns the endpoints of a list: id, URL's port, name, id of the member.
fn endpoints(list: &str) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_str(list).expect("JSON");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("null").to_owned();
    let endpoints = list["endpoints"].as_array().expect("a list").iter();
    let row = |endpoint: &serde_json::Value| {
        let fields = ["id", "url", "name", "memberId"].map(|name| text(&endpoint[name]));
        let why = endpoint["notAsked"].as_str().map(|why| format!(" not asked: {why}")).unwrap_or_default();
        format!("{} {}{why}", fields.join(" "), endpoint["learner"])
    };
    endpoints.map(row).collect()
}

#[test]
fn the_others_are_found_through_those_that_are_given() {
    let list: Arc<Mutex<String>> = Arc::default();
    let (first, second, third) = (member(1, &list), member(2, &list), member(3, &list));
    let rows = [row(1, first.address), row(2, second.address), row(3, third.address)].join(",");
    *list.lock().unwrap() = rows;
    let down = free_address();
    let console = always_asking(&[down, first.address]);
    let expected = [
        format!("0 http://{down}  null false"),
        format!("1 http://{} m1 0000000000000001 false", first.address),
        format!("2 http://{} m2 0000000000000002 false", second.address),
        format!("3 http://{} m3 0000000000000003 false", third.address),
    ];
    let answer = told(&console, &[]);
    assert_eq!(endpoints(&answer), expected);
    assert!(answer.contains("\"self\":null") && answer.contains("\"version\":\""), "{answer}");
    for (id, body) in [("1", "\"1\""), ("2", "\"2\""), ("3", "\"3\"")] {
        let answer = console.request("GET", &format!("/api/endpoint/{id}/version"), &[OWN], b"");
        assert_eq!(answer.text(), body);
    }
    // A member leaves the list and comes back. Its endpoint has the same id as before, and no other endpoint
    // has used this id in between.
    *list.lock().unwrap() = [row(1, first.address), row(3, third.address)].join(",");
    assert_eq!(endpoints(&told(&console, &[])), [&expected[..2], &expected[3..]].concat());
    assert_eq!(console.request("GET", "/api/endpoint/2/version", &[OWN], b"").status, 404);
    *list.lock().unwrap() = [row(1, first.address), row(2, second.address), row(3, third.address)].join(",");
    assert_eq!(endpoints(&told(&console, &[])), expected);
}

#[test]
fn two_endpoints_of_one_member_are_one() {
    let list: Arc<Mutex<String>> = Arc::default();
    let (one, other) = (member(1, &list), member(1, &list));
    *list.lock().unwrap() = row(1, one.address);
    let console = Setup::endpoints(&[one.address, other.address]).start();
    assert_eq!(
        endpoints(&told(&console, &[])),
        [format!("0 http://{} m1 0000000000000001 false", one.address)]
    );
}

#[test]
fn the_list_is_asked_for_in_the_users_name() {
    let list: Arc<Mutex<String>> = Arc::default();
    let one = teller(1, || 1, &list, |authorization| authorization == Some("good"));
    *list.lock().unwrap() = [row(1, one.address), row(2, free_address())].join(",");
    let console = Setup::endpoints(&[one.address]).start();
    // Without permission for the list, the given endpoints are still shown.
    assert_eq!(
        endpoints(&told(&console, &[("Authorization", "bad")])),
        [format!("0 http://{}  null false", one.address)]
    );
    assert_eq!(endpoints(&told(&console, &[("Authorization", "good")])).len(), 2);
}

#[test]
fn lists_that_make_no_sense_change_nothing() {
    let list: Arc<Mutex<String>> = Arc::default();
    let one = member(1, &list);
    let console = always_asking(&[one.address]);
    for wrong in [
        "",
        "]}garbage",
        "5,null,[]",
        r#"{"ID":"x"},{"ID":-1},{"ID":"99999999999999999999"}"#,
        r#"{"ID":"7","clientURLs":["javascript:alert(1)","http://h:1/path","ftp://h:1"]}"#,
        &"5,".repeat(1 << 20),
    ] {
        *list.lock().unwrap() = wrong.to_owned();
        let endpoints = endpoints(&told(&console, &[]));
        assert!(endpoints[0].starts_with("0 "), "{endpoints:?}");
        assert!(endpoints[1..].iter().all(|each| each.contains("not asked: malformed")), "{endpoints:?}");
    }
    console.serves();
}

#[test]
fn a_members_own_console_lists_it_first() {
    let own = FakeMember::start(|asked| {
        let host = asked.header("host").expect("it has one").to_owned();
        asked.answer("200 OK", &format!("\"{host}\""));
    });
    let list = || {
        let member = |id, url: &str| Member {
            id,
            name: format!("m{id}"),
            client_urls: vec![url.to_owned()],
            is_learner: id == 3,
        };
        vec![
            member(2, "https://h2:1"),
            member(4, "http://h4:1"),
            member(3, "https://h3:1"),
            member(9, "https://advertised:2379"),
        ]
    };
    let listens_at = url(&format!("http://0.0.0.0:{}", own.address.port()));
    let console = Setup::of(Source::Member { id: 9, listens_at, list: Arc::new(list) }).start();
    let answer = told(&console, &[]);
    assert!(answer.contains("\"self\":\"0000000000000009\""), "{answer}");
    assert_eq!(
        endpoints(&answer),
        [
            "0 https://advertised:2379 m9 0000000000000009 false",
            "1 https://h2:1 m2 0000000000000002 false",
            "2 https://h3:1 m3 0000000000000003 true",
            "null http://h4:1 m4 0000000000000004 false not asked: plain",
        ]
    );
    // Requests go to the URL where the member listens, but with the host of its listed URL, because the
    // member may refuse other hosts (`--host-whitelist`).
    assert_eq!(console.page("version").text(), "\"advertised:2379\"");
}

#[test]
fn members_of_another_cluster_are_told_apart() {
    let (ours, theirs): (Arc<Mutex<String>>, Arc<Mutex<String>>) = Default::default();
    let (one, other) = (member_of(1, 1, &ours), member_of(2, 2, &theirs));
    *ours.lock().unwrap() = row(1, one.address);
    *theirs.lock().unwrap() = [row(2, other.address), row(3, free_address())].join(",");
    let console = always_asking(&[one.address, other.address]);
    let list = told(&console, &[]);
    assert_eq!(endpoints(&list), [format!("0 http://{} m1 0000000000000001 false", one.address)]);
    assert!(list.contains(&format!("\"foreign\":[\"http://{}\"]", other.address)), "{list}");
    // Requests for this endpoint are refused, and the member behind it gets none except the one for its
    // identity.
    let answer = console.request("POST", "/api/endpoint/1/v3/kv/deleterange", &[OWN], b"{}");
    assert_eq!(answer.status, 404);
    assert_eq!(other.lines(), ["POST /v3/cluster/member/list"]);
}

/// Token of a user.
const TOKEN: (&str, &str) = ("Authorization", "secret");

/// Returns true for callers that show the token.
fn shows_token(authorization: Option<&str>) -> bool {
    authorization == Some(TOKEN.1)
}

/// Returns a check that permits every caller, and records the tokens that are shown.
fn noting(seen: &Arc<Mutex<Vec<String>>>) -> impl Fn(Option<&str>) -> bool + Send + Sync + 'static {
    let seen = Arc::clone(seen);
    move |authorization| {
        seen.lock().expect("no thread panics").extend(authorization.map(str::to_owned));
        true
    }
}

#[test]
fn members_behind_a_load_balancer_are_reached_where_they_say() {
    let everybody: fn(Option<&str>) -> bool = |_| true;
    for may_see in [everybody, shows_token] {
        let (list, count) = (Arc::<Mutex<String>>::default(), AtomicU64::new(0));
        let (one, other) = (teller(1, || 1, &list, may_see), teller(1, || 2, &list, may_see));
        *list.lock().unwrap() = [row(1, one.address), row(2, other.address)].join(",");
        // The load balancer leads to the members in turn.
        let balancer = teller(1, move || count.fetch_add(1, Ordering::Relaxed) % 2 + 1, &list, may_see);
        let console = always_asking(&[balancer.address]);
        let expected = [
            format!("1 http://{} m1 0000000000000001 false", one.address),
            format!("2 http://{} m2 0000000000000002 false", other.address),
        ];
        for _ in 0..4 {
            assert_eq!(endpoints(&told(&console, &[TOKEN])), expected);
        }
        assert_eq!(console.request("GET", "/api/endpoint/0/version", &[OWN], b"").status, 404);
        for id in ["1", "2"] {
            let answer = console.request("GET", &format!("/api/endpoint/{id}/version"), &[OWN], b"");
            assert_eq!(answer.text(), format!("\"{id}\""));
        }
    }
}

#[test]
fn a_load_balancer_stays_one_when_a_member_behind_it_is_not_reached() {
    let (list, count) = (Arc::<Mutex<String>>::default(), AtomicU64::new(0));
    let (one, down) = (member(1, &list), free_address());
    *list.lock().unwrap() = [row(1, one.address), row(2, down)].join(",");
    let balancer = teller(1, move || count.fetch_add(1, Ordering::Relaxed) % 2 + 1, &list, |_| true);
    let console = always_asking(&[balancer.address]);
    let expected = [
        format!("1 http://{} m1 0000000000000001 false", one.address),
        format!("2 http://{down} m2 0000000000000002 false"),
    ];
    for _ in 0..4 {
        assert_eq!(endpoints(&told(&console, &[])), expected);
    }
}

#[test]
fn a_member_that_is_not_reached_where_it_says_is_reached_where_it_was_given() {
    let (list, strangers): (Arc<Mutex<String>>, Arc<Mutex<String>>) = Default::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (one, other) = (teller(1, || 1, &list, shows_token), teller(1, || 2, &list, shows_token));
    let stranger = teller(2, || 2, &strangers, noting(&seen));
    // A tunnel leads to each member. One member lists a URL where nothing listens, the other one a URL of
    // another cluster's member.
    let down = free_address();
    *list.lock().unwrap() = [row(1, down), row(2, stranger.address)].join(",");
    let console = always_asking(&[one.address, other.address]);
    let expected = [
        format!("0 http://{} m1 0000000000000001 false", one.address),
        format!("1 http://{} m2 0000000000000002 false", other.address),
    ];
    for _ in 0..2 {
        assert_eq!(endpoints(&told(&console, &[TOKEN])), expected);
    }
    assert_eq!(stranger.connections(), 1, "it is not tried again with each list");
    assert_eq!(*seen.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn an_open_cluster_does_not_come_before_one_that_keeps_its_list_to_users() {
    let (ours, theirs): (Arc<Mutex<String>>, Arc<Mutex<String>>) = Default::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (one, other) = (teller(1, || 1, &ours, shows_token), teller(2, || 2, &theirs, noting(&seen)));
    *ours.lock().unwrap() = [row(1, one.address), row(3, free_address())].join(",");
    *theirs.lock().unwrap() = row(2, other.address);
    let console = always_asking(&[one.address, other.address]);
    // Before any user has logged in, and with an outdated token.
    for headers in [&[][..], &[("Authorization", "old")]] {
        assert_eq!(endpoints(&told(&console, headers)), [format!("0 http://{}  null false", one.address)]);
    }
    let list = told(&console, &[TOKEN]);
    assert_eq!(endpoints(&list).len(), 2);
    assert!(list.contains(&format!("\"foreign\":[\"http://{}\"]", other.address)), "{list}");
    assert_eq!(*seen.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn the_cluster_stays_while_its_members_are_away() {
    let (ours, theirs): (Arc<Mutex<String>>, Arc<Mutex<String>>) = Default::default();
    let is_away = Arc::new(AtomicBool::new(false));
    let away = Arc::clone(&is_away);
    let one = teller(1, || 1, &ours, move |_| !away.load(Ordering::Relaxed));
    let other = member_of(2, 2, &theirs);
    *ours.lock().unwrap() = [row(1, one.address), row(4, free_address())].join(",");
    *theirs.lock().unwrap() = row(2, other.address);
    let console = always_asking(&[one.address, other.address]);
    let before = told(&console, &[]);
    assert_eq!(endpoints(&before).len(), 2);
    // Only the endpoint of the second cluster reports a list in this round.
    is_away.store(true, Ordering::Relaxed);
    assert_eq!(told(&console, &[]), before);
    assert_eq!(told(&console, &[]), before);
    is_away.store(false, Ordering::Relaxed);
    assert_eq!(told(&console, &[]), before);
}

#[test]
fn the_cluster_is_another_one_when_its_member_says_so() {
    let (list, number) = (Arc::<Mutex<String>>::default(), Arc::new(AtomicU64::new(1)));
    let of = Arc::clone(&number);
    let one = FakeMember::start(move |asked| {
        asked.body();
        let cluster = of.load(Ordering::Relaxed);
        asked.answer(
            "200 OK",
            &format!(r#"{{"header":{{"cluster_id":"{cluster}","member_id":"{cluster}"}},"members":[]}}"#),
        );
    });
    let other = member_of(2, 2, &list);
    *list.lock().unwrap() = row(2, other.address);
    let console = always_asking(&[one.address, other.address]);
    let foreign = |address| format!("\"foreign\":[\"http://{address}\"]");
    assert!(told(&console, &[]).contains(&foreign(other.address)));
    // The member was created again in a third cluster.
    number.store(3, Ordering::Relaxed);
    assert!(told(&console, &[]).contains(&foreign(other.address)));
    number.store(2, Ordering::Relaxed);
    assert!(told(&console, &[]).contains("\"foreign\":[]"), "all are of the second cluster now");
}

/// Cluster of a [`mover`] that refuses every caller.
const REFUSES: u64 = 9;

/// Starts a member whose cluster changes; for cluster 0, it does not respond with a list.
fn mover(cluster: &Arc<AtomicU64>, may_see: fn(Option<&str>) -> bool) -> FakeMember {
    let of = Arc::clone(cluster);
    FakeMember::start(move |asked| {
        asked.body();
        let cluster = of.load(Ordering::Relaxed);
        let body =
            format!(r#"{{"header":{{"cluster_id":"{cluster}","member_id":"{cluster}"}},"members":[]}}"#);
        match (cluster, may_see(asked.header("authorization"))) {
            (0, _) => asked.answer("503 Service Unavailable", "{}"),
            (REFUSES, _) => asked.answer("401 Unauthorized", "{}"),
            (_, true) => asked.answer("200 OK", &body),
            (_, false) => asked.answer("401 Unauthorized", "{}"),
        }
    })
}

#[test]
fn a_cluster_that_moves_in_two_steps_is_followed() {
    let (first, second): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
    let (one, other) = (mover(&first, |_| true), mover(&second, |_| true));
    let console = always_asking(&[one.address, other.address]);
    let set = |clusters: [u64; 2]| {
        first.store(clusters[0], Ordering::Relaxed);
        second.store(clusters[1], Ordering::Relaxed);
        told(&console, &[])
    };
    let foreign = format!("\"foreign\":[\"http://{}\"]", one.address);
    assert!(set([1, 1]).contains("\"foreign\":[]"));
    // One member is created again in the second cluster, and the other is switched off later.
    assert!(set([2, 1]).contains(&foreign));
    let list = set([2, 0]);
    assert!(!list.contains(&foreign), "{list}");
    assert!(list.contains(&format!("http://{}", one.address)), "{list}");
}

#[test]
fn a_cluster_that_keeps_its_list_and_moves_in_two_steps_is_followed() {
    // In the end the second member is in the new cluster, too, or is switched off.
    for last in [2, 0] {
        let (first, second): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let (one, other) = (mover(&first, shows_token), mover(&second, shows_token));
        let console = always_asking(&[one.address, other.address]);
        let set = |clusters: [u64; 2]| {
            first.store(clusters[0], Ordering::Relaxed);
            second.store(clusters[1], Ordering::Relaxed);
            told(&console, &[TOKEN])
        };
        let foreign = format!("\"foreign\":[\"http://{}\"]", one.address);
        assert!(set([1, 1]).contains("\"foreign\":[]"));
        // The second member does not know the user while the first is created again in another cluster.
        assert!(set([2, REFUSES]).contains(&foreign));
        set([2, last]);
        let list = set([2, last]);
        assert!(!list.contains(&foreign), "{last}: {list}");
        assert!(list.contains(&format!("\"url\":\"http://{}\"", one.address)), "{last}: {list}");
    }
}

#[test]
fn a_first_member_that_does_not_know_the_user_hides_no_other() {
    let (first, second) = (Arc::new(AtomicU64::new(REFUSES)), Arc::new(AtomicU64::new(1)));
    let (one, other) = (mover(&first, shows_token), mover(&second, shows_token));
    let console = always_asking(&[one.address, other.address]);
    let list = told(&console, &[TOKEN]);
    assert!(list.contains("\"foreign\":[]"), "{list}");
    assert!(list.contains(&format!("\"url\":\"http://{}\"", other.address)), "{list}");
}

#[test]
fn a_cluster_is_not_left_for_one_that_tells_everybody() {
    let (first, second) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
    let (one, other) = (mover(&first, |_| true), mover(&second, shows_token));
    let console = always_asking(&[one.address, other.address]);
    told(&console, &[TOKEN]);
    first.store(1, Ordering::Relaxed);
    told(&console, &[TOKEN]);
    // One member is created again in an open cluster; the other, which must not be queried without a user, is
    // unchanged.
    first.store(2, Ordering::Relaxed);
    for headers in [&[][..], &[TOKEN]] {
        let list = told(&console, headers);
        assert!(list.contains(&format!("\"foreign\":[\"http://{}\"]", one.address)), "{list}");
    }
}

#[test]
fn tokens_are_not_shown_to_another_cluster() {
    let (ours, theirs): (Arc<Mutex<String>>, Arc<Mutex<String>>) = Default::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let is_open = Arc::new(AtomicBool::new(true));
    let open = Arc::clone(&is_open);
    let one = teller(
        1,
        || 1,
        &ours,
        move |authorization| open.load(Ordering::Relaxed) || authorization == Some("secret"),
    );
    let (noted, open) = (Arc::clone(&seen), Arc::clone(&is_open));
    let other = teller(
        2,
        || 2,
        &theirs,
        move |authorization| {
            noted.lock().unwrap().extend(authorization.map(str::to_owned));
            open.load(Ordering::Relaxed)
        },
    );
    *ours.lock().unwrap() = row(1, one.address);
    *theirs.lock().unwrap() = row(2, other.address);
    let console = always_asking(&[one.address, other.address]);
    // The list is open to everybody, so no token is needed, even before the members are identified.
    told(&console, &[("Authorization", "secret")]);
    // The list is now restricted to users: only the member of the known cluster gets the token.
    is_open.store(false, Ordering::Relaxed);
    *ours.lock().unwrap() = [row(1, one.address), row(3, free_address())].join(",");
    assert_eq!(endpoints(&told(&console, &[("Authorization", "secret")])).len(), 2);
    assert_eq!(other.lines().len(), 2, "both were asked in both rounds");
    assert_eq!(*seen.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn two_members_that_tell_one_url_are_two() {
    let list: Arc<Mutex<String>> = Arc::default();
    let (one, same) = (member(1, &list), free_address());
    *list.lock().unwrap() = [row(1, one.address), row(2, same), row(3, same)].join(",");
    let console = always_asking(&[one.address]);
    let expected = [
        format!("0 http://{} m1 0000000000000001 false", one.address),
        format!("1 http://{same} m2 0000000000000002 false"),
        format!("2 http://{same} m3 0000000000000003 false"),
    ];
    assert_eq!(endpoints(&told(&console, &[])), expected);
    assert_eq!(endpoints(&told(&console, &[])), expected, "and stay");
}

#[test]
fn members_are_not_reached_where_a_list_may_not_lead() {
    let stranger = FakeMember::start(|asked| asked.answer("200 OK", "{}"));
    let port = stranger.address.port();
    let dir = testkit::TempDir::new("lists");
    let path = dir.path().join("daemon.sock");
    let socket = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    let list: Arc<Mutex<String>> = Arc::default();
    let one = member(1, &list);
    let urls = format!(r#""unix://{}","http://0.0.0.0:{port}""#, path.display());
    *list.lock().unwrap() = format!(
        r#"{},{{"ID":"2","name":"m2","clientURLs":[{urls}]}},{{"ID":"3","isLearner":true}}"#,
        row(1, one.address)
    );
    let console = Setup::endpoints(&[one.address]).start();
    // Members whose URLs cannot be used are listed all the same.
    assert_eq!(
        endpoints(&told(&console, &[])),
        [
            format!("0 http://{} m1 0000000000000001 false", one.address),
            format!("null unix://{} m2 0000000000000002 false not asked: unspecified", path.display()),
            "null   0000000000000003 true not asked: none".to_owned(),
        ]
    );
    let answer = console.request("GET", "/api/endpoint/1/version", &[OWN], b"");
    assert_eq!(answer.status, 404);
    assert_eq!(stranger.connections(), 0);
    assert!(socket.accept().is_err(), "nobody connects");
}

#[test]
fn those_who_wait_for_a_list_that_nobody_tells_wait_once() {
    let (member, _requests) = FakeMember::by_hand();
    let console = Setup::endpoints(&[member.address]).start();
    let began = std::time::Instant::now();
    let mut waiting: Vec<_> = (0..6)
        .map(|number| {
            let mut stream = testkit::http1::connect(console.address);
            // Each token belongs to another user.
            let token = number.to_string();
            console.send(&mut stream, "GET", "/api/members", &[OWN, ("Authorization", &token)]);
            stream
        })
        .collect();
    for stream in &mut waiting {
        assert_eq!(testkit::http1::read_answer(stream).status, 200);
    }
    // A round is given up after 3 s.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[test]
fn tokens_that_are_refused_are_shown_one_at_a_time() {
    let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (count, peak) = (Arc::clone(&now), Arc::clone(&most));
    let member = FakeMember::start(move |asked| {
        asked.body();
        if asked.header("authorization").is_none() {
            asked.answer("401 Unauthorized", "{}");
            return;
        }
        peak.fetch_max(count.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        asked.wait_for_close();
        count.fetch_sub(1, Ordering::Relaxed);
    });
    let console = Setup::endpoints(&[member.address]).start();
    let began = std::time::Instant::now();
    let mut waiting: Vec<_> = (0..8)
        .map(|number| console.ask("GET", "/api/members", &[OWN, ("Authorization", &number.to_string())], b""))
        .collect();
    for stream in &mut waiting {
        assert_eq!(testkit::http1::read_answer(stream).status, 200);
    }
    assert_eq!(most.load(Ordering::Relaxed), 1);
    // The pages wait for 10 s. One after the other, the requests would wait for 24 s.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_list_that_was_told_a_moment_ago_takes_no_place() {
    let (asked_for_page, page_is_asked_for) = std::sync::mpsc::channel();
    let member = FakeMember::start(move |asked| {
        if asked.line == "GET /version" {
            asked_for_page.send(()).expect("the test waits");
            asked.wait_for_close();
            return;
        }
        asked.body();
        asked.answer("200 OK", r#"{"header":{"cluster_id":"1","member_id":"1"},"members":[]}"#);
    });
    let console = Setup::endpoints(&[member.address])
        .limits(|limits| (limits.forwarded_per_address, limits.members_fresh) = (1, testkit::TIMEOUT))
        .start();
    let before = told(&console, &[]);
    let _page = console.ask("GET", "/api/endpoint/0/version", &[OWN], b"");
    page_is_asked_for.recv_timeout(testkit::TIMEOUT).expect("the page is asked for");
    assert_eq!(told(&console, &[]), before);
}

#[test]
fn lists_that_are_waited_for_take_places_of_their_address() {
    let (member, requests) = FakeMember::by_hand();
    let console =
        Setup::endpoints(&[member.address]).limits(|limits| limits.forwarded_per_address = 1).start();
    let mut waiting = console.ask("GET", "/api/members", &[OWN], b"");
    let _asked = requests.next();
    let refused = console.request("GET", "/api/members", &[OWN], b"");
    assert_eq!((refused.status, refused.text().contains("too many requests")), (503, true));
    assert_eq!(testkit::http1::read_answer(&mut waiting).status, 200);
    assert_eq!(console.request("GET", "/api/members", &[OWN], b"").status, 200);
}
