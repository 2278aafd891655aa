package robustness

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/raft/v3/raftpb"
)

// persistedRequests returns what the members of a stopped cluster agreed on, from their logs, as etcd's validation
// wants it. It reads the logs of etcd only, so each log is first copied into one of etcd. Requests that etcd's
// validation does not know, such as those about users, become empty entries in the copy.
func persistedRequests(t *testing.T, lg *zap.Logger, cluster *e2e.EtcdProcessCluster) ([]model.EtcdRequest, error) {
	copies := t.TempDir()
	var dirs []string
	for _, member := range cluster.Procs {
		state, entries, err := readLog(lg, member.Config().DataDirPath)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if entry.GetType() == raftpb.EntryNormal && !isKnownToValidation(entry.Data) {
				entry.Data = nil
			}
		}
		dir := filepath.Join(copies, member.Config().Name)
		if err := writeWAL(lg, dir, state, entries); err != nil {
			return nil, err
		}
		lg.Info("read a log", zap.String("member", member.Config().Name), zap.Int("entries", len(entries)),
			zap.Uint64("committed", state.GetCommit()))
		dirs = append(dirs, dir)
	}
	return report.PersistedRequests(lg, dirs)
}

func readLog(lg *zap.Logger, dataDir string) (*raftpb.HardState, []*raftpb.Entry, error) {
	if isMainstays(dataDir) {
		return readSegments(dataDir)
	}
	return report.ReadWAL(lg, dataDir)
}

func writeWAL(lg *zap.Logger, dataDir string, state *raftpb.HardState, entries []*raftpb.Entry) error {
	if err := os.MkdirAll(datadir.ToMemberDir(dataDir), 0o700); err != nil {
		return err
	}
	log, err := wal.Create(lg, datadir.ToWALDir(dataDir), nil)
	if err != nil {
		return err
	}
	if err := log.Save(state, entries); err != nil {
		return fmt.Errorf("copying a log: %w", err)
	}
	return log.Close()
}

// isKnownToValidation returns true if etcd's validation can judge a request; it panics at others.
func isKnownToValidation(data []byte) bool {
	request := &pb.InternalRaftRequest{}
	if proto.Unmarshal(data, request) != nil {
		return false
	}
	return request.Put != nil || request.DeleteRange != nil || request.LeaseRevoke != nil || request.LeaseGrant != nil ||
		request.Compaction != nil || request.Txn != nil
}
