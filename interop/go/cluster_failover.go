package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"mainstay/interop/cluster"
)

// attemptLimit is the time limit of one put while there is no leader. A put that
// was sent to the dead leader is never answered, so it must be short.
const attemptLimit = 150 * time.Millisecond

func runFailover(ctx context.Context, args []string) int {
	f := newClusterFlags("failover")
	rounds := f.Int("rounds", 10, "how often the leader ends")
	terminate := f.Bool("terminate", false, "end the leader with SIGTERM, so that it can hand over, instead of kill -9")
	f.parse(args, true)
	type line struct {
		name  string
		times []time.Duration
	}
	var lines []line
	lost := 0
	for _, server := range f.servers {
		times, missing, err := failover(ctx, f.options(server, false), *rounds, *terminate)
		if err != nil {
			return cannotRun("failover", fmt.Errorf("%s: %w", server.name, err))
		}
		lines, lost = append(lines, line{server.name, times}), lost+missing
		if missing > 0 {
			fmt.Printf("FAIL %s: %d acknowledged writes are missing\n", server.name, missing)
		}
	}
	how := "kill -9"
	if *terminate {
		how = "SIGTERM"
	}
	fmt.Printf("| leader ended by %s | rounds | best ms | median ms | worst ms |\n|---|---|---|---|---|\n", how)
	for _, l := range lines {
		best := cluster.Worst(l.times)
		for _, d := range l.times {
			best = min(best, d)
		}
		fmt.Printf("| %s | %d | %d | %d | %d |\n", l.name, len(l.times), best.Milliseconds(), cluster.Median(l.times).Milliseconds(), cluster.Worst(l.times).Milliseconds())
	}
	if lost > 0 {
		return 1
	}
	return 0
}

// failover ends the leader a number of times. It gives the time from each end
// to the first write that another member acknowledged, and how many
// acknowledged writes are missing in the end.
func failover(ctx context.Context, o cluster.Options, rounds int, terminate bool) ([]time.Duration, int, error) {
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
		took, key, err := afterLeader(ctx, c, leader, round, terminate)
		if err != nil {
			return nil, 0, err
		}
		times, written = append(times, took), append(written, key)
		if err := leader.Start(); err != nil {
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

// afterLeader ends the leader and writes through every other member until one
// of them acknowledges.
func afterLeader(ctx context.Context, c *cluster.Cluster, leader *cluster.Member, round int, terminate bool) (time.Duration, string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	type done struct {
		at  time.Time
		key string
	}
	first := make(chan done, len(c.Members))
	start := make(chan struct{})
	for _, m := range c.Members {
		if m == leader {
			continue
		}
		client, err := cluster.ClientWithoutRetries(m)
		if err != nil {
			return 0, "", err
		}
		defer client.Close()
		// Connected beforehand: it is the cluster that is measured.
		if _, err := client.Get(ctx, "none", clientv3.WithSerializable()); err != nil {
			return 0, "", err
		}
		go func() {
			<-start
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprintf("failover/%d/%s/%d", round, m.Name, n)
				attempt, cancel := context.WithTimeout(ctx, attemptLimit)
				_, err := client.Put(attempt, key, "x")
				cancel()
				if err == nil {
					first <- done{time.Now(), key}
					return
				}
				pause(ctx, 5*time.Millisecond)
			}
		}()
	}
	ended := time.Now()
	if terminate {
		// The time runs from the signal, not from the end of the process.
		go close(start)
		if err := leader.Terminate(30 * time.Second); err != nil {
			return 0, "", err
		}
	} else {
		leader.Kill()
		close(start)
	}
	select {
	case d := <-first:
		return d.at.Sub(ended), d.key, nil
	case <-ctx.Done():
		return 0, "", fmt.Errorf("no write within a minute after the leader's end\n%s", c.LogTails(8))
	}
}
