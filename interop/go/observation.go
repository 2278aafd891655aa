package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
)

// collect takes events from a watch until there are n.
func (s *suite) collect(ctx context.Context, watch clientv3.WatchChan, n int, step string) (events []*clientv3.Event) {
	for len(events) < n {
		select {
		case r, open := <-watch:
			if !s.check(open && r.Err() == nil, "%s%s: the watch ended: %v", s.prefix, step, r.Err()) {
				return events
			}
			events = append(events, r.Events...)
		case <-ctx.Done():
			s.check(false, "%s%s: %d of %d events in time", s.prefix, step, len(events), n)
			return events
		}
	}
	equal(s, len(events), n, step+": number of events")
	return events
}

func (s *suite) watch(ctx context.Context) {
	p, c := s.prefix, s.client
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	created := c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	r, open := <-created
	if !s.check(open && r.Created && r.Err() == nil, "%screated notification: %+v", p, r) {
		return
	}
	noPut := c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithFilterPut())
	noDelete := c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithFilterDelete())
	// The library returns from Watch once the server has created it, so every put
	// from here on is seen by all three.
	start := s.revision(ctx)
	_, err := c.Put(ctx, p+"a", "1")
	s.ok(err, "put")
	_, err = c.Put(ctx, p+"a", "2")
	s.ok(err, "put again")
	_, err = c.Delete(ctx, p+"a")
	s.ok(err, "delete")
	_, err = c.Put(ctx, p+"b", "3")
	s.ok(err, "put b")
	check := func(events []*clientv3.Event, step string) {
		if len(events) != 4 {
			return
		}
		equal(s, events[0].IsCreate(), true, step+": first event creates")
		equal(s, events[0].PrevKv == nil, true, step+": no previous value of a new key")
		equal(s, events[1].IsModify(), true, step+": second event modifies")
		equal(s, string(events[1].PrevKv.GetValue()), "1", step+": previous value of the second event")
		equal(s, events[2].Type, clientv3.EventTypeDelete, step+": third event deletes")
		equal(s, string(events[2].PrevKv.GetValue()), "2", step+": previous value of the delete")
		equal(s, len(events[2].Kv.Value), 0, step+": a delete has no value")
		for i, e := range events {
			equal(s, e.Kv.ModRevision, start+1+int64(i), step+": revision of an event")
		}
	}
	check(s.collect(ctx, created, 4, "live"), "live")
	check(s.collect(ctx, c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(start+1)), 4, "history"), "history")
	for _, e := range s.collect(ctx, noPut, 1, "without puts") {
		equal(s, e.Type, clientv3.EventTypeDelete, "event of a watch without puts")
	}
	for _, e := range s.collect(ctx, noDelete, 3, "without deletes") {
		equal(s, e.Type, clientv3.EventTypePut, "event of a watch without deletes")
	}
	// A watch from a future revision stays silent until that revision.
	future := c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithRev(s.revision(ctx)+2))
	for _, v := range []string{"skipped", "seen"} {
		_, err = c.Put(ctx, p+"later", v)
		s.ok(err, "put "+v)
	}
	for _, e := range s.collect(ctx, future, 1, "future") {
		equal(s, string(e.Kv.Value), "seen", "event of a watch from the future")
	}
	cancel()
	for range created {
		// Drained until the library closes the channel.
	}
}

// watchOrder runs writers against watchers: every watcher must get every event
// once, in order, with the changes of one transaction in one response.
func (s *suite) watchOrder(ctx context.Context) {
	const writers, rounds, watchers = 8, 40, 10
	p, c := s.prefix, s.client
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := s.revision(ctx) + 1
	channels := make([]clientv3.WatchChan, watchers)
	for i := range channels {
		if i%2 == 0 { // half of them on their own stream, from a revision
			own := context.WithValue(clientv3.WithRequireLeader(ctx), streamOf{}, i)
			channels[i] = c.Watch(own, p, clientv3.WithPrefix(), clientv3.WithRev(start))
		} else {
			channels[i] = c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithRev(start), clientv3.WithFragment())
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.inParallel(watchers, func(i int) {
			seen := map[string]bool{}
			events, last := 0, int64(0)
			for events < writers*rounds*2 {
				select {
				case r, open := <-channels[i]:
					if !s.check(open && r.Err() == nil, "%swatcher %d ended: %v", p, i, r.Err()) {
						return
					}
					inResponse := map[int64]int{}
					for _, e := range r.Events {
						id := string(e.Kv.Key) + "@" + strconv.FormatInt(e.Kv.ModRevision, 10)
						s.check(!seen[id], "%swatcher %d saw %s twice", p, i, id)
						s.check(e.Kv.ModRevision >= last, "%swatcher %d went back from revision %d to %d", p, i, last, e.Kv.ModRevision)
						seen[id], last = true, e.Kv.ModRevision
						inResponse[e.Kv.ModRevision]++
						events++
					}
					for revision, n := range inResponse {
						s.check(n == 2, "%swatcher %d got %d of 2 changes of revision %d in one response", p, i, n, revision)
					}
				case <-ctx.Done():
					s.check(false, "%swatcher %d got %d of %d events in time", p, i, events, writers*rounds*2)
					return
				}
			}
		})
	}()
	s.inParallel(writers, func(w int) {
		for round := range rounds {
			key := p + strconv.Itoa(w)
			_, err := c.Txn(ctx).Then(clientv3.OpPut(key+"/left", strconv.Itoa(round)), clientv3.OpPut(key+"/right", strconv.Itoa(round))).Commit()
			s.ok(err, "txn of a writer")
		}
	})
	<-done
}

// streamOf makes contexts differ, because the library keeps one stream per context.
type streamOf struct{}

func (s *suite) watchProgress(ctx context.Context) {
	p, c := s.prefix, s.client
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := s.revision(ctx)
	for i := range 20 {
		_, err := c.Put(ctx, p+"k", strconv.Itoa(i))
		s.ok(err, "put")
	}
	now := s.revision(ctx)
	watch := c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithRev(start+1), clientv3.WithProgressNotify())
	events := s.collect(ctx, watch, 20, "events before progress")
	if len(events) == 0 {
		return
	}
	// All events of the watch came before, so progress must say at least now.
	confirmed := false
	s.eventually(ctx, "progress", func() bool {
		if !s.ok(c.RequestProgress(ctx), "request progress") {
			return true
		}
		for {
			select {
			case r, open := <-watch:
				if !open || r.Err() != nil {
					return true
				}
				if r.IsProgressNotify() {
					confirmed = s.check(r.Header.Revision >= now, "%sprogress at revision %d, want at least %d", p, r.Header.Revision, now)
					return true
				}
			default:
				return false
			}
		}
	})
	equal(s, confirmed, true, "progress confirmed")
}

// watchFragment reads a revision larger than a response may be, in fragments,
// over the raw API: the library joins them. The revision deletes large values,
// and the events carry them.
func (s *suite) watchFragment(ctx context.Context) {
	p, c := s.prefix, s.client
	start := s.revision(ctx)
	const values = 8
	for i := range values {
		_, err := c.Put(ctx, p+strconv.Itoa(i), strings.Repeat("x", 1<<20))
		s.ok(err, "put 1 MiB")
	}
	_, err := c.Delete(ctx, p, clientv3.WithPrefix())
	s.ok(err, "delete the large values")
	if s.user != "" {
		return // the raw API has no token
	}
	secured, err := security(s.info)
	if !s.ok(err, "credentials") {
		return
	}
	raw, err := dial(ctx, "fragment", s.endpoint, secured)
	if !s.ok(err, "dial") {
		return
	}
	defer raw.conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := raw.watch.Watch(ctx)
	if !s.ok(err, "watch") {
		return
	}
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(p), RangeEnd: prefixEnd([]byte(p)), StartRevision: start + 1, PrevKv: true, Fragment: true}}})
	s.ok(err, "create the watch")
	fragments, events, last := 0, 0, false
	for events < 2*values || last {
		r, err := stream.Recv()
		if !s.ok(err, "receive") {
			return
		}
		events += len(r.Events)
		last = r.Fragment
		if r.Fragment {
			fragments++
		}
	}
	equal(s, events, 2*values, "events over all fragments")
	s.check(fragments > 0, "%sno response of a large revision was a fragment", p)
	joined := s.collect(ctx, c.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithRev(start+1), clientv3.WithPrevKV(), clientv3.WithFragment()), 2*values, "joined by the library")
	for i, e := range joined {
		value := e.Kv.GetValue()
		if i >= values {
			value = e.PrevKv.GetValue()
		}
		equal(s, len(value), 1<<20, "size of a value after joining")
	}
	_, err = c.Put(ctx, p+"large", strings.Repeat("x", 1572864))
	s.fails(err, rpctypes.ErrRequestTooLarge, "put above the request limit")
}

// layers uses what other programs build on the client: a namespace and a mirror.
func (s *suite) layers(ctx context.Context) {
	p, c := s.prefix, s.client
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	spaced := namespace.NewKV(c.KV, p+"space/")
	watch := namespace.NewWatcher(c.Watcher, p+"space/").Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(s.revision(ctx)+1))
	_, err := spaced.Put(ctx, "k", "v")
	s.ok(err, "put in a namespace")
	r, err := spaced.Get(ctx, "", clientv3.WithPrefix())
	if s.ok(err, "get in a namespace") && equal(s, len(r.Kvs), 1, "keys of the namespace") {
		equal(s, string(r.Kvs[0].Key), "k", "key without the namespace")
	}
	for _, e := range s.collect(ctx, watch, 1, "watch in a namespace") {
		equal(s, string(e.Kv.Key), "k", "watched key without the namespace")
	}
	for i := range 30 {
		_, err := c.Put(ctx, p+"mirror/"+strconv.Itoa(i), "base")
		s.ok(err, "put for the mirror")
	}
	syncer := mirror.NewSyncer(c, p+"mirror/", 0)
	base, failures := syncer.SyncBase(ctx)
	copied := 0
	for part := range base {
		copied += len(part.Kvs)
	}
	s.ok(<-failures, "base of the mirror")
	equal(s, copied, 30, "keys of the base")
	updates := syncer.SyncUpdates(ctx)
	_, err = c.Put(ctx, p+"mirror/0", "update")
	s.ok(err, "put after the base")
	for _, e := range s.collect(ctx, updates, 1, "update of the mirror") {
		equal(s, string(e.Kv.Value), "update", "mirrored value")
	}
}

func (s *suite) maintenance(ctx context.Context) {
	p, c := s.prefix, s.client
	status, err := c.Status(ctx, s.endpoint)
	if s.ok(err, "status") {
		s.check(strings.HasPrefix(status.Version, "3."), "%sversion %q", p, status.Version)
		s.check(status.Leader != 0 && status.RaftTerm > 0 && status.RaftIndex > 0, "%sstatus %v", p, status)
	}
	members, err := c.MemberList(ctx)
	if s.ok(err, "member list") {
		known := false
		for _, m := range members.Members {
			known = known || status != nil && m.ID == status.Header.MemberId
		}
		equal(s, known, true, "the answering member is in the list")
	}
	hash, err := c.HashKV(ctx, s.endpoint, 0)
	if s.ok(err, "hash") {
		again, err := c.HashKV(ctx, s.endpoint, hash.Header.Revision)
		if s.ok(err, "hash at the revision") {
			equal(s, again.Hash, hash.Hash, "hash asked twice")
		}
	}
	alarms, err := c.AlarmList(ctx)
	if s.ok(err, "alarms") {
		equal(s, len(alarms.Alarms), 0, "alarms")
	}
	_, err = c.Defragment(ctx, s.endpoint)
	s.ok(err, "defragment")
	snapshot, err := c.Snapshot(ctx)
	if s.ok(err, "snapshot") {
		body, err := io.ReadAll(snapshot)
		if s.ok(err, "read the snapshot") && s.check(len(body) > sha256.Size, "%ssnapshot of %d bytes", p, len(body)) {
			at := len(body) - sha256.Size
			want := sha256.Sum256(body[:at])
			equal(s, bytes.Equal(want[:], body[at:]), true, "hash of the snapshot")
			equal(s, len(body)%512, sha256.Size, "size of the snapshot modulo 512")
		}
		s.ok(snapshot.Close(), "close the snapshot")
	}
}

func (s *suite) compaction(ctx context.Context) {
	p, c := s.prefix, s.client
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var revisions []int64
	for i := range 10 {
		r, err := c.Put(ctx, p+"k", strconv.Itoa(i))
		if !s.ok(err, "put") {
			return
		}
		revisions = append(revisions, r.Header.Revision)
	}
	at := revisions[5]
	_, err := c.Compact(ctx, at, clientv3.WithCompactPhysical())
	s.ok(err, "compact")
	r, err := c.Get(ctx, p+"k", clientv3.WithRev(at))
	if s.ok(err, "get at the compacted revision") && equal(s, len(r.Kvs), 1, "keys at the compacted revision") {
		equal(s, string(r.Kvs[0].Value), "5", "value at the compacted revision")
	}
	_, err = c.Get(ctx, p+"k", clientv3.WithRev(at-1))
	s.fails(err, rpctypes.ErrCompacted, "get below the compacted revision")
	_, err = c.Compact(ctx, at)
	s.fails(err, rpctypes.ErrCompacted, "compact again")
	_, err = c.Compact(ctx, revisions[9]+1000000)
	s.fails(err, rpctypes.ErrFutureRev, "compact the future")
	watch := c.Watch(ctx, p+"k", clientv3.WithRev(at-1))
	w, open := <-watch
	if s.check(open && w.Canceled, "%swatch below the compacted revision: %+v", p, w) {
		s.fails(w.Err(), rpctypes.ErrCompacted, "error of a compacted watch")
		equal(s, w.CompactRevision, at, "compact revision of the watch")
	}
	_, open = <-watch
	equal(s, open, false, "channel of a compacted watch")
	s.collect(ctx, c.Watch(ctx, p+"k", clientv3.WithRev(at)), 5, "watch from the compacted revision")
}
