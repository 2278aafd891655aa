package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"mainstay/interop/cluster"
	"mainstay/interop/history"
)

// usualFaults are injected when --faults does not say which.
const usualFaults = "kill-leader,kill-any,pause,partition,oneway,restart"

// historyRun is one run of `cluster history`.
type historyRun struct {
	flags   *clusterFlags
	cluster *cluster.Cluster
	load    *load
	faults  *faults
	watches []*watcher
	mu      sync.Mutex
	// late are watches that began and ended during the run.
	late []history.Watch
}

func runHistory(ctx context.Context, args []string) int {
	f := newClusterFlags("history")
	seconds := f.Int("seconds", 60, "how long clients work and faults are injected")
	observers := f.Int("observers", 0, "number of observers, which clients use like members; for Mainstay")
	list := f.String("faults", "", "faults to inject, with commas between them; empty for none; default: "+usualFaults+", and with --observers all of theirs")
	every := f.Duration("every", 5*time.Second, "time from one fault to the next")
	clients := f.Int("clients", 9, "number of clients, spread over the members and observers")
	rate := f.Int("rate", 300, "operations per second over all clients, at most")
	timeout := f.Duration("timeout", 2*time.Second, "time limit of one operation")
	seed := f.Uint64("seed", 0, "seed of operations and faults; 0 takes one at random")
	migrate := f.String("migrate", "", "path of Mainstay's binary: the faults in-place and replacement turn members of --server, an etcd, into its, and back")
	verbose := f.Bool("v", false, "print each fault")
	f.parse(args, false)
	given := false
	f.Visit(func(set *flag.Flag) { given = given || set.Name == "faults" })
	if !given {
		*list = usualFaults
		if *observers > 0 {
			*list += "," + strings.Join(slices.Sorted(maps.Keys(observerFaults)), ",")
		}
	}
	names, err := parseFaults(*list)
	if err != nil || *clients < 1 || *rate < 1 {
		return cannotRun("history", fmt.Errorf("%v; --clients and --rate must be at least 1", err))
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	if *observers < 0 || *observers > 0 && *migrate != "" {
		return cannotRun("history", errors.New("--observers cannot be negative, and none can follow members of etcd: not with --migrate"))
	}
	if *observers == 0 && slices.ContainsFunc(names, isOfObservers) {
		return cannotRun("history", errors.New("faults of observers need --observers"))
	}
	options := f.options(f.servers[0], true)
	options.Observers = *observers
	startCtx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	c, err := cluster.Start(startCtx, options)
	if err != nil {
		return cannotRun("history", err)
	}
	defer c.Close()
	run := &historyRun{flags: f, cluster: c}
	run.load = &load{started: time.Now(), timeout: *timeout, every: time.Second * time.Duration(*clients) / time.Duration(*rate), bounded: *observers > 0, known: map[string]int64{}}
	run.faults = &faults{cluster: c, names: names, every: *every, rng: rand.New(rand.NewPCG(*seed, 99)), say: func(format string, args ...any) {
		if *verbose {
			fmt.Printf("%7.2f s "+format+"\n", append([]any{time.Since(run.load.started).Seconds()}, args...)...)
		}
	}}
	if *migrate != "" {
		if run.faults.migration, err = newMigration(c, f.servers[0].path, *migrate); err != nil {
			return cannotRun("history", err)
		}
	} else if slices.ContainsFunc(names, isStep) {
		return cannotRun("history", errors.New("the faults in-place and replacement need --migrate"))
	}
	fmt.Printf("%s, %d members, %d observers, %d clients, %d s, seed %d\n", f.servers[0].name, f.members, *observers, *clients, *seconds, *seed)
	run.work(ctx, time.Duration(*seconds)*time.Second, *clients, *seed)
	if ctx.Err() != nil {
		return cannotRun("history", ctx.Err())
	}
	h, violations := run.collect(ctx)
	return run.judge(h, violations)
}

// work lets everything run for some time.
func (r *historyRun) work(ctx context.Context, lasting time.Duration, clients int, seed uint64) {
	watchCtx := ctx // Watches go on until their clients have everything.
	ctx, cancel := context.WithTimeout(ctx, lasting)
	defer cancel()
	var wait sync.WaitGroup
	start := func(f func() error) {
		wait.Add(1)
		go func() {
			defer wait.Done()
			if err := f(); err != nil {
				r.load.failures.add("client: " + err.Error())
			}
		}()
	}
	nodes := r.cluster.Nodes()
	for _, m := range nodes {
		w := &watcher{name: "watch at " + m.Name}
		r.watches = append(r.watches, w)
		go w.follow(watchCtx, m)
		start(func() error {
			late, err := w.lateWatches(ctx, m, rand.New(rand.NewPCG(seed, uint64(5000+m.Index))))
			r.mu.Lock()
			defer r.mu.Unlock()
			r.late = append(r.late, late...)
			return err
		})
		start(func() error { return r.load.contender(ctx, 1000+m.Index, m) })
	}
	for n := range clients {
		start(func() error { return r.load.client(ctx, n, nodes[n%len(nodes)], seed) })
	}
	if len(r.faults.names) > 0 {
		start(func() error { r.faults.run(ctx); return nil })
	}
	wait.Wait()
	if r.cluster.Network != nil {
		r.cluster.Network.Heal(true)
	}
}

// collect asks every member and observer for everything, when all is quiet.
func (r *historyRun) collect(ctx context.Context) (*history.History, []history.Violation) {
	var violations []history.Violation
	broken := func(kind, format string, args ...any) {
		violations = append(violations, history.Violation{Kind: kind, Text: fmt.Sprintf(format, args...)})
	}
	for _, death := range r.cluster.Deaths() {
		broken("member ended", "%s", death)
	}
	for _, problem := range r.faults.problems {
		broken("not recovered", "%s", problem)
	}
	if g := r.faults.migration; g != nil && len(g.done.n) == 0 {
		broken("nothing done", "no member was migrated")
	}
	if len(r.cluster.Observers) > 0 && r.atObservers(func(o *history.Op) bool { return !o.Serializable && o.Name == "get" }) == 0 {
		broken("nothing done", "no observer answered a linearizable read")
	}
	h := &history.History{Ops: r.load.ops}
	recoverCtx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	if err := r.cluster.StartAll(recoverCtx); err != nil {
		broken("not recovered", "at the end: %v", err)
		return h, violations
	}
	settleCtx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	// Members that do not converge are asked all the same: what they hold says more.
	revision, err := r.settle(settleCtx)
	if err != nil {
		broken("not converged", "%v", err)
	}
	for i, m := range r.cluster.Nodes() {
		ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
		defer cancel()
		member, err := ask(ctx, m, revision)
		if err != nil {
			broken("no final state", "%s: %v", m.Name, err)
		}
		h.Members = append(h.Members, member)
		if !r.watches[i].reach(ctx, member.Revision) {
			broken("missing event", "%s did not come to revision %d", r.watches[i].name, member.Revision)
		}
		h.Watches = append(h.Watches, r.watches[i].result())
	}
	h.Watches = append(h.Watches, r.late...)
	return h, violations
}

// settle waits until no lease is left that could expire, and all members and observers are at
// the same revision.
func (r *historyRun) settle(ctx context.Context) (int64, error) {
	for {
		revisions, leases := map[int64]bool{}, 0
		var revision int64
		for _, m := range r.cluster.Nodes() {
			c, err := cluster.Client(m)
			if err != nil {
				return 0, err
			}
			got, err := c.Get(ctx, "none", clientv3.WithSerializable())
			if err == nil {
				revision = got.Header.Revision
				revisions[revision] = true
			}
			if list, listErr := c.Leases(ctx); listErr == nil {
				leases += len(list.Leases)
			} else {
				err = listErr
			}
			c.Close()
			if err != nil {
				revisions[-1] = true
			}
		}
		if len(revisions) == 1 && leases == 0 {
			return revision, nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return 0, fmt.Errorf("members are at revisions %v with %d leases left", revisions, leases)
		}
	}
}

// ask takes everything that one member holds, at the revision given or, when
// that is 0, at its own.
func ask(ctx context.Context, m *cluster.Member, revision int64) (history.Member, error) {
	out := history.Member{Name: m.Name}
	c, err := cluster.Client(m)
	if err != nil {
		return out, err
	}
	defer c.Close()
	linearizable, err := c.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		return out, err
	}
	serializable, err := c.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return out, err
	}
	out.Linearizable, out.Serializable = entries(linearizable.Kvs), entries(serializable.Kvs)
	out.Revision = linearizable.Header.Revision
	if revision == 0 {
		revision = out.Revision
	}
	hash, err := c.HashKV(ctx, m.Endpoint, revision)
	if err != nil {
		return out, err
	}
	out.Hash, out.HashRevision = hash.Hash, revision
	w := &watcher{}
	watchCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go w.follow(watchCtx, m)
	if revision > 1 && !w.reach(ctx, revision) {
		return out, fmt.Errorf("a watch from revision 1 came only to %d of %d", w.last, revision)
	}
	out.Final = w.result().Batches
	return out, nil
}

// judge checks, prints the summary, and keeps what explains a failure.
func (r *historyRun) judge(h *history.History, violations []history.Violation) int {
	dir := ""
	check := func(drawings string) []history.Violation {
		if len(h.Members) == 0 {
			return nil // The violations say why.
		}
		return history.Check(h, drawings)
	}
	began := time.Now()
	violations = append(violations, check("")...)
	checked := time.Since(began)
	r.summary(h, checked)
	if len(violations) == 0 {
		fmt.Println("verdict: no violation")
		return 0
	}
	var err error
	if dir, err = r.flags.failureDir(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else if err = keep(dir, h, violations); err == nil {
		err = r.cluster.SaveLogs(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot keep the history:", err)
	} else {
		check(dir) // Once more, for the drawings.
		fmt.Println("kept in", dir)
	}
	printViolations(violations)
	return 1
}

func printViolations(violations []history.Violation) {
	const most = 4 // Of one kind; one mistake has many consequences.
	kinds := map[string]int{}
	for _, v := range violations {
		kinds[v.Kind]++
		if kinds[v.Kind] <= most {
			text := v.String()
			if len(text) > 700 {
				text = text[:700] + " ..."
			}
			fmt.Println("VIOLATION", text)
		}
	}
	fmt.Printf("verdict: %d violations %v\n", len(violations), kinds)
}

func keep(dir string, h *history.History, violations []history.Violation) error {
	file, err := os.Create(filepath.Join(dir, "history.json"))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := json.NewEncoder(file).Encode(h); err != nil {
		return err
	}
	list, err := os.Create(filepath.Join(dir, "violations.txt"))
	if err != nil {
		return err
	}
	defer list.Close()
	for _, v := range violations {
		fmt.Fprintln(list, v)
	}
	return nil
}

func (r *historyRun) summary(h *history.History, checked time.Duration) {
	byName, unknown, refused := map[string]int{}, 0, 0
	resolved := 0
	for _, o := range h.Ops {
		byName[o.Name]++
		switch o.Outcome {
		case history.Unknown:
			unknown++
			if o.Revision != 0 {
				resolved++
			}
		case history.Refused:
			refused++
		}
	}
	fmt.Printf("operations  %d: %s\n", len(h.Ops), sortedCounts(byName))
	fmt.Printf("            %d unknown, of which %d were writes that happened; %d refused\n", unknown, resolved, refused)
	if n := len(r.cluster.Observers); n > 0 {
		fmt.Printf("observers   %d: %d operations acknowledged, %d of them writes, %d serializable reads with a bound; fed by another node %d times\n", n,
			r.atObservers(func(*history.Op) bool { return true }),
			r.atObservers(func(o *history.Op) bool { return !strings.Contains(o.Name, "get") && o.Name != "list" }),
			r.atObservers(func(o *history.Op) bool { return o.Staleness > 0 }), r.faults.refed)
	}
	fmt.Printf("failures    %s\n", sortedCounts(r.load.failures.n))
	fmt.Printf("faults      %s\n", sortedCounts(r.faults.injected.n))
	if r.faults.migration != nil {
		r.faults.migration.summary()
	}
	if all := r.faults.recoveries; len(all) > 0 {
		fmt.Printf("end of a fault to all members healthy: median %v, worst %v, of %d\n", cluster.Median(all).Round(time.Millisecond), cluster.Worst(all).Round(time.Millisecond), len(all))
	}
	if kills := r.afterKills(); len(kills) > 0 {
		fmt.Printf("leader kill to next write: median %v, worst %v, of %d\n", cluster.Median(kills).Round(time.Millisecond), cluster.Worst(kills).Round(time.Millisecond), len(kills))
	}
	events, reopened := 0, 0
	for _, w := range r.watches {
		reopened += w.reopened
	}
	for _, w := range h.Watches {
		for _, b := range w.Batches {
			events += len(b)
		}
	}
	fmt.Printf("watches     %d for the whole run, opened again %d times beyond the client's own resume; %d late ones; %d events\n", len(r.watches), reopened, len(r.late), events)
	l := &r.load.locks
	fmt.Printf("locks       taken %d times, %d writes, %d of them fenced off, %d leases ended meanwhile, %d overlaps by the clock alone (lease of %d s)\n",
		l.acquired.Load(), l.writes.Load(), l.fencedOff.Load(), l.lostSession.Load(), l.overlaps.Load(), lockTTL)
	if len(h.Members) > 0 {
		fmt.Printf("final       revision %d, %d keys, HashKV %d\n", h.Members[0].Revision, len(h.Members[0].Linearizable), h.Members[0].Hash)
	}
	fmt.Printf("checked in  %v\n", checked.Round(time.Millisecond))
}

// atObservers counts the operations of one kind that observers acknowledged.
func (r *historyRun) atObservers(kind func(*history.Op) bool) int {
	count := 0
	for _, m := range r.cluster.Observers {
		for _, o := range r.load.ops {
			if o.At == m.Name && o.Outcome == history.Acknowledged && kind(o) {
				count++
			}
		}
	}
	return count
}

// afterKills are the times from each kill of a leader to the end of the first
// write that was called after it.
func (r *historyRun) afterKills() []time.Duration {
	var out []time.Duration
	for _, kill := range r.faults.leaderKills {
		at := int64(kill.Sub(r.load.started))
		first := int64(-1)
		for _, o := range r.load.ops {
			if o.Outcome == history.Acknowledged && o.Name == "put" && o.Call >= at && (first < 0 || o.Return < first) {
				first = o.Return
			}
		}
		if first >= 0 {
			out = append(out, time.Duration(first-at))
		}
	}
	return out
}

func sortedCounts(n map[string]int) string {
	names := make([]string, 0, len(n))
	for name := range n {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool {
		return n[names[i]] > n[names[j]] || n[names[i]] == n[names[j]] && names[i] < names[j]
	})
	text := ""
	for i, name := range names {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s %d", name, n[name])
	}
	if text == "" {
		return "none"
	}
	return text
}

// runHistoryCheck judges a history that was kept.
func runHistoryCheck(_ context.Context, args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: interop cluster history-check FAILURE-DIRECTORY/history.json")
		return 2
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return cannotRun("history-check", err)
	}
	h := &history.History{}
	if err := json.Unmarshal(text, h); err != nil {
		return cannotRun("history-check", err)
	}
	for _, o := range h.Ops {
		if o.Outcome == history.Unknown {
			o.Revision, o.Succeeded = 0, false // As the client saw it.
		}
	}
	if violations := history.Check(h, filepath.Dir(args[0])); len(violations) > 0 {
		printViolations(violations)
		return 1
	}
	fmt.Println("verdict: no violation")
	return 0
}

// runHistorySelfTest holds the checker to mistakes planted in small histories.
func runHistorySelfTest(context.Context, []string) int {
	t := &tally{show: 100}
	history.SelfTest(func(ok bool, name, found string) { t.check(ok, "%s: %s", name, found) })
	return t.finish()
}
