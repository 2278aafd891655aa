//! Answers requests for the pages below `/debug/pprof/`, which `go tool pprof` makes. The caller must check
//! access.
//!
//! The available profiles show processor time, threads, and the memory in use by owner. The allocator takes
//! no samples and waiting is not recorded, so requests for Go's other profiles get the status 501 and the
//! reason (COMPAT-150).

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tokio::sync::oneshot;

use crate::{
    Busy, CpuProfile, Owner, Resident, Turn, command_line, memory_profile, memory_text, threads_profile,
    threads_text,
};

/// Common beginning of the paths of all pages.
pub const PREFIX: &str = "/debug/pprof/";
/// Path of the profile of processor time, which [`cpu`] handles; [`answer`] handles all others.
pub const CPU: &str = "/debug/pprof/profile";

const PLAIN: &str = "text/plain; charset=utf-8";
/// Duration of a profile in seconds if the request names none, as in Go.
const SECONDS_DEFAULT: u64 = 30;
/// Maximum duration of a profile in seconds. A request for a longer one is refused.
const SECONDS_MAX: u64 = 300;

const GO_PPROF: HeaderName = HeaderName::from_static("x-go-pprof");

/// The profiles: name, description, and the reason why the profile is not available (`None` if it is).
const PROFILES: [(&str, &str, Option<&str>); 9] = [
    ("allocs", "Memory allocations", Some(NO_ALLOCATIONS)),
    ("block", "Waiting for locks and channels", Some(NO_WAITING)),
    ("cmdline", "The command line of this process", None),
    ("goroutine", "Threads of this process, by name; one by one with debug=1", None),
    ("heap", "Memory in use, by owner, as counted by the owners; as text with debug=1", None),
    ("mutex", "Holders of contended locks", Some(NO_WAITING)),
    ("profile", "Processor time, for the number of seconds in the parameter", None),
    ("threadcreate", "Threads of this process, by name", None),
    ("trace", "Activity of Go's scheduler", Some("this server has no Go scheduler to trace")),
];
const NO_ALLOCATIONS: &str =
    "this server's allocator does not count allocations; a heap profile shows the memory in use by owner";
/// Error for a request for the difference between two heap profiles.
const NO_DIFFERENCE: &str =
    "a heap profile shows one moment; take two and compare them with go tool pprof -base";
const NO_WAITING: &str =
    "waiting is not recorded; a profile of processor time and /debug/requests show where the time goes";

/// Parameters of a request for a page. Each is the undecoded value, or `None` if the request has no such
/// parameter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parameters<'r> {
    /// Value of the first parameter `debug`. Unless it is empty or `0`, threads and memory are shown as text.
    pub debug: Option<&'r [u8]>,
    /// Value of the first parameter `seconds`. In Go it makes the heap profile show the difference between
    /// two moments, which this crate does not support, so such requests are refused.
    pub seconds: Option<&'r [u8]>,
}

/// Responds to a request for a page below [`PREFIX`], other than [`CPU`]. If the page shows the memory in
/// use, calls `owners` to get it.
pub fn answer(path: &str, asked: Parameters<'_>, owners: impl FnOnce() -> Vec<Owner>) -> Response<Bytes> {
    let name = path.strip_prefix(PREFIX).unwrap_or_default();
    let as_text = asked.debug.is_some_and(|told| told != b"0" && !told.is_empty());
    match name {
        "" => index(),
        "symbol" => text("num_symbols: 0\n".to_owned()),
        "cmdline" => text(command_line().join("\0")),
        "goroutine" | "threadcreate" if as_text => text(threads_text()),
        "goroutine" | "threadcreate" => download(name, threads_profile()),
        "heap" if asked.seconds.is_some() => failed(StatusCode::BAD_REQUEST, NO_DIFFERENCE),
        "heap" if as_text => text(memory_text(&owners(), Resident::read())),
        "heap" => download(name, memory_profile(&owners(), Resident::read())),
        name => match PROFILES.iter().find(|(known, ..)| *known == name) {
            Some((.., Some(why))) => failed(StatusCode::NOT_IMPLEMENTED, why),
            _ => failed(StatusCode::NOT_FOUND, "Unknown profile"),
        },
    }
}

/// Takes a profile of processor time and returns the response to a request for [`CPU`]. `seconds` is the
/// value of the first parameter with this name. `wait` is called with the duration of the profile, and
/// samples are taken until the future that it returns has finished. Dropping the future of this function ends
/// the profile.
pub async fn cpu<F: Future<Output = ()>>(
    seconds: Option<&[u8]>,
    wait: impl FnOnce(Duration) -> F,
) -> Response<Bytes> {
    let Some(seconds) = length(seconds) else {
        let why = format!("a profile may take at most {SECONDS_MAX} seconds");
        return failed(StatusCode::BAD_REQUEST, &why);
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Run `start` on another thread, because it allocates and writes up to 32 MiB, which would block this
    // thread for a while.
    let begun = match Turn::take() {
        Err(busy) => Err(busy),
        Ok(turn) => match beside(move || CpuProfile::start(turn, seconds, processors)).await {
            Ok(begun) => begun,
            Err(why) => return failed(StatusCode::INTERNAL_SERVER_ERROR, why),
        },
    };
    let profile = match begun {
        Ok(profile) => profile,
        Err(why) => {
            let why = match why {
                Busy::Already => "cpu profiling already in use".to_owned(),
                Busy::Refused(error) => error.to_string(),
            };
            let text = format!("Could not enable CPU profiling: {why}");
            return failed(StatusCode::INTERNAL_SERVER_ERROR, &text);
        }
    };
    wait(Duration::from_secs(seconds)).await;
    // Run `finish` on another thread, because it looks up the names of functions in large files, which would
    // block this thread for a while.
    match beside(move || profile.finish()).await {
        Ok(profile) => download("profile", profile),
        Err(why) => failed(StatusCode::INTERNAL_SERVER_ERROR, why),
    }
}

/// Runs a closure on a separate thread, and returns its result.
///
/// # Errors
///
/// Returns an error if the thread cannot be started or has panicked.
async fn beside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, &'static str> {
    let (sender, done) = oneshot::channel();
    let spawned = std::thread::Builder::new().name("profile".to_owned()).spawn(move || {
        // Ignore an error: the receiver is dropped if the client has closed the connection, and then the
        // result is not needed.
        let _ = sender.send(run());
    });
    match spawned {
        Ok(_) => done.await.map_err(|_| "the profile could not be built"),
        Err(_) => Err("cannot start a thread"),
    }
}

/// Parses the parameter `seconds` as Go does: a value that is not a positive number gives the default.
/// Returns `None` if the value is above [`SECONDS_MAX`].
fn length(told: Option<&[u8]>) -> Option<u64> {
    let told = told.and_then(|told| std::str::from_utf8(told).ok());
    match told.and_then(|told| told.parse::<i64>().ok()).map(u64::try_from) {
        Some(Ok(seconds)) if seconds > 0 => (seconds <= SECONDS_MAX).then_some(seconds),
        _ => Some(SECONDS_DEFAULT),
    }
}

/// Returns the page that lists the profiles.
fn index() -> Response<Bytes> {
    let mut page = "<html>\n<head>\n<title>/debug/pprof/</title>\n</head>\n<body>\n/debug/pprof/\n<br>\n<p>\nTypes of profiles available:\n<table>\n".to_owned();
    for (name, about, missing) in PROFILES {
        let why = missing.map(|why| format!(" (not here: {why})")).unwrap_or_default();
        page.push_str(&format!("<tr><td><a href='{name}'>{name}</a></td><td>{about}{why}</td></tr>\n"));
    }
    page.push_str("</table>\n</body>\n</html>\n");
    let mut response = text(page);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// Returns a response with plain text. A header tells browsers not to guess another type.
fn text(text: String) -> Response<Bytes> {
    reply(StatusCode::OK, PLAIN, text.into())
}

fn download(name: &str, content: Vec<u8>) -> Response<Bytes> {
    let mut response = reply(StatusCode::OK, "application/octet-stream", content.into());
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        response.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    response
}

/// Returns an error response with the header by which `go tool pprof` recognizes an error of a profile.
fn failed(status: StatusCode, why: &str) -> Response<Bytes> {
    let mut response = reply(status, PLAIN, format!("{why}\n").into());
    response.headers_mut().insert(GO_PPROF, HeaderValue::from_static("1"));
    response
}

fn reply(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_profile_is_bounded() {
        for (told, expected) in [
            ("", Some(30)),
            ("x", Some(30)),
            ("-5", Some(30)),
            ("0", Some(30)),
            ("7", Some(7)),
            ("300", Some(300)),
            ("301", None),
            ("99999999999999999999", Some(30)),
        ] {
            assert_eq!(length(Some(told.as_bytes())), expected, "{told}");
        }
        assert_eq!(length(None), Some(30));
    }

    #[test]
    fn what_is_not_there_says_why() {
        for (name, query, status) in [
            ("", "", 200),
            ("cmdline", "", 200),
            ("symbol", "", 200),
            ("goroutine", "", 200),
            ("goroutine", "debug=2", 200),
            ("threadcreate", "", 200),
            ("heap", "", 200),
            ("heap", "debug=1", 200),
            ("heap", "seconds=5", 400),
            ("allocs", "debug=1", 501),
            ("mutex", "", 501),
            ("block", "", 501),
            ("trace", "", 501),
            ("none", "", 404),
        ] {
            let value = |name: &str| query.strip_prefix(name)?.strip_prefix('=').map(str::as_bytes);
            let asked = Parameters { debug: value("debug"), seconds: value("seconds") };
            let owner = Owner { name: "index", objects: 1, bytes: 1 };
            let response = answer(&format!("{PREFIX}{name}"), asked, || vec![owner]);
            assert_eq!(response.status().as_u16(), status, "{name}?{query}");
            assert_eq!(response.headers().contains_key(GO_PPROF), status != 200, "{name}");
        }
    }
}
