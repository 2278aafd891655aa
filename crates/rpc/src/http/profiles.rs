//! Answers `/debug/pprof/`, only with `--enable-pprof`: profiles of this process in the format of `go tool
//! pprof`. As in etcd, anyone who can reach the client port may request them. The crate `profiling` makes the
//! pages.

use std::sync::atomic::{AtomicU64, Ordering};

use ::http::{Request, Response};
use bytes::Bytes;
use profiling::Owner;
use profiling::pages::{self, Parameters};

use super::browsers;
use super::target::{self, Query, Target};
use replica::shared::Shared;

/// Common prefix of the paths of the pages.
pub(super) const PREFIX: &str = pages::PREFIX;

/// A finished page that took time to make. It is attached to the request.
#[derive(Clone, Debug)]
struct Collected(Response<Bytes>);

/// Takes a CPU profile, if the request asks for one and the server permits it. Resolves when the profile is
/// complete; dropping the future ends the profile.
pub async fn collect(shared: &Shared, request: &mut Request<Bytes>) {
    if !shared.diagnostics.pprof || target::of(request) != Target::Path(pages::CPU.to_owned()) {
        return;
    }
    if browsers::refusal(&shared.clients.browsers, request).is_some() {
        return;
    }
    let seconds = Query::of(request.uri()).first("seconds").map(<[u8]>::to_vec);
    let page = pages::cpu(seconds.as_deref(), |time| shared.member.clock.sleep(time)).await;
    request.extensions_mut().insert(Collected(page));
}

/// Answers a request for a page below [`PREFIX`].
pub(super) fn answer(shared: &Shared, path: &str, request: &Request<Bytes>) -> Response<Bytes> {
    if let Some(Collected(page)) = request.extensions().get() {
        return page.clone();
    }
    let query = Query::of(request.uri());
    let parameters = Parameters { debug: query.first("debug"), seconds: query.first("seconds") };
    pages::answer(path, parameters, || owners(shared))
}

/// Returns the memory of each component of this member that counts its memory. Values of keys are not
/// included, because they are in the log's files and in the page cache.
fn owners(shared: &Shared) -> Vec<Owner> {
    let memory = &shared.diagnostics.memory;
    let figure = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let clients = shared.clients.memory.get().map_or(0, |budget| budget.held_bytes()) as u64;
    vec![
        Owner { name: "index", objects: figure(&memory.index_objects), bytes: figure(&memory.index_bytes) },
        Owner { name: "log/newest entries", objects: 0, bytes: figure(&memory.window_bytes) },
        Owner {
            name: "log/entries to be written or applied",
            objects: 0,
            bytes: figure(&memory.queued_bytes),
        },
        Owner { name: "messages from members", objects: 0, bytes: shared.core.arrivals.taken() as u64 },
        Owner { name: "clients", objects: 0, bytes: clients },
    ]
}
