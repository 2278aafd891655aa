//! What the log options say.

use std::fmt;
use std::path::PathBuf;

use cli::go::ValueError;

/// Severity of a log line, least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Lines for debugging.
    Debug,
    /// The course of things.
    Info,
    /// Coped with.
    Warn,
    /// Failed.
    Error,
    /// A fault of the program that it goes on after.
    DPanic,
    /// A fault of the program.
    Panic,
    /// The process ends.
    Fatal,
}

/// Form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object.
    Json,
    /// Tab-separated columns, the fields as a JSON object in the last.
    Console,
}

/// An output of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file, appended to.
    File(PathBuf),
}

/// The log options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Least severe level that is written.
    pub level: Level,
    /// Form of a line.
    pub format: Format,
    /// Every line goes to all of these; none when it is to be discarded.
    pub outputs: Vec<LogOutput>,
}

impl LogSettings {
    /// Reads the values of `--log-format` and `--log-outputs`.
    pub fn parse(level: Level, format: &str, outputs: &[String]) -> Result<LogSettings, ValueError> {
        let format = match format {
            "json" | "" => Format::Json,
            "console" => Format::Console,
            other => {
                let why = format!("unknown log format: {other}, supported values json, console");
                return Err(ValueError::new(why));
            }
        };
        if outputs.len() > 1 && outputs.iter().any(|output| output == "default") {
            return Err(ValueError::new("multi logoutput for \"default\" is not supported yet"));
        }
        let mut parsed = Vec::new();
        for output in outputs {
            parsed.push(match output.as_str() {
                "default" | "stderr" | "" => LogOutput::Stderr,
                "stdout" => LogOutput::Stdout,
                "systemd/journal" => {
                    let text = "--log-outputs=systemd/journal is not supported by this version of Mainstay; under \
                                systemd, stderr goes to the journal";
                    return Err(ValueError::new(text));
                }
                path => LogOutput::File(PathBuf::from(path)),
            });
        }
        if outputs.is_empty() {
            parsed.push(LogOutput::Stderr);
        }
        // As in etcd, /dev/null among the outputs discards everything.
        if parsed.contains(&LogOutput::File(PathBuf::from("/dev/null"))) {
            parsed.clear();
        }
        Ok(LogSettings { level, format, outputs: parsed })
    }
}

impl Level {
    /// Reads a level's name; empty means info.
    pub fn parse(name: &str) -> Option<Level> {
        Some(match name.to_ascii_lowercase().as_str() {
            "debug" => Level::Debug,
            "info" | "" => Level::Info,
            "warn" | "warning" => Level::Warn,
            "error" => Level::Error,
            "dpanic" => Level::DPanic,
            "panic" => Level::Panic,
            "fatal" => Level::Fatal,
            _ => return None,
        })
    }

    /// The level's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
            Level::DPanic => "dpanic",
            Level::Panic => "panic",
            Level::Fatal => "fatal",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
