package history

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"time"
)

// Check gives everything that is wrong with a history. Porcupine's findings are
// drawn as HTML into the directory named, if any.
func Check(h *History, drawings string) []Violation {
	c := &checker{History: h, byValue: map[string]*Op{}}
	c.final()
	c.watches()
	c.members()
	c.claim()
	c.replay()
	c.realTime()
	c.linearizable(drawings)
	return c.violations
}

type checker struct {
	*History
	violations []Violation
	// order is the whole history of the store, one batch for each revision.
	order []Batch
	// byValue finds the operation that wrote a value.
	byValue map[string]*Op
	// claimed is, per revision, the operation that made it.
	claimed map[int64]*Op
	// end is the state after the last revision.
	end store
}

func (c *checker) found(kind, format string, args ...any) {
	c.violations = append(c.violations, Violation{kind, fmt.Sprintf(format, args...)})
}

// final takes the order of all writes from the first member's watch and holds
// the other members' watches to it.
func (c *checker) final() {
	for i, m := range c.Members {
		order := c.split("final watch at "+m.Name, m.Final)
		if i == 0 {
			c.order = order
			for n, batch := range order {
				if want := int64(n) + 2; batch[0].Rev != want {
					c.found("missing event", "final watch at %s: revision %d follows %d; every revision has at least one event", m.Name, batch[0].Rev, want-1)
					break
				}
			}
			continue
		}
		c.compare("divergence", "final watch at "+m.Name, order, c.order)
	}
}

// split puts a watch's events into one batch per revision. No revision may be
// split over responses, come twice or go back.
func (c *checker) split(name string, batches []Batch) []Batch {
	var out []Batch
	last := int64(0)
	for _, batch := range batches {
		for i, e := range batch {
			switch {
			case e.Rev > last:
				out = append(out, Batch{e})
			case e.Rev < last:
				c.found("event order", "%s: an event of revision %d (%s) after one of revision %d", name, e.Rev, e.Key, last)
				continue
			case i == 0:
				c.found("event twice or split", "%s: revision %d (%s) goes on in, or comes again with, a second response", name, e.Rev, e.Key)
				continue
			default:
				for _, other := range out[len(out)-1] {
					if other.Key == e.Key {
						c.found("event twice or split", "%s: key %s twice at revision %d", name, e.Key, e.Rev)
					}
				}
				out[len(out)-1] = append(out[len(out)-1], e)
			}
			last = e.Rev
		}
	}
	return out
}

// compare holds one watch's events to the order of all.
func (c *checker) compare(kind, name string, got, want []Batch) {
	for i := 0; i < len(got) || i < len(want); i++ {
		switch {
		case i >= len(got):
			c.found(kind, "%s: ends at revision %d, the history at %d", name, lastRevision(got), lastRevision(want))
			return
		case i >= len(want):
			c.found(kind, "%s: has revision %d, the history ends at %d", name, got[i][0].Rev, lastRevision(want))
			return
		case got[i][0].Rev != want[i][0].Rev:
			c.found(kind, "%s: revision %d where %d was expected", name, got[i][0].Rev, want[i][0].Rev)
			return
		case !equalBatch(got[i], want[i]):
			c.found(kind, "%s: revision %d is %v, in the history %v", name, got[i][0].Rev, got[i], want[i])
			return
		}
	}
}

func lastRevision(order []Batch) int64 {
	if len(order) == 0 {
		return 1
	}
	return order[len(order)-1][0].Rev
}

func equalBatch(a, b Batch) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// watches holds what long-lived watches saw to the final order.
func (c *checker) watches() {
	for _, w := range c.Watches {
		if w.Error != "" {
			c.found("watch ended", "%s: %s", w.Name, w.Error)
		}
		got, want := c.split(w.Name, w.Batches), c.order
		if w.From > 1 {
			first := min(max(w.From-2, 0), int64(len(want)))
			last := min(first+int64(len(got)), int64(len(want)))
			want = want[first:last]
		}
		c.compare("missing event", w.Name, got, want)
	}
}

// members holds the members' final states to each other.
func (c *checker) members() {
	for i, m := range c.Members {
		first := c.Members[0]
		if !equalEntries(m.Linearizable, m.Serializable) {
			c.found("divergence", "%s: its serializable read differs from the linearizable one: %s", m.Name, entriesDiffer(m.Serializable, m.Linearizable))
		}
		if i == 0 {
			continue
		}
		if !equalEntries(m.Linearizable, first.Linearizable) {
			c.found("divergence", "%s holds other data than %s: %s", m.Name, first.Name, entriesDiffer(m.Linearizable, first.Linearizable))
		}
		if m.Hash != first.Hash || m.HashRevision != first.HashRevision {
			c.found("divergence", "HashKV at %s is %d at revision %d, at %s %d at revision %d", m.Name, m.Hash, m.HashRevision, first.Name, first.Hash, first.HashRevision)
		}
	}
}

func entriesDiffer(got, want []Entry) string {
	for i := 0; i < len(got) || i < len(want); i++ {
		switch {
		case i >= len(got):
			return fmt.Sprintf("lacks %v", want[i])
		case i >= len(want):
			return fmt.Sprintf("has %v", got[i])
		case got[i] != want[i]:
			return fmt.Sprintf("%v instead of %v", got[i], want[i])
		}
	}
	return "nothing differs"
}

// claim finds for every revision the operation that made it. Acknowledged
// operations name their revision; unknown ones are recognised by their values,
// and unknown plain deletes, which have none, by elimination.
func (c *checker) claim() {
	c.claimed = map[int64]*Op{}
	var deletes []*Op
	groups := map[string]bool{}
	for _, o := range c.Ops {
		for _, a := range o.Then {
			if a.Do == Put {
				c.byValue[a.Value] = o
			}
		}
		groups[o.Group] = true
		switch {
		case o.Outcome == Acknowledged && o.changed():
			if other := c.claimed[o.Revision]; other != nil {
				c.found("revision twice", "revision %d was given to %v and to %v", o.Revision, other, o)
				continue
			}
			c.claimed[o.Revision] = o
		case o.Outcome == Unknown && len(o.Then) == 1 && o.Then[0].Do == Delete && o.Guard == nil:
			deletes = append(deletes, o)
		}
	}
	if last := lastRevision(c.order); last > 1 {
		for rev, o := range c.claimed {
			if rev < 2 || rev > last {
				c.found("lost write", "%v; the history ends at revision %d", o, last)
			}
		}
	}
	bound := c.bounds()
	for _, batch := range c.order {
		rev := batch[0].Rev
		if c.claimed[rev] != nil {
			continue
		}
		for _, e := range batch {
			o := c.byValue[e.Value]
			if e.Deleted || o == nil {
				continue
			}
			switch {
			case o.Outcome == Refused:
				c.found("refused write happened", "revision %d is of %v", rev, o)
			case o.Outcome == Acknowledged:
				c.found("wrong revision", "revision %d holds the write of %v", rev, o)
			case o.Revision != 0 && o.Revision != rev:
				c.found("write twice", "revisions %d and %d are both of %v", o.Revision, rev, o)
			default:
				o.Revision, o.Succeeded = rev, true
				c.claimed[rev] = o
			}
			break
		}
		if c.claimed[rev] != nil || len(batch) != 1 || !batch[0].Deleted {
			continue
		}
		// Any unknown delete of this key that was called in time may have made it.
		// Bounds grow with the revision, so it does not matter which one is taken.
		for i, o := range deletes {
			if o.Then[0].Key == batch[0].Key && o.Call <= bound(rev) {
				o.Revision, o.Succeeded = rev, true
				c.claimed[rev] = o
				deletes = append(deletes[:i], deletes[i+1:]...)
				break
			}
		}
	}
	// What is left must be of clients that are not recorded: locks and leases.
	for _, batch := range c.order {
		if c.claimed[batch[0].Rev] != nil {
			continue
		}
		for _, e := range batch {
			if groups[groupOf(e.Key)] {
				c.found("unknown write", "revision %d (%v) is of no recorded operation", e.Rev, e)
			}
		}
	}
}

// groupOf is the part of a key up to the last slash: recorded operations keep
// to keys below the name of their group.
func groupOf(key string) string {
	i := strings.LastIndexByte(key, '/')
	if i < 0 {
		return ""
	}
	return key[:i]
}

// bounds gives a function: the latest time at which the write of a revision can
// have happened, because somebody had seen that revision or a later one by then.
func (c *checker) bounds() func(rev int64) int64 {
	earliest := make([]int64, len(c.order)+3)
	for i := range earliest {
		earliest[i] = math.MaxInt64
	}
	for _, o := range c.Ops {
		if o.Outcome == Acknowledged && o.Revision >= 0 && o.Revision < int64(len(earliest)) {
			earliest[o.Revision] = min(earliest[o.Revision], o.Return)
		}
	}
	for i := len(earliest) - 2; i >= 0; i-- {
		earliest[i] = min(earliest[i], earliest[i+1])
	}
	return func(rev int64) int64 {
		if rev < 0 || rev >= int64(len(earliest)) {
			return math.MaxInt64
		}
		return earliest[rev]
	}
}

// byRevision groups the acknowledged operations that changed nothing by the
// revision at which they were answered.
func (c *checker) byRevision() map[int64][]*Op {
	reads := map[int64][]*Op{}
	for _, o := range c.Ops {
		if o.Outcome == Acknowledged && !o.changed() {
			reads[o.Revision] = append(reads[o.Revision], o)
		}
	}
	return reads
}

// replay does all writes in their order and compares every answer and event.
func (c *checker) replay() {
	reads := c.byRevision()
	state := store{rev: 1}
	c.reads(state, reads[1])
	delete(reads, 1)
	for _, batch := range c.order {
		rev := batch[0].Rev
		if o := c.claimed[rev]; o != nil {
			c.write(state, o, batch)
		}
		state = c.events(state, batch)
		c.reads(state, reads[rev])
		delete(reads, rev)
	}
	for rev, ops := range reads {
		for _, o := range ops {
			c.found("lost write", "%v saw revision %d, which the history, up to %d, does not have", o, rev, lastRevision(c.order))
		}
	}
	c.end = state
	for _, m := range c.Members {
		if !equalEntries(m.Linearizable, state.entries) {
			c.found("lost write", "%s holds at the end other data than its own events add up to: %s", m.Name, entriesDiffer(m.Linearizable, state.entries))
		}
	}
}

// write checks one write: its guard, its answer and its events.
func (c *checker) write(state store, o *Op, batch Batch) {
	rev := batch[0].Rev
	if state.holds(o.Guard) != o.Succeeded {
		c.found("wrong answer", "%v: the guard was decided wrongly; before revision %d the key was %v", o, rev, guarded(state, o.Guard))
	}
	next, results := state.apply(o.branch(), rev)
	if o.Outcome == Acknowledged && !equalResults(o.Results, results) {
		c.found("wrong answer", "%v: answered %v, expected %v", o, o.Results, results)
	}
	want := map[Event]bool{}
	for _, a := range o.branch() {
		if a.Do != Put && a.Do != Delete {
			continue
		}
		if e, there := next.get(a.Key); there {
			want[Event{Rev: rev, Key: a.Key, Value: e.Value, Create: e.Create, Version: e.Version}] = true
		} else if _, was := state.get(a.Key); was {
			want[Event{Rev: rev, Key: a.Key, Deleted: true}] = true
		}
	}
	same := len(want) == len(batch)
	for _, e := range batch {
		same = same && want[e]
	}
	if !same {
		kind := "lost write"
		if len(want) > 1 {
			kind = "not atomic"
		}
		c.found(kind, "%v: revision %d holds %v", o, rev, batch)
	}
	if f := o.Fence; f != nil {
		c.fence(state, o, f)
	}
}

func guarded(state store, g *Guard) Entry {
	if g == nil {
		return Entry{}
	}
	e, _ := state.get(g.Key)
	return e
}

// fence checks that the writer was the holder of its lock: of all keys of the
// lock, the oldest was its own.
func (c *checker) fence(state store, o *Op, f *Fence) {
	for _, e := range state.list(f.Prefix) {
		if e.Create < f.Create {
			c.found("lock overlap", "%v wrote as holder of %s (created at revision %d) while %s (%d) held the lock", o, f.Key, f.Create, e.Key, e.Create)
			return
		}
	}
}

// events applies a batch of events as they are and checks their own numbers.
func (c *checker) events(state store, batch Batch) store {
	for _, e := range batch {
		old, there := state.get(e.Key)
		if e.Deleted {
			if !there {
				c.found("wrong event", "%v deletes a key that is not there", e)
			}
			state, _ = state.apply([]Action{{Delete, e.Key, ""}}, e.Rev)
			continue
		}
		if there && (e.Create != old.Create || e.Version != old.Version+1) || !there && (e.Create != e.Rev || e.Version != 1) {
			c.found("wrong event", "%v after %v", e, old)
		}
		state, _ = state.apply([]Action{{Put, e.Key, e.Value}}, e.Rev)
	}
	state.rev = batch[0].Rev
	return state
}

// reads checks the operations that changed nothing and were answered at the
// revision of the state.
func (c *checker) reads(state store, ops []*Op) {
	for _, o := range ops {
		if state.holds(o.Guard) != o.Succeeded {
			c.found("wrong answer", "%v: the guard was decided wrongly; at revision %d the key was %v", o, state.rev, guarded(state, o.Guard))
			continue
		}
		if _, results := state.apply(o.branch(), state.rev+1); !equalResults(o.Results, results) {
			c.found("wrong answer", "%v: answered %v; at that revision it was %v", o, o.Results, results)
		}
	}
}

// realTime checks that the order agrees with the clock: no operation comes in
// the order after one that was called only after it had returned. Reads at the
// same revision have no order among each other.
func (c *checker) realTime() {
	reads := c.byRevision()
	var latest *Op // the operation with the latest call so far in the order
	later := func(o *Op) {
		if latest == nil || o.Call > latest.Call {
			latest = o
		}
	}
	revisions := make([]int64, 0, len(reads)+len(c.claimed))
	for rev := range reads {
		revisions = append(revisions, rev)
	}
	for rev := range c.claimed {
		if reads[rev] == nil {
			revisions = append(revisions, rev)
		}
	}
	sort.Slice(revisions, func(i, j int) bool { return revisions[i] < revisions[j] })
	for _, rev := range revisions {
		if o := c.claimed[rev]; o != nil {
			if latest != nil && o.Outcome == Acknowledged && o.Return < latest.Call {
				c.found("order", "%v comes after %v, which was called only after the first had returned", o, latest)
			}
			later(o)
		}
		before := latest
		for _, o := range reads[rev] {
			if o.Serializable {
				// It may be late, but not early.
				if w := c.claimed[rev]; w != nil && o.Return < w.Call {
					c.found("order", "%v saw the write of %v before it was called", o, w)
				}
				continue
			}
			later(o)
		}
		for _, o := range reads[rev] {
			if !o.Serializable && before != nil && o.Return < before.Call {
				c.found("order", "%v comes after %v, which was called only after the first had returned", o, before)
			}
		}
	}
	c.stale()
}

// bounded names the serializable reads that saw less than their bound allows.
func (c *checker) bounded(byReturn []*Op) {
	var reads []*Op
	for _, o := range c.Ops {
		if o.Outcome == Acknowledged && o.Staleness > 0 {
			reads = append(reads, o)
		}
	}
	from := func(o *Op) int64 { return o.Call - o.Staleness }
	sort.Slice(reads, func(i, j int) bool { return from(reads[i]) < from(reads[j]) })
	var highest *Op
	n := 0
	for _, o := range reads {
		for n < len(byReturn) && byReturn[n].Return < from(o) {
			if highest == nil || byReturn[n].Revision > highest.Revision {
				highest = byReturn[n]
			}
			n++
		}
		if highest != nil && o.Revision < highest.Revision {
			c.found("too stale", "%v, although %v before its call this had returned: %v", o, time.Duration(o.Staleness), highest)
		}
	}
}

// stale names the stale reads, which are the other side of a wrong order: an
// operation that saw less than another that had returned before its call.
func (c *checker) stale() {
	var ops []*Op
	for _, o := range c.Ops {
		if o.Outcome == Acknowledged && !o.Serializable {
			ops = append(ops, o)
		}
	}
	byReturn := append([]*Op(nil), ops...)
	sort.Slice(ops, func(i, j int) bool { return ops[i].Call < ops[j].Call })
	sort.Slice(byReturn, func(i, j int) bool { return byReturn[i].Return < byReturn[j].Return })
	c.bounded(byReturn)
	var highest *Op
	n := 0
	for _, o := range ops {
		for n < len(byReturn) && byReturn[n].Return < o.Call {
			if highest == nil || byReturn[n].Revision > highest.Revision {
				highest = byReturn[n]
			}
			n++
		}
		if highest == nil || o.Revision > highest.Revision || o.Revision == highest.Revision && !o.changed() {
			continue
		}
		kind := "stale read"
		if o.changed() {
			kind = "order"
		}
		c.found(kind, "%v, although before its call this had returned: %v", o, highest)
	}
}
