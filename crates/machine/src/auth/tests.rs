use api::authpb::UserAddOptions;
use api::etcdserverpb::request_op::Request;
use api::etcdserverpb::{DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};
use numbers::{LeaseId, Seconds};

use super::*;
use crate::lease::{GrantedLease, Leases};

/// Returns a hash in the form in which the member that received the request puts it into an entry.
fn hash(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

fn user(name: &str) -> AuthUserAddRequest {
    AuthUserAddRequest { name: name.into(), hashed_password: hash("h"), ..AuthUserAddRequest::default() }
}

fn role(name: &str) -> AuthRoleAddRequest {
    AuthRoleAddRequest { name: name.into() }
}

fn grant(user: &str, role: &str) -> AuthUserGrantRoleRequest {
    AuthUserGrantRoleRequest { user: user.into(), role: role.into() }
}

fn allow(role: &str, kind: permission::Type, key: &str, end: &str) -> AuthRoleGrantPermissionRequest {
    let perm = Permission {
        perm_type: kind as i32,
        key: Bytes::copy_from_slice(key.as_bytes()),
        range_end: Bytes::copy_from_slice(end.as_bytes()),
    };
    AuthRoleGrantPermissionRequest { name: role.into(), perm: Some(perm) }
}

/// Returns a state with root, and with bob, who may read [a, m) and write [a, c).
fn enabled() -> Auth {
    let mut auth = Auth::default();
    auth.add_user(&user("root")).unwrap();
    auth.grant_role(&grant("root", "root")).unwrap();
    auth.add_user(&user("bob")).unwrap();
    auth.add_role(&role("r")).unwrap();
    auth.grant_permission(&allow("r", permission::Type::Read, "a", "m")).unwrap();
    auth.grant_permission(&allow("r", permission::Type::Write, "a", "c")).unwrap();
    auth.grant_role(&grant("bob", "r")).unwrap();
    assert_eq!(auth.enable(), Ok(Some(AuthChange::Enabled)));
    auth
}

fn gate(auth: &Auth, user: &str) -> Gate {
    Gate::new(auth, Caller { user, revision: auth.revision() }, &mut RightsCache::default())
}

#[test]
fn without_root_it_cannot_be_enabled() {
    let mut auth = Auth::default();
    assert_eq!(auth.enable(), Err(error::ROOT_USER_NOT_EXIST));
    auth.add_user(&user("root")).unwrap();
    assert_eq!(auth.enable(), Err(error::ROOT_ROLE_NOT_EXIST));
    auth.grant_role(&grant("root", "root")).unwrap();
    let revision = auth.revision();
    assert_eq!(auth.enable(), Ok(Some(AuthChange::Enabled)));
    assert_eq!(auth.enable(), Ok(None));
    assert_eq!(auth.revision(), revision, "enabling is no change of users");
    assert_eq!(auth.disable(), Some(AuthChange::Disabled));
    assert_eq!((auth.disable(), auth.revision()), (None, revision + 1));
}

#[test]
fn each_change_raises_the_revision_and_no_refusal_does() {
    let mut auth = enabled();
    assert_eq!(auth.revision(), 8, "one at first, and seven changes");
    assert_eq!(auth.add_user(&user("")), Err(error::USER_EMPTY));
    assert_eq!(auth.add_user(&user("bob")), Err(error::USER_ALREADY_EXIST));
    assert_eq!(auth.add_role(&role("")), Err(error::ROLE_EMPTY));
    assert_eq!(auth.add_role(&role("r")), Err(error::ROLE_ALREADY_EXIST));
    assert_eq!(auth.grant_role(&grant("eve", "r")), Err(error::USER_NOT_FOUND));
    assert_eq!(auth.grant_role(&grant("bob", "none")), Err(error::ROLE_NOT_FOUND));
    assert_eq!(auth.grant_role(&grant("bob", "r")), Ok(None), "it is granted already");
    let revoke = |name: &str, role: &str| AuthUserRevokeRoleRequest { name: name.into(), role: role.into() };
    assert_eq!(auth.revoke_role(&revoke("bob", "root")), Err(error::ROLE_NOT_GRANTED));
    assert_eq!(auth.revoke_role(&revoke("root", "root")), Err(error::INVALID_AUTH_MGMT));
    let delete = AuthUserDeleteRequest { name: "root".into() };
    assert_eq!(auth.delete_user(&delete), Err(error::INVALID_AUTH_MGMT));
    assert_eq!(auth.delete_role(&AuthRoleDeleteRequest { role: "x".into() }), Err(error::ROLE_NOT_FOUND));
    let unknown = allow("x", permission::Type::Read, "a", "");
    assert_eq!(auth.grant_permission(&unknown), Err(error::ROLE_NOT_FOUND));
    let backwards = allow("r", permission::Type::Read, "b", "a");
    assert_eq!(auth.grant_permission(&backwards), Err(error::INVALID_AUTH_MGMT));
    let nothing = AuthRoleGrantPermissionRequest { name: "r".into(), perm: None };
    assert_eq!(auth.grant_permission(&nothing), Err(error::PERMISSION_NOT_GIVEN));
    let plain = AuthUserAddRequest { name: "old".into(), password: "p".into(), ..Default::default() };
    assert_eq!(auth.add_user(&plain), Err(error::INVALID_AUTH_MGMT));
    let garbage = AuthUserAddRequest { hashed_password: "%".into(), ..user("new") };
    assert_eq!(auth.add_user(&garbage), Err(error::NO_PASSWORD_USER));
    assert_eq!(auth.revision(), 8);
}

#[test]
fn rights_are_those_of_all_roles() {
    let mut auth = enabled();
    auth.add_role(&role("s")).unwrap();
    auth.grant_permission(&allow("s", permission::Type::Readwrite, "m", "z")).unwrap();
    assert_eq!(gate(&auth, "bob").read(b"a", b"z"), Err(error::PERMISSION_DENIED));
    auth.grant_role(&grant("bob", "s")).unwrap();
    let bob = gate(&auth, "bob");
    assert_eq!(bob.read(b"a", b"z"), Ok(()), "two roles, one range");
    assert_eq!(bob.write(b"a", b"z"), Err(error::PERMISSION_DENIED));
    assert_eq!(bob.admin(), Err(error::PERMISSION_DENIED));
    auth.delete_role(&AuthRoleDeleteRequest { role: "s".into() }).unwrap();
    assert_eq!(auth.user("bob").unwrap().roles, ["r"]);
    assert_eq!(gate(&auth, "bob").read(b"m", b""), Err(error::PERMISSION_DENIED));
}

#[test]
fn a_caller_of_an_older_revision_is_refused_unless_it_is_about_no_key() {
    let mut auth = enabled();
    let caller = Caller { user: "bob", revision: auth.revision() };
    let root = Caller { user: "root", revision: auth.revision() };
    auth.add_role(&role("other")).unwrap();
    let mut cache = RightsCache::default();
    let bob = Gate::new(&auth, caller, &mut cache);
    assert_eq!(bob.read(b"a", b""), Err(error::AUTH_OLD_REVISION));
    let root = Gate::new(&auth, root, &mut cache);
    assert_eq!(root.read(b"a", b""), Err(error::AUTH_OLD_REVISION));
    assert_eq!(root.admin(), Ok(()));
    assert_eq!(root.outdated().admin(), Err(error::AUTH_OLD_REVISION));
    assert_eq!(gate(&auth, "bob").outdated().admin(), Err(error::PERMISSION_DENIED));
    let nobody = Gate::new(&auth, Caller::default(), &mut cache);
    assert_eq!(nobody.read(b"a", b""), Err(error::USER_EMPTY));
    assert_eq!(nobody.admin(), Err(error::USER_EMPTY));
    let gone = gate(&auth, "gone");
    assert_eq!(gone.read(b"a", b""), Err(error::PERMISSION_DENIED));
    assert_eq!(gone.admin(), Err(error::USER_NOT_FOUND));
}

#[test]
fn remembered_rights_end_with_the_revision() {
    let mut auth = enabled();
    let mut cache = RightsCache::default();
    let mut asked = |auth: &Auth| {
        let caller = Caller { user: "bob", revision: auth.revision() };
        Gate::new(auth, caller, &mut cache).read(b"a", b"")
    };
    assert_eq!(asked(&auth), Ok(()));
    let revoke = |key: &str, end: &str| AuthRoleRevokePermissionRequest {
        role: "r".into(),
        key: Bytes::copy_from_slice(key.as_bytes()),
        range_end: Bytes::copy_from_slice(end.as_bytes()),
    };
    auth.revoke_permission(&revoke("a", "m")).unwrap();
    assert_eq!(auth.revoke_permission(&revoke("a", "m")), Err(error::PERMISSION_NOT_GRANTED));
    assert_eq!(asked(&auth), Err(error::PERMISSION_DENIED));
}

#[test]
fn a_permission_of_the_same_range_gets_the_new_type() {
    let mut auth = enabled();
    auth.grant_permission(&allow("r", permission::Type::Write, "a", "m")).unwrap();
    let granted = &auth.role("r").unwrap().key_permission;
    let ends: Vec<(&[u8], i32)> = granted.iter().map(|p| (p.range_end.as_ref(), p.perm_type)).collect();
    assert_eq!(ends, [(&b"m"[..], 1), (&b"c"[..], 1)], "both are about a, in the order in which they came");
    // As in etcd only the first permission with this key is compared.
    auth.grant_permission(&allow("r", permission::Type::Read, "a", "c")).unwrap();
    assert_eq!(auth.role("r").unwrap().key_permission.len(), 3);
}

#[test]
fn every_branch_of_a_transaction_is_asked_however_deep() {
    let auth = enabled();
    let leases = Leases::default();
    let bob = gate(&auth, "bob");
    let put = |key: &'static str| RequestOp {
        request: Some(Request::RequestPut(PutRequest { key: key.into(), ..PutRequest::default() })),
    };
    let nested = |inner: TxnRequest| RequestOp { request: Some(Request::RequestTxn(inner)) };
    let txn = |success: Vec<RequestOp>, failure: Vec<RequestOp>| TxnRequest {
        success,
        failure,
        ..TxnRequest::default()
    };
    assert_eq!(bob.txn(&txn(vec![put("b")], vec![]), &leases), Ok(()));
    assert_eq!(bob.txn(&txn(vec![put("b")], vec![put("d")]), &leases), Err(error::PERMISSION_DENIED));
    let mut deep = txn(vec![], vec![put("d")]);
    for _ in 0..200 {
        deep = txn(vec![nested(deep)], vec![]);
    }
    assert_eq!(bob.txn(&deep, &leases), Err(error::PERMISSION_DENIED));
}

#[test]
fn what_was_there_before_is_read() {
    let mut auth = enabled();
    auth.grant_permission(&allow("r", permission::Type::Write, "x", "")).unwrap();
    let leases = Leases::default();
    let bob = gate(&auth, "bob");
    let put = PutRequest { key: "x".into(), ..PutRequest::default() };
    assert_eq!(bob.put(&put, &leases), Ok(()));
    assert_eq!(bob.put(&PutRequest { prev_kv: true, ..put }, &leases), Err(error::PERMISSION_DENIED));
    let delete = DeleteRangeRequest { key: "x".into(), ..DeleteRangeRequest::default() };
    assert_eq!(bob.delete_range(&delete), Ok(()));
    let reading = DeleteRangeRequest { prev_kv: true, ..delete };
    assert_eq!(bob.delete_range(&reading), Err(error::PERMISSION_DENIED));
}

#[test]
fn a_lease_is_changed_by_those_who_may_write_all_its_keys() {
    let auth = enabled();
    let mut leases = Leases::granted([1, 2, 3].map(|id| GrantedLease {
        id: LeaseId(id),
        ttl: Seconds(60),
        remaining: Seconds(0),
    }))
    .unwrap();
    for (key, lease) in [("a", 1), ("bz", 1), ("b", 2), ("c", 2)] {
        leases.attach(&Bytes::from_static(key.as_bytes()), LeaseId::NONE, LeaseId(lease));
    }
    let bob = gate(&auth, "bob");
    let keys = |id| leases.get(LeaseId(id)).unwrap().keys.clone();
    assert_eq!(bob.write_all(&keys(1)), Ok(()));
    assert_eq!(bob.write_all(&keys(2)), Err(error::PERMISSION_DENIED), "c is the end of [a, c)");
    assert_eq!(bob.write_all(&keys(3)), Ok(()), "it has no keys");
    assert_eq!(bob.read_all(&keys(2)), Ok(()));
    let put = PutRequest { key: "a".into(), lease: 2, ..PutRequest::default() };
    assert_eq!(bob.put(&put, &leases), Err(error::PERMISSION_DENIED));
    assert_eq!(gate(&auth, "root").put(&put, &leases), Ok(()));
}

#[test]
fn rights_on_the_keys_of_leases_are_asked_for_in_slices_of_one_budget() {
    let mut auth = enabled();
    // Ranges that do not touch, so that each needs its own search.
    for number in 0..50 {
        let range = allow("r", permission::Type::Write, &format!("x{number:02}"), &format!("x{number:02}z"));
        auth.grant_permission(&range).unwrap();
    }
    let granted =
        (1..=20).map(|id| GrantedLease { id: LeaseId(id), ttl: Seconds(60), remaining: Seconds(0) });
    let mut leases = Leases::granted(granted).unwrap();
    // The first ten leases have keys in all ranges, the others have none.
    for (id, number) in (1..=10).flat_map(|id| (0..50).map(move |number| (id, number))) {
        leases.attach(&Bytes::from(format!("x{number:02}{id}")), LeaseId::NONE, LeaseId(id));
    }
    let bob = gate(&auth, "bob");
    let slices = |leases: &Leases, right, gate: &Gate| {
        let mut rights = LeaseRights::new(right, leases.iter().map(|(_, lease)| lease.keys));
        let mut slices = 1;
        loop {
            match rights.step(gate, 64) {
                Ok(Some(left)) => return Ok((slices, left)),
                Ok(None) => slices += 1,
                Err(status) => return Err(status),
            }
        }
    };
    // Ten leases with keys in 50 ranges each, one search after the last range of each, and one unit per
    // lease.
    let (count, left) = slices(&leases, Right::Write, &bob).expect("may write all");
    let work = count * 64 - left;
    assert!((520..=530).contains(&work), "{work} units in {count} slices");
    assert_eq!(slices(&leases, Right::Read, &bob), Err(error::PERMISSION_DENIED));
    assert_eq!(slices(&leases, Right::Write, &gate(&auth, "root")), Ok((1, 64 - 20)));
    // The end of a range is not in the range, whatever the slice size.
    leases.attach(&Bytes::from_static(b"x49z"), LeaseId::NONE, LeaseId(20));
    assert_eq!(slices(&leases, Right::Write, &bob), Err(error::PERMISSION_DENIED));
}

#[test]
fn a_user_without_password_has_none_to_try() {
    let mut auth = enabled();
    let options = Some(UserAddOptions { no_password: true });
    auth.add_user(&AuthUserAddRequest { options, ..user("cn") }).unwrap();
    assert_eq!(auth.password_hash("cn"), Err(error::NO_PASSWORD_USER));
    assert_eq!(auth.password_hash("eve"), Err(error::AUTH_FAILED));
    assert_eq!(auth.password_hash("bob"), Ok(&Bytes::from_static(b"h")));
    let change = AuthUserChangePasswordRequest {
        name: "cn".into(),
        hashed_password: hash("new"),
        ..Default::default()
    };
    assert_eq!(auth.change_password(&change), Ok(AuthChange::Forget("cn".into())));
    assert_eq!(auth.user("cn").unwrap().password, Bytes::new());
    assert_eq!(auth.authenticated("cn", "t", Index(9)), Err(error::AUTH_FAILED));
    auth.disable();
    assert_eq!(auth.password_hash("bob"), Err(error::AUTH_NOT_ENABLED));
}

#[test]
fn what_is_saved_comes_back() {
    let auth = enabled();
    let mut saved = Vec::new();
    auth.encode(&mut saved);
    assert_eq!(Auth::decode(&mut Input(&saved)).unwrap(), auth);
    for len in 0..saved.len() {
        assert!(Auth::decode(&mut Input(&saved[..len])).is_err(), "{len}");
    }
    let of = Auth::of(true, auth.revision(), auth.users().cloned(), auth.roles().cloned());
    assert_eq!(of, auth);
}

#[test]
fn a_transaction_asks_for_the_keys_of_a_lease_once() {
    let auth = enabled();
    let granted = [1, 2].map(|id| GrantedLease { id: LeaseId(id), ttl: Seconds(60), remaining: Seconds(0) });
    let mut leases = Leases::granted(granted).unwrap();
    for lease in [1, 2] {
        leases.attach(&Bytes::from(format!("b{lease}")), LeaseId::NONE, LeaseId(lease));
    }
    let put = |n: i64| {
        let put = PutRequest { key: "b".into(), lease: 1 + n % 2, ..PutRequest::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    };
    let inner = TxnRequest { failure: (0..50).map(put).collect(), ..TxnRequest::default() };
    let nested = RequestOp { request: Some(Request::RequestTxn(inner)) };
    let success = (0..100).map(put).chain([nested]).collect();
    let bob = gate(&auth, "bob");
    assert_eq!(bob.txn(&TxnRequest { success, ..TxnRequest::default() }, &leases), Ok(()));
    assert_eq!(bob.leases_asked.get(), 2);
}

#[test]
fn rights_that_are_remembered_are_no_work() {
    let mut auth = enabled();
    let mut cache = RightsCache::default();
    cache.rights(&auth, "bob").unwrap();
    assert_eq!(cache.joined(), 3, "two permissions, and the set itself");
    auth.add_user(&user("eve")).unwrap();
    auth.grant_role(&grant("eve", "r")).unwrap();
    for user in ["bob", "eve", "bob", "nobody"] {
        cache.rights(&auth, user);
    }
    assert_eq!(cache.joined(), 6, "once at the new revision, for both users");
}

#[test]
fn an_auth_revision_that_could_begin_again_is_refused() {
    let saved_at = |revision: u64| {
        let mut saved = Vec::new();
        Auth { revision, ..enabled() }.encode(&mut saved);
        Auth::decode(&mut Input(&saved)).map(|auth| auth.revision())
    };
    assert_eq!(saved_at(REVISION_MAX), Ok(REVISION_MAX));
    for wrong in [REVISION_MAX + 1, u64::MAX] {
        assert_eq!(saved_at(wrong), Err(Malformed("an auth revision out of range")));
    }
    let known = enabled();
    let mut auth = Auth::of(true, REVISION_MAX, known.users().cloned(), known.roles().cloned());
    auth.add_role(&role("other")).unwrap();
    assert_eq!(auth.revision(), REVISION_MAX + 1);
}

#[test]
fn names_that_are_no_text_do_no_harm() {
    let name = Bytes::from_static(b"\xff\x00name");
    let mut odd = User { name: name.clone(), ..User::default() };
    odd.roles.push("r".to_owned());
    let known = enabled();
    let role = Role { name: name.clone(), ..Role::default() };
    let auth = Auth::of(true, 8, known.users().cloned().chain([odd]), known.roles().cloned().chain([role]));
    let mut saved = Vec::new();
    auth.encode(&mut saved);
    assert_eq!(Auth::decode(&mut Input(&saved)), Ok(auth.clone()));
    assert!(auth.users().any(|user| user.name == name) && auth.digest().len() == 7);
    // The name in a request is UTF-8 text, so no request can name this user.
    let lossy = String::from_utf8_lossy(&name);
    assert_eq!(gate(&auth, &lossy).read(b"a", b""), Err(error::PERMISSION_DENIED));
    assert_eq!(auth.permissions(&lossy), Err(error::ROLE_NOT_FOUND));
}

#[test]
fn no_secret_is_in_the_output_of_debug() {
    let planted = "pl4nted";
    let known = User { password: planted.into(), ..User::default() };
    let auth = Auth::of(true, 2, [known], []);
    let change =
        AuthChange::Authenticated { user: "bob".into(), token_prefix: planted.into(), index: Index(9) };
    let entry = api::etcdserverpb::InternalRaftRequest {
        auth_user_add: Some(AuthUserAddRequest { hashed_password: planted.into(), ..user("bob") }),
        ..Default::default()
    };
    let data = entry.encode_to_vec().into();
    let command = crate::Command {
        index: Index(9),
        term: numbers::Term(1),
        data: &data,
        location: mvcc::Location::default(),
    };
    let shown =
        format!("{auth:?} {change:?} {:?} {command:?}", crate::Change::Auth(Box::new(change.clone())));
    assert!(!shown.contains(planted) && shown.contains("bob"), "{shown}");
}
