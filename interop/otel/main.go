// Command otel shows that the spans of a server arrive at a real OpenTelemetry collector, and that they are etcd's.
//
//	otel --server etcd=PATH --server mainstay=PATH
//
// It runs the collector's own OTLP receiver, starts each server in turn as a single member that sends its spans there, makes calls
// as a client that is traced itself, and stops the server. The spans of the first server are the reference: each of them has to
// come from the others too, with the same parent, kind and attributes; what a server sends beside is counted. Ends with "N
// passed, M failed" and exit code 1 if M is not 0, 2 if the run was not possible.
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"mainstay/ports"
)

// absent are attributes of etcd's spans that Mainstay's lack on purpose (COMPAT-152).
var absent = []string{"server.address", "server.port"}

// call is a call of a traced client; spans are told apart by the trace, which has the call's number.
type call struct {
	name string
	make func(context.Context, *grpc.ClientConn) error
}

const ttl = 600

var calls = []call{
	{"put", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("k"), Value: []byte("v")})
		return err
	}},
	{"range", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("k"), Limit: 3})
		return err
	}},
	{"serializable range", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("k"), Serializable: true, KeysOnly: true})
		return err
	}},
	{"txn", func(ctx context.Context, conn *grpc.ClientConn) error {
		put := &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("k"), Value: []byte("w")}}
		compare := &pb.Compare{Target: pb.Compare_VERSION, Result: pb.Compare_GREATER, Key: []byte("k"),
			TargetUnion: &pb.Compare_Version{Version: 0}}
		request := &pb.TxnRequest{Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{{Request: put}}}
		_, err := pb.NewKVClient(conn).Txn(ctx, request)
		return err
	}},
	{"txn that reads", func(ctx context.Context, conn *grpc.ClientConn) error {
		get := &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("k")}}
		_, err := pb.NewKVClient(conn).Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: get}}})
		return err
	}},
	{"delete", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("n"), RangeEnd: []byte("o")})
		return err
	}},
	{"compact", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewKVClient(conn).Compact(ctx, &pb.CompactionRequest{Revision: 2, Physical: true})
		return err
	}},
	{"range of a compacted revision", func(ctx context.Context, conn *grpc.ClientConn) error {
		return failing(pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("k"), Revision: 1}))
	}},
	{"lease", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewLeaseClient(conn).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: ttl})
		return err
	}},
	{"renewals", func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := pb.NewLeaseClient(conn).LeaseKeepAlive(ctx)
		for _, id := range []int64{7, 8} {
			if err == nil {
				err = stream.Send(&pb.LeaseKeepAliveRequest{ID: id})
			}
			if err == nil {
				_, err = stream.Recv()
			}
		}
		if err != nil {
			return err
		}
		return closed(stream)
	}},
	{"revocation", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewLeaseClient(conn).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: 7})
		return err
	}},
	{"watches", func(ctx context.Context, conn *grpc.ClientConn) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := pb.NewWatchClient(conn).Watch(ctx)
		for id, request := range []*pb.WatchCreateRequest{
			{Key: []byte("k"), PrevKv: true}, {RangeEnd: []byte{0}, StartRevision: 3, Fragment: true, ProgressNotify: true},
		} {
			request.WatchId = int64(id + 1)
			create := &pb.WatchRequest_CreateRequest{CreateRequest: request}
			if err == nil {
				err = stream.Send(&pb.WatchRequest{RequestUnion: create})
			}
			if err == nil {
				_, err = stream.Recv()
			}
		}
		stop := &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 1}}
		if err == nil {
			err = stream.Send(&pb.WatchRequest{RequestUnion: stop})
		}
		for err == nil {
			var response *pb.WatchResponse
			if response, err = stream.Recv(); err == nil && response.Canceled {
				return nil
			}
		}
		return err
	}},
	{"members", func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{})
		return err
	}},
}

func failing(_ any, err error) error {
	if err == nil {
		return errors.New("it succeeded")
	}
	return nil
}

// closed ends the client's side of a stream, and waits for the server's.
func closed(stream pb.Lease_LeaseKeepAliveClient) error {
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); err == nil || err.Error() != "EOF" {
		return fmt.Errorf("the stream goes on: %v", err)
	}
	return nil
}

// collector keeps what the receiver hands on.
type collector struct {
	mu     sync.Mutex
	spans  []span
	traces receiver.Traces
}

// span is a span as it is compared.
type span struct {
	trace, id, parent, name, kind, scope, service, status string
	attributes                                            []string
}

func listen(ctx context.Context, address string) (*collector, error) {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	grpcConfig := configgrpc.NewDefaultServerConfig()
	grpcConfig.NetAddr.Endpoint = address
	grpcConfig.NetAddr.Transport = "tcp"
	config.GRPC = configoptional.Some(grpcConfig)
	c := &collector{}
	next, err := consumer.NewTraces(func(_ context.Context, traces ptrace.Traces) error {
		c.take(traces)
		return nil
	})
	if err != nil {
		return nil, err
	}
	telemetry := componenttest.NewNopTelemetrySettings()
	telemetry.Logger = zap.NewNop()
	settings := receiver.Settings{ID: component.NewID(factory.Type()), TelemetrySettings: telemetry}
	if c.traces, err = factory.CreateTraces(ctx, settings, config, next); err != nil {
		return nil, err
	}
	return c, c.traces.Start(ctx, componenttest.NewNopHost())
}

func (c *collector) take(traces ptrace.Traces) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range traces.ResourceSpans().All() {
		service, _ := resource.Resource().Attributes().Get("service.name")
		for _, scope := range resource.ScopeSpans().All() {
			for _, s := range scope.Spans().All() {
				c.spans = append(c.spans, span{
					trace: s.TraceID().String(), id: s.SpanID().String(), parent: s.ParentSpanID().String(), name: s.Name(),
					kind: s.Kind().String(), scope: scope.Scope().Name(), service: service.AsString(),
					status: s.Status().Code().String(), attributes: told(s.Attributes()),
				})
			}
		}
	}
}

func told(attributes pcommon.Map) []string {
	var told []string
	for name, value := range attributes.All() {
		if !slices.Contains(absent, name) {
			told = append(told, name+"="+value.AsString())
		}
	}
	slices.Sort(told)
	return told
}

// paths names the spans of one trace by their places in it: their names from the client's span down, with what they tell.
func paths(spans []span, trace, client string) []string {
	byID := map[string]span{}
	for _, s := range spans {
		byID[s.id] = s
	}
	var found []string
	for _, s := range spans {
		if s.trace != trace {
			continue
		}
		path, at := s.name, s
		for at.parent != client {
			parent, ok := byID[at.parent]
			if !ok {
				path = "? > " + path
				break
			}
			path, at = parent.name+" > "+path, parent
		}
		found = append(found, fmt.Sprintf("%s [%s, %s, %s, %s] %s", path, s.kind, s.scope, s.service, s.status,
			strings.Join(s.attributes, " ")))
	}
	slices.Sort(found)
	return found
}

func freeAddresses(count int) ([]string, error) {
	free, err := ports.Free(count)
	var addresses []string
	for _, port := range free {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addresses, err
}

func traceOf(number int) (trace, client string) {
	return hex.EncodeToString(append([]byte("mainstay-interop"[:15]), byte(number+1))), hex.EncodeToString([]byte("a-client"))
}

// run makes all calls at a server; returns the spans of each.
func run(ctx context.Context, program string) ([][]string, error) {
	addresses, err := freeAddresses(3)
	if err != nil {
		return nil, err
	}
	c, err := listen(ctx, addresses[0])
	if err != nil {
		return nil, err
	}
	defer c.traces.Shutdown(ctx)
	directory, err := os.MkdirTemp("", "otel-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	client, peer := "http://"+addresses[1], "http://"+addresses[2]
	server := exec.Command(program, "--data-dir="+directory+"/data", "--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--enable-distributed-tracing", "--distributed-tracing-address="+addresses[0], "--log-level=error")
	server.Stdout, server.Stderr = os.Stderr, os.Stderr
	if err := server.Start(); err != nil {
		return nil, err
	}
	defer server.Process.Kill()
	conn, err := grpc.NewClient(addresses[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := pb.NewKVClient(conn).Range(ctx, &pb.RangeRequest{Key: []byte("x")}, grpc.WaitForReady(true)); err != nil {
		return nil, err
	}
	for number, call := range calls {
		trace, span := traceOf(number)
		traced := metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+trace+"-"+span+"-01")
		if err := call.make(traced, conn); err != nil {
			return nil, fmt.Errorf("%s: %w", call.name, err)
		}
	}
	// The stream of watches ends when the server knows that its client has gone; what waits is sent every five seconds, and when
	// the server stops.
	watches := slices.IndexFunc(calls, func(call call) bool { return call.name == "watches" })
	trace, _ := traceOf(watches)
	for !c.has(trace, "etcdserverpb.Watch/Watch") {
		select {
		case <-ctx.Done():
			return nil, errors.New("the span of the watch stream does not arrive")
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		return nil, err
	}
	// etcd ends by the signal.
	_ = server.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	var found [][]string
	for number := range calls {
		found = append(found, paths(c.spans, first(traceOf(number)), second(traceOf(number))))
	}
	return found, nil
}

func first(first, _ string) string   { return first }
func second(_, second string) string { return second }

func (c *collector) has(trace, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.spans, func(s span) bool { return s.trace == trace && s.name == name })
}

func main() {
	var names, programs []string
	flag.Func("server", "NAME=PATH of a server; the first is the reference", func(value string) error {
		name, path, named := strings.Cut(value, "=")
		if !named {
			return errors.New("want NAME=PATH")
		}
		names, programs = append(names, name), append(programs, path)
		return nil
	})
	show := flag.Bool("show", false, "print all spans")
	flag.Parse()
	if len(names) < 2 {
		fmt.Fprintln(os.Stderr, "otel: name two servers, the reference first")
		os.Exit(2)
	}
	var reference [][]string
	passed, failed := 0, 0
	for at, program := range programs {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		found, err := run(ctx, program)
		cancel()
		if err != nil {
			fmt.Fprintf(os.Stderr, "otel: %s: %v\n", names[at], err)
			os.Exit(2)
		}
		if reference == nil {
			reference = found
		}
		more := 0
		for number, call := range calls {
			if *show {
				fmt.Printf("%s, %s:\n    %s\n", names[at], call.name, strings.Join(found[number], "\n    "))
			}
			left := slices.Clone(found[number])
			for _, want := range reference[number] {
				if place := slices.Index(left, want); place >= 0 {
					left = slices.Delete(left, place, place+1)
					passed++
				} else {
					failed++
					fmt.Printf("FAILED %s, %s: no span\n    %s\n  among\n    %s\n", names[at], call.name, want, strings.Join(found[number], "\n    "))
				}
			}
			more += len(left)
		}
		fmt.Printf("%s: %d spans beside the reference's\n", names[at], more)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
