// Package cluster runs the members of a cluster as child processes on loopback
// and does to them what can happen to members: they die, hang, lose their disk
// and lose each other. It knows the flags that every etcd v3 server takes and
// nothing else about the server.
package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"mainstay/ports"
)

// Options say what to start.
type Options struct {
	// Server is the path of the server binary.
	Server string
	// Mixed is another binary, which every second member runs; empty for none.
	Mixed string
	// Members is the size of the cluster at its start.
	Members int
	// Observers is how many observers follow the members' log; only Mainstay has them. The first follows a member, the second
	// the first, the third a member again, and so on; each turns to the members when it is not fed.
	Observers int
	// Flags are given to every member after those of the cluster itself.
	Flags []string
	// Proxied puts a proxy of ours in front of every peer URL, so that Network
	// can cut, delay and throttle what members say to each other.
	Proxied bool
	// Token is the cluster token; it decides the cluster id.
	Token string
}

// Cluster is a set of members that were started together, and those added later.
type Cluster struct {
	Options
	Members []*Member
	// Observers are processes like members, but no members.
	Observers []*Member
	// Network is between the members; nil when they talk directly.
	Network *Network

	dir string
	mu  sync.Mutex
	// deaths are the exits that nobody asked for.
	deaths []string
}

// Start starts all members on an empty disk and waits until each is healthy.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c, err := Prepare(o)
	if err != nil {
		return nil, err
	}
	if err := c.StartAll(ctx); err != nil {
		err = fmt.Errorf("%w\n%s", err, c.LogTails(8))
		c.Close()
		return nil, err
	}
	return c, nil
}

// Prepare allots directories, ports and proxies, but starts nothing.
func Prepare(o Options) (*Cluster, error) {
	if o.Token == "" {
		o.Token = "interop"
	}
	for _, path := range []*string{&o.Server, &o.Mixed} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(absolute); err != nil {
			return nil, err
		}
		*path = absolute
	}
	dir, err := os.MkdirTemp("", "interop-cluster-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Options: o, dir: dir}
	if o.Proxied {
		c.Network = newNetwork(c)
	}
	for i := range o.Members {
		m, err := c.allot(fmt.Sprintf("m%d", i))
		if err != nil {
			c.Close()
			return nil, err
		}
		if i%2 == 1 {
			m.Server = o.Mixed
		}
	}
	initial := c.Initial(c.Members...)
	for _, m := range c.Members {
		m.initial, m.state = initial, "new"
	}
	for i := range o.Observers {
		m, err := c.lay(fmt.Sprintf("o%d", i))
		if err != nil {
			c.Close()
			return nil, err
		}
		if i%2 == 1 {
			m.feeds = append(m.feeds, c.Observers[i-1])
		}
		first := i % len(c.Members)
		m.feeds = append(append(m.feeds, c.Members[first:]...), c.Members[:first]...)
		c.mu.Lock()
		c.Observers = append(c.Observers, m)
		c.mu.Unlock()
	}
	return c, nil
}

// allot makes a member that is not started yet.
func (c *Cluster) allot(name string) (*Member, error) {
	m, err := c.lay(name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.Members = append(c.Members, m)
	c.mu.Unlock()
	return m, nil
}

// lay makes what a member or an observer needs: a directory, ports and a proxy.
func (c *Cluster) lay(name string) (*Member, error) {
	m := &Member{Name: name, Index: len(c.Members) + len(c.Observers), cluster: c, dir: filepath.Join(c.dir, name)}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, err
	}
	free, err := ports.Free(3)
	if err != nil {
		return nil, err
	}
	client, peer, public := free[0], free[1], free[2]
	m.Endpoint = fmt.Sprintf("127.0.0.1:%d", client)
	m.listenPeer = fmt.Sprintf("http://127.0.0.1:%d", peer)
	m.PeerURL = m.listenPeer
	if c.Network != nil {
		m.PeerURL = fmt.Sprintf("http://127.0.0.1:%d", public)
		if err := c.Network.serve(m.Index, fmt.Sprintf("127.0.0.1:%d", public), fmt.Sprintf("127.0.0.1:%d", peer)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Nodes are all members and all observers.
func (c *Cluster) Nodes() []*Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(c.Members, c.Observers)
}

// Join allots a member that will join the running cluster made of those given
// and itself. The caller has to add it to the membership before starting it.
func (c *Cluster) Join(name string, others ...*Member) (*Member, error) {
	m, err := c.allot(name)
	if err != nil {
		return nil, err
	}
	m.initial, m.state = c.Initial(append(append([]*Member{}, others...), m)...), "existing"
	return m, nil
}

// Rejoin lets a member that does not run come back on an empty disk, under its old
// name and addresses, as one that joins the running cluster. The caller has to
// remove the old member from the membership and to add the new one.
func (c *Cluster) Rejoin(m *Member) error {
	if err := m.Wipe(); err != nil {
		return err
	}
	var all []*Member
	for _, other := range c.Members {
		if !other.Gone {
			all = append(all, other)
		}
	}
	m.initial, m.state = c.Initial(all...), "existing"
	return nil
}

// Initial is the value of --initial-cluster for these members.
func (c *Cluster) Initial(members ...*Member) string {
	parts := make([]string, len(members))
	for i, m := range members {
		parts[i] = m.Name + "=" + m.PeerURL
	}
	return strings.Join(parts, ",")
}

// StartAll starts the members and observers that do not run and waits until all are healthy. A new observer ends when no feeder
// answers, so members come first.
func (c *Cluster) StartAll(ctx context.Context) error {
	for _, nodes := range [][]*Member{c.Members, c.Observers} {
		var started []*Member
		for _, m := range nodes {
			if m.Gone {
				continue
			}
			if !m.Running() {
				if err := m.Start(); err != nil {
					return err
				}
			}
			started = append(started, m)
		}
		if err := c.WaitHealthy(ctx, started...); err != nil {
			return err
		}
	}
	return nil
}

// Alive are the members whose process runs.
func (c *Cluster) Alive() []*Member {
	var out []*Member
	for _, m := range c.Members {
		if m.Running() {
			out = append(out, m)
		}
	}
	return out
}

// WaitHealthy waits until every member given answers /health with true, which
// it does only after a linearizable read.
func (c *Cluster) WaitHealthy(ctx context.Context, members ...*Member) error {
	for _, m := range members {
		for !m.Healthy(ctx) {
			if !m.Running() {
				return fmt.Errorf("member %s does not run", m.Name)
			}
			if !pause(ctx, 20*time.Millisecond) {
				return fmt.Errorf("member %s did not become healthy in time", m.Name)
			}
		}
	}
	return nil
}

// Leader is the running member that says of itself that it leads, with the
// highest term of all that say so.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	for {
		var leader *Member
		var term uint64
		for _, m := range c.Alive() {
			if m.Paused() {
				continue
			}
			s, err := m.Status(ctx)
			if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId && s.RaftTerm > term {
				leader, term = m, s.RaftTerm
			}
		}
		if leader != nil {
			return leader, nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return nil, errors.New("no leader in time")
		}
	}
}

// Client is an official client with the endpoints of these members. It
// reconnects quickly, because members come back quickly here.
func Client(members ...*Member) (*clientv3.Client, error) { return client(0, members) }

// ClientWithoutRetries sends every unary request at most once. The ordinary
// client sends even a write again when a *server* answers that the deadline has
// passed or that the call was canceled while the client's own clock still has a
// moment left, and such a write may happen twice.
func ClientWithoutRetries(members ...*Member) (*clientv3.Client, error) { return client(1, members) }

func client(attempts uint, members []*Member) (*clientv3.Client, error) {
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, m.Endpoint)
	}
	return clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
		// 0 stands for the library's default of 100.
		MaxUnaryRetries: attempts,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		})},
	})
}

// Deaths are the exits of members that were neither killed nor asked to end.
func (c *Cluster) Deaths() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.deaths...)
}

// Close ends every process and removes what they wrote.
func (c *Cluster) Close() {
	for _, m := range c.Nodes() {
		m.Kill()
	}
	if c.Network != nil {
		c.Network.close()
	}
	for _, m := range c.Nodes() {
		if m.conn != nil {
			m.conn.Close()
		}
	}
	_ = os.RemoveAll(c.dir) // A temporary directory that stays is no failure.
}

// LogTails are the last lines that each member printed.
func (c *Cluster) LogTails(lines int) string {
	var out strings.Builder
	for _, m := range c.Nodes() {
		text, _ := os.ReadFile(m.logPath()) // No log, nothing to show.
		all := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(all) > lines {
			all = all[len(all)-lines:]
		}
		fmt.Fprintf(&out, "--- %s\n%s\n", m.Name, strings.Join(all, "\n"))
	}
	return out.String()
}

// SaveLogs copies what the members printed into a directory.
func (c *Cluster) SaveLogs(dir string) error {
	for _, m := range c.Nodes() {
		text, err := os.ReadFile(m.logPath())
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, m.Name+".log"), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Healthy asks /health once.
func (m *Member) Healthy(ctx context.Context) bool {
	body, err := page(ctx, "http://"+m.Endpoint+"/health")
	return err == nil && bytes.Contains(body, []byte("true"))
}

// WaitMet waits until a member serves its peers, which it does once it knows who they are. It is no error if it does not, or
// ends, in time.
func (m *Member) WaitMet(ctx context.Context) {
	for m.Running() {
		if body, err := page(ctx, m.listenPeer+"/version"); err == nil && bytes.Contains(body, []byte("etcdserver")) {
			return
		}
		if !pause(ctx, 20*time.Millisecond) {
			return
		}
	}
}

// page is what a member answers over HTTP.
func page(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(answer.Body)
}

// Status asks the member itself, with no retries.
func (m *Member) Status(ctx context.Context) (*pb.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := m.Conn()
	if err != nil {
		return nil, err
	}
	return pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
}

// Conn is a plain gRPC connection to the member, made at the first use.
func (m *Member) Conn() (*grpc.ClientConn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		conn, err := grpc.NewClient("passthrough:///"+m.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
				MinConnectTimeout: time.Second,
			}))
		if err != nil {
			return nil, err
		}
		m.conn = conn
	}
	return m.conn, nil
}

// Median of some durations; zero for none.
func Median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := append([]time.Duration(nil), all...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i] < sorted[j] })
	return sorted[len(sorted)/2]
}

// Worst of some durations; zero for none.
func Worst(all []time.Duration) time.Duration {
	var worst time.Duration
	for _, d := range all {
		worst = max(worst, d)
	}
	return worst
}

// pause waits and says whether the context is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
