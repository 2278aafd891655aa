//! Describes the machine on which a measurement runs, and warns of conditions that may distort the results.

use std::fs;

use crate::outcome::Row;

/// Returns facts about this machine, such as its processor and kernel, as pairs of name and value.
pub fn facts() -> Vec<(String, String)> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| {
        line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
    });
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_gb = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().trim_end_matches(" kB").parse::<f64>().ok())
        .map_or_else(String::new, |kb| format!("{:.1} GiB", kb / 1024.0 / 1024.0));
    vec![
        ("CPU".to_owned(), format!("{count} x {}", model.unwrap_or_else(|| "unknown".to_owned()))),
        ("Memory".to_owned(), memory_gb),
        (
            "Kernel".to_owned(),
            format!("{} {}", read("/proc/sys/kernel/ostype"), read("/proc/sys/kernel/osrelease")),
        ),
        ("Load generator".to_owned(), format!("mainstay bench {}", env!("CARGO_PKG_VERSION"))),
    ]
}

/// Returns warnings about conditions of the machine that may distort results. Call this before the run.
pub fn checks() -> Vec<String> {
    let mut warnings = Vec::new();
    let governor =
        fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").unwrap_or_default();
    let governor = governor.trim();
    if !governor.is_empty() && governor != "performance" {
        warnings.push(format!(
            "the CPU governor is {governor:?}: the clock changes with the load; set it to \"performance\""
        ));
    }
    let count = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if let Some(load) = load.split_ascii_whitespace().next().and_then(|word| word.parse::<f64>().ok())
        && load > count * 0.5
    {
        warnings.push(format!(
            "the machine is already busy: load {load:.1} on {count} CPUs; stop other programs"
        ));
    }
    if cfg!(debug_assertions) {
        warnings.push(
            "this load generator is a debug build, which costs many times as much as a release build"
                .to_owned(),
        );
    }
    warnings
}

/// Returns a warning if TCP segments are much smaller than usual, which most often is due to a tunnel or a
/// wrong MTU.
pub fn path_check(server: &str, segment_bytes: Option<u32>) -> Option<String> {
    let bytes = segment_bytes.filter(|bytes| *bytes < 1400)?;
    Some(format!(
        "{server}: TCP segments have only {bytes} bytes: check the MTU along the path (1500 gives about 1448)"
    ))
}

/// Returns a warning if the rate was more than 5 % below the requested one.
pub fn rate_check(row: &Row, wanted: f64) -> Option<String> {
    let got = row.median.rate;
    (got < wanted * 0.95).then(|| {
        format!(
            "{}: the rate was not reached: {got:.0} per second instead of {wanted:.0}; latencies include \
             waiting for a free client; raise --clients if the server can do more",
            row.workload
        )
    })
}

/// Returns the fraction of the time for which the load generator waited for a CPU, from 0 to 1, in the worst
/// run; `None` if it is at most 0.2.
pub fn starved(row: &Row) -> Option<f64> {
    Some(row.runs.iter().map(|run| run.client_starved).fold(0.0, f64::max)).filter(|part| *part > 0.2)
}

/// Returns a warning if the load generator waited for a CPU for more than a fifth of the time.
pub fn starved_check(row: &Row) -> Option<String> {
    starved(row).map(|part| {
        format!(
            "{}: the load generator waited for a CPU {:.0} % of the time, which latencies include; it \
             shares its machine with the server or other programs",
            row.workload,
            part * 100.0
        )
    })
}

/// Returns warnings about the runs of a row: that operations failed, or that the load generator was the
/// bottleneck.
pub fn run_checks(row: &Row) -> Vec<String> {
    let name = if row.server.is_empty() {
        row.workload.clone()
    } else {
        format!("{}, {}", row.workload, row.server)
    };
    let mut warnings = Vec::new();
    let worst = |get: fn(&crate::outcome::Figures) -> f64| row.runs.iter().map(get).fold(0.0, f64::max);
    let busy = worst(|run| run.client_busy);
    if busy > 0.9 {
        warnings.push(format!(
            "{name}: THE LOAD GENERATOR WAS THE LIMIT: its busiest thread used {:.0} % of a CPU; give it more --threads, or \
             a machine of its own",
            busy * 100.0
        ));
    }
    let failed: u64 = row.runs.iter().map(|run| run.failed).sum();
    if failed > 0 {
        let most = row.errors.iter().max_by_key(|(_, count)| *count);
        let what = most.map_or_else(String::new, |(text, _)| format!(", most of them: {text}"));
        warnings.push(format!("{name}: {failed} operations failed{what}"));
    }
    warnings
}
