package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"mainstay/interop/cluster"
)

// migration turns the members of a cluster of etcd into Mainstay's, one after the
// other, and then into etcd's again, for as long as it is asked to.
type migration struct {
	cluster *cluster.Cluster
	// etcd and mainstay are the binaries.
	etcd, mainstay string
	// release is etcd's, as "3.6".
	release string

	mu sync.Mutex
	// leaving says that members become etcd's again.
	leaving bool
	// took are the times from the end of the old process until the member was
	// healthy, of steps at which nothing else went wrong, by direction.
	took map[string][]time.Duration
	// done are the finished steps, by kind.
	done counts
}

func newMigration(c *cluster.Cluster, etcd, mainstay string) (*migration, error) {
	for _, path := range []*string{&etcd, &mainstay} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return nil, err
		}
		*path = absolute
	}
	said, err := exec.Command(etcd, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", etcd, err)
	}
	_, version, found := strings.Cut(string(said), ": ")
	parts := strings.SplitN(version, ".", 3)
	if !found || len(parts) < 3 {
		return nil, fmt.Errorf("%s --version says %q", etcd, said)
	}
	if parts[0] == "3" && parts[1] == "4" {
		return nil, errors.New("no way leads back to etcd 3.4")
	}
	return &migration{cluster: c, etcd: etcd, mainstay: mainstay, release: parts[0] + "." + parts[1], took: map[string][]time.Duration{}}, nil
}

// next is a member whose turn it is: the leader comes last, as an operator would
// have it.
func (g *migration) next(ctx context.Context) (*cluster.Member, error) {
	if to := g.target(); to != "" {
		leader, err := g.cluster.Leader(ctx)
		if err != nil {
			return nil, err
		}
		var last *cluster.Member
		for _, m := range g.cluster.Members {
			switch {
			case m.Gone || m.Server == to:
			case m == leader:
				last = m
			default:
				return m, nil
			}
		}
		if last != nil {
			return last, nil
		}
	}
	g.mu.Lock()
	g.leaving = !g.leaving
	g.mu.Unlock()
	return g.next(ctx)
}

func (g *migration) target() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leaving {
		return g.etcd
	}
	return g.mainstay
}

// becomes gives a member that does not run its new binary.
func (g *migration) becomes(m *cluster.Member) {
	m.Server, m.Flags = g.target(), nil
	if m.Server == g.mainstay {
		// A cluster that is all Mainstay's would rise to its release, and let no older etcd in again.
		m.Flags = []string{"--api-version", g.release}
	}
}

// step names the step that is under way.
func (g *migration) step() string {
	if g.target() == g.mainstay {
		return "to Mainstay"
	}
	return "to etcd"
}

// export puts a directory of etcd's in the place of a stopped member's. It is
// killed in the middle as often as the times given.
func (g *migration) export(m *cluster.Member, killAfter []time.Duration) error {
	made := m.DataDir() + ".made"
	for attempt := 0; ; attempt++ {
		// With what an earlier attempt has made goes its mark.
		for _, path := range []string{made, filepath.Join(m.DataDir(), "member", "exported")} {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
		cmd := exec.Command(g.mainstay, "utl", "export", "--data-dir", m.DataDir(), "--to", made, "--release", g.release)
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			return err
		}
		killed := make(chan bool, 1)
		if attempt < len(killAfter) {
			// Told first: the process may be waited for before this goes on.
			timer := time.AfterFunc(killAfter[attempt], func() { killed <- true; _ = cmd.Process.Kill() })
			defer timer.Stop()
		}
		err := cmd.Wait()
		if err == nil {
			break
		}
		select {
		case <-killed:
			continue
		default:
			return fmt.Errorf("export: %w: %s", err, said.String())
		}
	}
	if err := m.Wipe(); err != nil {
		return err
	}
	return os.Rename(made, m.DataDir())
}

// inPlace lets a member go on as the other server's, on its data. Half of the
// members are killed rather than stopped, and most steps are disturbed.
func (f *faults) inPlace(ctx context.Context) error {
	g := f.migration
	m, err := f.nextMember(ctx)
	if err != nil {
		return err
	}
	kind := "in place " + g.step()
	began := time.Now()
	if killed := f.rng.IntN(2) == 0; killed {
		m.Kill()
		kind += ", killed"
	} else if err := m.Terminate(30 * time.Second); err != nil {
		return err
	}
	f.say("%s: %s", kind, m.Name)
	disturbed := f.rng.IntN(4) != 0
	if g.target() == g.etcd {
		var kills []time.Duration
		if disturbed && f.rng.IntN(2) == 0 {
			kills = f.moments(60 * time.Millisecond)
		}
		if err := g.export(m, kills); err != nil {
			return err
		}
	}
	g.becomes(m)
	if err := m.Start(); err != nil {
		return err
	}
	if disturbed {
		if err := f.disturb(ctx, m); err != nil {
			return err
		}
	}
	return f.stepped(kind, began, disturbed)
}

// replacement removes a member with its disk and adds one of the other server's,
// which gets a snapshot.
func (f *faults) replacement(ctx context.Context) error {
	g := f.migration
	m, err := f.nextMember(ctx)
	if err != nil {
		return err
	}
	began, kind := time.Now(), "replaced "+g.step()
	f.say("%s: %s", kind, m.Name)
	// The old process runs until the member is removed, as what it is.
	if err := f.replaceBy(m, func() { g.becomes(m) }); err != nil {
		return err
	}
	disturbed := f.rng.IntN(4) != 0
	if disturbed {
		if err := f.disturb(ctx, m); err != nil {
			return err
		}
	}
	return f.stepped(kind, began, disturbed)
}

// nextMember waits for a leader as [faults.leader] does.
func (f *faults) nextMember(ctx context.Context) (*cluster.Member, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return f.migration.next(ctx)
}

// moments are one to three times within a limit.
func (f *faults) moments(limit time.Duration) []time.Duration {
	all := make([]time.Duration, 1+f.rng.IntN(3))
	for n := range all {
		all[n] = time.Duration(f.rng.Int64N(int64(limit)))
	}
	return all
}

// disturb does something to the member that has just been started from another
// binary, or to the others.
func (f *faults) disturb(ctx context.Context, m *cluster.Member) error {
	if others := f.besides(); len(others) > 0 && f.rng.IntN(2) == 0 {
		name := others[f.rng.IntN(len(others))]
		// A member without data ends if it reaches nobody who tells it of the others, as etcd does.
		met, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		m.WaitMet(met)
		cancel()
		f.injected.add(name)
		return f.inject(ctx, name)
	}
	for _, after := range f.moments(400 * time.Millisecond) {
		pause(ctx, after)
		m.Kill()
		f.injected.add("killed at its first start")
		f.say("killed %s %v after its start", m.Name, after.Round(time.Millisecond))
		if err := m.Start(); err != nil {
			return err
		}
	}
	return nil
}

// besides are the faults asked for that are no steps.
func (f *faults) besides() []string {
	var out []string
	for _, name := range f.names {
		if !isStep(name) {
			out = append(out, name)
		}
	}
	return out
}

func isStep(name string) bool { return name == "in-place" || name == "replacement" }

// stepped waits until all members are healthy, and compares them.
func (f *faults) stepped(kind string, began time.Time, disturbed bool) error {
	g := f.migration
	if f.cluster.Network != nil {
		f.cluster.Network.Heal(true)
	}
	if err := f.recovered(); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	took := time.Since(began)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := sameHash(ctx, f.cluster.Alive()); err != nil {
		return fmt.Errorf("%s: HashKV: %w", kind, err)
	}
	for {
		err := sameLists(ctx, f.cluster.Alive())
		if err == nil {
			break
		}
		// A member that is new publishes its name when it serves.
		if !pause(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	g.done.add(kind)
	if !disturbed {
		g.mu.Lock()
		g.took[kind] = append(g.took[kind], took)
		g.mu.Unlock()
	}
	return nil
}

// sameLists compares the members and the alarms that each member knows.
func sameLists(ctx context.Context, members []*cluster.Member) error {
	first, firstOf := "", ""
	for _, m := range members {
		c, err := cluster.Client(m)
		if err != nil {
			return err
		}
		list, err := c.MemberList(ctx)
		var alarms *clientv3.AlarmResponse
		if err == nil {
			alarms, err = c.AlarmList(ctx)
		}
		c.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		said := fmt.Sprintf("members %v, alarms %v", list.Members, alarms.Alarms)
		if first == "" {
			first, firstOf = said, m.Name
		}
		if said != first {
			return errors.New(firstOf + " has " + first + "; " + m.Name + " has " + said)
		}
	}
	return nil
}

// summary prints what was done.
func (g *migration) summary() {
	fmt.Printf("steps       %s\n", sortedCounts(g.done.n))
	for kind, all := range g.took {
		fmt.Printf("            %s, undisturbed: median %v, worst %v, of %d, from its end until all were healthy\n", kind,
			cluster.Median(all).Round(time.Millisecond), cluster.Worst(all).Round(time.Millisecond), len(all))
	}
}
