package history

import (
	"sort"
	"strings"
)

// store is the sequential model: a small key space as entries sorted by key.
// It is never changed in place, so that states can be kept.
type store struct {
	rev     int64
	entries []Entry
}

func (s store) find(key string) (int, bool) {
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].Key >= key })
	return i, i < len(s.entries) && s.entries[i].Key == key
}

func (s store) get(key string) (Entry, bool) {
	i, found := s.find(key)
	if !found {
		return Entry{}, false
	}
	return s.entries[i], true
}

// holds says whether the guard of a transaction holds.
func (s store) holds(g *Guard) bool {
	if g == nil {
		return true
	}
	e, _ := s.get(g.Key)
	if g.Create {
		return e.Create == g.Rev
	}
	return e.Mod == g.Rev
}

// list gives all entries with a prefix.
func (s store) list(prefix string) []Entry {
	first := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].Key >= prefix })
	last := first
	for last < len(s.entries) && strings.HasPrefix(s.entries[last].Key, prefix) {
		last++
	}
	return s.entries[first:last]
}

// apply does the actions at a revision and gives the answers.
func (s store) apply(actions []Action, rev int64) (store, []Result) {
	next := store{rev: s.rev, entries: s.entries}
	if writes(actions) {
		next.entries = append(make([]Entry, 0, len(s.entries)+len(actions)), s.entries...)
	}
	results := make([]Result, len(actions))
	for n, a := range actions {
		i, found := next.find(a.Key)
		switch a.Do {
		case Put:
			e := Entry{Key: a.Key, Value: a.Value, Create: rev, Mod: rev, Version: 1}
			if found {
				old := next.entries[i]
				results[n].Entries = []Entry{old}
				e.Create, e.Version = old.Create, old.Version+1
				next.entries[i] = e
			} else {
				next.entries = append(next.entries, Entry{})
				copy(next.entries[i+1:], next.entries[i:])
				next.entries[i] = e
			}
			next.rev = rev
		case Delete:
			if found {
				results[n] = Result{Entries: []Entry{next.entries[i]}, Deleted: 1}
				next.entries = append(next.entries[:i], next.entries[i+1:]...)
				next.rev = rev
			}
		case Get:
			if found {
				results[n].Entries = []Entry{next.entries[i]}
			}
		case List:
			results[n].Entries = append([]Entry(nil), next.list(a.Key)...)
		}
	}
	return next, results
}

func equalEntries(a, b []Entry) bool {
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

func equalResults(a, b []Result) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Deleted != b[i].Deleted || !equalEntries(a[i].Entries, b[i].Entries) {
			return false
		}
	}
	return true
}
