use std::ffi::OsString;
use std::time::Duration;

use mainstay_cli::{Command, Flag, Invocation, Matches, Program, UsageError};

const LIMIT: Flag<i64> = Flag::int("limit", "0", "at most so many");
const PREFIX: Flag<bool> = Flag::bool("prefix", "all that begin so");
const ORDER: Flag<String> = Flag::text("order", "", "ASCEND or DESCEND");
const PEER_URLS: Flag<Vec<String>> = Flag::list("peer-urls", "", "its URLs");
const ENDPOINTS: Flag<Vec<String>> = Flag::list("endpoints", "127.0.0.1:2379", "gRPC endpoints");
const WRITE_OUT: Flag<String> = Flag::text("write-out", "simple", "the output `format`").short('w');
const DIAL_TIMEOUT: Flag<Duration> = Flag::duration("dial-timeout", "2s", "time for a connection");
const HEX: Flag<bool> = Flag::bool("hex", "bytes as hex").short('x');

pub const PROGRAM: Program = Program {
    root: Command {
        name: "etcdctl",
        about: "A client.",
        subcommands: &[
            Command {
                name: "get",
                usage: "get [options] <key>",
                about: "Gets a key",
                flags: &[LIMIT.row(), PREFIX.row(), ORDER.row()],
                run: Some(()),
                group: "Key-value commands",
                ..Command::EMPTY
            },
            Command {
                name: "member",
                about: "Members",
                subcommands: &[
                    Command {
                        name: "add",
                        about: "Adds one",
                        flags: &[PEER_URLS.row()],
                        run: Some(()),
                        ..Command::EMPTY
                    },
                    Command { name: "list", about: "Lists them", run: Some(()), ..Command::EMPTY },
                ],
                ..Command::EMPTY
            },
            Command {
                name: "make-mirror",
                about: "Mirrors",
                example: "  etcdctl make-mirror host:2379",
                run: Some(()),
                ..Command::EMPTY
            },
        ],
        ..Command::EMPTY
    },
    globals: &[ENDPOINTS.row(), WRITE_OUT.row(), DIAL_TIMEOUT.row(), HEX.row()],
    env_prefix: Some("ETCDCTL_"),
    env_known: &["ETCDCTL_WATCH_KEY"],
    globals_hint: "Use \"etcdctl options\" for a list of global command-line options (applies to all commands).",
};

fn parse(line: &str) -> Result<Matches, UsageError> {
    with_env(line, &[])
}

fn with_env(line: &str, env: &[(&str, &str)]) -> Result<Matches, UsageError> {
    let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    match PROGRAM.parse(&args, env)? {
        Invocation::Run(matches, ()) | Invocation::Group(matches) => Ok(matches),
        Invocation::Help(text) => panic!("{line}: help:\n{text}"),
    }
}

fn refusal(line: &str) -> String {
    parse(line).expect_err(line).message
}

#[test]
fn the_tables_are_sound() {
    PROGRAM.assert_sound();
}

#[test]
fn flags_stand_anywhere_and_in_every_form() {
    let matches = parse("--endpoints a,b get -w json k --limit=0x10 --prefix -x --endpoints c rest").unwrap();
    assert_eq!(matches.path, ["get"]);
    assert_eq!(matches.args, [b"k".to_vec(), b"rest".to_vec()]);
    assert_eq!(matches.get(ENDPOINTS), ["a", "b", "c"]);
    assert_eq!((matches.get(WRITE_OUT), matches.get(LIMIT)), ("json", 16));
    assert!(matches.get(PREFIX) && matches.get(HEX) && !matches.is_given(ORDER));
    assert_eq!(parse("get -xwjson").unwrap().get(WRITE_OUT), "json");
    assert_eq!(parse("get -w=table").unwrap().get(WRITE_OUT), "table");
    assert!(!parse("get --prefix=false").unwrap().get(PREFIX));
    assert_eq!(parse("get").unwrap().get(ENDPOINTS), ["127.0.0.1:2379"]);
}

#[test]
fn two_dashes_end_the_flags() {
    let matches = parse("get a -- --limit -x").unwrap();
    assert_eq!(matches.args, [b"a".to_vec(), b"--limit".to_vec(), b"-x".to_vec()]);
    assert_eq!(matches.dash_at, Some(1));
    assert_eq!(parse("get - a").unwrap().args, [b"-".to_vec(), b"a".to_vec()]);
}

#[test]
fn commands_are_found_below_others_and_by_their_beginning() {
    assert_eq!(parse("mem a --peer-urls x").unwrap().path, ["member", "add"]);
    assert_eq!(parse("member").unwrap().path, ["member"]);
    assert_eq!(parse("").unwrap().path, Vec::<&str>::new());
    assert_eq!(refusal("gett"), "unknown command \"gett\" for \"etcdctl\"\n\nDid you mean this?\n\tget\n");
    // Two commands begin with this letter.
    assert!(refusal("m").starts_with("unknown command \"m\" for \"etcdctl\""));
}

#[test]
fn refusals_say_what_the_fields_own_tools_say() {
    for (line, message) in [
        ("get --foo", "unknown flag: --foo"),
        ("get -q", "unknown shorthand flag: 'q' in -q"),
        ("get --limit", "flag needs an argument: --limit"),
        ("get -w", "flag needs an argument: 'w' in -w"),
        ("get --=x", "bad flag syntax: --=x"),
        (
            "get --limit x",
            "invalid argument \"x\" for \"--limit\" flag: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            "get --prefix=maybe",
            "invalid argument \"maybe\" for \"--prefix\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        (
            "get --dial-timeout 5",
            "invalid argument \"5\" for \"--dial-timeout\" flag: time: missing unit in duration \"5\"",
        ),
    ] {
        assert_eq!(refusal(line), message, "{line}");
    }
}

#[test]
fn the_environment_stands_for_global_flags() {
    let matches =
        with_env("get k", &[("ETCDCTL_ENDPOINTS", "x,y"), ("ETCDCTL_DIAL_TIMEOUT", "7s"), ("HOME", "/")])
            .unwrap();
    assert_eq!(matches.get(ENDPOINTS), ["x", "y"]);
    assert_eq!(matches.get(DIAL_TIMEOUT).as_secs(), 7);
    let both = with_env("get k --endpoints z", &[("ETCDCTL_ENDPOINTS", "x")]).unwrap_err();
    assert!(both.is_env && both.message.contains("\"ETCDCTL_ENDPOINTS\" is shadowed"), "{both}");
    let unknown = with_env("get k", &[("ETCDCTL_NOPE", "1"), ("ETCDCTL_WATCH_KEY", "k")]).unwrap();
    assert_eq!(unknown.unknown_env, ["ETCDCTL_NOPE=1"]);
    let unusable = with_env("get k", &[("ETCDCTL_HEX", "maybe"), ("ETCDCTL_DIAL_TIMEOUT", "5")]).unwrap();
    assert_eq!(
        unusable.unusable_env,
        [
            "invalid value \"maybe\" for ETCDCTL_HEX: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            "invalid value \"5\" for ETCDCTL_DIAL_TIMEOUT: time: missing unit in duration \"5\"",
        ]
    );
    assert!(!unusable.get(HEX) && !unusable.is_given(HEX) && unusable.get(DIAL_TIMEOUT).as_secs() == 2);
    // A variable without a value counts as unknown, but contradicts a flag like one with a value.
    assert_eq!(with_env("get k", &[("ETCDCTL_HEX", "")]).unwrap().unknown_env, ["ETCDCTL_HEX="]);
    assert!(with_env("get k --hex", &[("ETCDCTL_HEX", "")]).unwrap_err().is_env);
}
