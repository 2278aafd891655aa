package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// mutex proves mutual exclusion: many holders increment a counter with a read
// and a write that nothing but the lock protects.
func (s *suite) mutex(ctx context.Context) {
	const holders, rounds = 20, 5
	p, c := s.prefix, s.client
	_, err := c.Put(ctx, p+"counter", "0")
	if !s.ok(err, "put the counter") {
		return
	}
	var inside, together atomic.Int64
	s.inParallel(holders, func(int) {
		session, err := concurrency.NewSession(c, concurrency.WithTTL(30), concurrency.WithContext(ctx))
		if !s.ok(err, "session of a holder") {
			return
		}
		defer session.Close()
		m := concurrency.NewMutex(session, p+"lock")
		for range rounds {
			if !s.ok(m.Lock(ctx), "lock") {
				return
			}
			if inside.Add(1) != 1 {
				together.Add(1)
			}
			r, err := c.Get(ctx, p+"counter")
			if s.ok(err, "get the counter") && equal(s, len(r.Kvs), 1, "counter exists") {
				n, _ := strconv.Atoi(string(r.Kvs[0].Value))
				w, err := c.Txn(ctx).If(m.IsOwner()).Then(clientv3.OpPut(p+"counter", strconv.Itoa(n+1))).Commit()
				if s.ok(err, "put the counter as owner") {
					equal(s, w.Succeeded, true, "the holder owns the lock")
				}
			}
			inside.Add(-1)
			if !s.ok(m.Unlock(ctx), "unlock") {
				return
			}
		}
	})
	equal(s, together.Load(), int64(0), "times two held the lock")
	r, err := c.Get(ctx, p+"counter")
	if s.ok(err, "get the final counter") && equal(s, len(r.Kvs), 1, "counter exists at the end") {
		equal(s, string(r.Kvs[0].Value), strconv.Itoa(holders*rounds), "counter after all rounds")
	}
	s.mutexEdges(ctx)
}

func (s *suite) mutexEdges(ctx context.Context) {
	p, c := s.prefix, s.client
	one, err := concurrency.NewSession(c, concurrency.WithTTL(30), concurrency.WithContext(ctx))
	if !s.ok(err, "first session") {
		return
	}
	defer one.Close()
	two, err := concurrency.NewSession(c, concurrency.WithTTL(30), concurrency.WithContext(ctx))
	if !s.ok(err, "second session") {
		return
	}
	defer two.Close()
	a, b := concurrency.NewMutex(one, p+"edge"), concurrency.NewMutex(two, p+"edge")
	s.ok(a.TryLock(ctx), "try a free lock")
	equal(s, a.Key(), fmt.Sprintf("%sedge/%x", p, one.Lease()), "key of the lock")
	s.fails(b.TryLock(ctx), concurrency.ErrLocked, "try a held lock")
	impatient, cancel := context.WithTimeout(ctx, 5*time.Second)
	err = b.Lock(impatient)
	cancel()
	s.check(errors.Is(err, context.DeadlineExceeded), "%slock with a deadline: want deadline exceeded, got %v", p, err)
	equal(s, s.count(ctx, p+"edge/", clientv3.WithPrefix()), int64(1), "keys after giving up")
	// A waiter gets the lock when the holder's lease is revoked.
	got := make(chan error, 1)
	go func() { got <- b.Lock(ctx) }()
	s.eventually(ctx, "the waiter queues up", func() bool { return s.count(ctx, p+"edge/", clientv3.WithPrefix()) == 2 })
	_, err = c.Revoke(ctx, one.Lease())
	s.ok(err, "revoke the holder's lease")
	s.ok(<-got, "lock after the holder's lease ended")
	s.ok(b.Unlock(ctx), "unlock")
}

func (s *suite) election(ctx context.Context) {
	const candidates = 5
	p, c := s.prefix, s.client
	watcher, err := concurrency.NewSession(c, concurrency.WithTTL(30), concurrency.WithContext(ctx))
	if !s.ok(err, "observer's session") {
		return
	}
	defer watcher.Close()
	_, err = concurrency.NewElection(watcher, p+"e").Leader(ctx)
	s.fails(err, concurrency.ErrElectionNoLeader, "leader of an empty election")
	observing, stop := context.WithCancel(ctx)
	defer stop()
	observed := concurrency.NewElection(watcher, p+"e").Observe(observing)
	seen := make(chan string, 1000)
	go func() {
		for r := range observed {
			for _, kv := range r.Kvs {
				seen <- string(kv.Value)
			}
		}
		close(seen)
	}()
	var leaders, together atomic.Int64
	s.inParallel(candidates, func(i int) {
		session, err := concurrency.NewSession(c, concurrency.WithTTL(30), concurrency.WithContext(ctx))
		if !s.ok(err, "candidate's session") {
			return
		}
		defer session.Close()
		e := concurrency.NewElection(session, p+"e")
		name := "candidate " + strconv.Itoa(i)
		if !s.ok(e.Campaign(ctx, name), "campaign") {
			return
		}
		if leaders.Add(1) != 1 {
			together.Add(1)
		}
		r, err := e.Leader(ctx)
		if s.ok(err, "leader") {
			equal(s, string(r.Kvs[0].Value), name, "the winner is the leader")
		}
		s.ok(e.Proclaim(ctx, name+" again"), "proclaim")
		r, err = e.Leader(ctx)
		if s.ok(err, "leader after proclaim") {
			equal(s, string(r.Kvs[0].Value), name+" again", "proclaimed value")
		}
		leaders.Add(-1)
		s.ok(e.Resign(ctx), "resign")
		s.fails(e.Proclaim(ctx, "late"), concurrency.ErrElectionNotLeader, "proclaim after resigning")
	})
	equal(s, together.Load(), int64(0), "times there were two leaders")
	last, err := concurrency.NewSession(c, concurrency.WithTTL(30), concurrency.WithContext(ctx))
	if !s.ok(err, "last candidate's session") {
		return
	}
	defer last.Close()
	final := concurrency.NewElection(last, p+"e")
	if !s.ok(final.Campaign(ctx, "final"), "last campaign") {
		return
	}
	resumed := concurrency.ResumeElection(last, p+"e", final.Key(), final.Rev())
	s.ok(resumed.Proclaim(ctx, "resumed"), "proclaim in a resumed election")
	// Observing may skip short terms, but must arrive at the last value.
	arrived := false
	for !arrived {
		select {
		case v, open := <-seen:
			if !s.check(open, "%sobserve ended early", p) {
				return
			}
			arrived = v == "resumed"
		case <-ctx.Done():
			s.check(false, "%sobserve never saw the last leader", p)
			return
		}
	}
	s.ok(final.Resign(ctx), "resign at the end")
}

// stm moves money between accounts at every isolation level that keeps the sum.
func (s *suite) stm(ctx context.Context) {
	const accounts, movers, moves, start = 8, 8, 15, 100
	c := s.client
	for _, level := range []struct {
		name      string
		isolation concurrency.Isolation
	}{{"serializable-snapshot", concurrency.SerializableSnapshot}, {"serializable", concurrency.Serializable}, {"repeatable-reads", concurrency.RepeatableReads}} {
		account := func(i int) string { return s.prefix + level.name + "/" + strconv.Itoa(i) }
		for i := range accounts {
			_, err := c.Put(ctx, account(i), strconv.Itoa(start))
			s.ok(err, "open an account")
		}
		s.inParallel(movers, func(m int) {
			for move := range moves {
				from, to := (m+move)%accounts, (m*3+move*5+1)%accounts
				if from == to {
					continue
				}
				_, err := concurrency.NewSTM(c, func(t concurrency.STM) error {
					have, _ := strconv.Atoi(t.Get(account(from)))
					other, _ := strconv.Atoi(t.Get(account(to)))
					t.Put(account(from), strconv.Itoa(have-1))
					t.Put(account(to), strconv.Itoa(other+1))
					return nil
				}, concurrency.WithIsolation(level.isolation), concurrency.WithAbortContext(ctx))
				s.ok(err, "move at "+level.name)
			}
		})
		r, err := c.Get(ctx, s.prefix+level.name+"/", clientv3.WithPrefix())
		if s.ok(err, "read the accounts") {
			total := 0
			for _, kv := range r.Kvs {
				n, _ := strconv.Atoi(string(kv.Value))
				total += n
			}
			equal(s, total, accounts*start, "sum at "+level.name)
		}
	}
	_, err := concurrency.NewSTM(c, func(t concurrency.STM) error {
		t.Put(s.prefix+"aborted", "x")
		return errors.New("changed my mind")
	}, concurrency.WithAbortContext(ctx))
	s.check(err != nil && err.Error() == "changed my mind", "%saborted STM: got %v", s.prefix, err)
	equal(s, s.count(ctx, s.prefix+"aborted"), int64(0), "key of an aborted STM")
}
