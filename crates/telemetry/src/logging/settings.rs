//! Defines the options of the log, and parses their values.

use std::fmt;
use std::path::PathBuf;

use serde_json::Value;
use stdx::go::ValueError;

/// Severity of a log line, least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Details for debugging.
    Debug,
    /// Normal events.
    Info,
    /// A problem that the member can handle.
    Warn,
    /// A failure.
    Error,
    /// A bug in the program. The program continues.
    DPanic,
    /// A bug in the program because of which the current work is aborted.
    Panic,
    /// An error because of which the process ends.
    Fatal,
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object.
    Json,
    /// Tab-separated columns; the last one has the fields as a JSON object.
    Console,
}

/// An output of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file that is appended to.
    File(PathBuf),
}

/// The options of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Lowest level that is written.
    pub level: Level,
    /// Format of a line.
    pub format: Format,
    /// Outputs, each of which gets every line. If empty, all lines are discarded.
    pub outputs: Vec<LogOutput>,
    /// Rotation of the log files; `None` for no rotation.
    pub rotation: Option<LogRotation>,
}

/// Value of `--log-rotation-config-json`. The fields have the same meaning as in the Go package lumberjack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRotation {
    /// Maximum size of a file in bytes; not 0. Before a line that would make the file larger, the file is
    /// renamed and a new one is begun.
    pub file_bytes_max: u64,
    /// Age in days at which a rotated file is removed; 0 if files are never removed because of their age.
    pub age_days_max: u64,
    /// Maximum number of rotated files that are kept; 0 for no limit.
    pub files_max: u64,
    /// True if the names of rotated files contain local time, false for UTC.
    pub local_time: bool,
    /// True if rotated files are compressed.
    pub compress: bool,
}

impl LogRotation {
    const MAXSIZE_DEFAULT: u64 = 100;

    /// Parses the JSON of the option. Returns an error if the JSON is invalid. As in etcd, also returns an
    /// error if the outputs have more than one file, or are a single output that is not a file.
    pub fn parse(json: &str, outputs: &[String]) -> Result<LogRotation, ValueError> {
        let is_file = |output: &&String| !matches!(output.as_str(), "default" | "stderr" | "stdout");
        let files = outputs.iter().filter(is_file).count();
        if files > 1 || files == 0 && outputs.len() == 1 {
            return Err(ValueError::new(
                "--log-outputs requires a single file path when --log-rotate-config-json is defined",
            ));
        }
        let document: Value = serde_json::from_str(json)
            .map_err(|error| ValueError::new(format!("improperly formatted log rotation config: {error}")))?;
        let mut rotation = LogRotation {
            file_bytes_max: Self::MAXSIZE_DEFAULT << 20,
            age_days_max: 0,
            files_max: 0,
            local_time: false,
            compress: false,
        };
        let entries = match document {
            Value::Object(entries) => entries,
            Value::Null => return Ok(rotation),
            other => {
                let text = format!(
                    "invalid log rotation config: json: cannot unmarshal {} into Go value of type embed.logRotationConfig",
                    kind(&other)
                );
                return Err(ValueError::new(text));
            }
        };
        for (key, value) in entries {
            let key = key.to_ascii_lowercase();
            match key.as_str() {
                _ if value.is_null() => {}
                "maxsize" => {
                    let megabytes = count(&key, &value)?;
                    let megabytes = if megabytes == 0 { Self::MAXSIZE_DEFAULT } else { megabytes };
                    rotation.file_bytes_max = megabytes.saturating_mul(1 << 20);
                }
                "maxage" => rotation.age_days_max = count(&key, &value)?,
                "maxbackups" => rotation.files_max = count(&key, &value)?,
                "localtime" => rotation.local_time = truth(&key, &value)?,
                "compress" => rotation.compress = truth(&key, &value)?,
                // Ignore unknown fields, as etcd does.
                _ => {}
            }
        }
        Ok(rotation)
    }
}

fn mistyped(key: &str, value: &Value, wanted: &str) -> ValueError {
    let shown = match value {
        Value::Number(number) if wanted == "int" => format!("number {number}"),
        _ => kind(value).to_owned(),
    };
    ValueError::new(format!(
        "invalid log rotation config: json: cannot unmarshal {shown} into Go struct field logRotationConfig.Logger.{key} of type {wanted}"
    ))
}

fn count(key: &str, value: &Value) -> Result<u64, ValueError> {
    match value.as_i64() {
        Some(number) => u64::try_from(number).map_err(|_| {
            ValueError::new(format!("invalid log rotation config: {key} is negative: {number}"))
        }),
        None => Err(mistyped(key, value, "int")),
    }
}

fn truth(key: &str, value: &Value) -> Result<bool, ValueError> {
    value.as_bool().ok_or_else(|| mistyped(key, value, "bool"))
}

/// Returns the type of a JSON value as Go's error messages name it.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl LogSettings {
    /// Parses the values of the options `--log-format` and `--log-outputs`.
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
        // If one of the outputs is /dev/null, discard all lines, including those for the other outputs, as
        // etcd does.
        if parsed.contains(&LogOutput::File(PathBuf::from("/dev/null"))) {
            parsed.clear();
        }
        Ok(LogSettings { level, format, outputs: parsed, rotation: None })
    }
}

impl Level {
    /// Parses the name of a level. An empty name means info. Returns `None` if there is no such level.
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

    /// Returns the name of the level.
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
