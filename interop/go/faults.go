package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"mainstay/interop/cluster"
)

// faultNames are the faults that can be asked for, with what they do.
var faultNames = map[string]string{
	"kill-leader": "kill -9 the leader, and restart it after a while",
	"kill-any":    "kill -9 some member, start it again",
	"kill-all":    "kill -9 all members at once, start them again",
	"restart":     "SIGTERM some member, wait for its end, start it again",
	"pause":       "SIGSTOP some member, the leader every other time, SIGCONT after a while",
	"partition":   "cut one member off from all others in both directions, the leader every other time; packets vanish, or connections are reset",
	"oneway":      "let nothing through from one member to another, or to all others, while the other direction works",
	"replace":     "kill -9 some member, the leader every other time, and lose its disk; remove it and add a new one with its addresses",
	"in-place":    "let the next member go on from the other binary (--migrate), on its data",
	"replacement": "replace the next member by one of the other binary (--migrate), with an empty disk",
	"slow":        "delay what members say to each other by up to 80 ms, and limit the rate of one direction",
}

// faults injects faults into a cluster, one after the other.
type faults struct {
	cluster  *cluster.Cluster
	names    []string
	every    time.Duration
	rng      *rand.Rand
	say      func(format string, args ...any)
	injected counts
	// migration is what the steps in-place and replacement go on with; nil without --migrate.
	migration *migration

	mu sync.Mutex
	// leaderKills are the moments at which a leader was killed.
	leaderKills []time.Time
	// recoveries are the times from the end of each fault until all members were
	// healthy.
	recoveries []time.Duration
	// fedBy is who feeds each observer, as it was last seen; refed counts changes of it.
	fedBy map[*cluster.Member]*cluster.Member
	refed int
	// problems are members that did not come back.
	problems []string
	// queue is a shuffled list of what comes next, so that each fault comes about
	// equally often.
	queue []string
}

func parseFaults(list string) ([]string, error) {
	var names []string
	for _, name := range strings.Split(list, ",") {
		if name == "" {
			continue
		}
		if faultNames[name] == "" && !isOfObservers(name) {
			all := slices.AppendSeq(slices.Collect(maps.Keys(faultNames)), maps.Keys(observerFaults))
			slices.Sort(all)
			return nil, fmt.Errorf("unknown fault %q; there are %s", name, strings.Join(all, ", "))
		}
		names = append(names, name)
	}
	return names, nil
}

// run injects until the context ends, and heals everything at the end.
func (f *faults) run(ctx context.Context) {
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return // Both may be ready.
		}
		if len(f.queue) == 0 {
			f.queue = slices.Clone(f.names)
			f.rng.Shuffle(len(f.queue), func(i, j int) { f.queue[i], f.queue[j] = f.queue[j], f.queue[i] })
		}
		name := f.queue[0]
		f.queue = f.queue[1:]
		err := f.inject(ctx, name)
		f.injected.add(name)
		// What comes next needs a majority that answers, so all have to be back. The
		// context of the run does not matter here: a member has to come back anyway.
		if err == nil {
			over := time.Now()
			if err = f.recovered(); err == nil {
				took := time.Since(over)
				f.say("  all healthy %v after it was over", took.Round(time.Millisecond))
				f.mu.Lock()
				f.recoveries = append(f.recoveries, took)
				f.mu.Unlock()
			}
		}
		if err != nil {
			f.say("%s: %v", name, err)
			f.mu.Lock()
			f.problems = append(f.problems, fmt.Sprintf("after %s: %v", name, err))
			f.mu.Unlock()
			if f.cluster.Network != nil {
				f.cluster.Network.Heal(true)
			}
		}
	}
}

func (f *faults) recovered() error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for _, m := range f.cluster.Nodes() {
		if !m.Running() && !m.Gone {
			if err := m.Start(); err != nil {
				return err
			}
		}
	}
	if err := f.cluster.WaitHealthy(ctx, f.cluster.Nodes()...); err != nil {
		return err
	}
	return f.noteFeeders(ctx)
}

// lasting is how long a fault stays: long enough for an election, of which one
// takes up to two seconds, and often short enough to end in the middle of one.
func (f *faults) lasting() time.Duration {
	return time.Duration(500+f.rng.IntN(3000)) * time.Millisecond
}

func (f *faults) any() *cluster.Member { return f.cluster.Members[f.rng.IntN(len(f.cluster.Members))] }

// leader waits for one also when the run is over meanwhile: a fault that has begun is carried to its end.
func (f *faults) leader(ctx context.Context) (*cluster.Member, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return f.cluster.Leader(ctx)
}

// leaderOrAny is the leader every other time.
func (f *faults) leaderOrAny(ctx context.Context) (*cluster.Member, error) {
	if f.rng.IntN(2) == 0 {
		return f.leader(ctx)
	}
	return f.any(), nil
}

func (f *faults) inject(ctx context.Context, name string) error {
	if isOfObservers(name) {
		return f.injectObserver(ctx, name)
	}
	network := f.cluster.Network
	switch name {
	case "kill-leader":
		m, err := f.leader(ctx)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.leaderKills = append(f.leaderKills, time.Now())
		f.mu.Unlock()
		m.Kill()
		f.say("killed the leader %s", m.Name)
		pause(ctx, f.lasting())
		return m.Start()
	case "kill-any":
		m := f.any()
		m.Kill()
		f.say("killed %s", m.Name)
		pause(ctx, f.lasting())
		return m.Start()
	case "kill-all":
		var wait sync.WaitGroup
		for _, m := range f.cluster.Members {
			wait.Add(1)
			go func() { defer wait.Done(); m.Kill() }()
		}
		wait.Wait()
		f.say("killed all members")
		for _, m := range f.cluster.Members {
			if err := m.Start(); err != nil {
				return err
			}
		}
		return nil
	case "replace":
		m, err := f.leaderOrAny(ctx)
		if err != nil {
			return err
		}
		f.say("replaced %s", m.Name)
		return f.replaceBy(m, func() {})
	case "in-place":
		return f.inPlace(ctx)
	case "replacement":
		return f.replacement(ctx)
	case "restart":
		m := f.any()
		if err := m.Terminate(30 * time.Second); err != nil {
			return err
		}
		f.say("restarted %s", m.Name)
		return m.Start()
	case "pause":
		m, err := f.leaderOrAny(ctx)
		if err != nil {
			return err
		}
		if err := m.Pause(); err != nil {
			return err
		}
		f.say("paused %s", m.Name)
		pause(ctx, f.lasting())
		return m.Continue()
	case "partition":
		m, err := f.leaderOrAny(ctx)
		if err != nil {
			return err
		}
		rule := f.cut()
		network.Cut(m.Index, rule)
		f.say("cut off %s, %+v", m.Name, rule)
		pause(ctx, f.lasting())
		network.Heal(f.rng.IntN(2) == 0)
	case "oneway":
		m, err := f.leaderOrAny(ctx)
		if err != nil {
			return err
		}
		outwards, only := f.rng.IntN(2) == 0, -1
		if f.rng.IntN(2) == 0 {
			only = f.any().Index
		}
		for _, other := range f.cluster.Nodes() {
			if other == m || only >= 0 && only != m.Index && only != other.Index {
				continue
			}
			if outwards {
				network.Set(m.Index, other.Index, cluster.Rule{Hold: true})
			} else {
				network.Set(other.Index, m.Index, cluster.Rule{Hold: true})
			}
		}
		f.say("cut %s one way, outwards %v, only member %d", m.Name, outwards, only)
		pause(ctx, f.lasting())
		network.Heal(f.rng.IntN(2) == 0)
	case "slow":
		slow := f.any()
		for _, a := range f.cluster.Nodes() {
			for _, b := range f.cluster.Nodes() {
				rule := cluster.Rule{Delay: time.Duration(f.rng.IntN(80)) * time.Millisecond}
				if a == slow {
					rule.BytesPerSecond = 50_000
				}
				if a != b {
					network.Set(a.Index, b.Index, rule)
				}
			}
		}
		f.say("slowed the network down")
		pause(ctx, f.lasting())
		network.Heal(false)
	}
	return nil
}

// changeLimit is how long one try to change the membership may take: etcd waits for as long as its client does for a change that
// got lost on the way to a leader that has died.
const changeLimit = 10 * time.Second

// replaceBy does what an operator does after a disk is lost; `before` is called before the new member starts. It is carried to its
// end also when the run is over meanwhile.
func (f *faults) replaceBy(m *cluster.Member, before func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	status, err := m.Status(ctx)
	if err != nil {
		return err
	}
	m.Kill()
	c, err := cluster.Client(f.cluster.Alive()...)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		attempt, cancel := context.WithTimeout(ctx, changeLimit)
		_, err = whenHealthy(attempt, func() (*clientv3.MemberRemoveResponse, error) {
			return c.MemberRemove(attempt, status.Header.MemberId)
		})
		cancel()
		// After an answer that got lost, the member is gone already.
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotFound) {
			break
		}
		if !retriable(err) || !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("remove: %w", err)
		}
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, changeLimit)
		_, err = whenHealthy(attempt, func() (*clientv3.MemberAddResponse, error) { return c.MemberAdd(attempt, []string{m.PeerURL}) })
		cancel()
		if err == nil || errors.Is(err, rpctypes.ErrPeerURLExist) {
			break
		}
		if !retriable(err) || !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("add: %w", err)
		}
	}
	// A new member goes by the list of the first one that answers it, however old that is: with its old id in it, etcd ends as
	// one that was removed.
	for _, other := range f.cluster.Alive() {
		if err := hears(ctx, other); err != nil {
			return err
		}
	}
	if err := f.cluster.Rejoin(m); err != nil {
		return err
	}
	before()
	return m.Start()
}

// hears waits until a member has heard of all that was changed so far.
func hears(ctx context.Context, m *cluster.Member) error {
	c, err := cluster.Client(m)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		attempt, cancel := context.WithTimeout(ctx, changeLimit)
		_, err := c.MemberList(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if !retriable(err) || !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("members at %s: %w", m.Name, err)
		}
	}
}
