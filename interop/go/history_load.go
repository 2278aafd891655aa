package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/metadata"

	"mainstay/interop/cluster"
	"mainstay/interop/history"
)

const (
	// groupOps is after how many operations the clients move to new keys. It
	// bounds what Porcupine has to hold at once, which grows with the square.
	groupOps = 1500
	// groupKeys is how many keys a group has; few, so that clients collide.
	groupKeys = 6
	// lockTTL is the lease time of the contenders' sessions in seconds. A holder
	// whose lease ends while it is cut off may believe for about that long that
	// it still holds the lock; that is why its writes carry a guard.
	lockTTL = 4
	// staleness is the bound of serializable reads that have one: some are answered from the state as it is, others are not.
	staleness  = 100 * time.Millisecond
	lockPrefix = "lock/a"
)

// load is the clients and what they record.
type load struct {
	started time.Time
	timeout time.Duration
	// every is the time between two operations of one client.
	every time.Duration

	nextID atomic.Int64
	mu     sync.Mutex
	ops    []*history.Op
	// bounded says that some serializable reads bound their staleness, which only Mainstay knows.
	bounded bool
	// known is the newest mod revision that any client has seen of a key.
	known map[string]int64

	failures counts
	locks    lockFigures
}

type lockFigures struct {
	acquired, writes, fencedOff, lostSession, overlaps atomic.Int64
	mu                                                 sync.Mutex
	// holder is who believes to hold the lock; more than one at a time may, while
	// leases run out.
	holders map[int]bool
}

func (l *load) now() int64 { return int64(time.Since(l.started)) }

// client does operations at one member until the context ends.
func (l *load) client(ctx context.Context, number int, m *cluster.Member, seed uint64) error {
	c, err := cluster.ClientWithoutRetries(m)
	if err != nil {
		return err
	}
	defer c.Close()
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		o := l.invent(rng)
		o.Client, o.At = number, m.Name
		if l.do(c, o) != nil {
			// A member that is down answers at once; asking it again at once only
			// makes a longer list of failures.
			pause(ctx, 50*time.Millisecond)
		}
	}
}

// invent makes the next operation.
func (l *load) invent(rng *rand.Rand) *history.Op {
	id := int(l.nextID.Add(1))
	o := &history.Op{ID: id, Group: fmt.Sprintf("group%05d", id/groupOps)}
	value := fmt.Sprintf("v%d", id)
	order := rng.Perm(groupKeys)
	key := func(i int) string { return fmt.Sprintf("%s/%d", o.Group, order[i]) }
	guard := func() *history.Guard {
		l.mu.Lock()
		rev := l.known[key(0)]
		l.mu.Unlock()
		if rng.IntN(10) == 0 {
			rev = 0 // Create only, or a comparison that fails.
		}
		return &history.Guard{Key: key(0), Rev: rev}
	}
	put := func(i int) history.Action { return history.Action{Do: history.Put, Key: key(i), Value: value} }
	get := func(i int) history.Action { return history.Action{Do: history.Get, Key: key(i)} }
	remove := func(i int) history.Action { return history.Action{Do: history.Delete, Key: key(i)} }
	switch n := rng.IntN(100); {
	case n < 25:
		o.Name, o.Then = "put", []history.Action{put(0)}
	case n < 47:
		o.Name, o.Then = "get", []history.Action{get(0)}
	case n < 53:
		o.Name, o.Then, o.Serializable = "get-serializable", []history.Action{get(0)}, true
		if l.bounded && n < 50 {
			o.Name, o.Staleness = "get-bounded", int64(staleness)
		}
	case n < 71:
		o.Name, o.Guard, o.Then, o.Else = "cas", guard(), []history.Action{put(0)}, []history.Action{get(0)}
	case n < 79:
		o.Name, o.Then = "delete", []history.Action{remove(0)}
	case n < 84:
		o.Name, o.Then = "multi", []history.Action{put(0), put(1), remove(2), get(3)}
	case n < 91:
		o.Name, o.Guard = "multi-cas", guard()
		o.Then, o.Else = []history.Action{put(0), put(1), put(2)}, []history.Action{get(0), get(1)}
	case n < 95:
		o.Name, o.Then = "multi-get", []history.Action{get(0), get(1), get(2)}
	default:
		o.Name, o.Then = "list", []history.Action{{Do: history.List, Key: o.Group + "/"}}
	}
	return o
}

// do sends an operation, records its answer and learns from it.
func (l *load) do(c *clientv3.Client, o *history.Op) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.timeout)
	defer cancel()
	o.Call = l.now()
	err := send(ctx, c, o)
	o.Return = l.now()
	o.Outcome = outcome(err)
	if err != nil {
		o.Error = errorKind(err)
		l.failures.add(o.Error)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, o)
	for _, r := range o.Results {
		for _, e := range r.Entries {
			l.known[e.Key] = max(l.known[e.Key], e.Mod)
		}
	}
	if err == nil && o.Succeeded {
		for _, a := range o.Then {
			if a.Do == history.Put {
				l.known[a.Key] = max(l.known[a.Key], o.Revision)
			}
		}
	}
	return err
}

// send makes the call of the client library that fits the operation, and fills
// in its answer.
func send(ctx context.Context, c *clientv3.Client, o *history.Op) error {
	if o.Guard == nil && len(o.Then) == 1 {
		a := o.Then[0]
		o.Succeeded = true
		var r clientv3.OpResponse
		var err error
		if o.Staleness > 0 {
			ctx = metadata.AppendToOutgoingContext(ctx, "mainstay-max-staleness-ms", strconv.FormatInt(o.Staleness/int64(time.Millisecond), 10))
		}
		if r, err = c.Do(ctx, action(a, o.Serializable)); err != nil {
			o.Succeeded = false
			return err
		}
		switch a.Do {
		case history.Put:
			o.Revision = r.Put().Header.Revision
			o.Results = []history.Result{putResult((*pb.PutResponse)(r.Put()))}
		case history.Delete:
			o.Revision = r.Del().Header.Revision
			o.Results = []history.Result{deleteResult((*pb.DeleteRangeResponse)(r.Del()))}
		default:
			o.Revision = r.Get().Header.Revision
			o.Results = []history.Result{{Entries: entries(r.Get().Kvs)}}
		}
		return nil
	}
	txn := c.Txn(ctx)
	if g := o.Guard; g != nil {
		if g.Create {
			txn = txn.If(clientv3.Compare(clientv3.CreateRevision(g.Key), "=", g.Rev))
		} else {
			txn = txn.If(clientv3.Compare(clientv3.ModRevision(g.Key), "=", g.Rev))
		}
	}
	actions := func(list []history.Action) []clientv3.Op {
		var out []clientv3.Op
		for _, a := range list {
			out = append(out, action(a, false))
		}
		return out
	}
	r, err := txn.Then(actions(o.Then)...).Else(actions(o.Else)...).Commit()
	if err != nil {
		return err
	}
	o.Revision, o.Succeeded = r.Header.Revision, r.Succeeded
	for _, part := range r.Responses {
		switch {
		case part.GetResponsePut() != nil:
			o.Results = append(o.Results, putResult(part.GetResponsePut()))
		case part.GetResponseDeleteRange() != nil:
			o.Results = append(o.Results, deleteResult(part.GetResponseDeleteRange()))
		default:
			o.Results = append(o.Results, history.Result{Entries: entries(part.GetResponseRange().GetKvs())})
		}
	}
	return nil
}

func action(a history.Action, serializable bool) clientv3.Op {
	switch a.Do {
	case history.Put:
		return clientv3.OpPut(a.Key, a.Value, clientv3.WithPrevKV())
	case history.Delete:
		return clientv3.OpDelete(a.Key, clientv3.WithPrevKV())
	case history.List:
		return clientv3.OpGet(a.Key, clientv3.WithPrefix())
	}
	if serializable {
		return clientv3.OpGet(a.Key, clientv3.WithSerializable())
	}
	return clientv3.OpGet(a.Key)
}

func putResult(r *pb.PutResponse) history.Result {
	if r.PrevKv == nil {
		return history.Result{}
	}
	return history.Result{Entries: entries([]*mvccpb.KeyValue{r.PrevKv})}
}

func deleteResult(r *pb.DeleteRangeResponse) history.Result {
	return history.Result{Entries: entries(r.PrevKvs), Deleted: r.Deleted}
}

func entries(kvs []*mvccpb.KeyValue) []history.Entry {
	var out []history.Entry
	for _, kv := range kvs {
		out = append(out, history.Entry{Key: string(kv.Key), Value: string(kv.Value), Create: kv.CreateRevision, Mod: kv.ModRevision, Version: kv.Version})
	}
	return out
}

// contender takes the lock again and again, and writes while it believes to
// hold it.
func (l *load) contender(ctx context.Context, number int, m *cluster.Member) error {
	c, err := cluster.ClientWithoutRetries(m)
	if err != nil {
		return err
	}
	defer c.Close()
	// A lock that is given up is taken back without a deadline, at a member that does not come back until its client ends.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(10*time.Second, func() { c.Close() }) })()
	for ctx.Err() == nil {
		if err := l.hold(ctx, c, number, m); err != nil && ctx.Err() == nil {
			l.failures.add("lock: " + errorKind(err))
			pause(ctx, 200*time.Millisecond)
		}
	}
	return nil
}

// hold is one session that takes the lock a few times.
func (l *load) hold(ctx context.Context, c *clientv3.Client, number int, m *cluster.Member) error {
	grantCtx, cancel := context.WithTimeout(ctx, l.timeout)
	lease, err := c.Grant(grantCtx, lockTTL)
	cancel()
	if err != nil {
		return err
	}
	session, err := concurrency.NewSession(c, concurrency.WithLease(lease.ID))
	if err != nil {
		return err
	}
	// Not Close: revoking has to be given up soon when the member is gone, and the
	// lease ends by itself.
	defer func() {
		session.Orphan()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = c.Revoke(ctx, lease.ID) // Otherwise it expires.
	}()
	for range 5 {
		if ctx.Err() != nil {
			return nil
		}
		mutex := concurrency.NewMutex(session, lockPrefix)
		lockCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := mutex.Lock(lockCtx)
		cancel()
		if err != nil {
			return err
		}
		l.locks.enter(number)
		err = l.critical(ctx, c, number, m, session, mutex)
		l.locks.leave(number)
		unlockCtx, cancel := context.WithTimeout(context.Background(), l.timeout)
		unlockErr := mutex.Unlock(unlockCtx)
		cancel()
		if err != nil {
			return err
		}
		if unlockErr != nil {
			return unlockErr
		}
	}
	return nil
}

// critical writes a few times as the holder.
func (l *load) critical(ctx context.Context, c *clientv3.Client, number int, m *cluster.Member, session *concurrency.Session, mutex *concurrency.Mutex) error {
	owner := mutex.IsOwner()
	created := owner.GetCompare().GetCreateRevision()
	for range 3 {
		select {
		case <-session.Done():
			l.locks.lostSession.Add(1)
			return nil
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
		id := int(l.nextID.Add(1))
		o := &history.Op{ID: id, Client: number, At: m.Name, Name: "fenced-put",
			Guard: &history.Guard{Key: mutex.Key(), Create: true, Rev: created},
			Then:  []history.Action{{Do: history.Put, Key: "fence/a", Value: fmt.Sprintf("v%d", id)}},
			Fence: &history.Fence{Prefix: lockPrefix + "/", Key: mutex.Key(), Create: created}}
		if err := l.do(c, o); err != nil {
			return err
		}
		l.locks.writes.Add(1)
		if !o.Succeeded {
			l.locks.fencedOff.Add(1)
			return nil
		}
	}
	return nil
}

func (f *lockFigures) enter(number int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acquired.Add(1)
	if f.holders == nil {
		f.holders = map[int]bool{}
	}
	if len(f.holders) > 0 {
		f.overlaps.Add(1)
	}
	f.holders[number] = true
}

func (f *lockFigures) leave(number int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.holders, number)
}
