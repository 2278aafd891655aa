package robustness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/pkg/v3/proxy"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

// site is where a fault is injected.
type site struct {
	t       *testing.T
	lg      *zap.Logger
	cluster *e2e.EtcdProcessCluster
	began   time.Time
	ids     identity.Provider
}

// fault is a failpoint of etcd's tests that acts from outside of the processes.
type fault struct {
	name   string
	inject func(ctx context.Context, at site) ([]report.ClientReport, error)
	// members is the least number of members that the fault makes sense with.
	members int
}

func (f fault) Name() string { return f.name }

func (f fault) Inject(ctx context.Context, t *testing.T, lg *zap.Logger, cluster *e2e.EtcdProcessCluster, began time.Time, ids identity.Provider) ([]report.ClientReport, error) {
	return f.inject(ctx, site{t, lg, cluster, began, ids})
}

func (f fault) Available(config e2e.EtcdProcessClusterConfig, _ e2e.EtcdProcess, _ traffic.Profile) bool {
	return config.ClusterSize >= f.members
}

// Timeout of the injection: some of these faults come several times.
func (f fault) Timeout() time.Duration { return 2 * time.Minute }

var (
	// killRepeatedly stands for the points inside of etcd at which its tests let it panic while it saves entries: a
	// kill may hit each of them.
	killRepeatedly = fault{"KillRepeatedly", repeated(5, func(ctx context.Context, at site) ([]report.ClientReport, error) {
		return nil, killAfter(ctx, at, randomMember(at), upTo(200*time.Millisecond))
	}), 1}
	killDuringDefragmentation = fault{"KillDuringDefragmentation", repeated(4, killDuringMaintenance(
		func(ctx context.Context, c *client.RecordingClient) error {
			_, err := c.Defragment(ctx)
			return err
		})), 1}
	// killDuringCompaction stands for panics between the batches of a compaction, and before it is marked as done.
	killDuringCompaction = fault{"KillDuringCompaction", repeated(4, killDuringMaintenance(
		func(ctx context.Context, c *client.RecordingClient) error {
			current, err := c.Get(ctx, "/", clientv3.WithRev(0))
			if err != nil {
				return err
			}
			_, err = c.Compact(ctx, current.Header.Revision)
			return err
		})), 1}
	// stallWatchers stands for the sleep before a watch response is sent: the response cannot be sent because the client
	// takes none.
	stallWatchers = fault{"StallWatchers", stalledWatchers, 1}
	// pauseLeader stops the leader's process until another member leads, so that it wakes up believing that it leads.
	pauseLeader = fault{"PauseLeader", repeated(3, pauseUntilDeposed), 3}
	// twoSnapshots lets a member receive a snapshot, and another one as soon as it has the first.
	twoSnapshots = fault{"TwoSnapshots", func(ctx context.Context, at site) ([]report.ClientReport, error) {
		member := randomMember(at)
		for range 2 {
			if err := failpoint.Blackhole(ctx, at.t, member, at.cluster, true); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}, 3}
)

// awayUntilSnapshot keeps a member stopped until the others have dropped the entries that it lacks.
var awayUntilSnapshot = fault{"AwayUntilSnapshot", func(ctx context.Context, at site) ([]report.ClientReport, error) {
	absent := rand.Intn(len(at.cluster.Procs))
	var others []string
	for i, member := range at.cluster.Procs {
		if i != absent {
			others = append(others, member.EndpointsGRPC()...)
		}
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: others, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	member := at.cluster.Procs[absent]
	if err := member.Kill(); err != nil {
		return nil, err
	}
	if err := member.Wait(ctx); err != nil {
		return nil, err
	}
	var first int64
	server := at.cluster.Cfg.ServerConfig
	for {
		if now, err := c.Get(ctx, "/"); err == nil {
			first = cmp.Or(first, now.Header.Revision)
			if now.Header.Revision-first > int64(server.SnapshotCount+server.SnapshotCatchUpEntries) {
				return nil, member.Start(ctx)
			}
		} else if ctx.Err() != nil {
			return nil, fmt.Errorf("the others write too little: %w", err)
		}
	}
}, 3}

func repeated(times int, inject func(context.Context, site) ([]report.ClientReport, error)) func(context.Context, site) ([]report.ClientReport, error) {
	return func(ctx context.Context, at site) (reports []report.ClientReport, err error) {
		for range times {
			more, err := inject(ctx, at)
			reports = append(reports, more...)
			if err != nil {
				return reports, err
			}
		}
		return reports, nil
	}
}

func randomMember(at site) e2e.EtcdProcess {
	return at.cluster.Procs[rand.Intn(len(at.cluster.Procs))]
}

func upTo(longest time.Duration) time.Duration { return time.Duration(rand.Int63n(int64(longest))) }

// killAfter kills the member with SIGKILL after a delay, so that the kill comes at any point of the work, and starts it
// again.
func killAfter(ctx context.Context, at site, member e2e.EtcdProcess, delay time.Duration) error {
	time.Sleep(delay)
	for member.IsRunning() {
		if err := member.Kill(); err != nil {
			at.lg.Info("a kill failed", zap.Error(err))
		}
		if err := member.Wait(ctx); err != nil && !strings.Contains(err.Error(), "unexpected exit code") {
			return err
		}
	}
	return member.Start(ctx)
}

// killDuringMaintenance asks a member for work and kills it at any point of that work.
func killDuringMaintenance(work func(context.Context, *client.RecordingClient) error) func(context.Context, site) ([]report.ClientReport, error) {
	return func(ctx context.Context, at site) ([]report.ClientReport, error) {
		member := randomMember(at)
		c, err := client.NewRecordingClient(member.EndpointsGRPC(), at.ids, at.began)
		if err != nil {
			return nil, err
		}
		worked := make(chan error, 1)
		working, cancel := context.WithTimeout(ctx, 2*time.Second)
		go func() { worked <- work(working, c) }()
		err = killAfter(ctx, at, member, upTo(20*time.Millisecond))
		cancel()
		// The kill ends most of these calls; whether one was carried out is for the validation to find out.
		if ended := <-worked; ended != nil {
			at.lg.Info("the call ended with the member", zap.Error(ended))
		}
		return []report.ClientReport{c.Report()}, errors.Join(err, c.Close())
	}
}

// stalledWatchers opens watches through a proxy, stops reading from them while others write, delete and compact, and
// reads on.
func stalledWatchers(ctx context.Context, at site) (reports []report.ClientReport, err error) {
	member := randomMember(at)
	to, err := url.Parse(member.EndpointsGRPC()[0])
	if err != nil {
		return nil, err
	}
	from := url.URL{Scheme: "http", Host: "localhost:19379"}
	stall := proxy.NewServer(proxy.ServerConfig{Logger: zap.NewNop(), From: from, To: *to})
	select {
	case <-stall.Ready():
	case err := <-stall.Error():
		return nil, err
	}
	defer func() { err = errors.Join(err, stall.Close()) }()
	c, err := client.NewRecordingClient([]string{from.String()}, at.ids, at.began)
	if err != nil {
		return nil, err
	}
	watching, cancel := context.WithCancel(ctx)
	drained := make(chan int)
	const watches = 20
	for range watches {
		responses := c.Watch(watching, "", 0, true, true, true)
		go func() {
			events := 0
			for response := range responses {
				events += len(response.Events)
			}
			drained <- events
		}()
	}
	for range 3 {
		// Long enough for windows and buffers to fill up, and for several compactions.
		stall.PauseTx()
		time.Sleep(1500 * time.Millisecond)
		stall.UnpauseTx()
		time.Sleep(500 * time.Millisecond)
	}
	cancel()
	total := 0
	for range watches {
		total += <-drained
	}
	if total == 0 {
		err = errors.New("the stalled watches received no event")
	}
	at.lg.Info("stalled watches", zap.Int("events", total))
	err = errors.Join(err, c.Close())
	return []report.ClientReport{c.Report()}, err
}

func pauseUntilDeposed(ctx context.Context, at site) ([]report.ClientReport, error) {
	old := at.cluster.WaitLeader(at.t)
	leader := at.cluster.Procs[old]
	if err := leader.Pause(); err != nil {
		return nil, err
	}
	var others []string
	for i, member := range at.cluster.Procs {
		if i != old {
			others = append(others, member.EndpointsGRPC()...)
		}
	}
	err := awaitWrite(ctx, others)
	if resumed := leader.Resume(); resumed != nil {
		return nil, errors.Join(err, resumed)
	}
	return nil, err
}

// awaitWrite waits until one of the endpoints carries out an election's worth of writes: their leader is another one.
func awaitWrite(ctx context.Context, endpoints []string) error {
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		// A lease changes no revision and no key, so the history of the keys stays complete.
		call, cancel := context.WithTimeout(ctx, time.Second)
		_, err := c.Grant(call, int64(traffic.DefaultLeaseTTL))
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no other leader: %w", err)
		}
	}
}
