// Package history holds what clients of a cluster did and saw, and decides
// whether a store that keeps etcd's promises could have answered so. It knows
// no server and no network: everything it judges is in a History.
//
// Three things make the judgement exact instead of a search. Every written
// value is unique. No revision is compacted, so a watch from revision 1 gives
// the whole order of writes at the end. Every answer carries the revision of
// the store at which it was made. So each operation has one place in that
// order, and what is left to check is that the answers follow from replaying
// the order, and that the order agrees with real time. Porcupine, which knows
// nothing of this shortcut, checks the same operations once more.
package history

import (
	"fmt"
	"strings"
)

// Entry is a key and its value as an answer gives them.
type Entry struct {
	Key, Value           string
	Create, Mod, Version int64
}

// Do is the kind of an Action.
type Do string

// The kinds of actions.
const (
	Put    Do = "put"
	Delete Do = "delete"
	Get    Do = "get"
	// List reads all keys with the prefix Key.
	List Do = "list"
)

// Action is one step of an operation.
type Action struct {
	Do         Do
	Key, Value string
}

// Guard is the comparison of a transaction: the revision of a key must be Rev;
// 0 means that the key must not exist.
type Guard struct {
	Key string
	// Create compares the create revision, otherwise it is the mod revision.
	Create bool
	Rev    int64
}

// Result is the answer to one action: the entries read, or for a put or a
// delete the previous one where there was one.
type Result struct {
	Entries []Entry
	Deleted int64
}

// Outcome is what the client knows about the effect of its operation.
type Outcome int

const (
	// Acknowledged operations have an answer.
	Acknowledged Outcome = iota
	// Unknown operations failed in a way that leaves open whether they have
	// happened, or will happen still.
	Unknown
	// Refused operations failed in a way that says they never happen.
	Refused
)

// Op is one operation of a client: a put, a get, a delete or a transaction,
// all written as a transaction with one branch or two.
type Op struct {
	ID int
	// Client is the number of the client, At the name of the member or observer that it asks.
	Client int
	At     string
	// Group names the small set of keys that the operation keeps to. Porcupine
	// checks each group as a whole; an empty group is left out there.
	Group string
	Name  string
	Guard *Guard
	// Then is done when the guard holds or there is none.
	Then, Else []Action
	// Serializable reads may see an old state, but a state that was.
	Serializable bool
	// Staleness, if it is not 0, bounds that of a serializable read: it sees what was acknowledged that many nanoseconds before
	// its call.
	Staleness int64
	// Fence is set when the writer believed to hold this lock.
	Fence *Fence

	// Call and Return are nanoseconds of one clock.
	Call, Return int64
	Outcome      Outcome
	Error        string

	// Revision is that of the answer's header; for an unknown operation the
	// checker fills in where it was found.
	Revision  int64
	Succeeded bool
	Results   []Result
}

// Fence says which lock a writer held.
type Fence struct {
	// Prefix is the prefix of the lock's keys, Key that of the holder.
	Prefix, Key string
	// Create is the holder's create revision.
	Create int64
}

// writes says whether a branch has a put or a delete.
func writes(actions []Action) bool {
	for _, a := range actions {
		if a.Do == Put || a.Do == Delete {
			return true
		}
	}
	return false
}

func (o *Op) branch() []Action {
	if o.Succeeded {
		return o.Then
	}
	return o.Else
}

// changed says whether an acknowledged operation changed the store.
func (o *Op) changed() bool {
	for i, a := range o.branch() {
		if a.Do == Put || a.Do == Delete && i < len(o.Results) && o.Results[i].Deleted > 0 {
			return true
		}
	}
	return false
}

// String is one line for reports.
func (o *Op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "op %d, client %d at %s, %s", o.ID, o.Client, o.At, o.Name)
	if o.Guard != nil {
		fmt.Fprintf(&b, " if %s@%d", o.Guard.Key, o.Guard.Rev)
	}
	for _, a := range o.Then {
		fmt.Fprintf(&b, " %s %s", a.Do, a.Key)
		if a.Value != "" {
			fmt.Fprintf(&b, "=%s", a.Value)
		}
	}
	switch o.Outcome {
	case Acknowledged:
		fmt.Fprintf(&b, " -> revision %d", o.Revision)
		if o.Guard != nil {
			fmt.Fprintf(&b, " succeeded %v", o.Succeeded)
		}
	case Unknown:
		b.WriteString(" -> unknown: " + o.Error)
	case Refused:
		b.WriteString(" -> refused: " + o.Error)
	}
	fmt.Fprintf(&b, " [%.3f s to %.3f s]", float64(o.Call)/1e9, float64(o.Return)/1e9)
	return b.String()
}

// Event is one change as a watch tells it.
type Event struct {
	Rev             int64
	Key             string
	Deleted         bool
	Value           string
	Create, Version int64
}

// Batch is the events of one watch response.
type Batch []Event

// Watch is what one client saw that watched all keys.
type Watch struct {
	Name    string
	Batches []Batch
	// From is the revision at which it began; 0 stands for 1. A watch from 1 was
	// open for the whole run and saw everything. A later one was closed again at
	// some point, and saw everything from its beginning to somewhere.
	From int64
	// Error is set when the watch could not be followed to the end.
	Error string
}

// Member is what one member said at the end, when all was quiet.
type Member struct {
	Name string
	// Final is all that a watch from revision 1 gave.
	Final []Batch
	// Linearizable and Serializable are all keys, in order.
	Linearizable, Serializable []Entry
	Revision                   int64
	Hash                       uint32
	HashRevision               int64
}

// History is everything that is judged.
type History struct {
	Ops     []*Op
	Watches []Watch
	Members []Member
}

// Violation is one broken promise.
type Violation struct {
	// Kind is a short name, the same for all violations of one promise.
	Kind string
	Text string
}

func (v Violation) String() string { return v.Kind + ": " + v.Text }
