//! `cargo xtask dashboards`: generates the files for monitoring, and checks them against the table of
//! metrics. The files are a Grafana dashboard, recording rules and alerts for Prometheus with a test of each
//! alert, the runbook in docs/operations.md, and docs/metrics.md.
//!
//! The files are committed. Generation fails if an expression names a metric or label that is not in the
//! table, or if one of Mainstay's own metrics (`mainstay_…`) is used in no panel or rule. `interop/packages`
//! checks the files with Prometheus' and Grafana's own code.

mod dashboard;
mod expression;
mod reference;
mod rules;
mod table;

use std::collections::BTreeSet;

use crate::generated::{self, Files};
use table::Table;

/// Lines in docs/operations.md directly before and after the generated runbook.
const RUNBOOK: [&str; 2] =
    ["<!-- alerts: written by `cargo xtask dashboards` -->\n", "<!-- alerts: end -->\n"];
const OPERATIONS: &str = "docs/operations.md";

/// Generates the dashboard, rules, alerts, runbook and reference.
///
/// # Errors
///
/// Returns an error that names each expression that does not match the table of metrics, or the file that
/// cannot be read.
pub fn generate() -> Result<Files, String> {
    let mut table = Table::of_a_member();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    // Add the series of each recording rule to the table, because later rules and panels may use it.
    for rule in rules::RECORDED {
        match expression::check(rule.expression, &table) {
            Ok(names) => used.extend(names),
            Err(why) => wrong.push(format!("recording rule {}: {why}", rule.name)),
        }
        table.record(rule.name, rule.labels);
    }
    for alert in rules::ALERTS {
        match expression::check(alert.expression, &table) {
            Ok(names) => used.extend(names),
            Err(why) => wrong.push(format!("alert {}: {why}", alert.name)),
        }
    }
    let mut shown = BTreeSet::new();
    for panel in dashboard::panels() {
        for (expression, _) in &panel.series {
            match expression::check(expression, &table) {
                Ok(names) => shown.extend(names),
                Err(why) => wrong.push(format!("panel {:?}: {why}", panel.title)),
            }
        }
    }
    used.extend(shown);
    for row in table.rows().filter(|row| row.name.starts_with("mainstay_") && !used.contains(&row.name)) {
        wrong.push(format!("{}: no panel and no rule uses it", row.name));
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    let files = [
        ("packaging/grafana/mainstay.json", dashboard::json()),
        ("packaging/prometheus/mainstay-rules.yaml", rules::recording_yaml()),
        ("packaging/prometheus/mainstay-alerts.yaml", rules::alerts_yaml()),
        ("packaging/prometheus/mainstay-test.yaml", rules::tests_yaml()),
        ("docs/metrics.md", reference::markdown(&table)?),
        (OPERATIONS, with_runbook(&generated::read(OPERATIONS)?, &rules::runbook())?),
    ];
    Ok(files.into_iter().map(|(name, text)| (name.to_owned(), text)).collect())
}

/// Returns the document with `runbook` in place of the text between the two marker lines.
fn with_runbook(document: &str, runbook: &str) -> Result<String, String> {
    let [begin, end] = RUNBOOK;
    let cut = document.split_once(begin).and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let (before, behind) =
        cut.ok_or_else(|| format!("{OPERATIONS} lacks the lines around the alerts: {}", begin.trim_end()))?;
    Ok(format!("{before}{begin}{runbook}{end}{behind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_are_current() {
        generated::check(&generate().unwrap(), "dashboards").unwrap();
    }

    #[test]
    fn the_runbook_goes_between_its_lines() {
        let [begin, end] = RUNBOOK;
        let document = format!("a\n{begin}old\n{end}b\n");
        assert_eq!(with_runbook(&document, "new\n").unwrap(), format!("a\n{begin}new\n{end}b\n"));
        assert!(with_runbook("a\n", "new\n").unwrap_err().contains("lacks the lines"));
    }
}
