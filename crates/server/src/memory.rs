//! Reads how much memory this process may use.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory in bytes that is assumed when the system reports neither its memory nor a limit.
const ASSUMED_BYTES: u64 = 4 << 30;

/// Returns the memory of the machine or the limit of this process's control group, whichever is less, in
/// bytes.
pub fn available_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_bytes(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups, Path::new("/sys/fs/cgroup"));
    let limit = limits.iter().filter_map(|file| limit_bytes(&fs::read_to_string(file).ok()?)).min();
    match (machine, limit) {
        (Some(machine), Some(limit)) => machine.min(limit),
        (Some(bytes), None) | (None, Some(bytes)) => bytes,
        (None, None) => ASSUMED_BYTES,
    }
}

/// Parses `MemTotal` of `/proc/meminfo`; returns bytes.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses a limit in bytes; returns `None` if the text states no limit.
fn limit_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes > 0)
}

/// Returns the paths of files that may contain a memory limit: the files of the control group that
/// `/proc/self/cgroup` names and of its ancestors, in version 1 and version 2 of control groups.
fn limit_files(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (top, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let group = top.join(path.trim_start_matches('/'));
        files.extend(group.ancestors().take_while(|dir| dir.starts_with(&top)).map(|dir| dir.join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(total_bytes("MemTotal:        8052988 kB\nMemFree: 1 kB\n"), Some(8_052_988 << 10));
        assert_eq!((limit_bytes("536870912\n"), limit_bytes("max\n")), (Some(512 << 20), None));
        let files = limit_files("0::/kube/pod\n", Path::new("/c"));
        assert_eq!(
            files,
            ["/c/kube/pod/memory.max", "/c/kube/memory.max", "/c/memory.max"].map(PathBuf::from)
        );
        let files = limit_files("5:cpu,memory:/a\n4:pids:/b\n", Path::new("/c"));
        let expected = ["/c/memory/a/memory.limit_in_bytes", "/c/memory/memory.limit_in_bytes"];
        assert_eq!(files, expected.map(PathBuf::from));
        assert!(available_bytes() > 0);
    }
}
