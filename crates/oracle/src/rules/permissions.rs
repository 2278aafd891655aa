use std::collections::BTreeMap;

use crate::findings::{brief, show};
use crate::{
    Action, Asker, Asking, Grant, GrantChange, History, Kind, Operation, Outcome, Range, Request, Response,
    Txn, Verdict, Violation, Watch, WatchAnswer,
};

/// Checks that users can do everything that was granted to them, and nothing else:
///
/// * After the revocation of a permission was acknowledged, no member executes a linearizable call that needs
///   this permission.
/// * No member executes a linearizable call on keys with a token that was invalid when the call was made.
/// * A linearizable call that is allowed for its whole duration is not refused with a permission error.
/// * A watch reports no change that was requested after the permission of the watch's user was certainly
///   revoked.
///
/// A serializable read is not judged, because its permission depends on how far its member lags.
///
/// A change with an unknown outcome may take effect at any time after its request. Calls after this request
/// are judged only if they are allowed, or forbidden, whether or not the change takes effect.
pub(crate) fn check(history: &History, verdict: &mut Verdict) {
    if history.askers.is_empty() {
        return;
    }
    let grants = Grants::new(&history.grants);
    let operations: BTreeMap<u64, &Operation> = history.operations.iter().map(|op| (op.id, op)).collect();
    let watches: BTreeMap<u64, &Watch> = history.watches.iter().map(|watch| (watch.id, watch)).collect();
    let asked = asked_for(history);
    for asker in &history.askers {
        match asker.asking {
            Asking::Operation(id) => {
                if let Some(op) = operations.get(&id) {
                    grants.judge(op, asker, verdict);
                }
            }
            Asking::Watch(id) => {
                if let Some(watch) = watches.get(&id) {
                    grants.judge_watch(watch, asker, &asked, verdict);
                }
            }
        }
    }
}

/// Returns, for each revision that an answered put or deletion has made, the time at which this operation was
/// requested.
fn asked_for(history: &History) -> BTreeMap<i64, u64> {
    let wrote = |op: &Operation| match (&op.request, &op.outcome) {
        (Request::Put(_), Outcome::Done(header, _)) => Some((header.revision, op.call)),
        (Request::Delete(_), Outcome::Done(header, Response::Delete(result))) if result.deleted > 0 => {
            Some((header.revision, op.call))
        }
        _ => None,
    };
    history.operations.iter().filter_map(wrote).collect()
}

/// A range of keys that a request reads or writes.
struct Need<'a> {
    key: &'a [u8],
    range_end: &'a [u8],
    writes: bool,
}

/// Returns the keys for which a request needs permission. The second value is false if the request may need
/// permission for more keys, which it does not name, such as the other keys of the lease in a put.
fn needs(request: &Request) -> (Vec<Need<'_>>, bool) {
    let mut needs = Vec::new();
    let mut whole = true;
    let mut open: Vec<&Txn> = Vec::new();
    match request {
        Request::Range(range) => needs.push(of_range(range)),
        Request::Put(put) => {
            needs.push(Need { key: &put.key, range_end: &[], writes: true });
            if put.prev_kv {
                needs.push(Need { key: &put.key, range_end: &[], writes: false });
            }
            whole &= put.lease == 0;
        }
        Request::Delete(delete) => {
            needs.push(Need { key: &delete.key, range_end: &delete.range_end, writes: true });
            if delete.prev_kv {
                needs.push(Need { key: &delete.key, range_end: &delete.range_end, writes: false });
            }
        }
        Request::Txn(txn) => open.push(txn),
        _ => whole = false,
    }
    while let Some(txn) = open.pop() {
        for compare in &txn.compare {
            needs.push(Need { key: &compare.key, range_end: &compare.range_end, writes: false });
        }
        for action in txn.success.iter().chain(&txn.failure) {
            match action {
                Action::Range(range) => needs.push(of_range(range)),
                Action::Put(put) => {
                    needs.push(Need { key: &put.key, range_end: &[], writes: true });
                    if put.prev_kv {
                        needs.push(Need { key: &put.key, range_end: &[], writes: false });
                    }
                    whole &= put.lease == 0;
                }
                Action::Delete(delete) => {
                    needs.push(Need { key: &delete.key, range_end: &delete.range_end, writes: true });
                    if delete.prev_kv {
                        needs.push(Need { key: &delete.key, range_end: &delete.range_end, writes: false });
                    }
                }
                Action::Txn(inner) => open.push(inner),
            }
        }
    }
    (needs, whole)
}

fn of_range(range: &Range) -> Need<'_> {
    Need { key: &range.key, range_end: &range.range_end, writes: false }
}

/// Returns true if the permissions of an operation can be judged: if it concerns keys, and is not a
/// serializable read. A transaction with only serializable ranges, or with no action, counts as a
/// serializable read.
fn is_judged(op: &Operation) -> bool {
    op.is_of_keys() && op.is_linearizable()
}

/// A range of keys with an exclusive end; `None` means no end.
type Span = (Vec<u8>, Option<Vec<u8>>);

fn span(key: &[u8], range_end: &[u8]) -> Span {
    let first = if key == [0] && !range_end.is_empty() { Vec::new() } else { key.to_vec() };
    match range_end {
        [] => {
            let mut end = key.to_vec();
            end.push(0);
            (first, Some(end))
        }
        [0] => (first, None),
        end => (first, Some(end.to_vec())),
    }
}

/// Returns true if these spans together contain the whole wanted span.
fn cover(mut spans: Vec<Span>, (wanted, wanted_end): &Span) -> bool {
    spans.sort();
    let mut reached = wanted.clone();
    for (first, end) in spans {
        if first > reached {
            break;
        }
        match end {
            None => return true,
            Some(end) => reached = reached.max(end),
        }
    }
    wanted_end.as_ref().is_some_and(|end| reached >= *end)
}

/// The changes of permissions, grouped by the permission that they change. Each list is in the order of the
/// requests.
#[derive(Default)]
struct Grants<'h> {
    authentication: Vec<&'h GrantChange>,
    roles: BTreeMap<&'h str, Vec<&'h GrantChange>>,
    tokens: BTreeMap<&'h str, Vec<&'h GrantChange>>,
    /// Changes of permissions for keys, by user. Each inner list contains the changes of one permission.
    keys: BTreeMap<&'h str, Vec<Vec<&'h GrantChange>>>,
}

impl<'h> Grants<'h> {
    fn new(changes: &'h [GrantChange]) -> Grants<'h> {
        let mut grants = Grants::default();
        for change in changes {
            match &change.grant {
                Grant::Authentication => grants.authentication.push(change),
                Grant::Role(user) => grants.roles.entry(user).or_default().push(change),
                Grant::Tokens(user) => grants.tokens.entry(user).or_default().push(change),
                Grant::Keys { user, .. } => {
                    let lists = grants.keys.entry(user).or_default();
                    let same = |list: &&mut Vec<&GrantChange>| {
                        list.first().is_some_and(|first| first.grant == change.grant)
                    };
                    match lists.iter_mut().find(same) {
                        Some(list) => list.push(change),
                        None => lists.push(vec![change]),
                    }
                }
            }
        }
        grants
    }

    /// Returns true if one condition, such as that a user has its role, certainly has this value during the
    /// whole time from `from` to `to`. `changes` are all changes of the condition, or `None` if there are
    /// none. Before them the condition is false.
    ///
    /// If a change to the opposite value may take effect in that time, the result is false. That includes
    /// each such change with an unknown outcome that was requested before the end of the time.
    fn surely(changes: Option<&Vec<&GrantChange>>, value: bool, from: u64, to: u64) -> bool {
        let mut base = false;
        let mut doubt = false;
        for change in changes.into_iter().flatten().take_while(|change| change.call <= to) {
            if change.certain && change.returned <= from {
                base = change.granted;
            } else {
                doubt |= change.granted != value;
            }
        }
        base == value && !doubt
    }

    /// If `required` is true, returns true if authentication was certainly required during the whole time
    /// from `from` to `to`. Otherwise, returns true if it was certainly not required during this time.
    fn is_required(&self, required: bool, from: u64, to: u64) -> bool {
        Grants::surely(Some(&self.authentication), required, from, to)
    }

    fn has_role(&self, user: &str, has: bool, from: u64, to: u64) -> bool {
        Grants::surely(self.roles.get(user), has, from, to)
    }

    /// Returns the spans of keys that the role of a user allows to read or, if `writes` is true, to write. If
    /// `certain` is true, these are the spans that the role certainly allows from `from` to `to`; otherwise,
    /// those that it may have allowed at some time in between.
    fn spans(&self, user: &str, writes: bool, certain: bool, from: u64, to: u64) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for changes in self.keys.get(user).into_iter().flatten() {
            let Some(Grant::Keys { key, range_end, read, write, .. }) =
                changes.first().map(|change| &change.grant)
            else {
                continue;
            };
            if !(if writes { *write } else { *read }) {
                continue;
            }
            let counts = if certain {
                Grants::surely(Some(changes), true, from, to)
            } else {
                !Grants::surely(Some(changes), false, from, to)
            };
            if counts {
                spans.push(span(key, range_end));
            }
        }
        spans
    }

    /// Returns true if the user certainly lacks this permission during the whole time from `from` to `to`.
    fn is_forbidden(&self, user: &str, need: &Need<'_>, from: u64, to: u64) -> bool {
        self.is_required(true, from, to)
            && (self.has_role(user, false, from, to)
                || !cover(self.spans(user, need.writes, false, from, to), &span(need.key, need.range_end)))
    }

    /// Returns true if the user certainly has this permission during the whole time from `from` to `to`.
    fn is_allowed(&self, user: &str, need: &Need<'_>, from: u64, to: u64) -> bool {
        self.is_required(false, from, to)
            || self.has_role(user, true, from, to)
                && cover(self.spans(user, need.writes, true, from, to), &span(need.key, need.range_end))
    }

    /// Returns true if the token was certainly invalid before `call`, because the user's tokens were revoked
    /// after it had been issued.
    fn is_void(&self, asker: &Asker, call: u64) -> bool {
        let void =
            |change: &&GrantChange| change.certain && change.call > asker.token_at && change.returned < call;
        asker.token_at > 0 && self.tokens.get(&*asker.user).into_iter().flatten().any(void)
    }

    fn judge(&self, op: &Operation, asker: &Asker, verdict: &mut Verdict) {
        let (from, to) = (op.call, op.returned);
        let (needs, whole) = needs(&op.request);
        match &op.outcome {
            Outcome::Done(..) if is_judged(op) => {
                // Accept an invalid token for a request that needs no permission for a key: as etcd does, a
                // member checks the age of the token only together with such a permission.
                let void = !needs.is_empty() && self.is_void(asker, from);
                if void && self.is_required(true, from, to) {
                    let user = &asker.user;
                    let text = format!("a token of {user:?} that was void was honoured: {}", brief(op));
                    verdict.add(Violation::of(Kind::TokenVoid, &[op], text));
                }
                let forbidden = needs.iter().find(|need| self.is_forbidden(&asker.user, need, from, to));
                if let Some(need) = forbidden.filter(|_| asker.user != ROOT) {
                    let (user, what) = (&asker.user, if need.writes { "write" } else { "read" });
                    let (key, end) = (show(need.key), show(need.range_end));
                    let text = format!("{user:?} may not {what} {key}..{end}, but {}", brief(op));
                    verdict.add(Violation::of(Kind::Forbidden, &[op], text));
                }
            }
            Outcome::Refused(crate::Refusal::Other(why)) if why.contains(DENIED) && is_judged(op) => {
                let allowed = |need: &Need<'_>| self.is_allowed(&asker.user, need, from, to);
                if asker.user == ROOT || whole && needs.iter().all(allowed) {
                    let text = format!("{:?} may do that all the time: {}", asker.user, brief(op));
                    verdict.add(Violation::of(Kind::DeniedUnduly, &[op], text));
                }
            }
            _ => {}
        }
    }

    fn judge_watch(&self, watch: &Watch, asker: &Asker, asked: &BTreeMap<i64, u64>, verdict: &mut Verdict) {
        if asker.user == ROOT {
            return;
        }
        let need = Need { key: &watch.key, range_end: &watch.range_end, writes: false };
        for response in &watch.responses {
            let WatchAnswer::Events { events, .. } = &response.answer else { continue };
            for event in events {
                let Some(call) = asked.get(&event.kv.mod_revision) else { continue };
                if self.is_forbidden(&asker.user, &need, *call, response.at) {
                    let revision = event.kv.mod_revision;
                    let text = format!(
                        "told {:?} of revision {revision}, asked for at {call}, though it may not read {}..{}",
                        asker.user,
                        show(&watch.key),
                        show(&watch.range_end)
                    );
                    verdict.add(Violation::of_watch(Kind::WatchForbidden, watch, text));
                    return;
                }
            }
        }
    }
}

/// Name of the user that may do everything.
const ROOT: &str = "root";
/// Text that every error for a missing permission contains.
const DENIED: &str = "permission denied";
