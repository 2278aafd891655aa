//! `/debug/pprof/`: served only with `--enable-pprof`.

use testkit::{TempDir, http1};

use crate::member::Setup;
use crate::run;

#[test]
fn profiles_are_served_where_they_are_asked_for_and_one_at_a_time() {
    let dir = TempDir::new("profiles");
    run(async {
        let member = Setup::new(dir.path()).flag("--enable-pprof").start();
        let address = member.client_address();
        let begun = || std::thread::spawn(move || http1::get(address, "/debug/pprof/profile?seconds=1"));
        let answers = [begun(), begun()].map(|thread| thread.join().expect("an answer"));
        let mut codes = answers.each_ref().map(|answer| answer.status);
        codes.sort_unstable();
        // Either of the two requests may come first.
        assert_eq!(codes, [200, 500]);
        for answer in &answers {
            match answer.status {
                200 => assert_eq!(answer.body.get(..2), Some(&b"\x1f\x8b"[..]), "a compressed profile"),
                _ => assert!(answer.text().contains("cpu profiling already in use"), "{}", answer.text()),
            }
        }
        assert_eq!(http1::get(address, "/debug/pprof/profile?seconds=301").status, 400);
        assert_eq!(http1::get(address, "/debug/pprof/allocs").status, 501);
        let client = member.client().await;
        for number in 0..2000 {
            client.put(format!("key {number}"), "v").await.expect("puts are served");
        }
        let heap = http1::get(address, "/debug/pprof/heap?debug=1");
        let bytes = |owner: &str| {
            let line = heap.text().lines().find(|line| line.ends_with(&format!(" {owner}")));
            let bytes = line.and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
            bytes.unwrap_or_else(|| panic!("{owner}: {}", heap.text()))
        };
        // The index entry of a key takes some hundred bytes.
        assert!((100_000..4 << 20).contains(&bytes("index")), "{}", heap.text());
        assert!(bytes("clients") > 0 && bytes("program and libraries") > 0, "{}", heap.text());
        let profile = http1::get(address, "/debug/pprof/heap");
        assert_eq!((profile.status, profile.body.get(..2)), (200, Some(&b"\x1f\x8b"[..])));
        assert!(http1::get(address, "/debug/pprof/").text().contains("goroutine"));
        assert!(http1::get(address, "/debug/pprof/goroutine?debug=1").text().contains(" core state "));
        member.stop();

        let member = Setup::new(dir.path()).start();
        assert_eq!(http1::get(member.client_address(), "/debug/pprof/").status, 404);
        assert_eq!(http1::get(member.client_address(), "/debug/pprof/profile?seconds=1").status, 404);
    });
}
