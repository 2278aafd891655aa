//! `/debug/pprof/`: profiles of this process as `go tool pprof` reads them, with `--enable-pprof` only. As in etcd, whoever can
//! reach the client port may ask for them.
//!
//! Processor time and threads are there. The allocator samples nothing, so heap profiles and those that only Go's runtime can
//! make are answered with 501 and the reason (COMPAT-150).

use std::time::Duration;

use ::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use ::http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use profiling::{Busy, CpuProfile, Turn};
use tokio::sync::oneshot;

use super::target::{self, Query, Target};
use super::{PLAIN, browsers, plain, reply};
use replica::shared::Shared;

/// Beginning of the pages' paths.
pub(super) const PREFIX: &str = "/debug/pprof/";

const CPU: &str = "/debug/pprof/profile";
/// Seconds of a profile for which no number is told, as in Go.
const SECONDS_DEFAULT: u64 = 30;
/// Most seconds of a profile.
const SECONDS_MAX: u64 = 300;

const GO_PPROF: HeaderName = HeaderName::from_static("x-go-pprof");

/// Profiles by name, what each is, and why it is not there.
const PROFILES: [(&str, &str, Option<&str>); 9] = [
    ("allocs", "Memory that was allocated", Some(NO_HEAP)),
    ("block", "Waiting for locks and channels", Some(NO_WAITING)),
    ("cmdline", "The command line of this process", None),
    ("goroutine", "Threads of this process, by name; with debug=1 one by one", None),
    ("heap", "Memory that is in use", Some(NO_HEAP)),
    ("mutex", "Holders of locks that others wait for", Some(NO_WAITING)),
    ("profile", "Processor time, for as many seconds as the parameter says", None),
    ("threadcreate", "Threads of this process, by name", None),
    ("trace", "What Go's scheduler does", Some("there is no Go scheduler whose work could be traced")),
];
const NO_HEAP: &str = "the allocator of this server keeps no samples; process_resident_memory_bytes in /metrics tells the memory in use";
const NO_WAITING: &str =
    "waiting is not recorded; a profile of processor time and /debug/requests tell where time goes";

/// A page that took time to be made; travels with the request.
#[derive(Clone, Debug)]
struct Collected(Response<Bytes>);

/// Takes a profile of processor time, if the request asks for one and may. Waits for as long as it lasts; dropped, it ends.
pub async fn collect(shared: &Shared, request: &mut Request<Bytes>) {
    if !shared.pprof || target::of(request) != Target::Path(CPU.to_owned()) {
        return;
    }
    if browsers::refusal(&shared.browsers, request).is_some() {
        return;
    }
    let seconds = seconds(&Query::of(request.uri()));
    let page = match seconds {
        Some(seconds) => cpu(shared, seconds).await,
        None => {
            let why = format!("a profile takes at most {SECONDS_MAX} seconds");
            failed(StatusCode::BAD_REQUEST, &why)
        }
    };
    request.extensions_mut().insert(Collected(page));
}

/// Reads the parameter `seconds` as Go does: what is no positive number is the default. `None` if it is too many.
fn seconds(query: &Query<'_>) -> Option<u64> {
    let told = query.first("seconds").and_then(|told| std::str::from_utf8(told).ok());
    match told.and_then(|told| told.parse::<i64>().ok()).map(u64::try_from) {
        Some(Ok(seconds)) if seconds > 0 => (seconds <= SECONDS_MAX).then_some(seconds),
        _ => Some(SECONDS_DEFAULT),
    }
}

async fn cpu(shared: &Shared, seconds: u64) -> Response<Bytes> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // The memory for it is much to write at once.
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
    shared.clock.sleep(Duration::from_secs(seconds)).await;
    // Names are looked up in large files.
    match beside(move || profile.finish()).await {
        Ok(profile) => download("profile", profile),
        Err(why) => failed(StatusCode::INTERNAL_SERVER_ERROR, why),
    }
}

/// Runs this on a thread of its own.
///
/// # Errors
///
/// There is no thread, or it panicked.
async fn beside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T, &'static str> {
    let (sender, done) = oneshot::channel();
    let spawned = std::thread::Builder::new().name("profile".to_owned()).spawn(move || {
        // The client may have gone.
        let _ = sender.send(run());
    });
    match spawned {
        Ok(_) => done.await.map_err(|_| "the profile could not be put together"),
        Err(_) => Err("no thread could be started"),
    }
}

/// Answers a request for a page below [`PREFIX`].
pub(super) fn answer(path: &str, request: &Request<Bytes>) -> Response<Bytes> {
    if let Some(Collected(page)) = request.extensions().get() {
        return page.clone();
    }
    let name = path.strip_prefix(PREFIX).unwrap_or_default();
    let told = Query::of(request.uri());
    let as_text = told.first("debug").is_some_and(|told| told != b"0" && !told.is_empty());
    match name {
        "" => index(),
        "symbol" => text("num_symbols: 0\n".to_owned()),
        "cmdline" => text(command_line()),
        "goroutine" | "threadcreate" if as_text => text(profiling::threads_text()),
        "goroutine" | "threadcreate" => download(name, profiling::threads_profile()),
        name => match PROFILES.iter().find(|(known, ..)| *known == name) {
            Some((.., Some(why))) => failed(StatusCode::NOT_IMPLEMENTED, why),
            _ => failed(StatusCode::NOT_FOUND, "Unknown profile"),
        },
    }
}

/// The arguments, with a zero byte between two, as Go has them.
fn command_line() -> String {
    let arguments: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    arguments.join("\0")
}

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

fn text(text: String) -> Response<Bytes> {
    plain(StatusCode::OK, text)
}

fn download(name: &str, content: Vec<u8>) -> Response<Bytes> {
    let headers = [(CONTENT_TYPE, "application/octet-stream"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let mut response = reply(StatusCode::OK, &headers, content.into());
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        response.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    response
}

/// An error, marked as Go's profiles mark theirs.
fn failed(status: StatusCode, why: &str) -> Response<Bytes> {
    let headers = [(CONTENT_TYPE, PLAIN), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let mut response = reply(status, &headers, format!("{why}\n").into());
    response.headers_mut().insert(GO_PPROF, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(uri: &str) -> Request<Bytes> {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = uri.parse().unwrap();
        request
    }

    #[test]
    fn the_time_of_a_profile_is_bounded() {
        for (query, expected) in [
            ("", Some(30)),
            ("?seconds=", Some(30)),
            ("?seconds=x", Some(30)),
            ("?seconds=-5", Some(30)),
            ("?seconds=0", Some(30)),
            ("?seconds=7", Some(7)),
            ("?seconds=300", Some(300)),
            ("?seconds=301", None),
            ("?seconds=99999999999999999999", Some(30)),
        ] {
            let request = asked(&format!("{CPU}{query}"));
            assert_eq!(seconds(&Query::of(request.uri())), expected, "{query}");
        }
    }

    #[test]
    fn what_is_not_there_says_why() {
        for (path, status) in [
            ("/debug/pprof/", 200),
            ("/debug/pprof/cmdline", 200),
            ("/debug/pprof/symbol", 200),
            ("/debug/pprof/goroutine", 200),
            ("/debug/pprof/goroutine?debug=2", 200),
            ("/debug/pprof/threadcreate", 200),
            ("/debug/pprof/heap", 501),
            ("/debug/pprof/allocs?debug=1", 501),
            ("/debug/pprof/mutex", 501),
            ("/debug/pprof/block", 501),
            ("/debug/pprof/trace", 501),
            ("/debug/pprof/none", 404),
        ] {
            let request = asked(path);
            let response = answer(request.uri().path(), &request);
            assert_eq!(response.status().as_u16(), status, "{path}");
            assert_eq!(response.headers().contains_key(GO_PPROF), status != 200, "{path}");
        }
    }
}
