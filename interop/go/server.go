package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
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

// hostPort removes a scheme, so that host:port works like http://host:port and
// https://host:port.
func hostPort(endpoint string) string {
	endpoint = strings.TrimPrefix(strings.TrimPrefix(endpoint, "http://"), "https://")
	return strings.TrimSuffix(endpoint, "/")
}

// tlsFlags adds the flags of a client's TLS.
func tlsFlags(flags *flag.FlagSet) *transport.TLSInfo {
	info := &transport.TLSInfo{}
	flags.StringVar(&info.TrustedCAFile, "cacert", "", "authority of the servers; they are spoken to with TLS then")
	flags.StringVar(&info.CertFile, "cert", "", "certificate of the client")
	flags.StringVar(&info.KeyFile, "key", "", "its key")
	return info
}

// security is how to speak to the servers: in the clear without an authority.
func security(info *transport.TLSInfo) (credentials.TransportCredentials, error) {
	if info.TrustedCAFile == "" {
		return insecure.NewCredentials(), nil
	}
	config, err := info.ClientConfig()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(config), nil
}

func dial(ctx context.Context, label, endpoint string, secured credentials.TransportCredentials) (*server, error) {
	conn, err := grpc.NewClient("passthrough:///"+hostPort(endpoint),
		grpc.WithTransportCredentials(secured),
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
