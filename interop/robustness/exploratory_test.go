package robustness

import (
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/failpoint"
	"go.etcd.io/etcd/tests/v3/robustness/scenarios"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
)

var (
	// Faults of etcd's tests that need no build with gofail, and ours that stand for such that do.
	faultsOfOne   = []failpoint.Failpoint{failpoint.KillFailpoint, killRepeatedly, killDuringDefragmentation}
	faultsOfThree = []failpoint.Failpoint{
		failpoint.KillFailpoint, failpoint.BlackholePeerNetwork, failpoint.BlackholeUntilSnapshot,
		failpoint.DelayPeerNetwork, failpoint.DropPeerNetwork, failpoint.MemberReplace, pauseLeader,
	}
	faultsOfVersions = []failpoint.Failpoint{failpoint.MemberDowngrade, failpoint.MemberDowngradeUpgrade}
)

// TestExploratory runs etcd's exploratory scenarios, with each fault, on one and on three members of one kind.
func TestExploratory(t *testing.T) {
	for i, s := range scenarios.Exploratory(t) {
		faults := faultsOfThree
		if s.Cluster.ClusterSize == 1 {
			faults = faultsOfOne
		}
		faults = withSnapshots(faults, s)
		for _, fault := range faults {
			t.Run(s.Name+"/"+fault.Name()+waitsForSnapshot(fault), func(t *testing.T) {
				// Each run draws its own ticks, snapshot count and batches.
				s := scenarios.Exploratory(t)[i]
				s.Cluster.Version, s.Cluster.InitialLeaderIndex = e2e.CurrentVersion, -1
				if wantsSnapshot(fault) {
					// Otherwise the fault is not available in most runs.
					s.Cluster.ServerConfig.SnapshotCount, s.Cluster.ServerConfig.SnapshotCatchUpEntries = 50, 100
				}
				s.Failpoint = fault
				run(t, s)
			})
		}
	}
}

// TestVersions changes the release that all or some members have while clients call them. The program of the other
// release must read the data of the first.
func TestVersions(t *testing.T) {
	for i, s := range scenarios.Exploratory(t) {
		if s.Cluster.ClusterSize == 1 {
			continue
		}
		for _, fault := range faultsOfVersions {
			t.Run(s.Name+"/"+fault.Name(), func(t *testing.T) {
				s := scenarios.Exploratory(t)[i]
				s.Cluster.Version, s.Cluster.InitialLeaderIndex = e2e.CurrentVersion, -1
				// etcd's tests do not send snapshots between releases, and allow the fault only with the default.
				s.Cluster.ServerConfig.SnapshotCatchUpEntries = e2e.DefaultConfig().ServerConfig.SnapshotCatchUpEntries
				s.Failpoint = fault
				run(t, s)
			})
		}
	}
}

// TestMixed has one and two of three members run the program of `-bin-last-release`, with a leader of each kind.
func TestMixed(t *testing.T) {
	mixtures := []struct {
		name    string
		version e2e.ClusterVersion
		leader  int
	}{
		{"OneOther", e2e.MinorityLastVersion, 0},
		{"OneOtherLeads", e2e.MinorityLastVersion, 2},
		{"TwoOthers", e2e.QuorumLastVersion, 2},
		{"TwoOthersLead", e2e.QuorumLastVersion, 0},
	}
	faults := []failpoint.Failpoint{
		failpoint.KillFailpoint, failpoint.BlackholePeerNetwork, failpoint.BlackholeUntilSnapshot, failpoint.DropPeerNetwork,
		failpoint.MemberReplace, pauseLeader,
	}
	for i, s := range scenarios.Exploratory(t) {
		if s.Cluster.ClusterSize == 1 || strings.Contains(s.Name, "Low") {
			continue
		}
		for _, mixture := range mixtures {
			for _, fault := range withSnapshots(faults, s) {
				t.Run(s.Name+"/"+mixture.name+"/"+fault.Name()+waitsForSnapshot(fault), func(t *testing.T) {
					s := scenarios.Exploratory(t)[i]
					s.Cluster.Version, s.Cluster.InitialLeaderIndex = mixture.version, mixture.leader
					if wantsSnapshot(fault) {
						s.Cluster.ServerConfig.SnapshotCount, s.Cluster.ServerConfig.SnapshotCatchUpEntries = 50, 100
					}
					s.Failpoint = fault
					run(t, s)
				})
			}
		}
	}
}

// withSnapshots replaces the blackhole that waits for a snapshot where the load is low. The blackhole drops what the others
// send over connections to the member; the member's own connections work. With fewer entries than a leader sends without an
// acknowledgement, before the broken connections time out, members of Mainstay acknowledge over those and do not fall behind.
func withSnapshots(faults []failpoint.Failpoint, s scenarios.TestScenario) []failpoint.Failpoint {
	if s.Profile.KeyValue.MaximalQPS >= traffic.KeyValueHigh.MaximalQPS {
		return faults
	}
	faults = slices.Clone(faults)
	for i, fault := range faults {
		if fault == failpoint.BlackholeUntilSnapshot {
			faults[i] = awayUntilSnapshot
		}
	}
	return faults
}

func wantsSnapshot(f failpoint.Failpoint) bool {
	return f == failpoint.BlackholeUntilSnapshot || f.Name() == awayUntilSnapshot.Name()
}

// waitsForSnapshot tells the two faults apart that have the same name in etcd's tests.
func waitsForSnapshot(fault failpoint.Failpoint) string {
	if fault == failpoint.BlackholeUntilSnapshot {
		return "UntilSnapshot"
	}
	return ""
}
