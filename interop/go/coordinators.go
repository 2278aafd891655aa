package main

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The Lock and Election services live in etcd's server module, which is too
// heavy to depend on, so their messages are described here: name, then fields
// as "name number type", where the type is b (bytes), i (int64), or a message.
var coordinatorMessages = []struct {
	name   string
	fields []string
}{
	{"LockRequest", []string{"name 1 b", "lease 2 i"}},
	{"LockResponse", []string{"header 1 .etcdserverpb.ResponseHeader", "key 2 b"}},
	{"UnlockRequest", []string{"key 1 b"}},
	{"UnlockResponse", []string{"header 1 .etcdserverpb.ResponseHeader"}},
	{"CampaignRequest", []string{"name 1 b", "lease 2 i", "value 3 b"}},
	{"CampaignResponse", []string{"header 1 .etcdserverpb.ResponseHeader", "leader 2 .interop.LeaderKey"}},
	{"LeaderKey", []string{"name 1 b", "key 2 b", "rev 3 i", "lease 4 i"}},
	{"LeaderRequest", []string{"name 1 b"}},
	{"LeaderResponse", []string{"header 1 .etcdserverpb.ResponseHeader", "kv 2 .mvccpb.KeyValue"}},
	{"ResignRequest", []string{"leader 1 .interop.LeaderKey"}},
	{"ResignResponse", []string{"header 1 .etcdserverpb.ResponseHeader"}},
	{"ProclaimRequest", []string{"leader 1 .interop.LeaderKey", "value 2 b"}},
	{"ProclaimResponse", []string{"header 1 .etcdserverpb.ResponseHeader"}},
}

var coordinators = describeCoordinators()

func describeCoordinators() protoreflect.MessageDescriptors {
	file := &descriptorpb.FileDescriptorProto{
		Name:    proto.String("interop.proto"),
		Package: proto.String("interop"),
		Syntax:  proto.String("proto3"),
		Dependency: []string{
			(&pb.ResponseHeader{}).ProtoReflect().Descriptor().ParentFile().Path(),
			(&mvccpb.KeyValue{}).ProtoReflect().Descriptor().ParentFile().Path(),
		},
	}
	for _, m := range coordinatorMessages {
		message := &descriptorpb.DescriptorProto{Name: proto.String(m.name)}
		for _, text := range m.fields {
			var name, kind string
			var number int32
			if _, err := fmt.Sscanf(text, "%s %d %s", &name, &number, &kind); err != nil {
				panic(err) // the table above is wrong
			}
			field := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
			switch kind {
			case "b":
				field.Type = descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
			case "i":
				field.Type = descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum()
			default:
				field.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
				field.TypeName = &kind
			}
			message.Field = append(message.Field, field)
		}
		file.MessageType = append(file.MessageType, message)
	}
	described, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		panic(err) // the table above is wrong
	}
	return described.Messages()
}

// opCoordinate calls a method of Lock or Election; the request is given as
// prototext, and the names of the messages follow from the method.
func opCoordinate(service, method, request string) operation {
	return operation{text: method + " {" + request + "}", run: func(ctx context.Context, s *server) answer {
		ctx, cancel := context.WithTimeout(ctx, callDeadline)
		defer cancel()
		in := dynamicpb.NewMessage(coordinators.ByName(protoreflect.Name(method + "Request")))
		if err := prototext.Unmarshal([]byte(request), in); err != nil {
			panic(err) // a request in this file is wrong
		}
		out := dynamicpb.NewMessage(coordinators.ByName(protoreflect.Name(method + "Response")))
		if err := s.conn.Invoke(ctx, "/"+service+"/"+method, in, out); err != nil {
			return failure(err)
		}
		a := answer{}
		a.flatten("", out)
		return a
	}}
}

// opObserve reads the first message of an election's observation.
func opObserve(name string) operation {
	return operation{text: "Observe " + name, run: func(ctx context.Context, s *server) answer {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/v3electionpb.Election/Observe")
		if err != nil {
			return failure(err)
		}
		in := dynamicpb.NewMessage(coordinators.ByName("LeaderRequest"))
		in.Set(in.Descriptor().Fields().ByName("name"), protoreflect.ValueOfBytes([]byte(name)))
		if err := stream.SendMsg(in); err != nil {
			return failure(err)
		}
		if err := stream.CloseSend(); err != nil {
			return failure(err)
		}
		out := dynamicpb.NewMessage(coordinators.ByName("LeaderResponse"))
		if err := stream.RecvMsg(out); err != nil {
			return failure(err)
		}
		a := answer{}
		a.flatten("", out)
		return a
	}}
}

// coordinatorOps go through the life of a lock and of an election. The keys end
// in the lease id in hexadecimal: 7001 is 1b59, 7002 is 1b5a.
func (c *comparison) coordinatorOps() []operation {
	lock := func(method, request string) operation { return opCoordinate("v3lockpb.Lock", method, request) }
	elect := func(method, request string) operation {
		return opCoordinate("v3electionpb.Election", method, request)
	}
	// The campaign below is won at this revision: two leases, one lock, one
	// unlock, one lock again and one unlock come before it.
	won := func() string { return fmt.Sprintf(`name:"seat" key:"seat/1b59" rev:%d lease:7001`, c.g.revision) }
	ops := []operation{
		opLeaseGrant(&pb.LeaseGrantRequest{ID: 7001, TTL: 5000}),
		opLeaseGrant(&pb.LeaseGrantRequest{ID: 7002, TTL: 5000}),
		lock("Lock", `name:"door" lease:7001`),
		lock("Lock", `name:"door" lease:7001`),
		opRange(&pb.RangeRequest{Key: []byte("door/"), RangeEnd: []byte("door0")}),
		lock("Unlock", `key:"door/1b59"`),
		lock("Unlock", `key:"door/1b59"`),
		lock("Unlock", ``),
		lock("Lock", `name:"door" lease:7002`),
		lock("Lock", `name:"door" lease:7003`),
		lock("Unlock", `key:"door/1b5a"`),
		elect("Leader", `name:"seat"`),
		elect("Campaign", `name:"seat" lease:7003 value:"nobody"`),
		elect("Campaign", `name:"seat" lease:7001 value:"first"`),
		elect("Leader", `name:"seat"`),
		opObserve("seat"),
	}
	late := func(text string, make func() operation) operation {
		return operation{text: text, run: func(ctx context.Context, s *server) answer { return make().run(ctx, s) }}
	}
	ops = append(ops,
		late("Proclaim as leader", func() operation { return elect("Proclaim", `leader:{`+won()+`} value:"second"`) }),
		elect("Leader", `name:"seat"`),
		elect("Campaign", `name:"seat" lease:7001 value:"third"`),
		elect("Proclaim", `leader:{name:"seat" key:"seat/1b59" rev:1 lease:7001} value:"never"`),
		elect("Proclaim", `value:"never"`),
		elect("Resign", ``),
		elect("Resign", `leader:{name:"seat" key:"seat/1b59" rev:1 lease:7001}`),
		opRange(&pb.RangeRequest{Key: []byte("seat/"), RangeEnd: []byte("seat0")}),
		opDelete(&pb.DeleteRangeRequest{Key: []byte("seat/"), RangeEnd: []byte("seat0"), PrevKv: true}),
		elect("Leader", `name:"seat"`),
		opLeaseRevoke(7001), opLeaseRevoke(7002),
	)
	return ops
}
