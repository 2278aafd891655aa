// Package robustness runs etcd's own robustness tests (traffic, faults, model and validation of
// go.etcd.io/etcd/tests/v3/robustness) on clusters of Mainstay, and of Mainstay and etcd. `-bin-dir` names a folder with the
// programs under etcd's names; `-bin-last-release` names the program of the other members of mixed clusters.
package robustness

import (
	"context"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"go.etcd.io/etcd/pkg/v3/proxy"
	"go.etcd.io/etcd/tests/v3/framework"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/scenarios"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
)

const (
	aroundFault       = time.Second
	validationTimeout = 5 * time.Minute
)

func TestMain(m *testing.M) { framework.E2eTestRunner.TestMain(m) }

// run starts the scenario's cluster, injects the fault while clients write, read and watch, and has etcd's validation
// judge what they saw.
func run(t *testing.T, s scenarios.TestScenario) {
	lg := zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	// Failpoints inside of the program need a build of etcd with gofail.
	s.Cluster.GoFailEnabled = false
	s.Cluster.Logger = lg
	ctx := t.Context()
	cluster, err := e2e.NewEtcdProcessCluster(ctx, t, e2e.WithConfig(&s.Cluster))
	require.NoError(t, err)
	defer stop(t, cluster)
	for _, member := range cluster.Procs {
		if proxy := member.PeerProxy(); proxy != nil {
			go drain(proxy)
		}
	}
	if err := failpoint.Validate(cluster, s.Failpoint, s.Profile); err != nil {
		t.Skipf("not applicable: %v", err)
	}
	results := resultsDirectory(t)
	saved, err := report.NewTestReport(lg, results, report.ServerDataPaths(cluster),
		&report.TrafficDetail{ExpectUniqueRevision: s.Traffic.ExpectUniqueRevision()})
	require.NoError(t, err)
	clients := load(ctx, t, lg, cluster, s)
	// A member that does not answer is an error too.
	comparing, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := client.CheckEndOfTestHashKV(comparing, cluster); err != nil {
		t.Errorf("members differ: %v", err)
	}
	kill(cluster)
	saved.SetClientReports(clients)
	persisted, err := persistedRequests(t, lg, cluster)
	if err != nil {
		t.Errorf("reading the members' logs: %v", err)
	}
	result := validate.ValidateAndReturnVisualize(lg,
		validate.Config{ExpectRevisionUnique: s.Traffic.ExpectUniqueRevision()}, clients, persisted, validationTimeout)
	if err := result.Error(); err != nil {
		t.Errorf("validation: %v", err)
		saved.SetVisualizer(result.Linearization.Visualize)
	}
	t.Logf("validated: %d requests of the logs, linearization %s, watches %s, serializable reads %s",
		len(persisted), result.Linearization.Status, result.Watch.Status, result.Serializable.Status)
	if err := saved.Finalize(t.Failed(), false); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("report: %s", results)
	}
}

// load has clients call the cluster until the fault has been injected and for a while after it. Returns what each
// client asked and was told.
func load(ctx context.Context, t *testing.T, lg *zap.Logger, cluster *e2e.EtcdProcessCluster, s scenarios.TestScenario) []report.ClientReport {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	ids := identity.NewIDProvider()
	injected := make(chan report.FailpointInjection, 1)
	lastRevision := make(chan int64, 1)
	var faults []report.ClientReport
	requests, watches := client.NewSet(ids, began), client.NewSet(ids, began)
	defer requests.Close()
	defer watches.Close()

	var tasks errgroup.Group
	tasks.Go(func() error {
		defer close(injected)
		// etcd's clients need that long to reach their rate, before the fault and after it.
		time.Sleep(around())
		done, err := failpoint.Inject(ctx, t, lg, cluster, s.Failpoint, began, ids)
		if err != nil {
			// Not returned: the others end with other errors, and the first one that is returned hides the rest.
			t.Errorf("the fault: %v", err)
			cancel()
			return nil
		}
		time.Sleep(around())
		faults = done.Client
		injected <- done.FailpointInjection
		return nil
	})
	tasks.Go(func() error {
		defer close(lastRevision)
		operations := traffic.SimulateTraffic(ctx, t, lg, cluster, s.Profile, s.Traffic, injected, requests)
		lastRevision <- report.OperationsMaxRevision(operations)
		return nil
	})
	tasks.Go(func() error {
		return client.CollectClusterWatchEvents(ctx, client.CollectClusterWatchEventsParam{
			Lg: lg, Endpoints: cluster.EndpointsGRPC(), MaxRevisionChan: lastRevision, ClientSet: watches,
		})
	})
	if err := tasks.Wait(); err != nil {
		t.Error(err)
	}
	return slices.Concat(requests.Reports(), watches.Reports(), faults)
}

func around() time.Duration {
	return aroundFault + time.Duration(rand.Int63n(int64(400*time.Millisecond))) - 200*time.Millisecond
}

func kill(cluster *e2e.EtcdProcessCluster) {
	for _, member := range cluster.Procs {
		_ = member.Kill()
		_ = member.Wait(context.Background())
	}
}

// drain takes the errors of a proxy. It has one for each connection to a member that is down, and accepts no more
// connections once sixteen of them wait.
func drain(proxy proxy.Server) {
	for {
		select {
		case <-proxy.Error():
		case <-proxy.Done():
			return
		}
	}
}

// stop kills the members, and closes their proxies, which etcd's tests leave open behind a killed member.
func stop(t *testing.T, cluster *e2e.EtcdProcessCluster) {
	kill(cluster)
	for _, member := range cluster.Procs {
		if proxy := member.PeerProxy(); proxy != nil {
			if err := proxy.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func resultsDirectory(t *testing.T) string {
	base := os.Getenv("RESULTS_DIR")
	if base == "" {
		base = t.TempDir()
	}
	dir, err := filepath.Abs(filepath.Join(base, strings.ReplaceAll(t.Name(), "/", "_")))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return dir
}
