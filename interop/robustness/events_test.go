package robustness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/framework/e2e"
	"go.etcd.io/etcd/tests/v3/robustness/client"
)

// Past bugs of etcd for which it has no traffic: the events that showed them, step by step.

func start(t *testing.T, options ...e2e.EPClusterOption) *e2e.EtcdProcessCluster {
	config := e2e.NewConfig(options...)
	config.Logger = zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))
	cluster, err := e2e.NewEtcdProcessCluster(t.Context(), t, e2e.WithConfig(config))
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, cluster) })
	return cluster
}

func dial(t *testing.T, user string, endpoints ...string) *clientv3.Client {
	config := clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialTimeout: 20 * time.Second}
	if user != "" {
		config.Username, config.Password = user, user
	}
	c, err := clientv3.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// awaitRevision waits until a member has applied what another one has.
func awaitRevision(t *testing.T, c *clientv3.Client, endpoint string, revision int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, err := c.Status(t.Context(), endpoint)
		return err == nil && status.Header.Revision >= revision
	}, time.Minute, 50*time.Millisecond, "a member does not catch up")
}

// requireEqual compares the members' data, once each has applied what was proposed.
func requireEqual(t *testing.T, cluster *e2e.EtcdProcessCluster) {
	t.Helper()
	for _, member := range cluster.Procs {
		_, err := dial(t, "", member.EndpointsGRPC()...).Get(t.Context(), "key")
		require.NoError(t, err)
	}
	require.NoError(t, client.CheckEndOfTestHashKV(t.Context(), cluster))
}

// A member that had its users from a snapshot kept the permissions that it had cached before, refused writes that the
// others applied, and its data differed from then on.
func TestIssue14571(t *testing.T) {
	cluster := start(t, e2e.WithSnapshotCount(10), e2e.WithSnapshotCatchUpEntries(10))
	ctx := t.Context()
	late := cluster.Procs[2]
	root := dial(t, "", cluster.Procs[0].EndpointsGRPC()...)
	for _, name := range []string{"root", "alice"} {
		_, err := root.RoleAdd(ctx, name)
		require.NoError(t, err)
		_, err = root.UserAdd(ctx, name, name)
		require.NoError(t, err)
		_, err = root.UserGrantRole(ctx, name, name)
		require.NoError(t, err)
	}
	_, err := root.RoleGrantPermission(ctx, "alice", "before", "", clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = root.AuthEnable(ctx)
	require.NoError(t, err)
	alice := dial(t, "alice", cluster.Procs[0].EndpointsGRPC()...)
	_, err = alice.Put(ctx, "before", "1")
	require.NoError(t, err)

	require.NoError(t, late.Stop())
	root = dial(t, "root", cluster.Procs[0].EndpointsGRPC()...)
	_, err = root.RoleGrantPermission(ctx, "alice", "after", "", clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = root.RoleRevokePermission(ctx, "alice", "before", "")
	require.NoError(t, err)
	var last *clientv3.PutResponse
	for i := range 100 {
		last, err = root.Put(ctx, fmt.Sprint("filler", i), "1")
		require.NoError(t, err)
	}
	require.NoError(t, late.Start(ctx))
	awaitRevision(t, root, late.EndpointsGRPC()[0], last.Header.Revision)

	for _, member := range cluster.Procs {
		alice := dial(t, "alice", member.EndpointsGRPC()...)
		_, err = alice.Put(ctx, "after", member.Config().Name)
		require.NoError(t, err)
		_, err = alice.Put(ctx, "before", "2")
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		got, err := alice.Get(ctx, "after")
		require.NoError(t, err)
		require.Equal(t, member.Config().Name, string(got.Kvs[0].Value))
	}
	_, err = root.AuthDisable(ctx)
	require.NoError(t, err)
	requireEqual(t, cluster)
}

// A transaction that also read a compacted revision was half applied, or applied by those members only that had not
// compacted yet.
func TestIssue18667(t *testing.T) {
	cluster := start(t)
	ctx := t.Context()
	var compacted, carriedOut int
	var counts sync.Mutex
	var writers sync.WaitGroup
	for w, member := range cluster.Procs {
		c := dial(t, "", member.EndpointsGRPC()...)
		writers.Go(func() {
			for i := range 300 {
				key, value := fmt.Sprint("key", w), fmt.Sprint(i)
				put, err := c.Put(ctx, key, "old")
				if err != nil {
					t.Error(err)
					return
				}
				answer, err := c.Txn(ctx).Then(clientv3.OpPut(key, value),
					clientv3.OpGet(key, clientv3.WithRev(max(1, put.Header.Revision-5)))).Commit()
				got, read := c.Get(ctx, key)
				if read != nil {
					t.Error(read)
					return
				}
				counts.Lock()
				switch wrote := string(got.Kvs[0].Value) == value; {
				case errors.Is(err, rpctypes.ErrCompacted) && !wrote:
					compacted++
				case err == nil && answer.Succeeded && wrote:
					carriedOut++
				default:
					t.Errorf("the transaction said %v, and its key has %q, not %q", err, got.Kvs[0].Value, value)
				}
				counts.Unlock()
			}
		})
	}
	var written atomic.Bool
	compacting := make(chan error, 1)
	c := dial(t, "", cluster.EndpointsGRPC()...)
	go func() {
		for !written.Load() {
			now, err := c.Get(ctx, "key0")
			if err == nil {
				_, err = c.Compact(ctx, max(1, now.Header.Revision-3))
			}
			if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
				compacting <- err
				return
			}
		}
		compacting <- nil
	}()
	writers.Wait()
	written.Store(true)
	require.NoError(t, <-compacting)
	t.Logf("%d transactions met a compaction, %d did not", compacted, carriedOut)
	require.NotZero(t, compacted)
	require.NotZero(t, carriedOut)
	requireEqual(t, cluster)
	// What a member applies again at its start has to come out the same.
	for _, member := range cluster.Procs {
		require.NoError(t, member.Kill())
		require.NoError(t, member.Wait(ctx))
		require.NoError(t, member.Start(ctx))
	}
	requireEqual(t, cluster)
}

// A member that was defragmented while it put a received snapshot in place wrote on into the file that it had
// replaced, and panicked or lost data at its next start.
func TestIssue20271(t *testing.T) {
	const keys = 1024
	cluster := start(t, e2e.WithSnapshotCount(10), e2e.WithSnapshotCatchUpEntries(10), e2e.WithInitialLeaderIndex(0))
	ctx := t.Context()
	late := cluster.Procs[2]
	c := dial(t, "", cluster.Procs[0].EndpointsGRPC()...)
	for i := range keys {
		_, err := c.Put(ctx, fmt.Sprint("key", i), strings.Repeat("x", 4096))
		require.NoError(t, err)
	}
	require.NoError(t, late.Pause())
	for i := range keys {
		_, err := c.Delete(ctx, fmt.Sprint("key", i))
		require.NoError(t, err)
	}
	// The new connections do not have what the paused member's sockets still hold.
	for _, member := range cluster.Procs[:2] {
		require.NoError(t, member.Restart(ctx))
	}
	require.NoError(t, late.Resume())
	slow := dial(t, "", late.EndpointsGRPC()...)
	now, err := c.Get(ctx, "key")
	require.NoError(t, err)
	defragmented := 0
	require.Eventually(t, func() bool {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if _, err := slow.Defragment(call, late.EndpointsGRPC()[0]); err == nil {
			defragmented++
		}
		status, err := slow.Status(call, late.EndpointsGRPC()[0])
		return err == nil && status.Header.Revision >= now.Header.Revision
	}, time.Minute, time.Millisecond, "the member does not catch up")
	require.NotZero(t, defragmented)
	for i := range 5 {
		_, err := c.Put(ctx, fmt.Sprint("key", i), "after")
		require.NoError(t, err)
	}
	require.NoError(t, late.Kill())
	require.NoError(t, late.Wait(ctx))
	require.NoError(t, late.Start(ctx))
	requireEqual(t, cluster)
}
