//! Tests of the command line: its output, refusals and files.

use std::ffi::OsString;

use cli::Io;
use mainstay_bench::loadgen::responder::Options;
use serde_json::Value;

use testkit::TempDir;

use crate::served::Served;

/// Runs the tool. Returns the exit code, standard output and standard error.
pub fn call(words: &[&str]) -> (u8, String, String) {
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    let (io, printed) = Io::in_memory();
    let code = mainstay_bench::run_in(&args, &io);
    (code, printed.out(), printed.err())
}

fn against(served: &Served, words: &[&str]) -> String {
    let endpoint = format!("--endpoints={}", served.address);
    let all: Vec<&str> = std::iter::once(endpoint.as_str()).chain(words.iter().copied()).collect();
    let (code, out, err) = call(&all);
    assert_eq!(code, 0, "{words:?}: {err}");
    out
}

/// Returns the shape of a report, independent of the measured values: each number is an `N`, and bars and
/// missing percentiles are omitted.
pub fn shape(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.contains("% in ")) {
        let mut in_number = false;
        for c in line.chars().filter(|c| *c != '∎') {
            let part_of_number = c.is_ascii_digit() || in_number && c == '.';
            if part_of_number && !in_number {
                out.push('N');
            }
            if !part_of_number {
                out.push(c);
            }
            in_number = part_of_number;
        }
        out.push('\n');
    }
    out.replace("Nsecs", "N secs")
}

pub const SUMMARY: &str = "
Summary:
  Total:\tN secs.
  Slowest:\tN secs.
  Fastest:\tN secs.
  Average:\tN secs.
  Stddev:\tN secs.
  Requests/sec:\tN

Response time histogram:
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|
  N [N]\t|

Latency distribution:
";

#[test]
fn each_command_prints_what_etcds_tool_prints() {
    let served = Served::start(Options::default());
    for (words, wanted) in [
        (vec!["put", "--total=200"], format!("{SUMMARY}\n")),
        (vec!["range", "foo", "--total=200"], format!("bench with linearizable range\n{SUMMARY}")),
        (
            vec!["range", "a", "b", "--consistency=s", "--total=50"],
            format!("bench with serializable range\n{SUMMARY}"),
        ),
        (
            vec!["range", "--prefix", "--paginate", "--total=50"],
            format!("bench with linearizable range\n{SUMMARY}"),
        ),
        (vec!["range", "a", "--stream", "--total=50"], format!("bench with linearizable range\n{SUMMARY}")),
        (vec!["txn-put", "--total=50", "--txn-ops=3", "--key-space-size=9"], format!("{SUMMARY}\n")),
        (
            vec!["txn-mixed", "--total=200"],
            format!(
                "bench with linearizable range\nTotal Read Ops: N\nDetails:{SUMMARY}\nTotal Write Ops: N\n\
                 Details:{SUMMARY}\n"
            ),
        ),
        (vec!["lease-keepalive", "--total=50"], SUMMARY.to_owned()),
        (vec!["stm", "--total=50", "--isolation=c", "--keys-per-txn=0"], SUMMARY.to_owned()),
        (vec!["--user=root:x", "authenticate"], SUMMARY.to_owned()),
        (
            vec!["watch", "--put-total=0"],
            format!("Watch creation summary:\n{SUMMARY}Watch events received summary:\n"),
        ),
        (vec!["mvcc", "put"], SUMMARY.to_owned()),
        (vec!["mvcc", "range", "--keys=1000", "--total=100"], SUMMARY.to_owned()),
    ] {
        assert_eq!(shape(&against(&served, &words)), wanted, "{words:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    for (words, code, reason) in [
        (vec!["put", "--key-space-size=0"], 1, "expected positive --key-space-size, got (0)\n"),
        (vec!["put", "--key-size=1", "--key-space-size=1000"], 1, "raise --key-size"),
        (vec!["put", "foo"], 1, "put takes no arguments, but was given \"foo\"\nUsage:"),
        (vec!["put", "--nonsense"], 255, "Error: unknown flag: --nonsense\nUsage:"),
        (vec!["put", "--total=x"], 255, "invalid argument \"x\" for \"--total\" flag"),
        (vec!["put", "--schedule=some"], 1, "--schedule must be open or paced, not \"some\"\nUsage:"),
        (vec!["put", "--rate=-1"], 1, "--rate must not be negative, got (-1)"),
        (vec!["put", "--duration=1s", "--total=5"], 1, "--duration and --total are mutually exclusive"),
        (vec!["put", "--repeat=0"], 1, "expected positive --repeat, got (0)"),
        (vec!["--clients=0", "put"], 1, "expected positive --clients, got (0)"),
        (vec!["--endpoints=ftp://a:1", "put"], 1, "unknown scheme \"ftp\""),
        (
            vec!["--endpoints=https://127.0.0.1:1", "--cacert=/none", "put"],
            1,
            "bad tls config: open /none: no such file or directory",
        ),
        (vec!["--cert=/none", "put"], 1, "--cert and --key must be given together"),
        (vec!["--auto-sync-interval=1s", "put"], 1, "--auto-sync-interval"),
        (vec!["--pid=4000000000", "put"], 1, "--pid: there is no process 4000000000"),
        (vec!["completion", "tcsh"], 1, "completion takes one of bash, zsh, fish, powershell"),
        (vec!["range"], 1, "range takes a key"),
        (vec!["range", "a", "b", "c"], 1, "range takes a key"),
        (vec!["range", "a", "--consistency=x"], 1, "--consistency must be l or s"),
        (vec!["range", "a", "--paginate", "--limit=5"], 1, "--paginate and --limit are mutually exclusive\n"),
        (
            vec!["range", "a", "--keys-only", "--count-only"],
            1,
            "`--keys-only` and `--count-only` cannot be set at the same time\n",
        ),
        (
            vec!["txn-put", "--txn-ops=2"],
            1,
            "expected --txn-ops no larger than --key-space-size, got txn-ops(2) key-space-size(1)\n",
        ),
        (vec!["stm", "--keys=0"], 1, "expected positive --keys, got (0)"),
        (vec!["stm", "--txn-wr-percent=101"], 1, "expected [0, 100] --txn-wr-percent, got (101)"),
        (vec!["stm", "--keys-per-txn=2"], 1, "expected --keys-per-txn between 0 and 1, got (2)"),
        (vec!["stm", "--stm-locker=x"], 1, "unexpected stm locker \"x\"\n"),
        (vec!["stm", "--isolation=x"], 1, "--isolation must be c, r, s or ss"),
        (vec!["authenticate"], 1, "authenticate needs --user"),
        (vec!["mvcc", "put", "--batch-interval=5"], 1, "--batch-interval"),
        (vec!["mvcc", "put", "--cpuprofile=x"], 255, "unknown flag: --cpuprofile"),
        (vec!["responder", "--server-cert=x"], 1, "must be given together"),
        (vec!["compare", "--responder=false"], 1, "give servers to compare"),
        (vec!["--clients=5", "compare", "--server=a=/b"], 1, "compare does not support --clients"),
        (vec!["--html=x", "responder"], 1, "responder does not support --html"),
        (vec!["compare", "--workload=none"], 1, "put-1k"),
        (vec!["compare", "--scale=huge"], 1, "--scale is small, medium or full"),
        (vec!["compare", "--server=x"], 1, "is not of the form NAME=PATH"),
        (vec!["compare", "--reference=x"], 1, "no server is called \"x\""),
        (vec!["compare", "--server=a=/b", "--at=a=c:1"], 1, "two servers are called \"a\""),
        (vec!["compare", "--server=a=/none/there", "--repeat=1"], 1, "a: /none/there: "),
        (vec!["kubernetes", "--nodes=0"], 1, "expected --nodes of 1 to 10000000, got (0)"),
        (vec!["kubernetes", "--api-servers=0"], 1, "expected --api-servers of 1 to 1000, got (0)"),
        (vec!["kubernetes", "--lease-interval=0s"], 1, "--lease-interval must not be 0s"),
        (vec!["kubernetes", "--duration=0s"], 1, "--duration must not be 0s"),
        (vec!["kubernetes", "--event-ttl=1s"], 1, "--event-ttl must be at least 20s"),
        (vec!["kubernetes", "--pods-per-node=-1"], 1, "expected --pods-per-node of 0 to 1000, got (-1)"),
        (vec!["kubernetes", "--contents=some"], 1, "--contents must be realistic or incompressible"),
        (vec!["kubernetes", "--pod-bytes-min=9000", "--pod-bytes-max=8000"], 1, "--pod-bytes-min and"),
        (vec!["kubernetes", "--node-bytes-min=1"], 1, "must be 2048 to 1048576 bytes"),
        (vec!["kubernetes", "--find-max=9"], 1, "--find-max has no meaning without --find"),
        (vec!["kubernetes", "--find", "--find-max=9"], 1, "--find-max of 9 is less than --nodes of 1000"),
        (vec!["--clients=5", "kubernetes"], 1, "kubernetes does not support --clients"),
        (
            vec!["--endpoints=a:1", "kubernetes", "--server=a=/b"],
            1,
            "--server and --endpoints are mutually exclusive",
        ),
        (vec!["kubernetes", "--tls"], 1, "--tls has a meaning only with --server"),
        (vec!["kubernetes", "--server=x"], 1, "is not of the form NAME=PATH"),
        (vec!["nonsense"], 255, "unknown command \"nonsense\" for \"benchmark\""),
    ] {
        let (got, out, err) = call(&words);
        assert!(err.contains(reason), "{words:?}: {err}");
        assert_eq!((got, out.as_str()), (code, ""), "{words:?}");
    }
}

#[test]
fn help_has_the_flags_and_an_example() {
    let (code, out, _) = call(&["put", "--help"]);
    assert_eq!(code, 0);
    for part in [
        "benchmark put",
        "--compact-index-delta int",
        "(default 1000)",
        "--schedule",
        "--conns uint",
        "Examples:",
    ] {
        assert!(out.contains(part), "{part} is missing in:\n{out}");
    }
    let (code, out, _) = call(&[]);
    assert_eq!(code, 0);
    assert!(out.contains("lease-keepalive") && out.contains("compare"), "{out}");
}

#[test]
fn shells_can_complete_commands() {
    for shell in cli::completion::SHELLS {
        let (code, out, _) = call(&["completion", shell]);
        assert_eq!(code, 0);
        assert!(out.contains("lease-keepalive") && out.contains("warmup"), "{shell}");
    }
}

#[test]
fn failures_are_counted_below_the_report() {
    let served = Served::start(Options {
        refuse_every: Some((2, 8, "etcdserver: too many requests".into())),
        ..Options::default()
    });
    let out = against(&served, &["put", "--total=10"]);
    assert!(out.ends_with("\nError distribution:\n  [5]\tetcdserver: too many requests\n\n"), "{out}");
}

fn json_of(served: &Served, words: &[&str]) -> Value {
    let out = against(served, &[words, &["--json=-"]].concat());
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

#[test]
fn json_says_everything_about_each_run() {
    let served = Served::start(Options::default());
    let words = ["--clients=4", "put", "--rate=2000", "--duration=200ms", "--warmup=50ms", "--repeat=3"];
    let all = json_of(&served, &words);
    assert_eq!(all["version"], 1);
    assert!(all["command"].as_str().unwrap().contains("put --rate=2000 --duration=200ms"));
    let row = &all["rows"][0];
    assert_eq!(row["workload"], "put");
    let runs = row["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs {
        assert_eq!(run["operations"], 400, "a held rate for a fifth of a second");
        let latency = &run["latency_ms"];
        let values: Vec<f64> = ["min", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max"]
            .iter()
            .map(|name| latency[name].as_f64().unwrap())
            .collect();
        assert!(values.is_sorted(), "{values:?}");
        // The responder runs in this test's process.
        assert!(run["server"]["rss_mb"].as_f64().unwrap() > 0.1);
        assert!(run["generator"]["cpu_us_per_operation"].as_f64().unwrap() > 0.0);
    }
    assert!(row["distribution"].as_array().unwrap().len() > 10);
    assert!(!row["seconds"].as_array().unwrap().is_empty());
}

#[test]
fn loads_of_watches_are_repeated_too() {
    let served = Served::start(Options::default());
    let words = ["watch", "--put-total=0", "--streams=2", "--watch-per-stream=3", "--repeat=3"];
    let all = json_of(&served, &words);
    let names: Vec<&str> =
        all["rows"].as_array().unwrap().iter().map(|row| row["workload"].as_str().unwrap()).collect();
    assert_eq!(names, ["watch-make", "watch-put"]);
    let made = all["rows"][0]["runs"].as_array().unwrap();
    assert_eq!(made.len(), 3);
    assert!(made.iter().all(|run| run["operations"] == 6), "each run makes its watches: {made:?}");
    let text = against(&served, &words);
    assert!(text.contains("\nMedians of 3 runs of watch-make:\n"), "{text}");
    assert_eq!(text.matches("Watch creation summary:").count(), 1, "one report: {text}");
    for command in ["watch", "watch-get", "watch-latency"] {
        let (code, _, err) = call(&[command, "--repeat=0"]);
        assert_eq!(code, 1, "{command}");
        assert!(err.contains("expected --repeat of 1 to 1000000, got (0)"), "{command}: {err}");
    }
}

#[test]
fn csv_has_a_line_per_run_and_html_is_one_sound_page() {
    let served = Served::start(Options::default());
    let directory = TempDir::new("files");
    let (csv, html) =
        (directory.join("a.csv").display().to_string(), directory.join("a.html").display().to_string());
    let (csv_flag, html_flag) = (format!("--csv={csv}"), format!("--html={html}"));
    let words = [csv_flag.as_str(), &html_flag, "--clients=3", "txn-mixed", "--total=300", "--repeat=2"];
    let text = against(&served, &words);
    assert!(text.contains("\nMedians of 2 runs of txn-mixed-read:\n"), "{text}");
    let csv = std::fs::read_to_string(csv).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 2 * 2, "{csv}");
    let columns = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == columns), "{csv}");
    assert!(
        lines[1].starts_with("txn-mixed-read,,1,") && lines[4].starts_with("txn-mixed-write,,2,"),
        "{csv}"
    );
    let html = std::fs::read_to_string(html).unwrap();
    assert_sound(&html);
    assert!(html.contains("data-chart=\"lines\"") && html.contains("color-scheme: light dark"));
    assert!(!html.contains("class=\"bars\""), "there is nothing to compare");
    assert!(html.contains("<h1>Benchmark report</h1>"), "{html}");
}

/// Asserts that every opened element is closed in order, and that the page loads nothing from other files.
fn assert_sound(html: &str) {
    for foreign in ["<script src", "<link", "<img", " src=", "url(", "@import"] {
        assert!(!html.contains(foreign), "{foreign} in the page");
    }
    // Style and script are part of the page.
    let (begin, rest) = html.split_once("<style>").expect("a style");
    let (_, rest) = rest.split_once("</style>").unwrap();
    let (body, script) = rest.split_once("<script type=\"module\">").expect("a script");
    let page = format!("{begin}{body}{}", script.split_once("</script>").unwrap().1);
    for foreign in ["<script", "NaN", "inf"] {
        assert!(!body.contains(foreign), "{foreign} in the page");
    }
    let mut open: Vec<&str> = Vec::new();
    let mut rest = &*page;
    while let Some(at) = rest.find('<') {
        let end = at + rest[at..].find('>').expect("a tag ends");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('!') || tag.ends_with('/') || ["meta", "col"].contains(&name) {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed out of turn");
        } else {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn a_comparison_of_running_servers_gives_a_table_ratios_and_a_page() {
    let (one, two) = (Served::start(Options::default()), Served::start(Options::default()));
    let directory = TempDir::new("compare");
    let (json, html) =
        (directory.join("c.json").display().to_string(), directory.join("c.html").display().to_string());
    let at = format!("--at=one={},two={}", one.address, two.address);
    let words = [
        "compare",
        &at,
        "--workload=put-one,value-1m",
        "--repeat=2",
        "--tls",
        &format!("--json={json}"),
        &format!("--html={html}"),
    ];
    let (code, out, err) = call(&words);
    assert_eq!(code, 0, "{err}");
    let servers = ["one", "two", "responder", "responder+tls"];
    for server in servers {
        assert_eq!(out.matches(&format!("| {server} |")).count(), 2, "{out}");
    }
    assert!(out.contains("General use, by mean rank"), "{out}");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&all["reference"], &all["baseline"]), (&"one".into(), &"responder".into()));
    let rows = all["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * servers.len());
    assert!(rows.iter().all(|row| row["runs"].as_array().unwrap().len() == 2), "a run per round");
    let html = std::fs::read_to_string(html).unwrap();
    assert_sound(&html);
    // The most important sections come first.
    let order: Vec<Option<usize>> =
        ["Conclusions by situation", "Each load", "Disturbances of these", "All figures", "Measured on"]
            .map(|heading| html.find(&format!("<h2>{heading}")))
            .into();
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{order:?}");
    // Each load has charts in which every server has a bar and a figure, and two servers have a mark.
    let charts: Vec<&str> = html.split("<table class=\"bars\">").skip(1).collect();
    assert!(charts.len() >= 2 * 2, "rate and p99 of each load at least: {}", charts.len());
    for chart in charts {
        let chart = chart.split("</table>").next().unwrap();
        assert!(chart.starts_with("<caption"), "{chart}");
        assert_eq!(chart.matches("<rect class=\"bar").count(), servers.len(), "{chart}");
        assert_eq!(chart.matches("<td class=\"number\">").count(), 2 * servers.len(), "{chart}");
        assert!(chart.contains(">one <small>reference</small></th>"), "{chart}");
        assert!(chart.contains(">responder <small>bare limit</small></th>"), "{chart}");
    }
    // Each plot has a table of its points, from which it is drawn.
    let plots = html.matches("data-chart=\"lines\"").count();
    assert!(plots >= 2 && plots == html.matches("<details open><summary>Table").count(), "{plots}");
}

#[test]
fn a_server_that_does_not_start_leaves_nothing_behind() {
    let directory = TempDir::new("left");
    let data = format!("--data-dir={}", directory.join("").display());
    for server in ["--server=a=/none/there", "--server=a=/bin/false"] {
        let (code, _, _) = call(&["compare", server, &data, "--repeat=1"]);
        assert_eq!(code, 1);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{server}");
    }
}

#[test]
fn several_words_for_one_server_are_its_flags() {
    // `--version` makes the program exit at once, which the error reports with its name.
    let (code, _, err) =
        call(&["compare", "--server=it=/bin/true,--version", "--workload=put-one", "--repeat=1"]);
    assert_eq!(code, 1);
    assert!(err.contains("it did not start"), "{err}");
}
