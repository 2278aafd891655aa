package robustness

import (
	"testing"

	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/scenarios"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

// outsideFaults are the same events from outside of the process, for scenarios of etcd whose failpoints need gofail.
var outsideFaults = map[string]failpoint.Failpoint{
	"Issue14370": killRepeatedly,
	"Issue14685": killDuringDefragmentation,
	"Issue17529": stallWatchers,
	"Issue17780": killDuringCompaction,
	"Issue18089": stallWatchers,
	"Issue19179": killDuringCompaction,
}

// TestRegression runs etcd's scenarios for its own past bugs.
func TestRegression(t *testing.T) {
	for _, s := range scenarios.Regression(t) {
		if outside, found := outsideFaults[s.Name]; found {
			s.Failpoint = outside
		}
		t.Run(s.Name, func(t *testing.T) { run(t, s) })
	}
}

// TestIssues runs scenarios for past bugs of etcd that etcd has no scenario for, and that traffic can show.
func TestIssues(t *testing.T) {
	load := func(kv *traffic.KeyValue) traffic.Profile {
		return traffic.Profile{KeyValue: kv, Watch: &traffic.WatchDefault, Compaction: &traffic.CompactionDefault}
	}
	snapshots := e2e.NewConfig(e2e.WithSnapshotCount(50), e2e.WithSnapshotCatchUpEntries(50), e2e.WithPeerProxy(true), e2e.WithIsPeerTLS(true))
	for _, s := range []scenarios.TestScenario{
		// Transactions of several operations under watches: one of them was sent twice.
		{Name: "Issue17247", Traffic: traffic.EtcdPut, Profile: load(&traffic.KeyValueHigh), Failpoint: failpoint.KillFailpoint,
			Cluster: *e2e.NewConfig(e2e.WithClusterSize(1))},
		// A member that receives a snapshot right after a snapshot panicked.
		{Name: "Issue18055", Traffic: traffic.EtcdPut, Profile: load(&traffic.KeyValueHigh), Failpoint: twoSnapshots, Cluster: *snapshots},
		// A leader whose process was paused answered reads with what it knew before.
		{Name: "Issue20418", Traffic: traffic.EtcdPutDeleteLease, Profile: load(&traffic.KeyValueMedium), Failpoint: pauseLeader,
			Cluster: *e2e.NewConfig()},
		{Name: "Issue20418Kubernetes", Traffic: traffic.Kubernetes, Profile: load(&traffic.KeyValueMedium), Failpoint: pauseLeader,
			Cluster: *e2e.NewConfig()},
	} {
		t.Run(s.Name, func(t *testing.T) { run(t, s) })
	}
}
