package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

const sectionDeadline = 90 * time.Second

func runConcurrency(args []string) int {
	flags := flag.NewFlagSet("concurrency", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "endpoint to test (host:port)")
	info := tlsFlags(flags)
	user := flags.String("user", "", "user to authenticate as, name:password")
	only := flags.String("section", "", "run only the section of this name")
	_ = flags.Parse(args) // ExitOnError
	if *endpoint == "" {
		flags.Usage()
		return 2
	}
	s := &suite{tally: &tally{show: 100}, endpoint: hostPort(*endpoint), info: info}
	s.user, s.password, _ = strings.Cut(*user, ":")
	client, err := s.dial()
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop concurrency:", err)
		return 2
	}
	defer client.Close()
	s.client = client
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	for _, section := range []struct {
		name string
		body func(context.Context)
	}{
		{"kv", s.kv},
		{"txn", s.txn},
		{"lease", s.leases},
		{"session", s.sessions},
		{"mutex", s.mutex},
		{"election", s.election},
		{"stm", s.stm},
		{"watch", s.watch},
		{"watch-order", s.watchOrder},
		{"watch-progress", s.watchProgress},
		{"watch-fragment", s.watchFragment},
		{"layers", s.layers},
		{"maintenance", s.maintenance},
		{"compaction", s.compaction},
	} {
		if *only != "" && *only != section.name {
			continue
		}
		s.prefix = "interop/" + run + "/" + section.name + "/"
		before, started := s.tally.passed+s.tally.failed, time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), sectionDeadline)
		section.body(ctx)
		cancel()
		fmt.Printf("%-15s %4d checks, %.1f s\n", section.name, s.tally.passed+s.tally.failed-before, time.Since(started).Seconds())
	}
	return s.tally.finish()
}

// suite runs etcd's own client library against one endpoint. Every section uses
// keys below its own prefix, so the server need not be empty.
type suite struct {
	*tally
	endpoint string
	info     *transport.TLSInfo
	// Empty without authentication.
	user, password string
	client         *clientv3.Client
	prefix         string
}

func (s *suite) dial() (*clientv3.Client, error) {
	config := clientv3.Config{
		Endpoints:          []string{s.endpoint},
		DialTimeout:        5 * time.Second,
		MaxCallSendMsgSize: math.MaxInt32,
		Username:           s.user,
		Password:           s.password,
		Logger:             zap.NewNop(),
	}
	if s.info.TrustedCAFile != "" {
		secured, err := s.info.ClientConfig()
		if err != nil {
			return nil, err
		}
		config.TLS = secured
	}
	return clientv3.New(config)
}

// ok checks that a step did not fail.
func (s *suite) ok(err error, step string) bool {
	return s.check(err == nil, "%s%s: %v", s.prefix, step, err)
}

// fails checks that a step failed with this very error.
func (s *suite) fails(err, want error, step string) bool {
	return s.check(errors.Is(err, want) || (err != nil && err.Error() == want.Error()), "%s%s: want error %q, got %v", s.prefix, step, want, err)
}

func equal[T comparable](s *suite, got, want T, step string) bool {
	return s.check(got == want, "%s%s: want %v, got %v", s.prefix, step, want, got)
}

// eventually polls a condition until the deadline of the context.
func (s *suite) eventually(ctx context.Context, step string, condition func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if condition() {
			return s.check(true, "")
		}
		select {
		case <-ctx.Done():
			return s.check(false, "%s%s: did not happen in time", s.prefix, step)
		case <-tick.C:
		}
	}
}

func (s *suite) count(ctx context.Context, key string, opts ...clientv3.OpOption) int64 {
	r, err := s.client.Get(ctx, key, append(opts, clientv3.WithCountOnly())...)
	if !s.ok(err, "count of "+key) {
		return -1
	}
	return r.Count
}

func (s *suite) kv(ctx context.Context) {
	p, c := s.prefix, s.client
	first, err := c.Put(ctx, p+"a", "1")
	if !s.ok(err, "put") {
		return
	}
	second, err := c.Put(ctx, p+"a", "2", clientv3.WithPrevKV())
	if s.ok(err, "put again") {
		equal(s, second.Header.Revision, first.Header.Revision+1, "revision of the next put")
		equal(s, string(second.PrevKv.GetValue()), "1", "previous value")
		equal(s, second.PrevKv.GetModRevision(), first.Header.Revision, "previous mod revision")
	}
	for _, k := range []string{"b", "c", "d", "e"} {
		_, err := c.Put(ctx, p+k, "value of "+k)
		s.ok(err, "put "+k)
	}
	all, err := c.Get(ctx, p, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))
	if s.ok(err, "get by mod revision") && equal(s, len(all.Kvs), 5, "keys of the prefix") {
		equal(s, string(all.Kvs[0].Key), p+"e", "newest key first")
		equal(s, string(all.Kvs[4].Key), p+"a", "oldest key last")
		equal(s, all.Kvs[4].Version, int64(2), "version after two puts")
	}
	page, err := c.Get(ctx, p, clientv3.WithPrefix(), clientv3.WithLimit(2))
	if s.ok(err, "get a page") {
		equal(s, len(page.Kvs), 2, "size of the page")
		equal(s, page.More, true, "more after the page")
		equal(s, page.Count, int64(5), "count beside a limit")
	}
	old, err := c.Get(ctx, p+"a", clientv3.WithRev(first.Header.Revision))
	if s.ok(err, "get an old revision") && equal(s, len(old.Kvs), 1, "keys at the old revision") {
		equal(s, string(old.Kvs[0].Value), "1", "value at the old revision")
	}
	_, err = c.Get(ctx, p+"a", clientv3.WithRev(second.Header.Revision+1000000))
	s.fails(err, rpctypes.ErrFutureRev, "get a future revision")
	_, err = c.Get(ctx, "")
	s.fails(err, rpctypes.ErrEmptyKey, "get the empty key")
	stream, err := c.GetStream(ctx, p, clientv3.WithPrefix())
	if s.ok(err, "range stream") {
		keys := 0
		for part := range stream {
			if !s.ok(part.Err(), "part of the range stream") {
				break
			}
			keys += len(part.RangeResponse.GetKvs())
		}
		equal(s, keys, 5, "keys of the range stream")
	}
	gone, err := c.Delete(ctx, p+"b", clientv3.WithRange(p+"d"), clientv3.WithPrevKV())
	if s.ok(err, "delete a range") {
		equal(s, gone.Deleted, int64(2), "deleted keys")
		equal(s, len(gone.PrevKvs), 2, "previous values of the deleted keys")
	}
	equal(s, s.count(ctx, p, clientv3.WithPrefix()), int64(3), "keys left")
}

func (s *suite) txn(ctx context.Context) {
	p, c := s.prefix, s.client
	r, err := c.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(p+"a"), "=", 0)).
		Then(clientv3.OpPut(p+"a", "1"), clientv3.OpPut(p+"b", "2"), clientv3.OpGet(p, clientv3.WithPrefix())).
		Else(clientv3.OpGet(p + "a")).Commit()
	if s.ok(err, "create if absent") {
		equal(s, r.Succeeded, true, "create if absent succeeds")
		if equal(s, len(r.Responses), 3, "responses of the branch") {
			seen := r.Responses[2].GetResponseRange()
			equal(s, len(seen.GetKvs()), 2, "a range sees the puts before it")
			for _, kv := range seen.GetKvs() {
				equal(s, kv.ModRevision, r.Header.Revision, "both puts share the revision")
			}
		}
	}
	nested := clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.Value(p+"b"), "=", "2")},
		[]clientv3.Op{clientv3.OpPut(p+"c", "deep"), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete(p + "a")}, nil)},
		[]clientv3.Op{clientv3.OpPut(p+"d", "never")})
	r, err = c.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(p).WithPrefix(), ">", 0), clientv3.Compare(clientv3.LeaseValue(p+"a"), "=", 0)).
		Then(clientv3.OpPut(p+"b", "changed"), nested).Commit()
	if s.ok(err, "nested txn") && equal(s, r.Succeeded, true, "compare over a range succeeds") && equal(s, len(r.Responses), 2, "outer responses") {
		inner := r.Responses[1].GetResponseTxn()
		equal(s, inner.GetSucceeded(), true, "inner compares see the state before the txn")
		if equal(s, len(inner.GetResponses()), 2, "inner responses") {
			deepest := inner.Responses[1].GetResponseTxn().GetResponses()
			if equal(s, len(deepest), 1, "deepest responses") {
				equal(s, deepest[0].GetResponseDeleteRange().GetDeleted(), int64(1), "deepest delete")
			}
		}
	}
	equal(s, s.count(ctx, p+"a"), int64(0), "a is deleted")
	equal(s, s.count(ctx, p+"c"), int64(1), "c exists")
	equal(s, s.count(ctx, p+"d"), int64(0), "d was never put")
	_, err = c.Txn(ctx).Then(clientv3.OpPut(p+"x", "1"), clientv3.OpPut(p+"x", "2")).Commit()
	s.fails(err, rpctypes.ErrDuplicateKey, "two puts of one key")
	_, err = c.Txn(ctx).Then(clientv3.OpPut(p+"x", "1"), clientv3.OpDelete(p, clientv3.WithPrefix())).Commit()
	s.fails(err, rpctypes.ErrDuplicateKey, "put inside a deleted range")
	var many []clientv3.Op
	for i := range txnOpsMax + 1 {
		many = append(many, clientv3.OpPut(p+strconv.Itoa(i), ""))
	}
	_, err = c.Txn(ctx).Then(many...).Commit()
	s.fails(err, rpctypes.ErrTooManyOps, "too many operations")
	_, err = c.Txn(ctx).Then(many[1:]...).Commit()
	s.ok(err, "as many operations as allowed")
	before := s.revision(ctx)
	r, err = c.Txn(ctx).If(clientv3.Compare(clientv3.Version(p+"none"), "=", 7)).Then(clientv3.OpPut(p+"none", "")).Else(clientv3.OpDelete(p + "none")).Commit()
	if s.ok(err, "txn without effect") {
		equal(s, r.Succeeded, false, "branch taken")
		equal(s, r.Header.Revision, before, "a txn without effect keeps the revision")
	}
	// Only one of many concurrent creators may win.
	var winners atomic.Int64
	s.inParallel(16, func(i int) {
		r, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Version(p+"race"), "=", 0)).Then(clientv3.OpPut(p+"race", strconv.Itoa(i))).Commit()
		if s.ok(err, "racing create") && r.Succeeded {
			winners.Add(1)
		}
	})
	equal(s, winners.Load(), int64(1), "winners of a racing create")
}

func (s *suite) revision(ctx context.Context) int64 {
	r, err := s.client.Get(ctx, "nothing", clientv3.WithCountOnly())
	if !s.ok(err, "current revision") {
		return 0
	}
	return r.Header.Revision
}

// inParallel runs a body n times at once and waits for all.
func (s *suite) inParallel(n int, body func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { body(i) })
	}
	wg.Wait()
}

func (s *suite) leases(ctx context.Context) {
	p, c := s.prefix, s.client
	lease, err := c.Grant(ctx, 60)
	if !s.ok(err, "grant") {
		return
	}
	equal(s, lease.TTL, int64(60), "granted TTL")
	_, err = c.Put(ctx, p+"x", "1", clientv3.WithLease(lease.ID))
	s.ok(err, "put with lease")
	_, err = c.Put(ctx, p+"y", "1", clientv3.WithLease(lease.ID))
	s.ok(err, "second put with lease")
	alive, err := c.KeepAliveOnce(ctx, lease.ID)
	if s.ok(err, "keep alive once") {
		equal(s, alive.TTL, int64(60), "TTL after keep alive")
	}
	left, err := c.TimeToLive(ctx, lease.ID, clientv3.WithAttachedKeys())
	if s.ok(err, "time to live") {
		s.check(left.TTL >= 20 && left.TTL <= 60, "%sremaining TTL: want about 60, got %d", p, left.TTL)
		equal(s, left.GrantedTTL, int64(60), "granted TTL in the answer")
		equal(s, len(left.Keys), 2, "attached keys")
	}
	list, err := c.Leases(ctx)
	if s.ok(err, "leases") {
		found := 0
		for _, l := range list.Leases {
			if l.ID == lease.ID {
				found++
			}
		}
		equal(s, found, 1, "lease in the list")
	}
	_, err = c.Put(ctx, p+"y", "2") // a put without lease detaches the key
	s.ok(err, "put without lease")
	before := s.revision(ctx)
	_, err = c.Revoke(ctx, lease.ID)
	s.ok(err, "revoke")
	equal(s, s.revision(ctx), before+1, "a revoke with keys makes one revision")
	equal(s, s.count(ctx, p+"x"), int64(0), "attached key after revoke")
	equal(s, s.count(ctx, p+"y"), int64(1), "detached key after revoke")
	_, err = c.Revoke(ctx, lease.ID)
	s.fails(err, rpctypes.ErrLeaseNotFound, "revoke again")
	_, err = c.KeepAliveOnce(ctx, lease.ID)
	s.fails(err, rpctypes.ErrLeaseNotFound, "keep a dead lease alive")
	_, err = c.Put(ctx, p+"x", "1", clientv3.WithLease(lease.ID))
	s.fails(err, rpctypes.ErrLeaseNotFound, "put with a dead lease")
	left, err = c.TimeToLive(ctx, lease.ID)
	if s.ok(err, "time to live of a dead lease") {
		equal(s, left.TTL, int64(-1), "TTL of a dead lease")
	}
	s.leaseExpiry(ctx)
}

// leaseExpiry keeps a short lease alive well beyond its TTL, then stops and sees
// it end, with a watch on its key.
func (s *suite) leaseExpiry(ctx context.Context) {
	p, c := s.prefix, s.client
	least, err := c.Grant(ctx, 1)
	if !s.ok(err, "grant the shortest lease") {
		return
	}
	s.check(least.TTL >= 1 && least.TTL <= 5, "%sminimum TTL: got %d", p, least.TTL)
	_, _ = c.Revoke(ctx, least.ID) // It may have ended.
	// Long enough for a machine that stands still between two renewals, which come every third of it.
	short, err := c.Grant(ctx, 6)
	if !s.ok(err, "grant a short lease") {
		return
	}
	_, err = c.Put(ctx, p+"short", "1", clientv3.WithLease(short.ID))
	s.ok(err, "put with the short lease")
	watch := c.Watch(ctx, p+"short")
	keeping, stop := context.WithCancel(ctx)
	responses, err := c.KeepAlive(keeping, short.ID)
	if !s.ok(err, "keep alive") {
		stop()
		return
	}
	until := time.Now().Add(time.Duration(short.TTL+2) * time.Second)
	answers := 0
	for time.Now().Before(until) {
		r, open := <-responses
		if !s.check(open && r.TTL > 0, "%skeep alive ended early", p) {
			break
		}
		answers++
	}
	s.check(answers >= 3, "%skeep alive answers: want at least 3, got %d", p, answers)
	equal(s, s.count(ctx, p+"short"), int64(1), "key of a lease kept alive")
	stop()
	stopped := time.Now()
	for {
		r, open := <-watch
		if !s.check(open && r.Err() == nil, "%swatch on the expiring key ended: %v", p, r.Err()) {
			return
		}
		if len(r.Events) > 0 {
			equal(s, r.Events[0].Type, clientv3.EventTypeDelete, "event at expiry")
			break
		}
	}
	took := time.Since(stopped).Seconds()
	s.check(took > float64(short.TTL)*0.5 && took < float64(short.TTL)+30, "%sexpiry after the last keep alive: took %.1f s with a TTL of %d s", p, took, short.TTL)
}

func (s *suite) sessions(ctx context.Context) {
	p, c := s.prefix, s.client
	session, err := concurrency.NewSession(c, concurrency.WithTTL(60), concurrency.WithContext(ctx))
	if !s.ok(err, "new session") {
		return
	}
	_, err = c.Put(ctx, p+"here", "", clientv3.WithLease(session.Lease()))
	s.ok(err, "put with the session's lease")
	s.ok(session.Close(), "close the session")
	equal(s, s.count(ctx, p+"here"), int64(0), "key of a closed session")
	select {
	case <-session.Done():
		s.check(true, "")
	default:
		s.check(false, "%sa closed session is not done", p)
	}
	revoked, err := concurrency.NewSession(c, concurrency.WithTTL(15), concurrency.WithContext(ctx))
	if !s.ok(err, "another session") {
		return
	}
	_, err = c.Revoke(ctx, revoked.Lease())
	s.ok(err, "revoke the session's lease")
	select {
	case <-revoked.Done():
		s.check(true, "")
	case <-time.After(60 * time.Second):
		s.check(false, "%sa session did not notice that its lease was revoked", p)
	}
	orphan, err := concurrency.NewSession(c, concurrency.WithTTL(60), concurrency.WithContext(ctx))
	if !s.ok(err, "a session to orphan") {
		return
	}
	orphan.Orphan()
	left, err := c.TimeToLive(ctx, orphan.Lease())
	if s.ok(err, "time to live of an orphan") {
		s.check(left.TTL > 0, "%sthe lease of an orphaned session ended", p)
	}
	adopted, err := concurrency.NewSession(c, concurrency.WithLease(orphan.Lease()), concurrency.WithContext(ctx))
	if s.ok(err, "session over an existing lease") {
		equal(s, adopted.Lease(), orphan.Lease(), "adopted lease")
		s.ok(adopted.Close(), "close the adopting session")
	}
}
