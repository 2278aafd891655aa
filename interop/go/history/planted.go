package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// planted is one mistake that a store could make, and the violations of which
// at least these must be found.
type planted struct {
	name string
	// kinds are the violations that must be among those found; none means that
	// nothing may be found.
	kinds []string
	// plant makes the mistake while or after the history is written.
	plant func(s *script)
}

// script writes a history as a right store would, and can be told to go wrong.
// Operations overlap in time, but each takes effect at its own moment.
type script struct {
	History
	rng   *rand.Rand
	state store
	clock int64
	order []Batch
}

func newScript(seed uint64) *script {
	return &script{rng: rand.New(rand.NewPCG(seed, 1)), state: store{rev: 1}}
}

// value is unique for each operation.
func (s *script) value() string { return fmt.Sprintf("v%d", len(s.Ops)) }

// op does one operation rightly and records it.
func (s *script) op(name string, guard *Guard, then, otherwise []Action) *Op {
	s.clock += 10
	o := &Op{ID: len(s.Ops), Client: len(s.Ops) % 4, At: fmt.Sprintf("m%d", len(s.Ops)%3), Group: "g", Name: name, Guard: guard, Then: then, Else: otherwise,
		Call: s.clock - s.rng.Int64N(25), Return: s.clock + s.rng.Int64N(25)}
	o.Succeeded = s.state.holds(guard)
	s.effect(o)
	s.Ops = append(s.Ops, o)
	return o
}

// effect lets an operation happen now.
func (s *script) effect(o *Op) {
	before := s.state
	next, results := before.apply(o.branch(), before.rev+1)
	o.Results, o.Revision = results, next.rev
	s.state = next
	if next.rev == before.rev {
		return
	}
	var batch Batch
	for _, a := range o.branch() {
		if a.Do != Put && a.Do != Delete {
			continue
		}
		if e, there := next.get(a.Key); there {
			batch = append(batch, Event{Rev: next.rev, Key: a.Key, Value: e.Value, Create: e.Create, Version: e.Version})
		} else if _, was := before.get(a.Key); was {
			batch = append(batch, Event{Rev: next.rev, Key: a.Key, Deleted: true})
		}
	}
	s.order = append(s.order, batch)
}

func (s *script) put(key string) *Op {
	return s.op("put", nil, []Action{{Put, key, s.value()}}, nil)
}

func (s *script) get(key string) *Op { return s.op("get", nil, []Action{{Get, key, ""}}, nil) }

func (s *script) multi(a, b string) *Op {
	v := s.value()
	return s.op("multi", nil, []Action{{Put, a, v}, {Put, b, v}, {Get, a, ""}}, nil)
}

// some does a mixture of operations.
func (s *script) some(n int) {
	for range n {
		key, other := fmt.Sprintf("g/%d", s.rng.IntN(3)), fmt.Sprintf("g/%d", 3+s.rng.IntN(2))
		switch s.rng.IntN(8) {
		case 0, 1:
			s.put(key)
		case 2:
			s.op("delete", nil, []Action{{Delete, key, ""}}, nil)
		case 3:
			e, _ := s.state.get(key)
			rev := e.Mod
			if s.rng.IntN(3) == 0 {
				rev++ // A guard that fails.
			}
			s.op("cas", &Guard{Key: key, Rev: rev}, []Action{{Put, key, s.value()}}, []Action{{Get, key, ""}})
		case 4:
			s.multi(key, other)
		case 5:
			s.op("list", nil, []Action{{List, "g/", ""}}, nil)
		case 6:
			// Nobody knows whether this happened, and it did, or did not.
			o := s.op("put", nil, []Action{{Put, key, s.value()}}, nil)
			o.Outcome, o.Error, o.Revision, o.Results, o.Succeeded = Unknown, "planted", 0, nil, false
			lost := &Op{ID: len(s.Ops), Client: 5, Group: "g", Name: "put", Then: []Action{{Put, key, s.value()}}, Call: s.clock, Return: s.clock + 5, Outcome: Unknown, Error: "planted"}
			s.Ops = append(s.Ops, lost)
			gone := s.op("delete", nil, []Action{{Delete, other, ""}}, nil)
			gone.Outcome, gone.Error, gone.Revision, gone.Results, gone.Succeeded = Unknown, "planted", 0, nil, false
		default:
			s.get(key)
		}
	}
}

// lock puts the key of a contender; the locks' own keys belong to no recorded
// operation.
func (s *script) lock(name string) Entry {
	o := &Op{Then: []Action{{Put, "lock/a/" + name, ""}}, Succeeded: true}
	s.effect(o)
	e, _ := s.state.get("lock/a/" + name)
	return e
}

func (s *script) unlock(name string) {
	s.effect(&Op{Then: []Action{{Delete, "lock/a/" + name, ""}}, Succeeded: true})
}

// fenced writes as the holder of a lock.
func (s *script) fenced(e Entry) *Op {
	o := s.op("fenced", &Guard{Key: e.Key, Create: true, Rev: e.Create}, []Action{{Put, "fence/a", s.value()}}, nil)
	o.Group, o.Fence = "", &Fence{Prefix: "lock/a/", Key: e.Key, Create: e.Create}
	return o
}

// locks lets two contenders hold a lock one after the other.
func (s *script) locks() {
	one := s.lock("1")
	two := s.lock("2")
	s.fenced(one)
	s.unlock("1")
	s.fenced(two)
	s.unlock("2")
}

// finish adds what watches and members show of the history.
func (s *script) finish() *History {
	cut := func() []Batch {
		var out []Batch
		for _, b := range s.order {
			if len(out) > 0 && s.rng.IntN(3) == 0 {
				out[len(out)-1] = append(out[len(out)-1], b...)
			} else {
				out = append(out, slices.Clone(b))
			}
		}
		return out
	}
	for i := range 3 {
		name := fmt.Sprintf("m%d", i)
		s.Watches = append(s.Watches, Watch{Name: "watch at " + name, Batches: cut()})
		s.Members = append(s.Members, Member{Name: name, Final: cut(), Linearizable: slices.Clone(s.state.entries), Serializable: slices.Clone(s.state.entries),
			Revision: s.state.rev, Hash: 7, HashRevision: s.state.rev})
	}
	// A watch from later on, which was closed before the end.
	s.Watches = append(s.Watches, Watch{Name: "late watch", From: 12, Batches: from(cut(), 12, 40)}, Watch{Name: "late watch that saw nothing", From: 12})
	return &s.History
}

// find gives the last operation that fits.
func (s *script) find(fits func(*Op) bool) *Op {
	for i := len(s.Ops) - 1; i >= 0; i-- {
		if fits(s.Ops[i]) {
			return s.Ops[i]
		}
	}
	return nil
}

// shift moves an operation behind everything so far.
func (s *script) shift(o *Op) {
	s.clock += 100
	o.Call, o.Return = s.clock-1, s.clock+1
}

// past lets a serializable read with this bound see the state before a write that was acknowledged some 75 to 110 before its call.
func (s *script) past(staleness int64) {
	state := s.state
	s.put("g/0")
	after := s.state
	s.state = state
	o := s.get("g/0")
	s.state = after
	o.Serializable, o.Staleness = true, staleness
	s.shift(o)
	s.clock += 100
}

// mistakes are all that is planted; each function gets a script with a stretch
// of right history in it and adds a mistake, and more right history follows.
// Mistakes in what watches and members show come after that, in alter.
var mistakes = []planted{
	{"a right history", nil, func(*script) {}},
	{"an acknowledged write is lost and its revision given again", []string{"revision twice", "not linearizable"}, func(s *script) {
		state, order := s.state, s.order
		s.put("g/0")
		s.state, s.order = state, order
		s.put("g/1")
		s.get("g/0")
	}},
	{"the last acknowledged write is lost", []string{"lost write"}, nil},
	{"an acknowledged write stores another value", []string{"lost write", "not linearizable"}, func(s *script) {
		o := s.put("g/0")
		s.get("g/0")
		o.Then = []Action{{Put, "g/0", "never stored"}}
	}},
	{"a read is answered from the past", []string{"stale read", "order", "not linearizable"}, func(s *script) {
		state := s.state
		s.put("g/0")
		after := s.state
		s.state = state
		o := s.get("g/0")
		s.state = after
		s.shift(o)
		s.clock += 100
	}},
	{"a serializable read sees the past, within its bound", nil, func(s *script) { s.past(500) }},
	{"a serializable read sees what is further in the past than its bound", []string{"too stale"}, func(s *script) { s.past(50) }},
	{"a read is answered from the past under the present revision", []string{"wrong answer", "not linearizable"}, func(s *script) {
		s.put("g/0")
		s.put("g/0")
		o := s.get("g/0")
		o.Results[0].Entries[0].Value = "old"
	}},
	{"two writes take effect in the wrong order", []string{"order", "not linearizable"}, func(s *script) {
		s.clock += 100
		a, b := s.put("g/0"), s.put("g/0")
		s.clock += 100
		a.Call, a.Return, b.Call, b.Return = s.clock+10, s.clock+11, s.clock, s.clock+1
		s.clock += 100
	}},
	{"two writes of different keys take effect in the wrong order", []string{"order"}, func(s *script) {
		s.clock += 100
		a, b := s.put("g/0"), s.put("g/1")
		s.clock += 100
		a.Call, a.Return, b.Call, b.Return = s.clock+10, s.clock+11, s.clock, s.clock+1
		s.clock += 100
	}},
	{"a transaction stores only one of its keys", []string{"not atomic", "wrong answer"}, func(s *script) {
		state := s.state
		o := s.multi("g/0", "g/4")
		batch := s.order[len(s.order)-1]
		s.order[len(s.order)-1] = batch[:1]
		s.state, _ = state.apply(o.Then[:1], o.Revision)
		s.get("g/4")
		l := s.op("list", nil, []Action{{List, "g/", ""}}, nil)
		_ = l
		s.multi("g/0", "g/4").Results[1].Entries = []Entry{{Key: "g/4"}}
	}},
	{"a transaction is stored at two revisions", []string{"not atomic", "not linearizable"}, func(s *script) {
		o := s.multi("g/0", "g/4")
		last := s.order[len(s.order)-1]
		s.order = s.order[:len(s.order)-1]
		s.state.rev--
		s.order = append(s.order, Batch{last[0]})
		second := last[1]
		second.Rev++
		if second.Version == 1 {
			second.Create++
		}
		s.order = append(s.order, Batch{second})
		s.state, _ = s.state.apply([]Action{{Delete, "g/4", ""}}, s.state.rev)
		s.state, _ = s.state.apply([]Action{{Put, "g/4", o.Then[1].Value}}, second.Rev)
		s.state.rev = second.Rev
		s.get("g/4")
	}},
	{"a write is done twice", []string{"write twice"}, func(s *script) {
		o := s.put("g/0")
		again := &Op{Then: o.Then, Succeeded: true}
		s.effect(again)
		o.Outcome, o.Revision, o.Results, o.Error = Unknown, 0, nil, "planted"
	}},
	{"a refused write happens", []string{"refused write happened"}, func(s *script) {
		o := s.put("g/0")
		o.Outcome, o.Revision, o.Results, o.Error = Refused, 0, nil, "planted"
	}},
	{"a guard that fails is taken to hold", []string{"wrong answer", "not linearizable"}, func(s *script) {
		s.put("g/0")
		o := s.op("cas", nil, []Action{{Put, "g/0", s.value()}}, nil)
		o.Guard = &Guard{Key: "g/0", Rev: 1}
	}},
	{"a deleted key comes back", []string{"wrong answer", "not linearizable"}, func(s *script) {
		s.put("g/0")
		state := s.state
		s.op("delete", nil, []Action{{Delete, "g/0", ""}}, nil)
		after := s.state
		rev := s.state.rev
		s.state = state
		s.state.rev = rev
		s.get("g/0")
		s.state = after
	}},
	{"two contenders hold a lock", []string{"lock overlap"}, func(s *script) {
		s.lock("1")
		s.fenced(s.lock("2"))
		s.unlock("1")
		s.unlock("2")
	}},
}

// alterations are mistakes in what watches and members show.
var alterations = []struct {
	name  string
	kind  string
	alter func(h *History)
}{
	{"a watch tells an event twice", "event twice or split", func(h *History) {
		w := &h.Watches[1]
		n := len(w.Batches) / 2
		w.Batches = slices.Insert(w.Batches, n, w.Batches[n])
	}},
	{"a watch tells an event twice much later", "event order", func(h *History) {
		w := &h.Watches[1]
		w.Batches = append(w.Batches, w.Batches[3])
	}},
	{"a watch misses an event", "missing event", func(h *History) {
		w := &h.Watches[2]
		n := len(w.Batches) / 2
		w.Batches = slices.Delete(w.Batches, n, n+1)
	}},
	{"a watch misses the last event", "missing event", func(h *History) {
		w := &h.Watches[0]
		w.Batches = w.Batches[:len(w.Batches)-1]
	}},
	{"a watch tells events in the wrong order", "event order", func(h *History) {
		w := &h.Watches[0]
		n := len(w.Batches) / 2
		w.Batches[n], w.Batches[n+1] = w.Batches[n+1], w.Batches[n]
	}},
	{"a watch splits a revision over two responses", "event twice or split", func(h *History) {
		w := &h.Watches[1]
		for i, b := range w.Batches {
			for j := 1; j < len(b); j++ {
				if b[j].Rev == b[j-1].Rev {
					w.Batches = slices.Replace(w.Batches, i, i+1, b[:j:j], b[j:])
					return
				}
			}
		}
	}},
	{"all watches miss a revision", "missing event", func(h *History) {
		for i := range h.Members {
			h.Members[i].Final = without(h.Members[i].Final, 20)
		}
		for i := range h.Watches {
			h.Watches[i].Batches = without(h.Watches[i].Batches, 20)
		}
	}},
	{"a late watch begins too late", "missing event", func(h *History) {
		h.Watches = append(h.Watches, Watch{Name: "late", From: 10, Batches: from(h.Members[0].Final, 11, 30)})
	}},
	{"a late watch begins too early", "missing event", func(h *History) {
		h.Watches = append(h.Watches, Watch{Name: "late", From: 10, Batches: from(h.Members[0].Final, 9, 30)})
	}},
	{"a late watch misses an event", "missing event", func(h *History) {
		h.Watches = append(h.Watches, Watch{Name: "late", From: 10, Batches: without(from(h.Members[0].Final, 10, 30), 15)})
	}},
	{"a watch tells another value", "missing event", func(h *History) {
		for _, b := range h.Watches[0].Batches {
			for i := range b {
				if !b[i].Deleted {
					b[i].Value += "x"
					return
				}
			}
		}
	}},
	{"a member holds other data", "divergence", func(h *History) { h.Members[1].Serializable = h.Members[1].Serializable[1:] }},
	{"a member has another hash", "divergence", func(h *History) { h.Members[2].Hash++ }},
	{"a member has another past", "divergence", func(h *History) {
		h.Members[2].Final[1][0].Value += "x"
	}},
	{"all members lost a key at the end", "lost write", func(h *History) {
		for i := range h.Members {
			h.Members[i].Linearizable = h.Members[i].Linearizable[1:]
			h.Members[i].Serializable = h.Members[i].Serializable[1:]
		}
	}},
}

// from gives the events of some revisions.
func from(batches []Batch, first, last int64) []Batch {
	var out []Batch
	for _, b := range batches {
		if b = slices.DeleteFunc(slices.Clone(b), func(e Event) bool { return e.Rev < first || e.Rev > last }); len(b) > 0 {
			out = append(out, b)
		}
	}
	return out
}

func without(batches []Batch, rev int64) []Batch {
	var out []Batch
	for _, b := range batches {
		if b = slices.DeleteFunc(slices.Clone(b), func(e Event) bool { return e.Rev == rev }); len(b) > 0 {
			out = append(out, b)
		}
	}
	return out
}

// SelfTest plants every mistake in right histories and reports, for each, what
// was expected and what was found. It also checks that right histories pass.
func SelfTest(report func(ok bool, name, found string)) {
	const seeds = 5
	judge := func(name string, want []string, build func(seed uint64) *History) {
		for seed := range uint64(seeds) {
			kinds := map[string]int{}
			first := ""
			for _, v := range Check(build(seed), "") {
				if kinds[v.Kind] == 0 && first == "" {
					first = v.String()
				}
				kinds[v.Kind]++
			}
			ok := len(want) > 0 || len(kinds) == 0
			for _, kind := range want {
				ok = ok && kinds[kind] > 0
			}
			report(ok, fmt.Sprintf("%s, seed %d", name, seed), fmt.Sprintf("wanted %v, found %v; first: %s", want, kinds, first))
		}
	}
	for _, m := range mistakes {
		judge(m.name, m.kinds, func(seed uint64) *History {
			s := newScript(seed)
			s.some(60)
			s.multi("g/0", "g/3")
			s.locks()
			if m.plant == nil {
				s.some(60)
				state, order := s.state, s.order
				s.put("g/0")
				s.state, s.order = state, order
				return s.finish()
			}
			m.plant(s)
			s.some(60)
			s.locks()
			return s.finish()
		})
	}
	for _, a := range alterations {
		judge(a.name, []string{a.kind}, func(seed uint64) *History {
			s := newScript(seed)
			s.some(120)
			s.multi("g/0", "g/3")
			s.locks()
			h := s.finish()
			a.alter(h)
			return h
		})
	}
}
