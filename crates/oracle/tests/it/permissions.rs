//! Permissions of users: correct histories are accepted, and each kind of mistake is found.

use mainstay_oracle::{
    Action, ActionResult, Asker, Asking, Delete, DeleteResult, End, Event, Grant, GrantChange, Header,
    History, KeyValue, Kind, Operation, Outcome, Put, Range, RangeResult, Refusal, Request, Response, Txn,
    TxnResult, Watch, WatchAnswer, WatchResponse, check,
};

const USER: &str = "u";

fn keys(key: &str, range_end: &str) -> Grant {
    Grant::Keys {
        user: USER.to_owned(),
        key: key.into(),
        range_end: range_end.into(),
        read: true,
        write: true,
    }
}

/// A history under construction: every step takes ten units of time.
#[derive(Default)]
struct Script {
    history: History,
    now: u64,
    revision: i64,
    token_at: u64,
}

impl Script {
    /// Authentication is enabled, and the user may read and write `a` to `m`.
    fn new() -> Script {
        let mut script = Script { revision: 1, ..Script::default() };
        script.change(keys("a", "m"), true, true);
        script.change(Grant::Role(USER.to_owned()), true, true);
        script.change(Grant::Authentication, true, true);
        script.token_at = script.now;
        script
    }

    fn change(&mut self, grant: Grant, granted: bool, certain: bool) {
        let (call, returned) = (self.now + 1, self.now + 9);
        self.history.grants.push(GrantChange { call, returned, certain, granted, grant });
        self.now += 10;
    }

    fn operation(&mut self, request: Request, outcome: Outcome) {
        let id = self.history.operations.len() as u64 + 1;
        let (call, returned) = (self.now + 1, self.now + 9);
        self.history.operations.push(Operation {
            id,
            client: 1,
            member: 1,
            life: 0,
            call,
            returned,
            request,
            outcome,
            fence: None,
        });
        let (user, token_at) = (USER.to_owned(), self.token_at);
        self.history.askers.push(Asker { user, token_at, asking: Asking::Operation(id) });
        self.now += 10;
    }

    fn put(&mut self, key: &str) {
        self.revision += 1;
        let value = format!("v{}", self.revision).into_bytes();
        let put = Put { key: key.into(), value, ..Put::default() };
        let header = Header { revision: self.revision, term: 1 };
        self.operation(Request::Put(put), Outcome::Done(header, Response::Put(None)));
    }

    fn read_nothing(&mut self, key: &str, serializable: bool) {
        let range = Range { key: key.into(), serializable, ..Range::default() };
        let header = Header { revision: self.revision, term: 1 };
        let nothing = RangeResult { kvs: Vec::new(), more: false, count: 0 };
        self.operation(Request::Range(range), Outcome::Done(header, Response::Range(nothing)));
    }

    fn denied(&mut self, key: &str) {
        let put = Put { key: key.into(), value: b"x".to_vec(), ..Put::default() };
        let why = "etcdserver: permission denied".to_owned();
        self.operation(Request::Put(put), Outcome::Refused(Refusal::Other(why)));
    }

    /// Adds a watch of all keys from `a` to `m` that reports a put of `key` at the current revision.
    fn watch(&mut self, key: &str) {
        let kv = KeyValue {
            key: key.into(),
            value: format!("v{}", self.revision).into_bytes(),
            create_revision: self.revision,
            mod_revision: self.revision,
            version: 1,
            lease: 0,
        };
        let events = vec![Event { deleted: false, kv, prev_kv: None }];
        let told = |answer| WatchResponse { at: self.now + 5, revision: self.revision, answer };
        let responses =
            vec![told(WatchAnswer::Created), told(WatchAnswer::Events { events, fragment: false })];
        self.history.watches.push(Watch {
            id: 7,
            client: 1,
            member: 1,
            life: 0,
            opened: 1,
            key: b"a".to_vec(),
            range_end: b"m".to_vec(),
            start_revision: self.revision,
            prev_kv: false,
            no_put: false,
            no_delete: false,
            fragment: false,
            responses,
            end: End::Broken,
        });
        let asking = Asking::Watch(7);
        self.history.askers.push(Asker { user: USER.to_owned(), token_at: 1, asking });
    }

    fn kinds(&self) -> Vec<Kind> {
        check(&self.history).violations.iter().map(|violation| violation.kind).collect()
    }
}

#[test]
fn what_is_granted_is_done_and_what_is_not_is_refused() {
    let mut script = Script::new();
    script.put("b");
    script.denied("x");
    script.watch("b");
    script.change(keys("a", "m"), false, true);
    script.denied("c");
    // A stale read may be served by a member that has not applied the change yet.
    script.read_nothing("x", true);
    script.change(Grant::Authentication, false, true);
    script.put("x");
    assert_eq!(script.kinds(), []);
}

#[test]
fn what_was_revoked_is_not_carried_out() {
    let mut script = Script::new();
    script.change(keys("a", "m"), false, true);
    script.put("b");
    assert_eq!(script.kinds(), [Kind::Forbidden]);

    let mut script = Script::new();
    script.change(Grant::Role(USER.to_owned()), false, true);
    script.read_nothing("b", false);
    assert_eq!(script.kinds(), [Kind::Forbidden]);

    let mut script = Script::new();
    script.put("b");
    let delete = Delete { key: b"b".to_vec(), range_end: b"n".to_vec(), prev_kv: false };
    let deleted = Response::Delete(DeleteResult { deleted: 1, prev_kvs: Vec::new() });
    let header = Header { revision: 3, term: 1 };
    script.operation(Request::Delete(delete), Outcome::Done(header, deleted));
    assert_eq!(script.kinds(), [Kind::Forbidden], "a range has to be allowed as a whole");
}

#[test]
fn two_grants_allow_what_they_cover_together() {
    let mut script = Script::new();
    script.change(keys("m", "p"), true, true);
    let delete = Delete { key: b"b".to_vec(), range_end: b"o".to_vec(), prev_kv: false };
    let deleted = Response::Delete(DeleteResult { deleted: 0, prev_kvs: Vec::new() });
    script
        .operation(Request::Delete(delete.clone()), Outcome::Done(Header { revision: 1, term: 1 }, deleted));
    assert_eq!(script.kinds(), []);
    let why = "etcdserver: permission denied".to_owned();
    script.operation(Request::Delete(delete), Outcome::Refused(Refusal::Other(why)));
    assert_eq!(script.kinds(), [Kind::DeniedUnduly]);
}

#[test]
fn a_change_with_an_unknown_outcome_excuses_both() {
    let mut script = Script::new();
    script.change(keys("a", "m"), false, false);
    script.put("b");
    script.denied("b");
    assert_eq!(script.kinds(), []);
}

#[test]
fn what_is_granted_is_not_refused() {
    let mut script = Script::new();
    script.denied("b");
    assert_eq!(script.kinds(), [Kind::DeniedUnduly]);

    // A stale read may be refused by a member that has not applied the grant yet.
    let mut script = Script::new();
    let range = Range { key: b"b".to_vec(), serializable: true, ..Range::default() };
    let why = "etcdserver: permission denied".to_owned();
    script.operation(Request::Range(range), Outcome::Refused(Refusal::Other(why)));
    assert_eq!(script.kinds(), []);
}

#[test]
fn a_void_token_is_not_honoured() {
    let mut script = Script::new();
    script.change(Grant::Tokens(USER.to_owned()), true, true);
    script.put("b");
    assert_eq!(script.kinds(), [Kind::TokenVoid]);
    script.history.askers[0].token_at = script.now;
    assert_eq!(script.kinds(), []);

    // A transaction is a stale read if it has only serializable ranges, or no action: a lagging member
    // answers it from its own state. If it has no key, the age of the token is not checked.
    let range = |serializable| Action::Range(Range { key: b"b".to_vec(), serializable, ..Range::default() });
    let none = || ActionResult::Range(RangeResult { kvs: Vec::new(), more: false, count: 0 });
    let nested = || ActionResult::Txn(TxnResult { succeeded: true, results: Vec::new() });
    for (actions, results, expected) in [
        (vec![], vec![], None),
        (vec![range(true)], vec![none()], None),
        (vec![Action::Txn(Txn::default())], vec![nested()], None),
        (vec![range(true), range(false)], vec![none(), none()], Some(Kind::TokenVoid)),
        (vec![range(true), Action::Txn(Txn::default())], vec![none(), nested()], Some(Kind::TokenVoid)),
    ] {
        let mut script = Script::new();
        script.change(Grant::Tokens(USER.to_owned()), true, true);
        let header = Header { revision: script.revision, term: 1 };
        let answer = TxnResult { succeeded: true, results };
        let txn = Txn { success: actions, ..Txn::default() };
        script.operation(Request::Txn(txn), Outcome::Done(header, Response::Txn(answer)));
        assert_eq!(script.kinds(), Vec::from_iter(expected), "{:?}", script.history.operations);
    }
}

#[test]
fn a_watch_tells_nothing_that_was_asked_for_after_its_grant_was_gone() {
    let mut script = Script::new();
    script.change(keys("a", "m"), false, true);
    script.put("b");
    // The write is another user's.
    script.history.askers.clear();
    script.watch("b");
    assert_eq!(script.kinds(), [Kind::WatchForbidden]);

    // A change requested before the revocation may be reported later.
    let mut script = Script::new();
    script.put("b");
    script.change(keys("a", "m"), false, true);
    script.history.askers.clear();
    script.watch("b");
    assert_eq!(script.kinds(), []);
}
