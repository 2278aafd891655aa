package main

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

var (
	userNames = []string{"alice", "bob", "carol", "", "root"}
	roleNames = []string{"reader", "writer", "mixed", "", "root"}
	passwords = []string{"secret", "other", ""}
)

// usersPhase is asked after the plain operations: user and role changes while
// auth is off, then everything again as different users while it is on.
func (c *comparison) usersPhase(n int) {
	g := c.g
	for range 60 {
		c.ask(n, g.nextUserOp())
	}
	// Once auth is on, a watch without a user goes on in etcd and is ended by
	// others, who say so. So these have their say before, and begin again after.
	c.ask(n, c.opLiveEvents())
	for _, w := range c.live {
		w.cancel()
	}
	// A known set of users, whatever the changes above have left.
	for _, op := range []operation{
		opUserDelete("root"), opUserDelete("alice"), opUserDelete("bob"), opRoleDelete("mixed"),
		opUserAdd(&pb.AuthUserAddRequest{Name: "root", Password: "rootpw"}),
		opUserPassword("root", "rootpw"),
		opAuthEnable(),
		opRoleAdd("root"), opUserGrant("root", "root"),
		opUserAdd(&pb.AuthUserAddRequest{Name: "alice", Password: "secret"}), opUserPassword("alice", "secret"),
		opUserAdd(&pb.AuthUserAddRequest{Name: "bob", Password: "secret"}), opUserPassword("bob", "secret"),
		opUserAdd(&pb.AuthUserAddRequest{Name: "nopass", Options: &authpb.UserAddOptions{NoPassword: true}}),
		opRoleAdd("reader"), opRoleAdd("writer"), opRoleAdd("mixed"),
		opRoleGrant("reader", authpb.READ, "foo", "fop"), opRoleGrant("writer", authpb.WRITE, "foo", "fop"),
		opRoleGrant("mixed", authpb.READWRITE, "a", ""), opRoleGrant("mixed", authpb.READ, "aa", "b"), opRoleGrant("mixed", authpb.READWRITE, "k", "\x00"),
		opUserGrant("alice", "reader"), opUserGrant("alice", "writer"), opUserGrant("bob", "mixed"),
		opAuthenticate("alice", "secret"), opAuthEnable(), opAuthEnable(), opAuthStatus(),
		opAuthenticate("root", "rootpw"), opAuthenticate("alice", "secret"), opAuthenticate("bob", "secret"),
		opAuthenticate("alice", "wrong"), opAuthenticate("nobody", "secret"), opAuthenticate("", ""), opAuthenticate("nopass", "x"), opAuthenticate("nopass", ""),
	} {
		c.ask(n, op)
	}
	g.ordered = true
	defer func() { g.ordered = false }()
	for range 300 {
		identity := pick(g, []string{"", "root", "alice", "alice", "alice", "bob", "bob", "bob", "forged"})
		var op operation
		switch k := g.rng.IntN(20); {
		case k < 5:
			op = opRange(g.rangeRequest())
		case k < 8:
			op = opPut(g.putRequest())
		case k < 10:
			op = opDelete(g.deleteRequest())
		case k < 14:
			op = opTxn(g.txnRequest(0))
		case k == 14:
			op = opRangeStream(g.streamRequest())
		case k == 15:
			p := g.watchPlan()
			op = operation{text: fmt.Sprint("Watch ", describe("", p.creates[0])), run: p.run}
		case k == 16:
			op = pick(g, []operation{opStatus(), opMembers(true), opHashKV(0), opLeases(), opDefragment(), opSnapshot(), opAuthStatus(),
				opAlarm(&pb.AlarmRequest{}), opAlarm(&pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE}),
				opCompact(&pb.CompactionRequest{Revision: g.revision + 5})})
		case k == 17:
			op = pick(g, []operation{opLeaseTimeToLive(&pb.LeaseTimeToLiveRequest{ID: g.leaseID(), Keys: true}), opLeaseRevoke(g.leaseID()),
				opLeaseGrant(&pb.LeaseGrantRequest{ID: g.leaseID(), TTL: 5000}), opKeepAlive([]int64{g.leaseID()})})
		default:
			op = g.nextUserOp()
			if identity == "root" {
				op = opUserGet(pick(g, userNames)) // root only looks, so that the set of users stays
			}
		}
		c.ask(n, as(identity, op))
	}
	for _, op := range []operation{
		as("root", opUserRevoke("root", "root")), as("root", opUserDelete("root")), as("root", opRoleDelete("root")),
		as("alice", opAuthDisable()), opAuthDisable(), as("root", opAuthDisable()), as("root", opAuthDisable()), opAuthStatus(), opUsers(), opRoles(),
		opAuthenticate("alice", "secret"), as("alice", opRange(&pb.RangeRequest{Key: []byte("a")})), opUserDelete("root"),
	} {
		c.ask(n, op)
	}
	if err := c.watchLive(); err != nil {
		c.tally.check(false, "the live watches cannot be opened again: %v", err)
	}
}

// as runs an operation with the token of a user; "forged" has an invalid one.
func as(identity string, op operation) operation {
	if identity == "" {
		return op
	}
	run := op.run
	op.text = "as " + identity + ": " + op.text
	op.run = func(ctx context.Context, s *server) answer {
		token := s.tokens[identity]
		if identity == "forged" {
			token = "ABCDEFGHIJKLMNOP.1"
		}
		return run(metadata.AppendToOutgoingContext(ctx, "token", token), s)
	}
	return op
}

func (g *generator) nextUserOp() operation {
	user, role := pick(g, userNames), pick(g, roleNames)
	switch g.rng.IntN(16) {
	case 0, 1:
		r := &pb.AuthUserAddRequest{Name: user, Password: pick(g, passwords)}
		if g.chance(30) {
			r.Options = &authpb.UserAddOptions{NoPassword: true}
		}
		return opUserAdd(r)
	case 2:
		return opUserDelete(user)
	case 3:
		return opUserGet(user)
	case 4:
		return opUserPassword(user, pick(g, passwords))
	case 5, 6:
		return opUserGrant(user, role)
	case 7:
		return opUserRevoke(user, role)
	case 8, 9:
		return opRoleAdd(role)
	case 10:
		return opRoleDelete(role)
	case 11:
		return opRoleGet(role)
	case 12, 13:
		key, end := g.span()
		return opRoleGrant(role, authpb.Permission_Type(g.rng.IntN(3)), string(key), string(end))
	case 14:
		key, end := g.span()
		return call("RoleRevokePermission", &pb.AuthRoleRevokePermissionRequest{Role: role, Key: key, RangeEnd: end},
			func(s *server) func(context.Context, *pb.AuthRoleRevokePermissionRequest, ...grpc.CallOption) (*pb.AuthRoleRevokePermissionResponse, error) {
				return s.auth.RoleRevokePermission
			}, nil)
	default:
		return pick(g, []operation{opUsers(), opRoles(), opAuthStatus(), opAuthDisable()})
	}
}

// opAuthenticate keeps the token for later; in the answer only its form counts.
func opAuthenticate(user, password string) operation {
	return call("Authenticate", &pb.AuthenticateRequest{Name: user, Password: password},
		func(s *server) func(context.Context, *pb.AuthenticateRequest, ...grpc.CallOption) (*pb.AuthenticateResponse, error) {
			return s.auth.Authenticate
		}, func(s *server, r *pb.AuthenticateResponse) {
			s.tokens[user] = r.Token
			if r.Token != "" {
				r.Token = "token"
			}
		})
}

func opAuthEnable() operation {
	return call("AuthEnable", &pb.AuthEnableRequest{}, func(s *server) func(context.Context, *pb.AuthEnableRequest, ...grpc.CallOption) (*pb.AuthEnableResponse, error) {
		return s.auth.AuthEnable
	}, nil)
}

func opAuthDisable() operation {
	return call("AuthDisable", &pb.AuthDisableRequest{}, func(s *server) func(context.Context, *pb.AuthDisableRequest, ...grpc.CallOption) (*pb.AuthDisableResponse, error) {
		return s.auth.AuthDisable
	}, nil)
}

func opAuthStatus() operation {
	return call("AuthStatus", &pb.AuthStatusRequest{}, func(s *server) func(context.Context, *pb.AuthStatusRequest, ...grpc.CallOption) (*pb.AuthStatusResponse, error) {
		return s.auth.AuthStatus
	}, nil)
}

func opUserAdd(r *pb.AuthUserAddRequest) operation {
	return call("UserAdd", r, func(s *server) func(context.Context, *pb.AuthUserAddRequest, ...grpc.CallOption) (*pb.AuthUserAddResponse, error) {
		return s.auth.UserAdd
	}, nil)
}

func opUserDelete(user string) operation {
	return call("UserDelete", &pb.AuthUserDeleteRequest{Name: user}, func(s *server) func(context.Context, *pb.AuthUserDeleteRequest, ...grpc.CallOption) (*pb.AuthUserDeleteResponse, error) {
		return s.auth.UserDelete
	}, nil)
}

func opUserGet(user string) operation {
	return call("UserGet", &pb.AuthUserGetRequest{Name: user}, func(s *server) func(context.Context, *pb.AuthUserGetRequest, ...grpc.CallOption) (*pb.AuthUserGetResponse, error) {
		return s.auth.UserGet
	}, nil)
}

func opUserPassword(user, password string) operation {
	return call("UserChangePassword", &pb.AuthUserChangePasswordRequest{Name: user, Password: password},
		func(s *server) func(context.Context, *pb.AuthUserChangePasswordRequest, ...grpc.CallOption) (*pb.AuthUserChangePasswordResponse, error) {
			return s.auth.UserChangePassword
		}, nil)
}

func opUserGrant(user, role string) operation {
	return call("UserGrantRole", &pb.AuthUserGrantRoleRequest{User: user, Role: role}, func(s *server) func(context.Context, *pb.AuthUserGrantRoleRequest, ...grpc.CallOption) (*pb.AuthUserGrantRoleResponse, error) {
		return s.auth.UserGrantRole
	}, nil)
}

func opUserRevoke(user, role string) operation {
	return call("UserRevokeRole", &pb.AuthUserRevokeRoleRequest{Name: user, Role: role}, func(s *server) func(context.Context, *pb.AuthUserRevokeRoleRequest, ...grpc.CallOption) (*pb.AuthUserRevokeRoleResponse, error) {
		return s.auth.UserRevokeRole
	}, nil)
}

func opUsers() operation {
	return call("UserList", &pb.AuthUserListRequest{}, func(s *server) func(context.Context, *pb.AuthUserListRequest, ...grpc.CallOption) (*pb.AuthUserListResponse, error) {
		return s.auth.UserList
	}, nil)
}

func opRoleAdd(role string) operation {
	return call("RoleAdd", &pb.AuthRoleAddRequest{Name: role}, func(s *server) func(context.Context, *pb.AuthRoleAddRequest, ...grpc.CallOption) (*pb.AuthRoleAddResponse, error) {
		return s.auth.RoleAdd
	}, nil)
}

func opRoleDelete(role string) operation {
	return call("RoleDelete", &pb.AuthRoleDeleteRequest{Role: role}, func(s *server) func(context.Context, *pb.AuthRoleDeleteRequest, ...grpc.CallOption) (*pb.AuthRoleDeleteResponse, error) {
		return s.auth.RoleDelete
	}, nil)
}

func opRoleGet(role string) operation {
	return call("RoleGet", &pb.AuthRoleGetRequest{Role: role}, func(s *server) func(context.Context, *pb.AuthRoleGetRequest, ...grpc.CallOption) (*pb.AuthRoleGetResponse, error) {
		return s.auth.RoleGet
	}, nil)
}

func opRoles() operation {
	return call("RoleList", &pb.AuthRoleListRequest{}, func(s *server) func(context.Context, *pb.AuthRoleListRequest, ...grpc.CallOption) (*pb.AuthRoleListResponse, error) {
		return s.auth.RoleList
	}, nil)
}

func opRoleGrant(role string, kind authpb.Permission_Type, key, end string) operation {
	perm := &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)}
	return call("RoleGrantPermission", &pb.AuthRoleGrantPermissionRequest{Name: role, Perm: perm},
		func(s *server) func(context.Context, *pb.AuthRoleGrantPermissionRequest, ...grpc.CallOption) (*pb.AuthRoleGrantPermissionResponse, error) {
			return s.auth.RoleGrantPermission
		}, nil)
}
