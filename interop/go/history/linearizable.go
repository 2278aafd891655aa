package history

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// porcupineLimit is how long one group may take; the revisions in the answers
	// leave little to search, so only a wrong history comes near.
	porcupineLimit = 30 * time.Second
	// porcupineTotal bounds all groups together.
	porcupineTotal = 5 * time.Minute
	// drawingsMost is how many wrong groups are drawn.
	drawingsMost = 4
)

// linearizable lets Porcupine judge each group of keys with all operations on
// it, transactions over several keys included. Revisions may be anything that
// grows: other groups take some.
func (c *checker) linearizable(drawings string) {
	bound := c.bounds()
	groups := map[string][]porcupine.Operation{}
	end := int64(0)
	for _, o := range c.Ops {
		end = max(end, o.Return+1)
	}
	for _, o := range c.Ops {
		if o.Group == "" || o.Serializable || o.Outcome == Refused {
			continue
		}
		returned := o.Return
		if o.Outcome == Unknown {
			if o.Revision == 0 {
				// The whole order of writes does not have it: it never happened.
				continue
			}
			returned = max(o.Call, min(bound(o.Revision), end))
		}
		groups[o.Group] = append(groups[o.Group], porcupine.Operation{ClientId: o.Client, Input: o, Output: o, Call: o.Call, Return: returned})
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	began, drawn := time.Now(), 0
	for n, name := range names {
		if time.Since(began) > porcupineTotal {
			c.found("not decided", "%d of %d groups were not looked at in %v", len(names)-n, len(names), porcupineTotal)
			return
		}
		result := porcupine.CheckOperationsTimeout(model, groups[name], porcupineLimit)
		if result == porcupine.Ok {
			continue
		}
		where := ""
		if drawings != "" && drawn < drawingsMost {
			drawn++
			_, info := porcupine.CheckOperationsVerbose(model, groups[name], porcupineLimit)
			where = draw(drawings, name, info)
		}
		if result == porcupine.Unknown {
			c.found("not decided", "Porcupine did not decide about group %s (%d operations) in %v%s", name, len(groups[name]), porcupineLimit, where)
		} else {
			c.found("not linearizable", "group %s (%d operations)%s", name, len(groups[name]), where)
		}
	}
}

func draw(dir, group string, info porcupine.LinearizationInfo) string {
	path := filepath.Join(dir, "porcupine-"+strings.ReplaceAll(group, "/", "-")+".html")
	file, err := os.Create(path)
	if err != nil {
		return ", no drawing: " + err.Error()
	}
	defer file.Close()
	if err := porcupine.Visualize(model, info, file); err != nil {
		return ", no drawing: " + err.Error()
	}
	return ", drawn in " + path
}

// model is one group of keys. Its state is the entries and the last revision
// that anybody saw.
var model = porcupine.Model{
	Init: func() any { return store{} },
	Step: func(state, input, _ any) (bool, any) {
		s, o := state.(store), input.(*Op)
		if s.holds(o.Guard) != o.Succeeded {
			return false, s
		}
		next, results := s.apply(o.branch(), o.Revision)
		wrote := o.Outcome == Unknown || o.changed()
		if wrote && o.Revision <= s.rev || o.Revision < s.rev {
			return false, s
		}
		if o.Outcome == Acknowledged && !equalResults(results, o.Results) {
			return false, s
		}
		next.rev = o.Revision
		return true, next
	},
	Equal: func(a, b any) bool {
		x, y := a.(store), b.(store)
		return x.rev == y.rev && equalEntries(x.entries, y.entries)
	},
	Hash: func(state any) uint64 { return uint64(state.(store).rev) },
	DescribeOperation: func(input, _ any) string {
		o := input.(*Op)
		var b strings.Builder
		b.WriteString(o.Name)
		if o.Guard != nil {
			fmt.Fprintf(&b, " if %s@%d: %v", o.Guard.Key, o.Guard.Rev, o.Succeeded)
		}
		for i, a := range o.branch() {
			fmt.Fprintf(&b, " %s %s %s", a.Do, a.Key, a.Value)
			if i < len(o.Results) && len(o.Results[i].Entries) > 0 {
				fmt.Fprintf(&b, " -> %v", o.Results[i].Entries)
			}
		}
		fmt.Fprintf(&b, " @%d", o.Revision)
		return b.String()
	},
	DescribeState: func(state any) string {
		s := state.(store)
		return fmt.Sprintf("revision %d: %v", s.rev, s.entries)
	},
}
