package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"mainstay/interop/cluster"
)

// soakKeys is the number of keys that are written again and again, so that what
// is live stays the same while the run goes on.
const soakKeys = 20_000

// A resource is one figure of a member that has to stay flat.
type resource struct {
	name, unit string
	// slack is by how much the later half may lie above the earlier one beside a
	// tenth of it: what a member allocates or frees in one piece.
	slack float64
	read  func(m *cluster.Member) (float64, error)
}

var resources = []resource{
	{"memory", "MB", 12, func(m *cluster.Member) (float64, error) { return m.RSS(), nil }},
	{"descriptors", "", 6, func(m *cluster.Member) (float64, error) { return procEntries(m, "fd") }},
	{"threads", "", 2, func(m *cluster.Member) (float64, error) { return procEntries(m, "task") }},
	// Some segments of the log are always about to be freed.
	{"disk", "MB", 256, func(m *cluster.Member) (float64, error) { return diskMB(m.DataDir()) }},
}

func procEntries(m *cluster.Member, of string) (float64, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", m.PID(), of))
	return float64(len(all)), err
}

func diskMB(dir string) (float64, error) {
	var bytes int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // It was deleted meanwhile.
			}
			return err
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return float64(bytes) / (1 << 20), err
}

// A sample is what one member used at one moment, in the order of resources.
type sample struct {
	at     time.Duration
	member string
	used   []float64
}

// runSoak does a bit of everything for a long time and holds every member to
// using no more of anything as time goes on.
func runSoak(ctx context.Context, args []string) int {
	f := newClusterFlags("soak")
	minutes := f.Float64("minutes", 120, "how long")
	rate := f.Int("rate", 1500, "puts and deletes per second in all")
	every := f.Duration("every", 10*time.Second, "time between two samples")
	compact := f.Duration("compact", time.Minute, "time between two compactions")
	snapshot := f.Duration("snapshot", 10*time.Minute, "time between two snapshots")
	f.parse(args, false)
	if *minutes <= 0 || *rate < 10 || *every <= 0 || *compact <= 0 || *snapshot <= 0 {
		f.Usage()
		return 2
	}
	length := time.Duration(*minutes * float64(time.Minute))
	ctx, cancel := context.WithTimeout(ctx, length+10*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, f.options(f.servers[0], false))
	if err != nil {
		return cannotRun("soak", err)
	}
	defer c.Close()
	s := &soak{cluster: c, tally: &tally{show: 20}}
	if s.client, err = cluster.Client(c.Members...); err != nil {
		return cannotRun("soak", err)
	}
	defer s.client.Close()
	loadCtx, stop := context.WithTimeout(ctx, length)
	defer stop()
	var wait sync.WaitGroup
	loop := func(pause time.Duration, step func(context.Context) error) {
		wait.Add(1)
		go func() { defer wait.Done(); s.loop(loadCtx, pause, step) }()
	}
	const writers = 10
	for range writers {
		loop(time.Second*writers/time.Duration(*rate), s.write)
	}
	loop(20*time.Millisecond, s.lease)
	for range 4 {
		loop(50*time.Millisecond, s.watch)
	}
	loop(200*time.Millisecond, s.connect)
	loop(5*time.Second, s.list)
	loop(*compact, s.compact)
	loop(*snapshot, s.snapshot)

	began := time.Now()
	var samples []sample
	for pause(loadCtx, *every) {
		for _, m := range c.Members {
			one := sample{at: time.Since(began), member: m.Name}
			for _, resource := range resources {
				used, err := resource.read(m)
				s.tally.check(err == nil, "%s of %s: %v", resource.name, m.Name, err)
				one.used = append(one.used, used)
			}
			samples = append(samples, one)
		}
	}
	stop()
	wait.Wait()
	deaths := c.Deaths()
	s.tally.check(len(deaths) == 0, "%s", strings.Join(deaths, "; "))
	healthy, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	err = c.WaitHealthy(healthy)
	s.tally.check(err == nil, "not healthy at the end: %v", err)
	if f.out != "" {
		if err := s.save(f.out, samples); err != nil {
			return cannotRun("soak", err)
		}
	}
	s.judge(samples)
	fmt.Printf("done        %s\n", sortedCounts(s.done.n))
	fmt.Printf("retriable   %s\n", sortedCounts(s.retriable.n))
	return s.tally.finish()
}

type soak struct {
	cluster         *cluster.Cluster
	tally           *tally
	client          *clientv3.Client
	done, retriable counts
	revision        atomic.Int64
}

// loop does a step again and again, at the pace given; what a client would try
// again is counted, any other error fails the run.
func (s *soak) loop(ctx context.Context, pace time.Duration, step func(context.Context) error) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		attempt, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := step(attempt)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
		case retriable(err):
			s.retriable.add(errorKind(err))
		default:
			s.tally.check(false, "%v", err)
		}
	}
}

func soakKey() string { return fmt.Sprintf("soak/%05d", rand.IntN(soakKeys)) }

func (s *soak) write(ctx context.Context) error {
	if rand.IntN(10) == 0 {
		s.done.add("deletes")
		_, err := s.client.Delete(ctx, soakKey())
		return err
	}
	s.done.add("puts")
	answer, err := s.client.Put(ctx, soakKey(), strings.Repeat("x", 64+rand.IntN(1024)))
	if err == nil {
		s.revision.Store(answer.Header.Revision)
	}
	return err
}

// lease grants a lease with a key, and leaves most of them to expire.
func (s *soak) lease(ctx context.Context) error {
	lease, err := s.client.Grant(ctx, 5+rand.Int64N(20))
	if err != nil {
		return err
	}
	s.done.add("leases")
	if _, err := s.client.Put(ctx, fmt.Sprintf("leased/%x", lease.ID), "x", clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	switch rand.IntN(4) {
	case 0:
		_, err = s.client.Revoke(ctx, lease.ID)
	case 1:
		_, err = s.client.KeepAliveOnce(ctx, lease.ID)
	}
	return err
}

// watch opens a watch from some time ago and closes it after a few events.
func (s *soak) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from := max(s.revision.Load()-rand.Int64N(200), 1)
	events := s.client.Watch(clientv3.WithRequireLeader(ctx), "soak/", clientv3.WithPrefix(), clientv3.WithRev(from))
	seen := 0
	for response := range events {
		if response.CompactRevision != 0 {
			break
		}
		if err := response.Err(); err != nil {
			return err
		}
		if seen += len(response.Events); seen >= 100 {
			break
		}
	}
	s.done.add("watches")
	return nil
}

// connect opens a connection of its own, uses it once, and closes it.
func (s *soak) connect(ctx context.Context) error {
	client, err := cluster.Client(cluster.Any(s.cluster.Members))
	if err != nil {
		return err
	}
	defer client.Close()
	s.done.add("connections")
	_, err = client.Get(ctx, soakKey())
	return err
}

func (s *soak) list(ctx context.Context) error {
	s.done.add("lists")
	_, err := s.client.Get(ctx, "soak/", clientv3.WithPrefix())
	return err
}

func (s *soak) compact(ctx context.Context) error {
	s.done.add("compactions")
	// A watch may be as far behind as it was opened.
	revision := s.revision.Load() - 1000
	if revision <= 1 {
		return nil
	}
	_, err := s.client.Compact(ctx, revision)
	return err
}

func (s *soak) snapshot(ctx context.Context) error {
	s.done.add("snapshots")
	content, err := s.client.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer content.Close()
	_, err = io.Copy(io.Discard, content)
	return err
}

// judge prints what each member used and fails what grows: after the first
// tenth of the run, the median of the later half may lie above that of the
// earlier half by a tenth and the resource's slack.
func (s *soak) judge(samples []sample) {
	if len(samples) == 0 {
		s.tally.check(false, "the run was too short for a sample")
		return
	}
	end := samples[len(samples)-1].at
	warm := end / 10
	fmt.Printf("%-8s %-12s %10s %10s %10s %10s\n", "member", "", "first", "earlier", "later", "most")
	for _, m := range s.cluster.Members {
		for i, resource := range resources {
			var earlier, later, all []float64
			for _, one := range samples {
				if one.member != m.Name {
					continue
				}
				all = append(all, one.used[i])
				switch {
				case one.at < warm:
				case one.at < warm+(end-warm)/2:
					earlier = append(earlier, one.used[i])
				default:
					later = append(later, one.used[i])
				}
			}
			if len(earlier) == 0 || len(later) == 0 {
				s.tally.check(false, "too few samples of %s", m.Name)
				continue
			}
			before, after := middle(earlier), middle(later)
			fmt.Printf("%-8s %-12s %10.1f %10.1f %10.1f %10.1f %s\n", m.Name, resource.name, all[0], before, after, slices.Max(all), resource.unit)
			s.tally.check(after <= before*1.1+resource.slack, "%s of %s grew from %.1f to %.1f %s", resource.name, m.Name, before, after, resource.unit)
		}
	}
}

func middle(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// save writes all samples as CSV, and a drawing of them for each resource.
func (s *soak) save(dir string, samples []sample) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, "soak.csv"))
	if err != nil {
		return err
	}
	defer file.Close()
	table := csv.NewWriter(file)
	head := []string{"seconds", "member"}
	for _, resource := range resources {
		head = append(head, strings.TrimSuffix(resource.name+"_"+strings.ToLower(resource.unit), "_"))
	}
	rows := [][]string{head}
	for _, one := range samples {
		row := []string{strconv.FormatFloat(one.at.Seconds(), 'f', 0, 64), one.member}
		for _, used := range one.used {
			row = append(row, strconv.FormatFloat(used, 'f', 1, 64))
		}
		rows = append(rows, row)
	}
	if err := table.WriteAll(rows); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "soak.svg"), []byte(s.draw(samples)), 0o644)
}

// draw makes one chart per resource, with a line per member.
func (s *soak) draw(samples []sample) string {
	const width, height, margin = 900, 160, 40
	colours := []string{"#1b6ca8", "#c0392b", "#2e7d32", "#8e44ad", "#b9770e", "#16a085", "#555555"}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`, width+2*margin, len(resources)*(height+margin)+margin)
	end := max(samples[len(samples)-1].at.Seconds(), 1)
	for i, resource := range resources {
		top := margin + i*(height+margin)
		most := 1.0
		for _, one := range samples {
			most = max(most, one.used[i])
		}
		fmt.Fprintf(&out, `<text x="%d" y="%d">%s, up to %.0f %s, over %.0f minutes</text>`, margin, top-6, resource.name, most, resource.unit, end/60)
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#bbb"/>`, margin, top, width, height)
		for n, m := range s.cluster.Members {
			var points []string
			for _, one := range samples {
				if one.member == m.Name {
					x := margin + one.at.Seconds()/end*width
					y := float64(top+height) - one.used[i]/most*height
					points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
				}
			}
			fmt.Fprintf(&out, `<polyline fill="none" stroke="%s" points="%s"/>`, colours[n%len(colours)], strings.Join(points, " "))
		}
	}
	out.WriteString("</svg>\n")
	return out.String()
}
