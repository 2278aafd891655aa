//! Checks that the metrics and labels which a PromQL expression names exist. The parser reads only what is
//! needed for this; `interop/packages` checks the whole syntax with Prometheus' own parser.

use super::table::{TARGET_LABELS, Table};

/// Keywords and aggregation operators of PromQL. A word in this list is not the name of a metric.
const WORDS: [&str; 20] = [
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "sum",
    "max",
    "min",
    "avg",
    "count",
    "topk",
    "bottomk",
    "stddev",
    "stdvar",
    "quantile",
    "group",
    "count_values",
    "atan2",
    "inf",
    "nan",
];
/// Keywords that can be followed by a list of labels in parentheses.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];

/// Series selector or list of labels in an expression.
#[derive(Debug, PartialEq, Eq)]
enum Part<'a> {
    Selector { name: &'a str, labels: Vec<&'a str> },
    Labels(Vec<&'a str>),
}

/// Checks the metrics and labels in an expression, and returns the names of the metrics.
///
/// # Errors
///
/// Returns an error that names the metric or label that is not in the table, or the place at which the
/// expression is incomplete.
pub fn check(expression: &str, table: &Table) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut known = TARGET_LABELS.to_vec();
    let parts = parts(expression)?;
    for part in &parts {
        let Part::Selector { name, labels } = part else { continue };
        let (metric, has) = table
            .series(name)
            .ok_or_else(|| format!("{name} is neither in the table of metrics nor recorded by a rule"))?;
        if let Some(label) =
            labels.iter().find(|label| !TARGET_LABELS.contains(label) && !has.contains(label))
        {
            return Err(format!("{name} has no label {label}"));
        }
        names.push(metric.to_owned());
        known.extend(has);
    }
    for part in &parts {
        let Part::Labels(labels) = part else { continue };
        if let Some(label) = labels.iter().find(|label| !known.contains(label)) {
            return Err(format!("none of {} has a label {label}", names.join(", ")));
        }
    }
    if names.is_empty() { Err(format!("no metric in: {expression}")) } else { Ok(names) }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

fn parts(expression: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.bytes().next() {
        let length = rest.bytes().take_while(|byte| is_name(*byte)).count();
        if length == 0 {
            rest = match first {
                b'"' | b'\'' => behind_text(rest)?,
                b'[' => &rest[inside(rest, ']')?.len() + 2..],
                b'{' => return Err(format!("a selector without a name: {rest}")),
                _ => &rest[rest.chars().next().map_or(1, char::len_utf8)..],
            };
            continue;
        }
        let word = &rest[..length];
        rest = rest[length..].trim_start();
        if first.is_ascii_digit() {
            // Skip a number, or a duration after `offset`.
        } else if LISTS.contains(&word) {
            // The list is optional, because `group_left` can stand without one.
            if rest.starts_with('(') {
                let list = inside(rest, ')')?;
                parts.push(Part::Labels(
                    list.split(',').map(str::trim).filter(|label| !label.is_empty()).collect(),
                ));
                rest = &rest[list.len() + 2..];
            }
        } else if !WORDS.contains(&word) && !rest.starts_with('(') {
            let mut labels = Vec::new();
            if rest.starts_with('{') {
                let matchers = inside(rest, '}')?;
                labels = matched(matchers)?;
                rest = &rest[matchers.len() + 2..];
            }
            parts.push(Part::Selector { name: word, labels });
        }
    }
    Ok(parts)
}

/// Returns the text between the opening bracket at the start of `text` and the first closing bracket `close`.
/// Brackets in quotes are ignored.
fn inside(text: &str, close: char) -> Result<&str, String> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote.is_some() => escaped = true,
            _ if quote == Some(c) => quote = None,
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ if quote.is_none() && c == close => return Ok(&text[1..at]),
            _ => {}
        }
    }
    Err(format!("no {close} behind: {text}"))
}

/// Returns the labels in a list of matchers.
fn matched(matchers: &str) -> Result<Vec<&str>, String> {
    let mut labels = Vec::new();
    let mut rest = matchers.trim();
    while !rest.is_empty() {
        let length = rest.bytes().take_while(|byte| is_name(*byte)).count();
        if length == 0 {
            return Err(format!("no label at: {rest}"));
        }
        labels.push(&rest[..length]);
        let value = rest[length..].trim_start_matches(['=', '!', '~', ' ']);
        rest = behind_text(value)?.trim_start().trim_start_matches(',').trim_start();
    }
    Ok(labels)
}

/// Returns the text that follows a quoted string.
fn behind_text(text: &str) -> Result<&str, String> {
    let quote = text
        .chars()
        .next()
        .filter(|c| matches!(c, '"' | '\''))
        .ok_or_else(|| format!("no text at: {text}"))?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Ok(&text[at + 1..]),
            _ => {}
        }
    }
    Err(format!("a text without an end: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::of_a_member();
        table.record("job:x:sum", &["stage"]);
        table
    }

    #[test]
    fn metrics_and_labels_are_found() {
        for (expression, names) in [
            ("up == 0", &["up"][..]),
            ("rate(etcd_mvcc_put_total{job=~\".*}.*\", instance='a}'}[5m])", &["etcd_mvcc_put_total"]),
            (
                "histogram_quantile(0.99, sum by (job, le, stage) (rate(mainstay_request_stage_seconds_bucket[$__rate_interval])))",
                &["mainstay_request_stage_seconds"],
            ),
            (
                "max by (job) (etcd_server_proposals_committed_total) - on (job) group_right etcd_server_proposals_applied_total > 1e9",
                &["etcd_server_proposals_committed_total", "etcd_server_proposals_applied_total"],
            ),
            ("sum(job:x:sum{stage=\"a\"} offset 5m)", &["job:x:sum"]),
        ] {
            assert_eq!(check(expression, &table()).unwrap(), names, "{expression}");
        }
    }

    #[test]
    fn what_the_table_lacks_is_refused() {
        for (expression, why) in [
            ("rate(etcd_no_such_total[5m])", "etcd_no_such_total is neither in the table"),
            ("mainstay_request_stage_seconds", "mainstay_request_stage_seconds is neither"),
            ("etcd_mvcc_put_total_bucket", "etcd_mvcc_put_total_bucket is neither"),
            ("etcd_mvcc_put_total{grpc_code=\"OK\"}", "etcd_mvcc_put_total has no label grpc_code"),
            ("sum by (grpc_code) (etcd_mvcc_put_total)", "none of etcd_mvcc_put_total has a label grpc_code"),
            ("{job=\"a\"}", "a selector without a name"),
            ("1 + 1", "no metric in"),
            ("up{job=\"a", "no } behind"),
            ("up{job=a}", "no text at"),
            ("sum by (job", "no ) behind"),
        ] {
            let said = check(expression, &table()).unwrap_err();
            assert!(said.contains(why), "{expression}: {said}");
        }
    }
}
