package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"mainstay/interop/cluster"
	"mainstay/interop/history"
)

// watcher follows all keys from revision 1 at one member.
type watcher struct {
	name string
	mu   sync.Mutex
	// batches are all responses with events.
	batches []history.Batch
	last    int64
	// reopened counts how often the client gave the watch up and we opened it
	// again; within that, the client resumes by itself.
	reopened int
	err      string
}

// follow watches until the context ends.
func (w *watcher) follow(ctx context.Context, m *cluster.Member) {
	c, err := cluster.Client(m)
	if err != nil {
		w.err = err.Error()
		return
	}
	defer c.Close()
	for {
		w.mu.Lock()
		next := w.last + 1
		w.mu.Unlock()
		for r := range c.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(next)) {
			if err := r.Err(); err != nil {
				w.mu.Lock()
				if r.CompactRevision != 0 {
					w.err = err.Error()
					w.mu.Unlock()
					return
				}
				w.mu.Unlock()
				break
			}
			w.take(r)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return
		}
		w.mu.Lock()
		w.reopened++
		w.mu.Unlock()
	}
}

func (w *watcher) take(r clientv3.WatchResponse) {
	if len(r.Events) == 0 {
		return
	}
	batch := make(history.Batch, 0, len(r.Events))
	for _, e := range r.Events {
		event := history.Event{Rev: e.Kv.ModRevision, Key: string(e.Kv.Key), Deleted: e.Type == clientv3.EventTypeDelete}
		if !event.Deleted {
			event.Value, event.Create, event.Version = string(e.Kv.Value), e.Kv.CreateRevision, e.Kv.Version
		}
		batch = append(batch, event)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.batches = append(w.batches, batch)
	w.last = max(w.last, batch[len(batch)-1].Rev)
}

// lateWatches opens watches from revisions of the past, one after the other, and
// closes each after a while: what is read from the store then goes over to what
// happens meanwhile, which is where events get lost.
func (w *watcher) lateWatches(ctx context.Context, m *cluster.Member, rng *rand.Rand) ([]history.Watch, error) {
	c, err := cluster.Client(m)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var out []history.Watch
	for n := 0; ctx.Err() == nil; n++ {
		w.mu.Lock()
		last := w.last
		w.mu.Unlock()
		from := max(2, last-rng.Int64N(1500))
		late := &watcher{name: fmt.Sprintf("late watch %d at %s from revision %d", n, m.Name, from)}
		lasting, cancel := context.WithTimeout(ctx, time.Duration(200+rng.IntN(3000))*time.Millisecond)
		for r := range c.Watch(lasting, "", clientv3.WithPrefix(), clientv3.WithRev(from)) {
			if r.Err() != nil {
				break // A member that ends says so; the next watch is a new one.
			}
			late.take(r)
		}
		cancel()
		result := late.result()
		result.From = from
		out = append(out, result)
	}
	return out, nil
}

// reach waits until the watch has come to a revision.
func (w *watcher) reach(ctx context.Context, revision int64) bool {
	for {
		w.mu.Lock()
		there := w.last >= revision
		w.mu.Unlock()
		if there || !pause(ctx, 20*time.Millisecond) {
			return there
		}
	}
}

// result is what the history keeps of the watch.
func (w *watcher) result() history.Watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return history.Watch{Name: w.name, Batches: w.batches, Error: w.err}
}
