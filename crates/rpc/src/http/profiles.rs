//! `/debug/pprof/`: profiles of this process as `go tool pprof` reads them, with `--enable-pprof` only. As in etcd, whoever can
//! reach the client port may ask for them. The pages are the crate `profiling`'s.

use ::http::{Request, Response};
use bytes::Bytes;
use profiling::pages;

use super::browsers;
use super::target::{self, Query, Target};
use replica::shared::Shared;

/// Beginning of the pages' paths.
pub(super) const PREFIX: &str = pages::PREFIX;

/// A page that took time to be made; travels with the request.
#[derive(Clone, Debug)]
struct Collected(Response<Bytes>);

/// Takes a profile of processor time, if the request asks for one and may. Waits for as long as it lasts; dropped, it ends.
pub async fn collect(shared: &Shared, request: &mut Request<Bytes>) {
    if !shared.pprof || target::of(request) != Target::Path(pages::CPU.to_owned()) {
        return;
    }
    if browsers::refusal(&shared.browsers, request).is_some() {
        return;
    }
    let seconds = Query::of(request.uri()).first("seconds").map(<[u8]>::to_vec);
    let page = pages::cpu(seconds.as_deref(), |time| shared.clock.sleep(time)).await;
    request.extensions_mut().insert(Collected(page));
}

/// Answers a request for a page below [`PREFIX`].
pub(super) fn answer(path: &str, request: &Request<Bytes>) -> Response<Bytes> {
    match request.extensions().get() {
        Some(Collected(page)) => page.clone(),
        None => pages::answer(path, Query::of(request.uri()).first("debug")),
    }
}
