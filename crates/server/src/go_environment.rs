//! Reads the variables of Go's runtime that manifests set for etcd and that Mainstay follows: `GOMAXPROCS`
//! limits the number of processors, and `GOMEMLIMIT` the memory of the process. `GOGC` is ignored, because
//! Mainstay has no garbage collector.

use telemetry::logging::{Logger, Value};

/// Limits read from the environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GoEnvironment {
    /// Number of processors to use; not 0.
    pub(crate) processors_max: Option<usize>,
    /// Memory to use, in bytes; not 0.
    pub(crate) memory_bytes_max: Option<u64>,
}

impl GoEnvironment {
    /// Reads the variables. Values that Go does not understand are ignored.
    pub(crate) fn read() -> GoEnvironment {
        let variable = |name| std::env::var(name).ok();
        GoEnvironment {
            processors_max: variable("GOMAXPROCS").as_deref().and_then(processors),
            memory_bytes_max: variable("GOMEMLIMIT").as_deref().and_then(bytes),
        }
    }

    /// Logs the limits that apply.
    pub(crate) fn log(&self, logger: &Logger) {
        if let Some(processors) = self.processors_max {
            let fields = [("processors", Value::Uint(processors as u64))];
            logger.info("GOMAXPROCS limits the threads that serve clients", &fields);
        }
        if let Some(bytes) = self.memory_bytes_max {
            let line = "GOMEMLIMIT is taken as the memory of this machine; a quarter of it is for clients";
            logger.info(line, &[("bytes", Value::Uint(bytes))]);
        }
    }
}

fn processors(text: &str) -> Option<usize> {
    text.parse().ok().filter(|processors| *processors > 0)
}

/// Parses a number of bytes as Go's runtime does: digits, followed by `B`, `KiB`, `MiB`, `GiB`, `TiB` or
/// nothing.
fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("B", 0), ("", 0)]
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_as_go_reads_them() {
        assert_eq!(
            (processors("3"), processors("0"), processors("-1"), processors("x")),
            (Some(3), None, None, None)
        );
        for (text, read) in [
            ("1024", Some(1024)),
            ("512B", Some(512)),
            ("2KiB", Some(2048)),
            ("3750MiB", Some(3750 << 20)),
            ("4GiB", Some(4 << 30)),
            ("1TiB", Some(1 << 40)),
            ("off", None),
            ("4GB", None),
            ("-1", None),
            ("99999999999999TiB", None),
        ] {
            assert_eq!(bytes(text), read, "{text}");
        }
    }
}
