package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/credentials"
)

// liveWatches are the watches that stay open on both servers for the whole run,
// so that events are also compared as they happen.
var liveWatches = []*pb.WatchCreateRequest{
	{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true},
	{Key: []byte("foo"), RangeEnd: []byte("fop"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}},
	{Key: []byte("a"), Fragment: true},
	{Key: []byte("k\xff"), RangeEnd: []byte{0}, Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE}, PrevKv: true},
}

func runCompare(args []string) int {
	flags := flag.NewFlagSet("compare", flag.ExitOnError)
	reference := flags.String("reference", "", "endpoint of the server that is right by definition (host:port)")
	subject := flags.String("subject", "", "endpoint of the server under test (host:port)")
	ops := flags.Int("ops", 5000, "number of operations")
	seed := flags.Uint64("seed", 1, "seed of the operations; the same seed gives the same run")
	show := flags.Int("show", 15, "number of differing operations printed in full")
	stopAfter := flags.Int("stop-after", 200, "give up after this many differing operations; 0 means never")
	info := tlsFlags(flags)
	stats := flags.Bool("stats", false, "also print how often each operation got which answer")
	without := &parts{known: []string{"auth", "locks"}}
	flags.Var(without, "without", "parts that the subject lacks on purpose, with commas between them: auth, locks")
	_ = flags.Parse(args) // ExitOnError
	if *reference == "" || *subject == "" {
		flags.Usage()
		return 2
	}
	c := &comparison{tally: &tally{show: *show}, without: without, outcomes: map[string]int{}}
	secured, err := security(info)
	if err == nil {
		err = c.open(*reference, *subject, secured)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop compare:", err)
		return 2
	}
	c.run(*ops, *seed, *stopAfter)
	if *stats {
		c.printOutcomes()
	}
	return c.tally.finish()
}

type comparison struct {
	tally   *tally
	servers [2]*server
	live    [2]*watchStream
	g       *generator
	without *parts
	// leaving says that operations are only counted as left out.
	leaving bool
	// outcomes counts, per kind of operation, what the reference answered.
	outcomes map[string]int
}

func (c *comparison) printOutcomes() {
	lines := make([]string, 0, len(c.outcomes))
	for outcome, n := range c.outcomes {
		lines = append(lines, fmt.Sprintf("%-70s %d", outcome, n))
	}
	sort.Strings(lines)
	fmt.Println(strings.Join(lines, "\n"))
}

func (c *comparison) open(reference, subject string, secured credentials.TransportCredentials) error {
	ctx, cancel := context.WithTimeout(context.Background(), callDeadline)
	defer cancel()
	var revisions [2]int64
	for i, endpoint := range []string{reference, subject} {
		s, err := dial(ctx, []string{"reference", "subject"}[i], endpoint, secured)
		if err != nil {
			return err
		}
		r, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, CountOnly: true})
		if err != nil {
			return fmt.Errorf("%s: %w", s.label, err)
		}
		if r.Count != 0 {
			return fmt.Errorf("%s holds %d keys; both servers must be fresh", s.label, r.Count)
		}
		c.servers[i], revisions[i] = s, r.Header.Revision
	}
	if revisions[0] != revisions[1] {
		return fmt.Errorf("the servers start at different revisions, %d and %d; both must be fresh", revisions[0], revisions[1])
	}
	c.g = &generator{revision: revisions[0]}
	return c.watchLive()
}

// watchLive opens the watches that follow everything from now on. They exist on
// both servers when it returns: a watch without a start revision begins at the
// revision at which it is created, and would miss a put that overtakes it.
func (c *comparison) watchLive() error {
	for i, s := range c.servers {
		// They outlive every call, so they get their own context.
		w, err := openWatch(context.Background(), s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.label, err)
		}
		c.live[i] = w
		for _, create := range liveWatches {
			w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
		}
		late := time.AfterFunc(callDeadline, w.cancel)
		w.readUntil(func() bool { return len(w.created) == len(liveWatches) })
		late.Stop()
		if len(w.created) != len(liveWatches) {
			return fmt.Errorf("%s: %d of %d live watches were created: %w", s.label, len(w.created), len(liveWatches), w.err)
		}
	}
	return nil
}

func (c *comparison) run(ops int, seed uint64, stopAfter int) {
	fmt.Printf("seed %d, %d operations\n", seed, ops)
	c.g = newGenerator(seed, c.g.revision)
	for n := range ops {
		op := c.g.next()
		if op.awaitsWatches {
			c.ask(n, c.opLiveEvents())
		}
		c.ask(n, op)
		if stopAfter > 0 && c.tally.failed >= stopAfter {
			fmt.Printf("stopped after operation %d\n", n)
			return
		}
	}
	c.ask(ops, c.opLiveEvents())
	c.leaving = c.without.has("locks")
	for _, op := range c.coordinatorOps() {
		c.ask(ops, op)
	}
	c.leaving = c.without.has("auth")
	c.usersPhase(ops)
	if c.leaving {
		// What every client may ask of a server that knows no users.
		c.leaving = false
		c.ask(ops, opAuthStatus())
		c.ask(ops, opAuthenticate("alice", "secret"))
	}
	for _, op := range c.closing() {
		c.ask(ops, op)
	}
}

// ask puts one operation to both servers, one after the other, and compares.
func (c *comparison) ask(n int, op operation) {
	if c.leaving {
		c.tally.leaveOut()
		return
	}
	reference := op.run(context.Background(), c.servers[0])
	subject := op.run(context.Background(), c.servers[1])
	if revision, err := strconv.ParseInt(reference["header.revision"], 10, 64); err == nil {
		c.g.revision = max(c.g.revision, revision)
	}
	for _, path := range []string{"revoke.header.revision", "put_after.header.revision", "small_again.header.revision"} {
		if revision, err := strconv.ParseInt(reference[path], 10, 64); err == nil {
			c.g.revision = max(c.g.revision, revision)
		}
	}
	if op.learn != nil {
		op.learn(c.g, reference)
	}
	kind, _, _ := strings.Cut(op.text, " ")
	if rest, found := strings.CutPrefix(op.text, "as "); found {
		_, rest, _ = strings.Cut(rest, ": ")
		kind, _, _ = strings.Cut(rest, " ")
		kind += " with a token"
	}
	c.outcomes[strings.TrimSpace(kind+" "+reference["error.text"])]++
	found := differences(reference, subject, op.slack)
	text := ""
	for i, d := range found {
		if i == 6 {
			text += fmt.Sprintf("\n    and %d more", len(found)-i)
			break
		}
		text += "\n    " + d
	}
	c.tally.check(len(found) == 0, "operation %d at revision %d (compacted %d): %s%s", n, c.g.revision, c.g.compacted, op.text, text)
}

// opLiveEvents waits until the live watches have delivered everything up to the
// current revision and compares what arrived since the last time.
func (c *comparison) opLiveEvents() operation {
	return operation{text: "events of the live watches", run: func(_ context.Context, s *server) answer {
		w := c.live[0]
		if s == c.servers[1] {
			w = c.live[1]
		}
		out := answer{}
		late := time.AfterFunc(callDeadline, w.cancel)
		defer late.Stop()
		w.readProgress(c.g.revision)
		w.report(out)
		return out
	}}
}

// closing is asked once at the end: the whole state, in several ways.
func (c *comparison) closing() []operation {
	everything := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	// The put makes sure that there is a revision after the compacted one.
	last := &pb.PutRequest{Key: []byte("z"), Value: []byte("last")}
	ops := []operation{opPut(last), c.opLiveEvents(), opRange(everything), opRangeStream(everything), opHashKV(0), opLeases(), opStatus(), opSnapshot()}
	for _, id := range leaseIDs {
		ops = append(ops, opLeaseTimeToLive(&pb.LeaseTimeToLiveRequest{ID: id, Keys: true}))
	}
	history := watchPlan{creates: []*pb.WatchCreateRequest{{Key: []byte{0}, RangeEnd: []byte{0}, PrevKv: true, StartRevision: c.g.compacted + 1}}}
	return append(ops, operation{text: "Watch of the whole history", run: history.run})
}
