package main

import (
	"context"
	"fmt"
	"math"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// server is one endpoint reached through raw gRPC, without the retries and the
// defaults of the client library.
type server struct {
	label string
	// memberID is the id of the answering member, which differs between servers
	// and so is replaced before answers are compared.
	memberID uint64
	kv       pb.KVClient
	watch    pb.WatchClient
	lease    pb.LeaseClient
	cluster  pb.ClusterClient
	maint    pb.MaintenanceClient
	auth     pb.AuthClient
	conn     *grpc.ClientConn
	// tokens are those that Authenticate gave, by user.
	tokens map[string]string
}

// hostPort removes a scheme, so that both host:port and http://host:port work.
func hostPort(endpoint string) string {
	return strings.TrimSuffix(strings.TrimPrefix(endpoint, "http://"), "/")
}

func dial(ctx context.Context, label, endpoint string) (*server, error) {
	conn, err := grpc.NewClient("passthrough:///"+hostPort(endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return nil, err
	}
	s := &server{
		label:   label,
		kv:      pb.NewKVClient(conn),
		watch:   pb.NewWatchClient(conn),
		lease:   pb.NewLeaseClient(conn),
		cluster: pb.NewClusterClient(conn),
		maint:   pb.NewMaintenanceClient(conn),
		auth:    pb.NewAuthClient(conn),
		conn:    conn,
		tokens:  map[string]string{},
	}
	status, err := s.maint.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", label, endpoint, err)
	}
	s.memberID = status.Header.MemberId
	return s, nil
}
