//! `watch`: prints events as they occur.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use stdx::{First, race};

use api::etcdserverpb as pb;
use api::mvccpb::Event;
use cli::go::quote;
use cli::{Command, Failure, Flag, Matches};
use client::{Client, WatchUpdate, Watcher, shown};
use tokio::sync::mpsc;

use super::watch_arguments::{RangeFromEnvironment, WatchArguments, watch_arguments};
use super::{KV, Run};
use crate::call::Call;
use crate::commands;
use crate::printer::{Answer, WatchBatch, event_type};
use crate::program::Program;
use crate::ranges::{OPEN_END, prefix_end};
use crate::words::words;

const INTERACTIVE: Flag<bool> = Flag::bool("interactive", "Interactive mode").short('i');
const PREFIX: Flag<bool> = Flag::bool("prefix", "Watch on a prefix if prefix is set");
const REV: Flag<i64> = Flag::int("rev", "0", "Revision to start watching");
const PREV_KV: Flag<bool> = Flag::bool("prev-kv", "get the previous key-value pair before the event happens");
const PROGRESS_NOTIFY: Flag<bool> =
    Flag::bool("progress-notify", "get periodic watch progress notification from server");

pub(super) const WATCH: Command<Run> = Command {
    name: "watch",
    usage: "watch [options] [key or prefix] [range_end] [--] [exec-command arg1 arg2 ...]",
    about: "Watches events stream on keys or prefixes",
    example: "  etcdctl watch --prefix /config/ --rev=1000\n\n  # Run a program for each event\n  etcdctl \
              watch foo -- sh -c 'echo $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_VALUE'\n\n  \
              # Several watches; `progress` requests their progress\n  \
              printf 'watch foo\\nwatch --prefix bar\\n' | etcdctl watch -i",
    flags: &[INTERACTIVE.row(), PREFIX.row(), REV.row(), PREV_KV.row(), PROGRESS_NOTIFY.row()],
    group: KV,
    run: Some(Run::asking(|call| Box::pin(watch(call)))),
    ..Command::EMPTY
};

/// Maximum number of queued progress requests for each watch in the interactive mode, and of lines read
/// ahead.
const REQUESTS_MAX: usize = 16;

pub(super) async fn watch(call: &Call) -> Result<(), Failure> {
    let environment = RangeFromEnvironment::read(&call.io)?;
    if call.matches.get(INTERACTIVE) {
        return interactive(call, &environment).await;
    }
    let arguments = watch_arguments(&call.matches, &environment)?;
    let connection = call.connect().await?;
    let request = create_request(&call.matches, &arguments)?;
    let (_requests, progress) = mpsc::channel(1);
    follow(call, &connection, request, &arguments.program, progress).await?;
    Err(Failure::new(Failure::INTERRUPTED, "watch is canceled by the server"))
}

/// Runs the interactive mode: reads lines from standard input until the input ends. A line `watch …` creates
/// a watch, and `progress` requests a progress notification from each watch.
async fn interactive(call: &Call, environment: &RangeFromEnvironment) -> Result<(), Failure> {
    let connection = call.connect().await?;
    let mut lines = lines(call);
    let mut watches: Vec<mpsc::Sender<()>> = Vec::new();
    let mut running = tokio::task::JoinSet::new();
    loop {
        let ended = async {
            match running.join_next().await {
                Some(ended) => ended,
                None => std::future::pending().await,
            }
        };
        let line = match race(lines.recv(), ended).await {
            First::Left(Some(Ok(line))) => line,
            First::Left(Some(Err(error))) => return Err(unreadable(&error.to_string())),
            First::Left(None) => return Err(unreadable("EOF")),
            First::Right(ended) => {
                ended.map_err(|error| Failure::error(error.to_string()))??;
                continue;
            }
        };
        let text = String::from_utf8_lossy(&line);
        let words = words(&line)?;
        match words.first().map(Vec::as_slice) {
            None => call.warn(format!("Invalid command: {text} (watch and progress supported)")),
            Some(b"watch") if words.len() < 2 && environment.key.is_empty() => {
                call.warn(format!("Invalid command {text} (command type or key is not provided)"));
            }
            Some(b"watch") => {
                let matches = commands::parse_watch(&words[1..])?;
                let arguments = watch_arguments(&matches, environment)?;
                let request = match create_request(&matches, &arguments) {
                    Ok(request) => request,
                    Err(error) => {
                        call.warn(format!("Invalid command {text} ({error})"));
                        continue;
                    }
                };
                let (requests, progress) = mpsc::channel(REQUESTS_MAX);
                watches.push(requests);
                let (call, connection) = (call.clone(), connection.clone());
                running.spawn(async move {
                    follow(&call, &connection, request, &arguments.program, progress).await
                });
            }
            Some(b"progress") => {
                watches.retain(|watch| !watch.is_closed());
                for watch in &watches {
                    // Ignore an error: if the queue is full, earlier requests of this watch have not been
                    // sent yet, so another request is not needed.
                    let _ = watch.try_send(());
                }
            }
            Some(_) => call.warn(format!("Invalid command {text} (only support watch)")),
        }
    }
}

fn unreadable(error: &str) -> Failure {
    Failure::new(Failure::INVALID_INPUT, format!("error reading watch request line: {error}"))
}

/// Returns a channel with the lines of standard input. A separate thread reads them, because reading blocks.
fn lines(call: &Call) -> mpsc::Receiver<std::io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
    let input = call.io.input.clone();
    std::thread::spawn(move || {
        loop {
            let line = match input.line() {
                Ok(Some(line)) => Ok(line),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let last = line.is_err();
            if sender.blocking_send(line).is_err() || last {
                return;
            }
        }
    });
    receiver
}

fn create_request(matches: &Matches, arguments: &WatchArguments) -> Result<pb::WatchCreateRequest, Failure> {
    let prefix = matches.get(PREFIX);
    let Some((key, more)) = arguments.range.split_first() else {
        return Err(Failure::bad_args("bad number of arguments"));
    };
    let (key, end) = match more {
        [_] if prefix => return Err(Failure::bad_args("`range_end` and `--prefix` are mutually exclusive")),
        _ if prefix && key.is_empty() => (OPEN_END.to_vec(), OPEN_END.to_vec()),
        _ if prefix => (key.clone(), prefix_end(key)),
        [end] => (key.clone(), end.clone()),
        _ => (key.clone(), Vec::new()),
    };
    Ok(pb::WatchCreateRequest {
        key: key.into(),
        range_end: end.into(),
        start_revision: matches.get(REV),
        progress_notify: matches.get(PROGRESS_NOTIFY),
        prev_kv: matches.get(PREV_KV),
        ..Default::default()
    })
}

/// Prints the events of a watch until the server ends it.
async fn follow(
    call: &Call,
    connection: &Client,
    request: pb::WatchCreateRequest,
    program: &[Vec<u8>],
    mut progress: mpsc::Receiver<()>,
) -> Result<(), Failure> {
    let mut watcher = Watcher::new(&connection.with_require_leader(), request);
    loop {
        let asked = async {
            if progress.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
        };
        let update = match race(watcher.next(), asked).await {
            First::Left(update) => update,
            First::Right(()) => {
                watcher.request_progress().await?;
                continue;
            }
        };
        match update {
            Ok(None) => return Ok(()),
            Ok(Some(WatchUpdate::Created(_))) => {}
            Ok(Some(WatchUpdate::Progress(header))) => {
                call.line(format!("progress notify: {}", header.revision))?;
                let batch = WatchBatch { header: Some(header), ..Default::default() };
                call.show(&Answer::Watch(&batch))?;
            }
            Ok(Some(WatchUpdate::Events(response))) => {
                let batch = batch(response);
                call.show(&Answer::Watch(&batch))?;
                run_for_each(call, &batch, program).await?;
            }
            Ok(Some(WatchUpdate::Canceled(response))) if response.created => {
                return refused(call, &response.cancel_reason);
            }
            Ok(Some(WatchUpdate::Canceled(response))) => {
                let batch = batch(response);
                call.warn(format!("watch was canceled ({})", why_canceled(&batch)));
                // Like etcdctl, print the cancellation as a response only if the reason is a compaction. For
                // other reasons etcd's Go client does not pass the response on.
                if batch.compact_revision != 0 {
                    call.show(&Answer::Watch(&batch))?;
                }
            }
            Err(status) => return refused(call, &shown(&status)),
        }
    }
}

fn batch(response: pb::WatchResponse) -> WatchBatch {
    WatchBatch {
        header: response.header,
        events: response.events,
        compact_revision: response.compact_revision,
        canceled: response.canceled,
        created: response.created,
        cancel_reason: response.cancel_reason,
    }
}

/// Prints that a watch was not created, or that the server has ended it.
fn refused(call: &Call, reason: &str) -> Result<(), Failure> {
    let header = Some(pb::ResponseHeader::default());
    let batch = WatchBatch { header, canceled: true, ..Default::default() };
    call.warn(format!("watch was canceled ({reason})"));
    call.show(&Answer::Watch(&batch))
}

fn why_canceled(batch: &WatchBatch) -> String {
    if batch.compact_revision != 0 {
        return api::error::COMPACTED.message.to_string();
    }
    if batch.cancel_reason.is_empty() {
        return api::error::FUTURE_REV.message.to_string();
    }
    batch.cancel_reason.clone()
}

async fn run_for_each(call: &Call, batch: &WatchBatch, program: &[Vec<u8>]) -> Result<(), Failure> {
    let Some((name, arguments)) = program.split_first() else { return Ok(()) };
    let revision = batch.header.as_ref().map_or(0, |h| h.revision);
    for event in &batch.events {
        let mut run = Program::new(name, arguments);
        for (key, value) in environment(revision, event) {
            run.variable(key, OsString::from_vec(value));
        }
        if let Err(error) = run.run(&call.io).await {
            let words: Vec<String> = program.iter().map(quote).collect();
            call.warn(format!("command [{}] error ({error})", words.join(" ")));
            return Err(Failure::said(Failure::ERROR));
        }
    }
    Ok(())
}

/// Returns the environment variables for a program that is run for an event. Their values are quoted as in
/// Go, except the revision.
fn environment(revision: i64, event: &Event) -> [(&'static str, Vec<u8>); 4] {
    let kv = event.kv.clone().unwrap_or_default();
    [
        ("ETCD_WATCH_REVISION", revision.to_string().into_bytes()),
        ("ETCD_WATCH_EVENT_TYPE", quote(event_type(event.r#type).as_bytes()).into_bytes()),
        ("ETCD_WATCH_KEY", quote(&kv.key).into_bytes()),
        ("ETCD_WATCH_VALUE", quote(&kv.value).into_bytes()),
    ]
}
