package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mainstay/interop/cluster"
)

// writeLimit is how long a client goes on trying one write.
const writeLimit = 15 * time.Second

func runRolling(ctx context.Context, args []string) int {
	f := newClusterFlags("rolling")
	var second servers
	f.Var(&second, "server2", "binary with which members come back, NAME=PATH or PATH; default: the same")
	rounds := f.Int("rounds", 2, "how often each member is restarted")
	clients := f.Int("clients", 8, "number of clients that write all the time")
	replace := f.Bool("replace", false, "do not restart members but remove each and add a new one, with an empty disk, in its place")
	killAt := f.String("kill-at", "", "kill -9 each member that is started again, once, when its log says this")
	f.parse(args, false)
	if *clients < 1 || *rounds < 1 || len(second) > 1 {
		f.Usage()
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, f.options(f.servers[0], false))
	if err != nil {
		return cannotRun("rolling", err)
	}
	defer c.Close()
	r := &rolling{cluster: c, tally: &tally{show: 20}, killAt: *killAt}
	loadCtx, stop := context.WithCancel(ctx)
	var wait sync.WaitGroup
	for n := range *clients {
		client, err := cluster.Client(c.Members...)
		if err != nil {
			stop()
			return cannotRun("rolling", err)
		}
		defer client.Close()
		r.clients = append(r.clients, client)
		wait.Add(1)
		go func() { defer wait.Done(); r.write(loadCtx, client, n) }()
	}
	began := time.Now()
	for round := range *rounds {
		for _, m := range append([]*cluster.Member(nil), c.Members...) {
			if m.Gone {
				continue
			}
			if len(second) > 0 {
				m.Server = second[0].path
			}
			step := r.restart
			if *replace {
				step = r.replace
			}
			if err := step(ctx, m); err != nil {
				r.tally.check(false, "round %d, %s: %v", round, m.Name, err)
				fmt.Println(c.LogTails(5))
				stop()
				wait.Wait()
				return r.tally.finish()
			}
			r.tally.check(true, "")
			if len(second) > 0 {
				err := sameHash(ctx, c.Alive())
				r.tally.check(err == nil, "HashKV after %s was started from %s: %v", m.Name, second[0].path, err)
			}
		}
	}
	took := time.Since(began)
	pause(ctx, time.Second)
	stop()
	wait.Wait()
	r.verify(ctx, *clients)
	fmt.Printf("%d members restarted in %v\n", r.restarts, took.Round(time.Millisecond))
	if len(r.ends) > 0 {
		fmt.Printf("SIGTERM to the end: median %v, worst %v; start to healthy: median %v, worst %v\n", cluster.Median(r.ends).Round(time.Millisecond),
			cluster.Worst(r.ends).Round(time.Millisecond), cluster.Median(r.starts).Round(time.Millisecond), cluster.Worst(r.starts).Round(time.Millisecond))
	}
	fmt.Printf("writes      %d acknowledged, %d of them after a retry, longest %v\n", r.written.Load(), r.retried.Load(), time.Duration(r.longest.Load()).Round(time.Millisecond))
	fmt.Printf("retriable   %s\n", sortedCounts(r.retriable.n))
	fmt.Printf("failed      %d\n", r.failed.Load())
	return r.tally.finish()
}

type rolling struct {
	cluster  *cluster.Cluster
	tally    *tally
	killAt   string
	clients  []*clientv3.Client
	restarts int
	// ends are the times from SIGTERM to the end of the process, starts those from
	// the start until the member was healthy.
	ends, starts []time.Duration

	written, retried, failed, longest atomic.Int64
	retriable                         counts
	mu                                sync.Mutex
	// last is, per client, the number of its last acknowledged write.
	last map[int]int
}

// write puts numbered values, each until it is acknowledged. Values only ever
// grow, so doing one again is harmless.
func (r *rolling) write(ctx context.Context, c *clientv3.Client, client int) {
	for n := 1; ctx.Err() == nil; n++ {
		began := time.Now()
		again := false
		for {
			attempt, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := c.Put(attempt, fmt.Sprintf("rolling/%d/%d", client, n%100), fmt.Sprint(n))
			cancel()
			if err == nil {
				break
			}
			kind := errorKind(err)
			if !retriable(err) || time.Since(began) > writeLimit {
				r.failed.Add(1)
				r.tally.check(false, "write %d of client %d after %v: %s", n, client, time.Since(began).Round(time.Millisecond), kind)
				return
			}
			r.retriable.add(kind)
			again = true
			pause(ctx, 10*time.Millisecond)
		}
		if again {
			r.retried.Add(1)
		}
		for {
			longest, took := r.longest.Load(), int64(time.Since(began))
			if took <= longest || r.longest.CompareAndSwap(longest, took) {
				break
			}
		}
		r.written.Add(1)
		r.mu.Lock()
		if r.last == nil {
			r.last = map[int]int{}
		}
		r.last[client] = n
		r.mu.Unlock()
		pause(ctx, time.Millisecond)
	}
}

// retriable says whether an application is right to try again.
func retriable(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	if status.Convert(err).Message() == "raft: stopped" {
		return true // What etcd answers, with the code Unknown, while a removed member ends.
	}
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code() == codes.Unavailable
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

func (r *rolling) restart(ctx context.Context, m *cluster.Member) error {
	began := time.Now()
	if err := m.Terminate(30 * time.Second); err != nil {
		return err
	}
	ended := time.Now()
	if r.killAt != "" {
		if err := r.killStart(ctx, m); err != nil {
			return err
		}
	}
	if err := m.Start(); err != nil {
		return err
	}
	r.restarts++
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.cluster.WaitHealthy(ctx, m); err != nil {
		return err
	}
	r.ends, r.starts = append(r.ends, ended.Sub(began)), append(r.starts, time.Since(ended))
	return nil
}

// killStart starts a member and kills it when its log says the words, or fails
// if it ends or becomes healthy without them.
func (r *rolling) killStart(ctx context.Context, m *cluster.Member) error {
	before, err := m.Log()
	if err != nil {
		return err
	}
	if err := m.Start(); err != nil {
		return err
	}
	for {
		// Asked first, so that what it said before it ended is read.
		running, healthy := m.Running(), m.Healthy(ctx)
		log, err := m.Log()
		if err != nil {
			return err
		}
		if len(log) >= len(before) && strings.Contains(log[len(before):], r.killAt) {
			m.Kill()
			return nil
		}
		if !running || healthy {
			return fmt.Errorf("it did not say %q at its start", r.killAt)
		}
		if !pause(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
}

// replace adds a new member as a learner, promotes it and removes the old one.
func (r *rolling) replace(ctx context.Context, m *cluster.Member) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c, err := cluster.Client(r.cluster.Alive()...)
	if err != nil {
		return err
	}
	defer c.Close()
	joining, err := r.cluster.Join(m.Name+"x", r.cluster.Alive()...)
	if err != nil {
		return err
	}
	joining.Server = m.Server
	added, err := whenHealthy(ctx, func() (*clientv3.MemberAddResponse, error) {
		return c.MemberAddAsLearner(ctx, []string{joining.PeerURL})
	})
	if err != nil {
		return err
	}
	if err := joining.Start(); err != nil {
		return err
	}
	if err := promote(ctx, c, added.Member.ID); err != nil {
		return err
	}
	status, err := m.Status(ctx)
	if err != nil {
		return err
	}
	// The clients learn of the new member before the old one goes.
	for _, client := range r.clients {
		if err := client.Sync(ctx); err != nil {
			return err
		}
	}
	m.ExpectExit()
	// Not asked of the member itself, which would end before it answers.
	c.SetEndpoints(endpoints(r.cluster.Alive(), m)...)
	if _, err := whenHealthy(ctx, func() (*clientv3.MemberRemoveResponse, error) {
		return c.MemberRemove(ctx, status.Header.MemberId)
	}); err != nil {
		return err
	}
	m.Kill()
	m.Gone = true
	r.restarts++
	return r.cluster.WaitHealthy(ctx, joining)
}

// endpoints are those of some members but one.
func endpoints(members []*cluster.Member, but *cluster.Member) []string {
	var out []string
	for _, m := range members {
		if m != but {
			out = append(out, m.Endpoint)
		}
	}
	return out
}

// promote asks until the learner has caught up.
func promote(ctx context.Context, c *clientv3.Client, id uint64) error {
	for {
		_, err := c.MemberPromote(ctx, id)
		if err == nil || !errors.Is(err, rpctypes.ErrMemberLearnerNotReady) && !retriable(err) {
			return err
		}
		if !pause(ctx, 50*time.Millisecond) {
			return fmt.Errorf("not promoted in time: %w", err)
		}
	}
}

// whenHealthy asks again while a server refuses to change the membership because
// its connections to the others are not some seconds old yet.
func whenHealthy[R any](ctx context.Context, ask func() (R, error)) (R, error) {
	for {
		r, err := ask()
		if err == nil || !errors.Is(err, rpctypes.ErrUnhealthy) || !pause(ctx, 100*time.Millisecond) {
			return r, err
		}
	}
}

// verify looks for the last write of every client, and compares the members.
func (r *rolling) verify(ctx context.Context, clients int) {
	alive := r.cluster.Alive()
	for client := range clients {
		n := r.last[client]
		r.tally.check(n > 0, "client %d wrote nothing", client)
		for _, m := range alive {
			c, err := cluster.Client(m)
			if err != nil {
				r.tally.check(false, "%v", err)
				continue
			}
			got, err := c.Get(ctx, fmt.Sprintf("rolling/%d/%d", client, n%100))
			c.Close()
			if r.tally.check(err == nil, "read at %s: %v", m.Name, err) {
				value := 0
				if len(got.Kvs) == 1 {
					_, _ = fmt.Sscan(string(got.Kvs[0].Value), &value) // 0 when it is no number.
				}
				r.tally.check(value >= n, "%s: client %d's last acknowledged write is %d, stored is %d", m.Name, client, n, value)
			}
		}
	}
	r.tally.check(sameHash(ctx, alive) == nil, "HashKV: %v", sameHash(ctx, alive))
	for _, death := range r.cluster.Deaths() {
		r.tally.check(false, "%s", death)
	}
}

// sameHash compares HashKV over members at one revision.
func sameHash(ctx context.Context, members []*cluster.Member) error {
	c, err := cluster.Client(members...)
	if err != nil {
		return err
	}
	defer c.Close()
	now, err := c.Get(ctx, "none")
	if err != nil {
		return err
	}
	var first uint32
	for i, m := range members {
		// A linearizable read brings the member to that revision.
		own, err := cluster.Client(m)
		if err != nil {
			return err
		}
		_, err = own.Get(ctx, "none")
		own.Close()
		if err != nil {
			return err
		}
		r, err := c.HashKV(ctx, m.Endpoint, now.Header.Revision)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if i == 0 {
			first = r.Hash
		}
		if r.Hash != first {
			return fmt.Errorf("%s has %d, %s has %d at revision %d", m.Name, r.Hash, members[0].Name, first, now.Header.Revision)
		}
	}
	return nil
}
