package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"mainstay/interop/cluster"
)

func runCatchup(ctx context.Context, args []string) int {
	f := newClusterFlags("catchup")
	entries := f.Int("entries", 1_000_000, "puts that the follower misses")
	clients := f.Int("clients", 200, "clients that write them")
	size := f.Int("value-bytes", 64, "size of a value")
	keys := f.Int("keys", 100_000, "number of different keys")
	rate := f.Int("rate", 500, "puts per second while latency is measured")
	before := f.Duration("before", 5*time.Second, "how long latency is measured before the follower comes back")
	f.parse(args, true)
	fmt.Println("| catch-up | entries | written /s | catch-up s | entries /s | put p50 ms before | during | put p99 ms before | during | leader MiB |\n|---|---|---|---|---|---|---|---|---|---|")
	code := 0
	for _, server := range f.servers {
		c := &catchup{entries: *entries, clients: *clients, keys: *keys, rate: *rate, before: *before, value: string(make([]byte, *size))}
		if err := c.run(ctx, f.options(server, false), server.name); err != nil {
			fmt.Printf("FAIL %s: %v\n", server.name, err)
			code = 1
		}
	}
	return code
}

type catchup struct {
	entries, clients, keys, rate int
	before                       time.Duration
	value                        string
}

func (u *catchup) run(ctx context.Context, o cluster.Options, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return err
	}
	defer c.Close()
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	var follower *cluster.Member
	for _, m := range c.Members {
		if m != leader {
			follower = m
		}
	}
	if follower == nil {
		return errors.New("a cluster of one has no follower")
	}
	if err := follower.Terminate(30 * time.Second); err != nil {
		return err
	}
	filled, err := u.fill(ctx, c)
	if err != nil {
		return err
	}
	if leader, err = c.Leader(ctx); err != nil {
		return err
	}
	quiet, err := u.measure(ctx, leader, func() error { pause(ctx, u.before); return ctx.Err() })
	if err != nil {
		return err
	}
	target, err := leader.Status(ctx)
	if err != nil {
		return err
	}
	var took time.Duration
	during, err := u.measure(ctx, leader, func() error {
		began := time.Now()
		if err := follower.Start(); err != nil {
			return err
		}
		for {
			s, err := follower.Status(ctx)
			if err == nil && s.RaftAppliedIndex >= target.RaftAppliedIndex {
				took = time.Since(began)
				return nil
			}
			if !follower.Running() {
				return errors.New("the follower ended")
			}
			if !pause(ctx, 10*time.Millisecond) {
				return errors.New("the follower did not catch up in time")
			}
		}
	})
	if err != nil {
		return err
	}
	fmt.Printf("| %s | %d | %.0f | %.2f | %.0f | %.2f | %.2f | %.2f | %.2f | %.0f |\n", name, u.entries, float64(u.entries)/filled.Seconds(), took.Seconds(),
		float64(u.entries)/took.Seconds(), ms(percentile(quiet, 50)), ms(percentile(during, 50)), ms(percentile(quiet, 99)), ms(percentile(during, 99)), leader.RSS())
	if err := c.WaitHealthy(ctx, c.Members...); err != nil {
		return err
	}
	return sameHash(ctx, c.Members)
}

// fill writes the entries that the follower misses, over all members that run.
func (u *catchup) fill(ctx context.Context, c *cluster.Cluster) (time.Duration, error) {
	began := time.Now()
	var next atomic.Int64
	var wait sync.WaitGroup
	failed := make(chan error, u.clients)
	alive := c.Alive()
	for n := range u.clients {
		conn, err := alive[n%len(alive)].Conn()
		if err != nil {
			return 0, err
		}
		wait.Add(1)
		go func() {
			defer wait.Done()
			kv := pb.NewKVClient(conn)
			for {
				i := int(next.Add(1))
				if i > u.entries {
					return
				}
				// A retry is only after an error that may pass, such as an election.
				for tries := 0; ; tries++ {
					attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
					_, err := kv.Put(attempt, u.put(i))
					cancel()
					if err == nil {
						break
					}
					if tries == 10 || ctx.Err() != nil {
						failed <- err
						return
					}
					pause(ctx, 200*time.Millisecond)
				}
			}
		}()
	}
	wait.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
		return time.Since(began), nil
	}
}

func (u *catchup) put(i int) *pb.PutRequest {
	return &pb.PutRequest{Key: fmt.Appendf(nil, "catchup/%08d", i%u.keys), Value: []byte(u.value)}
}

// measure puts at a fixed rate, whatever the answers take, as long as the body
// runs, and gives the latencies.
func (u *catchup) measure(ctx context.Context, m *cluster.Member, body func() error) ([]time.Duration, error) {
	conn, err := m.Conn()
	if err != nil {
		return nil, err
	}
	kv := pb.NewKVClient(conn)
	done := make(chan error, 1)
	go func() { done <- body() }()
	tick := time.NewTicker(time.Second / time.Duration(u.rate))
	defer tick.Stop()
	var mu sync.Mutex
	var all []time.Duration
	var wait sync.WaitGroup
	for i := 0; ; i++ {
		select {
		case err := <-done:
			wait.Wait()
			return all, err
		case due := <-tick.C:
			wait.Add(1)
			go func() {
				defer wait.Done()
				attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				// A failure counts with the time it took: it is not hidden.
				_, _ = kv.Put(attempt, u.put(i))
				mu.Lock()
				all = append(all, time.Since(due))
				mu.Unlock()
			}()
		}
	}
}

func percentile(all []time.Duration, percent int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := append([]time.Duration(nil), all...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i] < sorted[j] })
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
