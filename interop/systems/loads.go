package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

func keyOf(number int) string { return fmt.Sprintf("k/%08d", number) }

// valueOf is a value that no server can compress, and that begins with its number.
func valueOf(number uint64, length int) []byte {
	value := make([]byte, max(length, 8))
	from := rand.NewChaCha8([32]byte{byte(number), byte(number >> 8), byte(number >> 16), byte(number >> 24)})
	_, _ = from.Read(value)
	binary.BigEndian.PutUint64(value, number)
	return value
}

// clients opens as many connections; each has one call at a time under way.
func clients(ctx context.Context, server *server, count int) ([]client, func(), error) {
	var open []client
	end := func() {
		for _, one := range open {
			one.close()
		}
	}
	for range count {
		one, err := server.kind.open(ctx, server.port)
		if err != nil {
			end()
			return nil, nil, err
		}
		open = append(open, one)
	}
	return open, end, nil
}

// fill puts every key, and some again, so that all servers hold the same, and then looks at memory and files.
func fill(server *server, set options) (figures, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*pause)
	defer cancel()
	open, end, err := clients(ctx, server, 64)
	if err != nil {
		return figures{}, err
	}
	defer end()
	var next atomic.Int64
	found, err := run(ctx, server, open, func(one client) (bool, error) {
		number := int(next.Add(1)) - 1
		if number >= set.fill {
			return false, nil
		}
		return true, one.put(ctx, keyOf(number%set.keys), valueOf(uint64(number), set.valueBytes))
	})
	found.Load = "fill"
	if err == nil {
		found.MemoryMB, err = server.memoryMB()
	}
	if err == nil {
		found.FilesMB, err = server.filesMB()
	}
	return found, err
}

// timed has each client do one thing after the other for the time of a load.
func timed(server *server, set options, name string, what load) (figures, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(set.seconds)*time.Second+pause)
	defer cancel()
	open, end, err := clients(ctx, server, what.clients)
	if err != nil {
		return figures{}, err
	}
	defer end()
	value := valueOf(1, set.valueBytes)
	until := time.Now().Add(time.Duration(set.seconds) * time.Second)
	found, err := run(ctx, server, open, func(one client) (bool, error) {
		if !time.Now().Before(until) {
			return false, nil
		}
		return true, what.do(ctx, one, keyOf(rand.IntN(set.keys)), value)
	})
	found.Load = name
	return found, err
}

// run has each client call `step` until that says false, and measures all that was done.
func run(ctx context.Context, server *server, open []client, step func(client) (bool, error)) (figures, error) {
	before, err := server.used()
	if err != nil {
		return figures{}, err
	}
	begun := time.Now()
	times := make([][]time.Duration, len(open))
	failed := make([]error, len(open))
	var all sync.WaitGroup
	for number, one := range open {
		all.Go(func() {
			for ctx.Err() == nil {
				at := time.Now()
				more, err := step(one)
				if err != nil || !more {
					failed[number] = err
					return
				}
				times[number] = append(times[number], time.Since(at))
			}
			failed[number] = ctx.Err()
		})
	}
	all.Wait()
	took := time.Since(begun)
	if err := errors.Join(failed...); err != nil {
		return figures{}, err
	}
	after, err := server.used()
	return of(slices.Concat(times...), took, before, after), err
}

func of(times []time.Duration, took time.Duration, before, after used) figures {
	slices.Sort(times)
	count := float64(len(times))
	at := func(share float64) float64 {
		return times[min(int(share*count), len(times)-1)].Seconds() * 1000
	}
	return figures{
		Rate: count / took.Seconds(), P50: at(0.50), P99: at(0.99),
		CPU:     (after.cpu - before.cpu).Seconds() * 1e6 / count,
		Written: float64(after.written-before.written) / count,
		Others:  (after.others - before.others).Seconds() / took.Seconds(),
	}
}

// watched puts one key again and again, each time when a watcher on another connection has the value before. The time is that from
// the call of the put to the value in the watcher's hands.
func watched(server *server, set options) (figures, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(set.seconds)*time.Second+pause)
	defer cancel()
	open, end, err := clients(ctx, server, 2)
	if err != nil {
		return figures{}, err
	}
	defer end()
	key := keyOf(0)
	if err := open[0].put(ctx, key, valueOf(0, set.valueBytes)); err != nil {
		return figures{}, err
	}
	values, err := open[1].watch(ctx, key)
	if err != nil {
		return figures{}, err
	}
	number := uint64(0)
	until := time.Now().Add(time.Duration(set.seconds) * time.Second)
	found, err := run(ctx, server, open[:1], func(one client) (bool, error) {
		if !time.Now().Before(until) {
			return false, nil
		}
		number++
		acknowledged := make(chan error, 1)
		go func() { acknowledged <- one.put(ctx, key, valueOf(number, set.valueBytes)) }()
		for {
			select {
			case value, ok := <-values:
				if !ok {
					return false, errors.New("the watch ended")
				}
				// The first event may be the value before.
				if len(value) >= 8 && binary.BigEndian.Uint64(value) == number {
					return true, <-acknowledged
				}
			case <-ctx.Done():
				return false, fmt.Errorf("no event for put %d: %w", number, ctx.Err())
			}
		}
	})
	found.Load = "watch"
	return found, err
}

// countSyncs puts one key after the other by one client, and counts the syncs of files that the server makes meanwhile.
func countSyncs(server *server, set options) (figures, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*pause)
	defer cancel()
	open, end, err := clients(ctx, server, 1)
	if err != nil {
		return figures{}, err
	}
	defer end()
	const puts = 300
	one := func(number int) error {
		return open[0].put(ctx, keyOf(number%10), valueOf(uint64(number), set.valueBytes))
	}
	for number := range 20 {
		if err := one(number); err != nil {
			return figures{}, err
		}
	}
	before, err := server.traced()
	if err != nil {
		return figures{}, err
	}
	for number := range puts {
		if err := one(number); err != nil {
			return figures{}, err
		}
	}
	after, err := server.traced()
	return figures{Load: "syncs", Server: server.name, Syncs: float64(after-before) / puts}, err
}
