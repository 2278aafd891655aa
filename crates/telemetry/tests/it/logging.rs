//! The log as an operator sees it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_telemetry::logging::{Format, Level, LogOutput, LogSettings, Logger, Value};

use testkit::expect;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logger(level: Level, format: Format) -> (Logger, Buffer) {
    let buffer = Buffer::default();
    (Logger::to(level, format, vec![Box::new(buffer.clone())]), buffer)
}

/// Replaces time and line number by fixed texts.
fn normalise(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let at = line.find("20").expect("a timestamp");
        let time = &line[at..at + 27];
        assert!(time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
        let caller = line.find("it/logging.rs:").expect("a caller") + "it/logging.rs:".len();
        let digits = line[caller..].bytes().take_while(u8::is_ascii_digit).count();
        assert!(digits > 0);
        out += &format!("{}TIME{}LINE{}\n", &line[..at], &line[at + 27..caller], &line[caller + digits..]);
    }
    out
}

fn say_everything(logger: &Logger) {
    logger.debug("not said at level info", &[]);
    logger.info("ready to serve client requests", &[]);
    logger.warn(
        "apply request took too long",
        &[
            ("took", Value::Duration(Duration::from_micros(123_456))),
            ("count", Value::Int(-3)),
            ("size", Value::Uint(u64::MAX)),
            ("share", Value::Float(0.5)),
            ("nan", Value::Float(f64::NAN)),
            ("infinite", Value::Float(f64::NEG_INFINITY)),
            ("leader", Value::Bool(true)),
            ("member", Value::Id(0x8e9e_05c5_2164_694d)),
            ("urls", Value::List(&["http://a:1", "http://b:2"])),
            ("error", Value::Display(&io::Error::other("disk is \"gone\""))),
        ],
    );
    logger.error("odd \"text\"\n\t\\\u{1}\u{e9}\u{1f600}", &[("k\n", Value::Str("\r"))]);
    logger.fatal("the end", &[]);
}

#[test]
fn json_lines_are_as_expected() {
    let (logger, buffer) = logger(Level::Info, Format::Json);
    say_everything(&logger);
    expect::check("log.json.txt", &normalise(&buffer.text()));
}

#[test]
fn console_lines_are_as_expected() {
    let (logger, buffer) = logger(Level::Info, Format::Console);
    say_everything(&logger);
    expect::check("log.console.txt", &normalise(&buffer.text()));
}

#[test]
fn lines_below_the_level_are_not_written_and_their_values_not_printed() {
    struct Untouchable;
    impl std::fmt::Display for Untouchable {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("printed")
        }
    }
    let (logger, buffer) = logger(Level::Error, Format::Json);
    assert!(!logger.enabled(Level::Warn) && logger.enabled(Level::Error));
    logger.warn("m", &[("k", Value::Display(&Untouchable))]);
    assert_eq!(buffer.text(), "");
}

#[test]
fn threads_do_not_mix_their_lines() {
    let (logger, buffer) = logger(Level::Info, Format::Json);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let logger = logger.clone();
            scope.spawn(move || {
                for line in 0..50 {
                    logger.info(&format!("thread {thread} line {line}"), &[("k", Value::Str("v"))]);
                }
            });
        }
    });
    let text = buffer.text();
    assert_eq!(text.lines().count(), 200);
    assert!(
        text.lines()
            .all(|line| line.starts_with("{\"level\":\"info\",\"ts\":\"") && line.ends_with("\"k\":\"v\"}"))
    );
}

#[test]
fn a_closed_pipe_is_survived_and_does_not_keep_others_from_their_lines() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let buffer = Buffer::default();
    let logger = Logger::to(Level::Info, Format::Json, vec![Box::new(writer), Box::new(buffer.clone())]);
    logger.warn("still here", &[]);
    assert_eq!(logger.lines_lost(), 1);
    assert_eq!(buffer.text().lines().count(), 1);
}

#[test]
fn a_repeated_line_is_thinned() {
    let (logger, buffer) = logger(Level::Info, Format::Json);
    for _ in 0..10_000 {
        logger.warn("again", &[]);
    }
    let lines = buffer.text().lines().count();
    // In each second that the loop took, the first hundred lines are written, and then one line in a hundred.
    assert!((199..5_000).contains(&lines), "{lines} lines");
    assert!(buffer.text().contains("\"suppressed\":99}"));
    for _ in 0..150 {
        logger.fatal("the end", &[]);
    }
    assert_eq!(buffer.text().matches("the end").count(), 150, "what ends the process is never left out");
}

#[test]
fn files_are_appended_to_and_a_bad_path_is_an_error() {
    let dir = testkit::TempDir::new("log");
    let path = dir.join("log.txt");
    std::fs::write(&path, "before\n").unwrap();
    let output = path.to_str().unwrap().to_string();
    let settings = LogSettings::parse(Level::Info, "json", &[output]).unwrap();
    assert_eq!(settings.outputs, [LogOutput::File(path.clone())]);
    Logger::open(&settings).unwrap().info("after", &[]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("before\n{") && text.contains("\"msg\":\"after\""), "{text}");

    let settings = LogSettings::parse(Level::Info, "json", &["/no/such/folder/x".to_string()]).unwrap();
    let error = Logger::open(&settings).unwrap_err().to_string();
    assert!(error.starts_with("couldn't open log output /no/such/folder/x: "), "{error}");
}
