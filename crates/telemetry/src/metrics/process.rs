//! Reads the metrics of this process, such as its memory and CPU time, from `/proc` at each scrape.

use std::fs;

use super::text::{MetricType, Writer};

/// Unit of times in `/proc`: ticks per second. It is the kernel's USER_HZ, which is 100 on all Linux servers.
const TICKS_PER_SECOND: f64 = 100.0;
const BYTES_PER_KIB: f64 = 1024.0;

/// Writes the metrics of the process. Leaves out those that the system does not report.
pub(super) fn render(writer: &mut Writer<'_>) {
    let open_fds = open_fds();
    let max_fds = limit("Max open files");
    let times = times();
    let processors = std::thread::available_parallelism().ok().map(|count| count.get() as f64);
    let traffic = traffic();
    let rows = [
        (
            "go_sched_gomaxprocs_threads",
            MetricType::Gauge,
            "Processors that this process may use, under the name that dashboards for Go servers use.",
            processors,
        ),
        (
            "go_threads",
            MetricType::Gauge,
            "Threads of this process, under the name that dashboards for Go servers use.",
            status_number("Threads"),
        ),
        ("mainstay_processors", MetricType::Gauge, "Processors that this process may use.", processors),
        (
            "os_fd_limit",
            MetricType::Gauge,
            "Maximum number of file descriptors this process may open.",
            max_fds,
        ),
        ("os_fd_used", MetricType::Gauge, "Number of file descriptors this process has open.", open_fds),
        (
            "process_cpu_seconds_total",
            MetricType::Counter,
            "Processor time of this process, user and system, in seconds.",
            times.as_ref().map(|times| times.cpu_seconds),
        ),
        (
            "process_max_fds",
            MetricType::Gauge,
            "Maximum number of file descriptors this process may open.",
            max_fds,
        ),
        (
            "process_open_fds",
            MetricType::Gauge,
            "Number of file descriptors this process has open.",
            open_fds,
        ),
        (
            "process_network_receive_bytes_total",
            MetricType::Counter,
            "Bytes received by the network namespace of this process.",
            traffic.map(|(received, _)| received),
        ),
        (
            "process_network_transmit_bytes_total",
            MetricType::Counter,
            "Bytes sent by the network namespace of this process.",
            traffic.map(|(_, sent)| sent),
        ),
        (
            "process_resident_memory_bytes",
            MetricType::Gauge,
            "Resident memory of this process, in bytes.",
            status_number("VmRSS").map(|kib| kib * BYTES_PER_KIB),
        ),
        (
            "process_start_time_seconds",
            MetricType::Gauge,
            "Start time of this process, in seconds since 1970.",
            times.as_ref().and_then(|times| Some(boot_time()? + times.start_seconds)),
        ),
        (
            "process_virtual_memory_bytes",
            MetricType::Gauge,
            "Address space of this process, in bytes.",
            status_number("VmSize").map(|kib| kib * BYTES_PER_KIB),
        ),
        (
            "process_virtual_memory_max_bytes",
            MetricType::Gauge,
            "Maximum address space this process may have, in bytes.",
            limit("Max address space"),
        ),
    ];
    for (name, kind, help, value) in rows {
        if let Some(value) = value {
            writer.family(name, kind, help);
            writer.sample(&[], value);
        }
    }
}

/// Returns the maximum number of open files of this process; `None` if it is unlimited or the system does not
/// report it.
pub fn open_files_max() -> Option<usize> {
    bounded_limit(&fs::read_to_string("/proc/self/limits").ok()?, "Max open files")
}

fn open_fds() -> Option<f64> {
    // Subtract one, because the listing includes the descriptor through which the directory itself is read.
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as f64)
}

/// Returns the maximum number of open files of this process, the largest `u64` if it is unlimited; `None` if
/// the system does not report it.
pub fn file_descriptor_limit() -> Option<u64> {
    limit("Max open files").map(|limit| limit as u64)
}

/// Returns a soft limit of the process. For "unlimited", returns the largest `u64`, as Prometheus' Go client
/// does.
fn limit(name: &str) -> Option<f64> {
    match soft_limit(&fs::read_to_string("/proc/self/limits").ok()?, name)? {
        "unlimited" => Some(u64::MAX as f64),
        number => number.parse().ok(),
    }
}

/// Returns a soft limit from the text of `/proc/self/limits`; `None` if it is unlimited or not in the text.
fn bounded_limit(limits: &str, name: &str) -> Option<usize> {
    soft_limit(limits, name)?.parse().ok()
}

/// Returns a soft limit as it is written in the text of `/proc/self/limits`: a number or "unlimited".
fn soft_limit<'a>(limits: &'a str, name: &str) -> Option<&'a str> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

/// Returns the numbers of bytes received and sent by all processes in the network namespace. They are the
/// octets under `IpExt` in `/proc/self/net/netstat`, which has a line with names and a line with numbers for
/// them.
fn traffic() -> Option<(f64, f64)> {
    let text = fs::read_to_string("/proc/self/net/netstat").ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let of = |name: &str| {
        let (_, number) =
            names.split_whitespace().zip(numbers.split_whitespace()).find(|(found, _)| *found == name)?;
        number.parse().ok()
    };
    Some((of("InOctets")?, of("OutOctets")?))
}

/// Returns a number from `/proc/self/status`. Sizes of memory are in KiB there.
fn status_number(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

struct Times {
    cpu_seconds: f64,
    /// Start time of the process, in seconds since the system booted.
    start_seconds: f64,
}

fn times() -> Option<Times> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Skip the first two fields, up to the last closing parenthesis: the second one is the name of the
    // process in parentheses, which may itself contain spaces and parentheses. The next field is number 3.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    let cpu_seconds = (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND;
    Some(Times { cpu_seconds, start_seconds: ticks(22)? / TICKS_PER_SECOND })
}

fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlimited_number_of_open_files_is_no_number() {
        let limits = |files: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max open files            {files:<20} 524288               files     \n\
                 Max pending signals       127432               127432               signals   \n"
            )
        };
        let open_files_max = |files: &str| bounded_limit(&limits(files), "Max open files");
        assert_eq!(open_files_max("1024"), Some(1024));
        assert_eq!(open_files_max("unlimited"), None);
        assert_eq!(bounded_limit("", "Max open files"), None);
    }
}
