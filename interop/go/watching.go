package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const watchDeadline = 60 * time.Second

// watchPlan is a list of watches opened on one stream and read until all of
// them reached the current revision.
type watchPlan struct {
	creates []*pb.WatchCreateRequest
	// future says that a watch starts after the next revision; etcd then sends no
	// progress for the whole stream, so none is waited for.
	future bool
	// compacted says that the plan's only watch starts below the compacted
	// revision, so a cancellation is waited for.
	compacted bool
}

func (g *generator) watchPlan() watchPlan {
	create := func() *pb.WatchCreateRequest {
		key, end := g.span()
		w := &pb.WatchCreateRequest{Key: key, RangeEnd: end, PrevKv: g.chance(50), Fragment: g.chance(20), ProgressNotify: g.chance(10)}
		if g.chance(20) {
			w.Filters = append(w.Filters, pb.WatchCreateRequest_FilterType(g.rng.IntN(3)))
		}
		if g.chance(5) {
			w.Filters = append(w.Filters, pb.WatchCreateRequest_NOPUT, pb.WatchCreateRequest_NODELETE)
		}
		if g.chance(15) {
			w.WatchId = int64(g.rng.IntN(4))
		}
		if g.chance(3) {
			w.WatchId = pick(g, []int64{-1, -7, 1 << 40})
		}
		switch n := g.rng.IntN(20); {
		case n == 0:
			w.StartRevision = -1 - g.rng.Int64N(5)
		case n == 1:
			w.StartRevision = 0
		default:
			w.StartRevision = g.liveRevision()
			if w.StartRevision == g.compacted && !g.settled && g.compacted < g.revision {
				w.StartRevision++
			}
		}
		return w
	}
	if g.compacted > 1 && g.chance(12) {
		w := create()
		w.Key, w.RangeEnd, w.WatchId = []byte("a"), []byte("z"), 0
		w.StartRevision = 1 + g.rng.Int64N(g.compacted-1)
		return watchPlan{creates: []*pb.WatchCreateRequest{w}, compacted: true}
	}
	if g.chance(6) {
		w := create()
		w.StartRevision = g.revision + 1 + g.rng.Int64N(4)
		return watchPlan{creates: []*pb.WatchCreateRequest{w}, future: true}
	}
	var p watchPlan
	for range 1 + g.rng.IntN(4) {
		p.creates = append(p.creates, create())
	}
	return p
}

func (p watchPlan) run(ctx context.Context, s *server) answer {
	out := answer{}
	ctx, cancel := context.WithTimeout(ctx, watchDeadline)
	defer cancel()
	w, err := openWatch(ctx, s)
	if err != nil {
		return failure(err)
	}
	defer w.cancel()
	for _, c := range p.creates {
		w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: c}})
	}
	w.readUntil(func() bool { return len(w.created) == len(p.creates) })
	var live []int64
	for i, c := range w.created {
		out.flatten(fmt.Sprintf("created[%d]", i), c)
		if !c.Canceled {
			live = append(live, c.WatchId)
		}
	}
	switch {
	case p.future || len(live) == 0:
	case p.compacted:
		w.readUntil(func() bool { return len(w.canceled) > 0 })
	default:
		w.readProgress(w.created[0].Header.GetRevision())
	}
	compactionCancels := len(w.canceled)
	// The first cancel request names no watch and gets no answer.
	for _, id := range append([]int64{99999}, live...) {
		w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
	}
	w.readUntil(func() bool { return len(w.canceled) >= compactionCancels+len(live) })
	w.report(out)
	return out
}

// watchStream is a raw Watch stream that sorts what it receives by kind.
type watchStream struct {
	stream    pb.Watch_WatchClient
	ctx       context.Context
	cancel    context.CancelFunc
	responses chan *pb.WatchResponse
	err       error
	created   []*pb.WatchResponse
	canceled  []*pb.WatchResponse
	progress  int64
	events    map[int64]answerList
	// splits counts responses that continue the revision of the one before them
	// although that one was not marked as a fragment.
	splits   int
	lastSeen map[int64]int64
	fragment map[int64]bool
}

type answerList struct {
	next int
	out  answer
}

func openWatch(ctx context.Context, s *server) (*watchStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := s.watch.Watch(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watchStream{stream: stream, ctx: ctx, cancel: cancel, responses: make(chan *pb.WatchResponse, 64),
		events: map[int64]answerList{}, lastSeen: map[int64]int64{}, fragment: map[int64]bool{}}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				w.err = err
				close(w.responses)
				return
			}
			select {
			case w.responses <- r:
			case <-ctx.Done():
				w.err = ctx.Err()
				close(w.responses)
				return
			}
		}
	}()
	return w, nil
}

// send ignores the error: a broken stream shows when it is read.
func (w *watchStream) send(r *pb.WatchRequest) { _ = w.stream.Send(r) }

// readUntil takes responses until the condition holds or the stream ends.
func (w *watchStream) readUntil(done func() bool) {
	for !done() {
		r, ok := <-w.responses
		if !ok {
			return
		}
		w.take(r)
	}
}

// readProgress asks for progress until the server confirms the revision. Asking
// again is needed: etcd drops the request while a watch is behind.
func (w *watchStream) readProgress(revision int64) {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	ask := func() {
		w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
	}
	ask()
	for w.progress < revision {
		select {
		case r, ok := <-w.responses:
			if !ok {
				return
			}
			w.take(r)
		case <-again.C:
			ask()
		}
	}
}

func (w *watchStream) take(r *pb.WatchResponse) {
	switch {
	case r.Created:
		w.created = append(w.created, r)
	case r.Canceled:
		w.canceled = append(w.canceled, r)
	case len(r.Events) == 0:
		if r.WatchId == -1 {
			w.progress = r.Header.GetRevision()
		}
	default:
		list, ok := w.events[r.WatchId]
		if !ok {
			list.out = answer{}
		}
		first := r.Events[0].GetKv().GetModRevision()
		if first == w.lastSeen[r.WatchId] && !w.fragment[r.WatchId] {
			w.splits++
		}
		for _, e := range r.Events {
			list.out.flatten(fmt.Sprintf("watch[%d].events[%d]", r.WatchId, list.next), e)
			list.next++
			w.lastSeen[r.WatchId] = e.GetKv().GetModRevision()
		}
		w.fragment[r.WatchId] = r.Fragment
		if r.Header.GetRevision() < w.lastSeen[r.WatchId] {
			list.out[fmt.Sprintf("watch[%d].header_behind_events", r.WatchId)] = "true"
		}
		w.events[r.WatchId] = list
	}
}

// report adds everything received since the last report, apart from the
// creations, and forgets it.
func (w *watchStream) report(out answer) {
	for i, c := range w.canceled {
		out.flatten(fmt.Sprintf("canceled[%d]", i), c)
	}
	for id, list := range w.events {
		out[fmt.Sprintf("watch[%d].events.len", id)] = strconv.Itoa(list.next)
		for p, v := range list.out {
			out[p] = v
		}
	}
	if w.splits > 0 {
		out["revision_split_over_responses"] = strconv.Itoa(w.splits)
	}
	out["progress.revision"] = strconv.FormatInt(w.progress, 10)
	if w.ctx.Err() != nil {
		out["stream"] = "deadline passed while waiting"
	} else {
		select {
		case _, ok := <-w.responses:
			if !ok && w.err != io.EOF {
				out.merge("stream", failure(w.err))
			}
		default:
		}
	}
	w.canceled = nil
	w.events = map[int64]answerList{}
	w.splits = 0
}

func (a answer) merge(path string, b answer) {
	for p, v := range b {
		a[path+"."+p] = v
	}
}
