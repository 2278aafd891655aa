//! Users that are identified by their certificates.

use api::etcdserverpb::{
    AuthEnableRequest, AuthEnableResponse, AuthRoleAddRequest, AuthRoleAddResponse,
    AuthRoleGrantPermissionRequest, AuthRoleGrantPermissionResponse, AuthUserAddRequest, AuthUserAddResponse,
    AuthUserGrantRoleRequest, AuthUserGrantRoleResponse, AuthUserListRequest, AuthUserRevokeRoleRequest,
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, watch_request,
};
use api::{Rpc, Status, authpb, error};
use prost::Message;

use super::world::{Stream, World};

/// Identity of a caller: the common name of its certificate, and metadata.
type Who<'a> = (Option<&'a str>, &'a [(&'static str, &'static str)]);

fn ask(world: &mut World, who: Who<'_>, rpc: Rpc, request: &impl Message) -> Result<(), Status> {
    let (name, metadata) = who;
    let mut head = world.member(0).head(rpc);
    head.common_name = name.map(Into::into);
    for (key, value) in metadata {
        head.metadata.insert(key, http::HeaderValue::from_static(value));
    }
    let call = world.member(0).call_as(head, request.encode_to_vec().into());
    world.run(call).map(drop)
}

fn set_up() -> World {
    let mut world = World::started(1, 1, &[]);
    for name in ["root", "alice"] {
        let options = Some(authpb::UserAddOptions { no_password: true });
        let add = AuthUserAddRequest { name: name.to_owned(), options, ..AuthUserAddRequest::default() };
        world.call::<_, AuthUserAddResponse>(0, Rpc::AuthUserAdd, &add).expect("is added");
    }
    for (user, role) in [("root", "root"), ("alice", "a")] {
        let add = AuthRoleAddRequest { name: role.to_owned() };
        world.call::<_, AuthRoleAddResponse>(0, Rpc::AuthRoleAdd, &add).expect("is added");
        let grant = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        world.call::<_, AuthUserGrantRoleResponse>(0, Rpc::AuthUserGrantRole, &grant).expect("is granted");
    }
    let perm = authpb::Permission {
        perm_type: authpb::permission::Type::Readwrite as i32,
        key: "a".into(),
        range_end: Default::default(),
    };
    let grant = AuthRoleGrantPermissionRequest { name: "a".to_owned(), perm: Some(perm) };
    let rpc = Rpc::AuthRoleGrantPermission;
    world.call::<_, AuthRoleGrantPermissionResponse>(0, rpc, &grant).expect("is granted");
    world.call::<_, AuthEnableResponse>(0, Rpc::AuthEnable, &AuthEnableRequest {}).expect("is enabled");
    world
}

#[test]
fn the_name_in_a_certificate_is_the_user() {
    let mut world = set_up();
    let put = |key: &'static str| PutRequest { key: key.into(), ..PutRequest::default() };
    let get = |key: &'static str| RangeRequest { key: key.into(), ..RangeRequest::default() };
    for (who, key, result) in [
        ((Some("alice"), &[][..]), "a", Ok(())),
        ((Some("alice"), &[]), "b", Err(error::PERMISSION_DENIED)),
        ((Some("root"), &[]), "b", Ok(())),
        ((Some("nobody"), &[]), "a", Err(error::PERMISSION_DENIED)),
        ((None, &[]), "a", Err(error::USER_EMPTY)),
        // A token takes precedence over the certificate, even an invalid token.
        ((Some("root"), &[("token", "forged.1")]), "b", Err(error::INVALID_AUTH_TOKEN)),
        // A request that a gateway passes on carries the certificate of the gateway.
        ((Some("root"), &[("grpcgateway-accept", "*/*")]), "b", Err(error::USER_EMPTY)),
    ] {
        assert_eq!(ask(&mut world, who, Rpc::KvPut, &put(key)), result, "{who:?} {key}");
        assert_eq!(ask(&mut world, who, Rpc::KvRange, &get(key)), result, "{who:?} {key}");
    }
    let list = AuthUserListRequest {};
    for (name, result) in
        [("root", Ok(())), ("alice", Err(error::PERMISSION_DENIED)), ("nobody", Err(error::USER_NOT_FOUND))]
    {
        assert_eq!(ask(&mut world, (Some(name), &[]), Rpc::AuthUserList, &list), result, "{name}");
    }
}

#[test]
fn a_watch_is_that_of_the_name_in_the_certificate_and_ends_with_its_grant() {
    let mut world = set_up();
    let stream = Stream::default();
    for key in ["a", "b"] {
        let create = WatchCreateRequest { key: key.into(), ..WatchCreateRequest::default() };
        let request_union = Some(watch_request::RequestUnion::CreateRequest(create));
        stream.ask(&WatchRequest { request_union });
    }
    let member = world.member(0);
    let mut head = member.head(Rpc::Watch);
    head.common_name = Some("alice".into());
    let watching = member.watch_by(&head, stream.clone(), stream.clone(), std::future::pending());
    member.spawn(async move {
        let _ = watching.await;
    });
    // Returns for each response whether it ends a watch, and the number of its events.
    let seen = || -> Vec<(bool, usize)> {
        stream.responses.borrow().iter().map(|answer| (answer.canceled, answer.events.len())).collect()
    };
    world.until("both are answered", |_| seen().iter().filter(|answer| answer.0).count() == 1);
    let root = (Some("root"), &[][..]);
    let put = PutRequest { key: "a".into(), ..PutRequest::default() };
    assert_eq!(ask(&mut world, root, Rpc::KvPut, &put), Ok(()));
    world.until("the event has come", |_| seen().iter().any(|answer| answer.1 == 1));
    let revoke = AuthUserRevokeRoleRequest { name: "alice".to_owned(), role: "a".to_owned() };
    assert_eq!(ask(&mut world, root, Rpc::AuthUserRevokeRole, &revoke), Ok(()));
    assert_eq!(ask(&mut world, root, Rpc::KvPut, &put), Ok(()));
    world.until("the watch has ended", |_| seen().iter().filter(|answer| answer.0).count() == 2);
    assert_eq!(seen().iter().map(|answer| answer.1).sum::<usize>(), 1);
}
