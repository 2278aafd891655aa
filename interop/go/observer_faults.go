package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mainstay/interop/cluster"
)

// observerFaults are the faults that need --observers, with what they do.
var observerFaults = map[string]string{
	"kill-observer":    "kill -9 some observer, start it again",
	"wipe-observer":    "kill -9 some observer and lose its data, start it again",
	"restart-observer": "SIGTERM some observer, wait for its end, start it again",
	"pause-observer":   "SIGSTOP some observer, SIGCONT after a while",
	"cut-observer":     "cut some observer off from all others; packets vanish, or connections are reset",
	"cut-feeder":       "cut some observer off from the node that feeds it, in both directions or in one",
	"kill-feeder":      "kill -9 the node that feeds some observer, start it again",
	"pause-feeder":     "SIGSTOP the node that feeds some observer, SIGCONT after a while",
}

func isOfObservers(name string) bool { return observerFaults[name] != "" }

// injectObserver is inject for the faults of observers.
func (f *faults) injectObserver(ctx context.Context, name string) error {
	o := f.cluster.Observers[f.rng.IntN(len(f.cluster.Observers))]
	m := o // whom it happens to
	if strings.HasSuffix(name, "-feeder") {
		var err error
		if m, err = f.feeder(ctx, o); err != nil {
			return err
		}
	}
	f.say("%s of %s at %s", name, o.Name, m.Name)
	network := f.cluster.Network
	switch name {
	case "kill-observer", "kill-feeder":
		m.Kill()
		pause(ctx, f.lasting())
		return m.Start()
	case "wipe-observer":
		m.Kill()
		pause(ctx, f.lasting())
		if err := m.Wipe(); err != nil {
			return err
		}
		return m.Start()
	case "restart-observer":
		if err := m.Terminate(30 * time.Second); err != nil {
			return err
		}
		return m.Start()
	case "pause-observer", "pause-feeder":
		if err := m.Pause(); err != nil {
			return err
		}
		pause(ctx, f.lasting())
		return m.Continue()
	case "cut-observer":
		network.Cut(o.Index, f.cut())
	case "cut-feeder":
		rule, ways := f.cut(), f.rng.IntN(3)
		if ways != 1 {
			network.Set(o.Index, m.Index, rule)
		}
		if ways != 2 {
			network.Set(m.Index, o.Index, rule)
		}
	default:
		return fmt.Errorf("no such fault: %s", name)
	}
	pause(ctx, f.lasting())
	network.Heal(f.rng.IntN(2) == 0)
	return nil
}

// cut is what holds bytes back, or, less often, resets connections.
func (f *faults) cut() cluster.Rule {
	if f.rng.IntN(3) == 0 {
		return cluster.Rule{Refuse: true}
	}
	return cluster.Rule{Hold: true}
}

// feeder waits for the node that feeds an observer, also when the run is over meanwhile.
func (f *faults) feeder(ctx context.Context, o *cluster.Member) (*cluster.Member, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return o.Feeder(ctx)
}

// noteFeeders counts the observers that another node feeds than when they were last asked.
func (f *faults) noteFeeders(ctx context.Context) error {
	for _, o := range f.cluster.Observers {
		feeder, err := f.feeder(ctx, o)
		if err != nil {
			return err
		}
		f.mu.Lock()
		if f.fedBy == nil {
			f.fedBy = map[*cluster.Member]*cluster.Member{}
		}
		if before := f.fedBy[o]; before != nil && before != feeder {
			f.refed++
		}
		f.fedBy[o] = feeder
		f.mu.Unlock()
	}
	return nil
}
