package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"mainstay/interop/cluster"
)

// attemptLimit is the time limit of one put while there is no leader. A put that
// was sent to the dead leader is never answered, so it must be short.
const attemptLimit = 150 * time.Millisecond

// ends are the ways in which a leader can be lost, and how each is undone.
var ends = map[string]struct {
	end, undo func(c *cluster.Cluster, leader *cluster.Member) error
}{
	"kill": {
		func(_ *cluster.Cluster, m *cluster.Member) error { m.Kill(); return nil },
		func(_ *cluster.Cluster, m *cluster.Member) error { return m.Start() },
	},
	"terminate": {
		func(_ *cluster.Cluster, m *cluster.Member) error { return m.Terminate(30 * time.Second) },
		func(_ *cluster.Cluster, m *cluster.Member) error { return m.Start() },
	},
	"pause": {
		func(_ *cluster.Cluster, m *cluster.Member) error { return m.Pause() },
		func(_ *cluster.Cluster, m *cluster.Member) error { return m.Continue() },
	},
	"partition": {
		func(c *cluster.Cluster, m *cluster.Member) error {
			c.Network.Cut(m.Index, cluster.Rule{Hold: true})
			return nil
		}, heal,
	},
	"deaf": {
		func(c *cluster.Cluster, m *cluster.Member) error { oneWay(c, m, false); return nil }, heal,
	},
	"mute": {
		func(c *cluster.Cluster, m *cluster.Member) error { oneWay(c, m, true); return nil }, heal,
	},
}

func heal(c *cluster.Cluster, _ *cluster.Member) error {
	c.Network.Heal(true)
	return nil
}

// oneWay holds back all that a member sends, or all that is sent to it.
func oneWay(c *cluster.Cluster, m *cluster.Member, outwards bool) {
	for _, other := range c.Members {
		switch {
		case other == m:
		case outwards:
			c.Network.Set(m.Index, other.Index, cluster.Rule{Hold: true})
		default:
			c.Network.Set(other.Index, m.Index, cluster.Rule{Hold: true})
		}
	}
}

func runFailover(ctx context.Context, args []string) int {
	f := newClusterFlags("failover")
	rounds := f.Int("rounds", 10, "how often the leader is lost")
	how := f.String("how", "kill", "how it is lost, with commas between several: kill, terminate (SIGTERM), pause, partition, deaf (hears nobody), mute (nobody hears it)")
	f.parse(args, true)
	type line struct {
		how, name string
		times     []time.Duration
	}
	var lines []line
	lost := 0
	for _, one := range strings.Split(*how, ",") {
		if _, known := ends[one]; !known {
			return cannotRun("failover", fmt.Errorf("no way to lose a leader is called %q", one))
		}
		for _, server := range f.servers {
			// Proxies only where they are needed, so that they cost nothing elsewhere.
			proxied := one == "partition" || one == "deaf" || one == "mute"
			times, missing, err := failover(ctx, f.options(server, proxied), *rounds, one)
			if err != nil {
				return cannotRun("failover", fmt.Errorf("%s: %w", server.name, err))
			}
			lines, lost = append(lines, line{one, server.name, times}), lost+missing
			if missing > 0 {
				fmt.Printf("FAIL %s: %d acknowledged writes are missing\n", server.name, missing)
			}
		}
	}
	fmt.Println("| leader lost by | server | rounds | best ms | median ms | worst ms |\n|---|---|---|---|---|---|")
	for _, l := range lines {
		best := cluster.Worst(l.times)
		for _, d := range l.times {
			best = min(best, d)
		}
		fmt.Printf("| %s | %s | %d | %d | %d | %d |\n", l.how, l.name, len(l.times), best.Milliseconds(), cluster.Median(l.times).Milliseconds(), cluster.Worst(l.times).Milliseconds())
	}
	if lost > 0 {
		return 1
	}
	return 0
}

// failover loses the leader a number of times. It gives for each the longest
// time without an acknowledged write through the others, and how many
// acknowledged writes are missing in the end.
func failover(ctx context.Context, o cluster.Options, rounds int, how string) ([]time.Duration, int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(rounds)*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	var times []time.Duration
	var written []string
	for round := range rounds {
		if err := c.WaitHealthy(ctx, c.Members...); err != nil {
			return nil, 0, err
		}
		leader, err := c.Leader(ctx)
		if err != nil {
			return nil, 0, err
		}
		took, key, err := afterLeader(ctx, c, leader, round, how)
		if err != nil {
			return nil, 0, err
		}
		times, written = append(times, took), append(written, key)
		if err := ends[how].undo(c, leader); err != nil {
			return nil, 0, err
		}
	}
	if err := c.WaitHealthy(ctx, c.Members...); err != nil {
		return nil, 0, err
	}
	client, err := cluster.Client(c.Members...)
	if err != nil {
		return nil, 0, err
	}
	defer client.Close()
	missing := 0
	for _, key := range written {
		r, err := client.Get(ctx, key)
		if err != nil {
			return nil, 0, err
		}
		if len(r.Kvs) != 1 {
			missing++
		}
	}
	return times, missing, nil
}

// afterLeader loses the leader while clients of all other members write all the
// time. It gives the longest time without an acknowledged write from the loss
// until another member leads and acknowledges, and one key written after that.
func afterLeader(ctx context.Context, c *cluster.Cluster, leader *cluster.Member, round int, how string) (time.Duration, string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	type done struct {
		at  time.Time
		key string
	}
	acknowledged := make(chan done, 1024)
	var others []*cluster.Member
	for _, m := range c.Members {
		if m == leader {
			continue
		}
		others = append(others, m)
		client, err := cluster.ClientWithoutRetries(m)
		if err != nil {
			return 0, "", err
		}
		defer client.Close()
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprintf("failover/%d/%s/%d", round, m.Name, n)
				attempt, cancel := context.WithTimeout(ctx, attemptLimit)
				_, err := client.Put(attempt, key, "x")
				cancel()
				if err == nil {
					select {
					case acknowledged <- done{time.Now(), key}:
					case <-ctx.Done():
					}
				}
				pause(ctx, 2*time.Millisecond)
			}
		}()
	}
	select {
	case <-acknowledged:
	case <-ctx.Done():
		return 0, "", errors.New("no write before the loss")
	}
	// The time runs from the signal or the cut, not from the end of the process.
	last := time.Now()
	result := make(chan error, 1)
	go func() {
		if err := ends[how].end(c, leader); err != nil {
			result <- err
			return
		}
		result <- newLeader(ctx, others)
	}()
	var longest time.Duration
	led := false
	for {
		select {
		case err := <-result:
			if err != nil {
				return 0, "", fmt.Errorf("%w\n%s", err, c.LogTails(8))
			}
			led = true
		case d := <-acknowledged:
			if d.at.Before(last) {
				continue
			}
			longest, last = max(longest, d.at.Sub(last)), d.at
			if led {
				return longest, d.key, nil
			}
		case <-ctx.Done():
			return 0, "", fmt.Errorf("no write within a minute after the leader's end\n%s", c.LogTails(8))
		}
	}
}

// newLeader waits until one of some members says that it leads.
func newLeader(ctx context.Context, members []*cluster.Member) error {
	for {
		for _, m := range members {
			if s, err := m.Status(ctx); err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId {
				return nil
			}
		}
		if !pause(ctx, 10*time.Millisecond) {
			return errors.New("no new leader in time")
		}
	}
}
