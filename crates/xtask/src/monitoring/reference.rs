//! Generates docs/metrics.md: every metric with its type, labels, unit and meaning.

use std::fmt::Write as _;

use super::table::{Row, Table};

/// Units of the metrics whose names begin with these texts. They take precedence over the unit that [`unit()`]
/// derives from the end of a name.
const UNITS: [(&str, &str); 7] = [
    ("etcd_debugging_lease_ttl_total", "seconds"),
    ("etcd_debugging_mvcc_db_compaction_last", "seconds since 1970"),
    ("mainstay_tls_certificate_not_after_seconds", "seconds since 1970"),
    ("mainstay_shadow_last_comparison_timestamp_seconds", "seconds since 1970"),
    ("mainstay_backup_last_success_timestamp_seconds", "seconds since 1970"),
    ("process_start_time_seconds", "seconds since 1970"),
    ("etcd_server_quota_backend_bytes", "bytes"),
];

/// Sections of the document: title, description, and the prefixes of the names of the metrics that belong to
/// the section.
const SECTIONS: [(&str, &str, &[&str]); 8] = [
    (
        "The member",
        "Raft, requests, health.",
        &["etcd_server_", "etcd_cluster_", "etcd_debugging_server_", "etcd_debugging_auth_"],
    ),
    ("The store, watches and leases", "", &["etcd_mvcc_", "etcd_debugging_mvcc_", "etcd_debugging_lease_"]),
    ("Log and checkpoints on disk", "", &["etcd_disk_"]),
    (
        "Traffic",
        "With clients and other members. `To`, `From`, `Local` and `Remote` are ids of members in hexadecimal.",
        &["etcd_network_"],
    ),
    (
        "Calls",
        "By method. All series exist from the start, at 0. `grpc_server_handling_seconds` exists only with `--metrics=extensive`.",
        &["grpc_"],
    ),
    ("What etcd does not have", "", &["mainstay_"]),
    (
        "The process",
        "Read from the system at each scrape; values that the system does not provide are left out.",
        &["process_", "os_", "go_"],
    ),
    ("Scrapes", "", &["promhttp_"]),
];

/// Returns the unit of a metric's value; an empty text for counts and for values of 0 or 1.
fn unit(row: &Row) -> &'static str {
    if let Some((_, unit)) = UNITS.iter().find(|(beginning, _)| row.name.starts_with(beginning)) {
        return unit;
    }
    let name = row.name.trim_end_matches("_total");
    if name.ends_with("_milliseconds") {
        "milliseconds"
    } else if name.ends_with("_seconds") {
        "seconds"
    } else if name.ends_with("_bytes") {
        "bytes"
    } else {
        ""
    }
}

/// Formats the bound of a histogram bucket, rounded to six decimals. Bounds are computed in floating point:
/// doubling 0.001 thirteen times does not give exactly 8.192.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns the document.
///
/// # Errors
///
/// Returns an error that names a metric which belongs to no section, or whose meaning is missing in the
/// table.
pub fn markdown(table: &Table) -> Result<String, String> {
    let mut text = String::from(
        "# Metrics\n\n\
         Generated from the table in `crates/telemetry/src/metrics/table.rs`: `cargo xtask dashboards` writes it.\n\n\
         A member exports them in Prometheus' text format at `/metrics`, on the client URLs and on `--listen-metrics-urls`. Names, types,\n\
         labels and bounds that begin with `etcd_` are etcd's, odd ones included: some gauges end in `_total`, and what is a gauge in\n\
         etcd is one here. A family with labels has 256 series at most; what comes beyond is counted under the label values `other`.\n\n\
         [packaging/grafana/mainstay.json](../packaging/grafana/mainstay.json) is a dashboard of them,\n\
         [packaging/prometheus](../packaging/prometheus) has rules and alerts, and [operations.md](operations.md#alerts) says what to do\n\
         about each alert. etcd's own dashboards and alerts work, too.\n",
    );
    let mut rest: Vec<&Row> = table.rows().collect();
    for (title, about, beginnings) in SECTIONS {
        let (here, others): (Vec<&Row>, Vec<&Row>) = rest
            .into_iter()
            .partition(|row| beginnings.iter().any(|beginning| row.name.starts_with(beginning)));
        rest = others;
        let _ = write!(text, "\n## {title}\n\n");
        if !about.is_empty() {
            let _ = write!(text, "{about}\n\n");
        }
        text.push_str("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n");
        for row in here {
            let meaning = row.help.trim();
            if meaning.is_empty() {
                return Err(format!("{} has no text in the table of metrics", row.name));
            }
            let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
            let bounds = row.bounds.map_or(String::new(), |(start, factor, count)| {
                let end = (1..count).fold(start, |bound, _| bound * factor);
                format!(" Bounds: {} to {}.", number(start), number(end))
            });
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {}{bounds} |",
                row.name,
                row.kind,
                labels.join(", "),
                unit(row),
                meaning.replace('|', "\\|"),
            );
        }
    }
    if let Some(row) = rest.first() {
        return Err(format!("{} belongs to no section of docs/metrics.md", row.name));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_from_names() {
        let table = Table::of_a_member();
        for (name, expected) in [
            ("etcd_disk_wal_fsync_duration_seconds", "seconds"),
            ("etcd_mvcc_db_total_size_in_bytes", "bytes"),
            ("etcd_debugging_mvcc_db_compaction_total_duration_milliseconds", "milliseconds"),
            ("etcd_network_peer_sent_bytes_total", "bytes"),
            ("process_cpu_seconds_total", "seconds"),
            ("etcd_debugging_lease_ttl_total", "seconds"),
            ("etcd_mvcc_put_total", ""),
        ] {
            let row = table.rows().find(|row| row.name == name).unwrap();
            assert_eq!(unit(row), expected, "{name}");
        }
        assert_eq!(number(8.192_000_000_001), "8.192");
        assert_eq!(number(1.0), "1");
    }
}
