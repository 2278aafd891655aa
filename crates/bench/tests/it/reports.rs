//! Compares whole reports of fixed samples with those that etcd's report package writes for the same samples
//! (recorded from it).

use std::time::{Duration, UNIX_EPOCH};

use mainstay_bench::loadgen::samples::Series;
use mainstay_bench::report::{Style, perfdash, report, weighted};

/// Returns 200 successful operations in three seconds, and some failed ones.
fn samples() -> Series {
    let mut series = Series::default();
    for number in 0..200_u64 {
        let second = 1_700_000_000 + [0, 1, 3][number as usize % 3];
        series.record(second, 1_000_000 + number * number * 1_017);
    }
    for _ in 0..3 {
        series.fail("etcdserver: request timed out".to_owned());
    }
    series
}

fn hold(name: &str, text: &str) {
    let file = format!("{}/tests/it/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("MAINSTAY_BENCH_RECORD").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, wanted, "{name}");
}

#[test]
fn the_usual_report() {
    let style = Style { precise: false, sample: false };
    hold("usual.txt", &report(style, &samples(), Duration::from_millis(3500)));
}

#[test]
fn the_precise_report_with_samples() {
    let style = Style { precise: true, sample: true };
    hold("precise.txt", &report(style, &samples(), Duration::from_millis(3500)));
}

#[test]
fn the_weighted_report() {
    let style = Style { precise: false, sample: false };
    hold(
        "weighted.txt",
        &weighted(style, &Series::of(0, (1..=40).map(|n| n * 250_000)), Duration::from_secs(2), 4.0),
    );
}

#[test]
fn nothing_measured_says_nothing() {
    assert_eq!(report(Style::default(), &Series::default(), Duration::from_secs(1)), "");
}

#[test]
fn the_file_for_perfdash() {
    let (name, text) = perfdash(
        "put",
        &samples(),
        Duration::from_millis(3500),
        UNIX_EPOCH + Duration::from_secs(1_700_000_000),
    );
    assert_eq!(name, "EtcdAPI_benchmark_put_2023-11-14T22:13:20Z.json");
    hold("perfdash.json", &text);
}
