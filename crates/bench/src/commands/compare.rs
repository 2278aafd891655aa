//! Implements the command `compare`: runs workloads on several servers, one after the other, and shows the
//! results in one table.

use std::fmt::Write as _;
use std::path::PathBuf;

use cli::{Command, Failure, Flag, Matches};

use super::Run;
use crate::contests::{CONTESTS, Contest, Field, Measured, Scale};
use crate::given::{CACERT, CERT, INSECURE_SKIP_TLS_VERIFY, KEY, THREADS};
use crate::html::{ratio, workloads};
use crate::machine;
use crate::outcome::{Document, Row};
use crate::render::{short, short_or_blank};
use crate::servers::{Contestant, Server, Source, programs, running};
use crate::session::Session;
use crate::session::now;
use crate::tls;
use crate::{Error, given};

const SERVER: Flag<Vec<String>> = Flag::list(
    "server",
    "",
    "`NAME=PATH`: a server to start, etcd of any version or Mainstay; its flags follow, each after a \
         comma; may be given several times",
);
const AT: Flag<Vec<String>> = Flag::list(
    "at",
    "",
    "`NAME=ENDPOINT`: a running server, to which keys are written; pid=N after a comma names its process",
);
const RESPONDER: Flag<bool> = Flag::on("responder", "Include a server that does nothing, as the baseline");
const REFERENCE: Flag<String> =
    Flag::text("reference", "", "Server that the others are compared with (default: the first)");
const WORKLOAD: Flag<Vec<String>> =
    Flag::list("workload", "", "Workloads to run (default: all); an unknown name lists them");
const SCALE: Flag<String> = Flag::text("scale", "small", "Size of each workload: small, medium or full");
const REPEAT: Flag<u64> = Flag::uint(
    "repeat",
    "3",
    "Number of rounds, in each of which all servers take turns; medians are reported",
);
const TLS: Flag<bool> = Flag::bool("tls", "Also run everything over TLS, with generated certificates");
const DATA_DIR: Flag<String> = Flag::text(
    "data-dir",
    "",
    "Directory for the data of the servers that are started (default: a temporary one)",
);

pub(super) const COMPARE: Command<Run> = Command {
    name: "compare",
    usage: "compare",
    about: "Compare several servers, and write one table",
    long: "Runs workloads against several servers, which take turns within each round, and writes one table of \
               medians:\nrates, latencies, what the servers used per request, and ratios to a reference and to a server \
               that does nothing.",
    example: "  bench compare --server etcd-3.7=/usr/bin/etcd --server mainstay=/usr/bin/mainstay --workload put-1k \
                  --html report.html",
    flags: &[
        SERVER.row(),
        AT.row(),
        RESPONDER.row(),
        REFERENCE.row(),
        WORKLOAD.row(),
        SCALE.row(),
        REPEAT.row(),
        TLS.row(),
        DATA_DIR.row(),
        THREADS.row(),
    ],
    run: Some(Run::of(compare).without(&[
        given::CLIENTS.row(),
        given::CONNS.row(),
        given::DIAL_TIMEOUT.row(),
        given::ENDPOINTS.row(),
        given::PID.row(),
        given::PRECISE.row(),
        given::REPORT_PERFDASH.row(),
        given::SAMPLE.row(),
        given::USER.row(),
    ])),
    ..Command::EMPTY
};

fn compare(session: &Session) -> Result<(), Failure> {
    let document = measured(session)?;
    session.write(&text(&document), &document)
}

const BASELINE: &str = "responder";

/// Runs the comparison that the flags describe, and returns its results.
fn measured(session: &Session) -> Result<Document, Failure> {
    let matches = &session.matches;
    let contests = choose(matches.get(WORKLOAD))?;
    let contestants = contestants(matches)?;
    let scale = Scale::parse(matches.get(SCALE))?;
    let repeat = matches.get(REPEAT);
    let threads = matches.get(THREADS) as usize;
    if repeat == 0 || threads == 0 {
        return Err(Failure::error("--repeat and --threads must be positive"));
    }
    let reference = match matches.get(REFERENCE) {
        "" => contestants.iter().find(|one| one.source != Source::Responder).map(|one| one.name.clone()),
        name if contestants.iter().any(|one| one.name == name) => Some(name.to_owned()),
        name => return Err(Failure::usage(format!("--reference: no server is called {name:?}"))),
    };
    let given = tls::Files {
        cacert: matches.get(CACERT).to_owned(),
        cert: matches.get(CERT).to_owned(),
        key: matches.get(KEY).to_owned(),
        skip_verify: matches.get(INSECURE_SKIP_TLS_VERIFY),
    };
    let place = match matches.get(DATA_DIR) {
        "" => std::env::temp_dir(),
        directory => PathBuf::from(directory),
    };
    let mut document = Document {
        command: session.command.clone(),
        time: now(),
        facts: machine::facts(),
        warnings: machine::checks(),
        reference,
        baseline: contestants.iter().find(|one| one.source == Source::Responder).map(|one| one.name.clone()),
        ..Document::default()
    };
    document.facts.push(("Rounds".to_owned(), format!("{repeat}, at scale {}", matches.get(SCALE))));
    let mut results: Vec<Result<Measured, (String, Error)>> = Vec::new();
    let mut of: Vec<String> = Vec::new();
    let mut progress =
        cli::Progress::of_things("comparing", Some(repeat * (contestants.len() * contests.len()) as u64));
    let mut done = 0;
    for round in 0..repeat {
        for contestant in &contestants {
            let server = match Server::start(contestant, &place, &given) {
                Ok(server) => server,
                // If a server with TLS does not start, skip it with a warning, because it possibly does not
                // support TLS. If a server without TLS does not start, fail.
                Err(error) if contestant.tls => {
                    let warning = format!("{}: not measured: {error}", contestant.name);
                    if !document.warnings.contains(&warning) && round == 0 {
                        document.warnings.push(warning);
                    }
                    done += contests.len() as u64;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if round == 0 {
                let what = match &contestant.source {
                    Source::Program(path, flags) => format!("{} {}", path.display(), flags.join(" ")),
                    Source::Running { endpoint, .. } => endpoint.clone(),
                    Source::Responder => "answers every request with the same bytes".to_owned(),
                };
                document.facts.push((contestant.name.clone(), format!("version {}; {what}", server.version)));
            }
            for contest in &contests {
                progress.at(done, &format!("round {}, {}, {}", round + 1, contestant.name, contest.name));
                let mut field = Field {
                    target: &server.target,
                    meter: &server.meter,
                    scale,
                    threads,
                    is_ours: !matches!(contestant.source, Source::Running { .. }),
                    measured: Vec::new(),
                };
                let outcome = contest.run(&mut field);
                for measured in field.measured {
                    results.push(Ok(measured));
                    of.push(contestant.name.clone());
                }
                if let Err(error) = outcome {
                    results.push(Err((contest.name.to_owned(), error)));
                    of.push(contestant.name.clone());
                }
                done += 1;
            }
        }
    }
    progress.finish();
    gather(&mut document, &contestants, results, &of);
    document.conclusions = conclusions(&document);
    Ok(document)
}

fn choose(names: &[String]) -> Result<Vec<&'static Contest>, Failure> {
    let list = || {
        CONTESTS.iter().map(|one| format!("  {:<14} {}", one.name, one.about)).collect::<Vec<_>>().join("\n")
    };
    if names.is_empty() {
        return Ok(CONTESTS.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            let found = CONTESTS.iter().find(|one| one.name == name);
            found.ok_or_else(|| {
                Failure::error(format!("--workload: there is no {name:?}; known workloads:\n{}", list()))
            })
        })
        .collect()
}

fn contestants(matches: &Matches) -> Result<Vec<Contestant>, Failure> {
    let mut all = programs(matches.get(SERVER))?;
    all.extend(running(matches.get(AT))?);
    if matches.get(RESPONDER) {
        all.push(Contestant { name: BASELINE.to_owned(), source: Source::Responder, tls: false });
    }
    if all.is_empty() {
        return Err(Failure::usage("give servers to compare: --server NAME=PATH or --at NAME=ENDPOINT"));
    }
    if matches.get(TLS) {
        let with: Vec<Contestant> = all
            .iter()
            // Skip servers that are already running, because the command cannot start them again with TLS.
            .filter(|one| !matches!(one.source, Source::Running { .. }))
            .map(|one| Contestant { name: format!("{}+tls", one.name), tls: true, ..one.clone() })
            .collect();
        all.extend(with);
    }
    for (at, one) in all.iter().enumerate() {
        if all[..at].iter().any(|other| other.name == one.name) {
            return Err(Failure::usage(format!("two servers are called {:?}", one.name)));
        }
    }
    Ok(all)
}

/// Adds a row to the document for each workload and server, from the runs of all rounds.
fn gather(
    document: &mut Document,
    contestants: &[Contestant],
    results: Vec<Result<Measured, (String, Error)>>,
    of: &[String],
) {
    let mut names: Vec<String> = Vec::new();
    for measured in results.iter().flatten() {
        if !names.contains(&measured.workload) {
            names.push(measured.workload.clone());
        }
    }
    let mut starved: Vec<(String, String, f64)> = Vec::new();
    for name in &names {
        for contestant in contestants {
            let (mut runs, mut usages) = (Vec::new(), Vec::new());
            for (result, server) in results.iter().zip(of) {
                if let Ok(measured) = result
                    && server == &contestant.name
                    && &measured.workload == name
                {
                    runs.push(measured.run.clone());
                    usages.push(measured.usage);
                }
            }
            if runs.is_empty() {
                continue;
            }
            let row = Row::new(name, &contestant.name, &runs, 0, &usages);
            document.warnings.extend(machine::run_checks(&row));
            starved
                .extend(machine::starved(&row).map(|part| (row.workload.clone(), row.server.clone(), part)));
            let segment = runs.first().and_then(|run| run.generator.segment_bytes);
            if let Some(warning) = machine::path_check(&contestant.name, segment)
                && !document.warnings.contains(&warning)
            {
                document.warnings.push(warning);
            }
            document.rows.push(row);
        }
    }
    if let Some((workload, server, part)) = starved.iter().max_by(|a, b| a.2.total_cmp(&b.2)) {
        document.warnings.push(format!(
            "in {} of {} lines of the table the load generator waited for a CPU for more than a fifth of the time (most in \
             {workload}, {server}: {:.0} %): latencies contain that; it shares its machine with the \
             servers or other programs",
            starved.len(),
            document.rows.len(),
            part * 100.0
        ));
    }
    for (result, server) in results.iter().zip(of) {
        if let Err((workload, error)) = result {
            let warning = format!("{workload}, {server}: not measured: {error}");
            if !document.warnings.contains(&warning) {
                document.warnings.push(warning);
            }
        }
    }
}

/// Function that returns a number from a row; `None` if it is unknown.
type Column = fn(&Row) -> Option<f64>;
/// A conclusion to draw: the situation, the workload that represents it, true if lower numbers are better,
/// the text that describes the number, and the function that returns the number.
type Situation = (&'static str, &'static str, bool, &'static str, Column);
/// Name of a server, and its number.
type Placed = (String, f64);

/// Returns a sentence for each typical situation for which there are results.
fn conclusions(document: &Document) -> Vec<String> {
    let mut all = Vec::new();
    let is_plain = |row: &&Row| {
        Some(row.server.as_str()) != document.baseline.as_deref() && !row.server.ends_with("+tls")
    };
    let rows = |workload: &str| -> Vec<&Row> {
        document.rows.iter().filter(|row| row.workload == workload).filter(is_plain).collect()
    };
    let best = |workload: &str, least: bool, get: Column| -> Option<(Placed, Option<Placed>)> {
        let mut values: Vec<Placed> =
            rows(workload).iter().filter_map(|row| Some((row.server.clone(), get(row)?))).collect();
        values.sort_by(|a, b| if least { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) });
        let mut values = values.into_iter();
        Some((values.next()?, values.next()))
    };
    let behind = |value: f64, second: &Option<Placed>| match second {
        Some((name, other)) if value.max(*other) > 0.0 => {
            format!(", {:.2} times {name}'s ({})", value / other.max(1e-12), short(*other))
        }
        _ => String::new(),
    };
    let situations: [Situation; 9] = [
        ("Many writing clients", "put-1k", false, "puts per second", |row| Some(row.median.rate)),
        ("Many reading clients", "range-l", false, "linearizable reads per second", |row| {
            Some(row.median.rate)
        }),
        ("One client alone, writing", "put-one", true, "ms at p50", |row| Some(row.median.percentile("p50"))),
        ("One client alone, reading", "range-one", true, "ms at p50", |row| {
            Some(row.median.percentile("p50"))
        }),
        ("Small nodes, writing", "put-1k", true, "us of CPU per put", |row| row.median.server_cpu_us),
        ("Small nodes, reading", "range-l", true, "us of CPU per read", |row| row.median.server_cpu_us),
        ("Small nodes, memory", "put-1k", true, "MB resident under load", |row| row.median.server_rss_mb),
        ("Slow or worn disks", "put-1k", true, "bytes written per put of 1 KiB", |row| {
            row.median.server_disk_bytes
        }),
        ("Large values", "value-1m", false, "reads of 1 MB per second", |row| Some(row.median.rate)),
    ];
    for (situation, workload, least, unit, get) in situations {
        if let Some(((name, value), second)) = best(workload, least, get) {
            all.push(format!("{situation}: {name} with {} {unit}{}.", short(value), behind(value, &second)));
        }
    }
    for row in rows("curve-1000") {
        if let Some(still) = rows("curve-0").iter().find(|other| other.server == row.server) {
            all.push(format!(
                "Reads beside writes: with 1000 puts per second {} keeps {:.0} % of its rate of linearizable reads.",
                row.server,
                row.median.rate / still.median.rate.max(1e-9) * 100.0
            ));
        }
    }
    for row in rows("expensive-beside-reads") {
        if let Some(alone) = rows("expensive-alone-reads").iter().find(|other| other.server == row.server) {
            let (now, then) = (row.median.percentile("p99"), alone.median.percentile("p99"));
            all.push(format!(
                "Beside expensive ranges: cheap reads of {} take {} ms at p99, {:.2} times as long as alone.",
                row.server,
                short(now),
                now / then.max(1e-9)
            ));
        }
    }
    for row in document.rows.iter().filter(|row| row.server.ends_with("+tls")) {
        let name = row.server.trim_end_matches("+tls");
        let plain = document.rows.iter().find(|other| other.server == name && other.workload == row.workload);
        if let Some((with, without)) =
            row.median.server_cpu_us.zip(plain.and_then(|row| row.median.server_cpu_us))
            && ["put-1k", "range-l"].contains(&row.workload.as_str())
            && without > 0.0
        {
            all.push(format!(
                "Encryption: {name} needs {} us of CPU per operation of {} with TLS, {:.2} times as much as without.",
                short(with),
                row.workload,
                with / without
            ));
        }
    }
    all.extend(ranks(document, &rows));
    all
}

/// Returns a sentence with the overall ranking: the mean rank of each server over all loads, where a server
/// is ranked by rate, by p99, and by CPU time per operation.
fn ranks<'a>(document: &'a Document, rows: &dyn Fn(&str) -> Vec<&'a Row>) -> Option<String> {
    let mut sums: Vec<(String, f64, f64)> = Vec::new();
    for workload in workloads(document) {
        let here = rows(workload);
        if here.len() < 2 {
            continue;
        }
        let columns: [Column; 3] = [
            |row| Some(-row.median.rate),
            |row| Some(row.median.percentile("p99")),
            |row| row.median.server_cpu_us,
        ];
        for column in columns {
            for row in &here {
                let Some(value) = column(row) else { continue };
                let better =
                    here.iter().filter_map(|other| column(other)).filter(|other| *other < value).count();
                match sums.iter_mut().find(|(name, ..)| name == &row.server) {
                    Some((_, sum, count)) => {
                        *sum += better as f64 + 1.0;
                        *count += 1.0;
                    }
                    None => sums.push((row.server.clone(), better as f64 + 1.0, 1.0)),
                }
            }
        }
    }
    if sums.len() < 2 {
        return None;
    }
    sums.sort_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)));
    let order: Vec<String> =
        sums.iter().map(|(name, sum, count)| format!("{name} ({:.2})", sum / count)).collect();
    Some(format!(
        "General use, by mean rank over all loads in rate, p99 and CPU per operation: {}.",
        order.join(", ")
    ))
}

/// Formats the table of results and the conclusions as Markdown.
pub fn text(document: &Document) -> String {
    let mut text = String::new();
    let reference = document.reference.as_deref();
    let _ = writeln!(
        text,
        "| load | server | per s | p50 ms | p99 ms | p99.9 ms | CPU us/op | CPU per mille | RSS MB | disk B/op | client us/op | \
         rate / {r} | CPU / {r} | rate / {b} |\n|---|---|{}",
        "---|".repeat(12),
        r = reference.unwrap_or("reference"),
        b = document.baseline.as_deref().unwrap_or("baseline"),
    );
    let mut last = "";
    for row in &document.rows {
        let median = &row.median;
        let _ =
            write!(text, "| {} | {} |", if last == row.workload { "" } else { &row.workload }, row.server);
        last = &row.workload;
        for value in [
            Some(median.rate),
            Some(median.percentile("p50")),
            Some(median.percentile("p99")),
            Some(median.percentile("p99.9")),
            median.server_cpu_us,
            median.server_per_mille,
            median.server_rss_mb,
            median.server_disk_bytes,
            Some(median.client_cpu_us),
            ratio(document, row, reference, |row| Some(row.median.rate)),
            ratio(document, row, reference, |row| row.median.server_cpu_us),
            ratio(document, row, document.baseline.as_deref(), |row| Some(row.median.rate)),
        ] {
            let _ = write!(text, " {} |", short_or_blank(value));
        }
        text.push('\n');
    }
    if !document.conclusions.is_empty() {
        text += "\nConclusions by situation:\n";
        for conclusion in &document.conclusions {
            let _ = writeln!(text, "* {conclusion}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Figures;

    fn row(workload: &str, server: &str, rate: f64, cpu: f64) -> Row {
        let median =
            Figures { rate, server_cpu_us: Some(cpu), percentiles_ms: [1.0 / rate; 6], ..Figures::default() };
        Row { workload: workload.into(), server: server.into(), median, ..Row::default() }
    }

    fn document(rows: Vec<Row>) -> Document {
        Document { rows, reference: Some("a".into()), baseline: Some(BASELINE.into()), ..Document::default() }
    }

    #[test]
    fn conclusions_follow_the_figures_whoever_leads() {
        let one = conclusions(&document(vec![
            row("put-1k", "a", 100.0, 50.0),
            row("put-1k", "b", 300.0, 10.0),
            row("put-1k", BASELINE, 9000.0, 1.0),
        ]));
        assert_eq!(one[0], "Many writing clients: b with 300 puts per second, 3.00 times a's (100).");
        assert!(one.last().unwrap().contains("b (1.00), a (2.00)"), "{one:?}");
        let other =
            conclusions(&document(vec![row("put-1k", "a", 400.0, 5.0), row("put-1k", "b", 300.0, 10.0)]));
        assert!(other[0].starts_with("Many writing clients: a with 400"), "{other:?}");
        assert!(!other.iter().any(|line| line.contains("read")), "nothing about reads: {other:?}");
    }

    #[test]
    fn tls_costs_what_it_costs() {
        let lines =
            conclusions(&document(vec![row("range-l", "a", 1.0, 10.0), row("range-l", "a+tls", 1.0, 15.0)]));
        assert!(lines.iter().any(|line| line.contains("1.50 times as much as without")), "{lines:?}");
    }

    #[test]
    fn the_table_has_ratios_to_both() {
        let text = text(&document(vec![
            row("put-1k", "a", 100.0, 50.0),
            row("put-1k", "b", 250.0, 10.0),
            row("put-1k", BASELINE, 1000.0, 1.0),
        ]));
        let line = text.lines().find(|line| line.contains("| b |")).unwrap();
        assert!(line.ends_with("| 2.50 | 0.200 | 0.250 |"), "{line}");
    }
}
