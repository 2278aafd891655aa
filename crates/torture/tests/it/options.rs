//! Tests of the command-line parser.

use torture::fault::Fault;
use torture::options::{Invocation, NetworkKind, Options, help, parse};

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_owned()).collect()
}

fn run(text: &[&str]) -> Options {
    match parse(&words(text)) {
        Ok(Invocation::Run(options)) => *options,
        other => panic!("{text:?} gives {other:?}"),
    }
}

fn refused(text: &[&str]) -> String {
    match parse(&words(text)) {
        Err(error) => error,
        Ok(invocation) => panic!("{text:?} gives {invocation:?}"),
    }
}

#[test]
fn every_flag_is_read_in_both_forms() {
    assert_eq!(run(&[]), Options::default());
    let options = run(&[
        "--server",
        "a",
        "--second-build=b",
        "--members",
        "5",
        "--seconds=600",
        "--seed",
        "7",
        "--every=0.5",
        "--faults",
        "pause,kill",
        "--clients=3",
        "--rate",
        "90",
        "--timeout=500",
        "--flags",
        "--a=1 --b",
        "--flags=--c",
        "--tls",
        "--users",
        "--bug=b",
        "--network",
        "loopback",
        "--out=o",
        "--keep",
        "--verbose",
    ]);
    let expected = Options {
        server: Some("a".into()),
        second_build: Some("b".into()),
        members: 5,
        seconds: 600,
        seed: Some(7),
        every: 0.5,
        faults: Some(vec![Fault::KillLeader, Fault::KillAny, Fault::KillAll, Fault::Pause]),
        clients: 3,
        rate: 90,
        timeout_ms: 500,
        flags: words(&["--a=1", "--b", "--c"]),
        tls: true,
        users: true,
        bug: Some("b".to_owned()),
        network: Some(NetworkKind::Loopback),
        keep: true,
        out: Some("o".into()),
        verbose: true,
    };
    assert_eq!(options, expected);
    assert_eq!(parse(&words(&["--judge", "h"])), Ok(Invocation::Judge("h".into())));
    assert_eq!(parse(&words(&["--members", "3", "--help"])), Ok(Invocation::Help));
}

#[test]
fn what_means_nothing_is_refused_in_words() {
    for (text, said) in [
        (&["--members", "4"][..], "--members: must be 1, 3 or 5, not \"4\""),
        (&["--seconds", "0"], "--seconds: must be a number from 1 to 604800, not \"0\""),
        (&["--every", "NaN"], "--every: must be a number from 0.1 to 3600, not \"NaN\""),
        (&["--out"], "--out needs a value: DIR"),
        (&["--out="], "--out: must be a path that is not empty"),
        (&["--keep=1"], "--keep takes no value"),
        (&["--network", "wifi"], "--network: must be namespaces or loopback, not \"wifi\""),
        (&["--nonsense"], "unknown flag --nonsense; see --help"),
        (&["run"], "\"run\" is not a flag; see --help"),
    ] {
        assert_eq!(refused(text), said, "{text:?}");
    }
    assert!(
        refused(&["--faults", "kill,flood"]).starts_with("--faults: unknown fault \"flood\"; there are ")
    );
}

#[test]
fn lists_of_faults_add_and_take_away() {
    assert_eq!(Fault::parse_list(""), Ok(Vec::new()));
    assert_eq!(Fault::parse_list("all").as_deref(), Ok(Fault::ALL));
    let without = Fault::parse_list("-disk,-clock").expect("known names");
    assert_eq!(without.len(), Fault::ALL.len() - 4);
    assert!(!without.contains(&Fault::FullDisk) && without.contains(&Fault::KillAll));
    assert_eq!(Fault::parse_list("kill,-kill-all"), Ok(vec![Fault::KillLeader, Fault::KillAny]));
}

#[test]
fn help_names_every_fault_and_has_an_example() {
    let help = help();
    for fault in Fault::ALL {
        assert!(help.contains(&format!("\n  {} ", fault.name())), "{fault}");
    }
    assert!(help.contains("mainstay-torture --members 5 --seconds 600"));
}
