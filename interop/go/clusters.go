package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"mainstay/interop/cluster"
)

// runCluster dispatches the commands that start servers themselves.
func runCluster(args []string) int {
	commands := map[string]func(context.Context, []string) int{
		"history":          runHistory,
		"history-check":    runHistoryCheck,
		"history-selftest": runHistorySelfTest,
		"failover":         runFailover,
		"members":          runMembers,
		"rolling":          runRolling,
		"catchup":          runCatchup,
		"locks":            runLocks,
		"health":           runHealth,
		"soak":             runSoak,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		usage()
	}
	// A signal ends the context, so that every command still removes what it made.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return commands[args[0]](ctx, args[1:])
}

// clusterFlags are those that all commands have which start servers.
type clusterFlags struct {
	*flag.FlagSet
	servers servers
	members int
	flags   string
	mixed   string
	out     string
}

func newClusterFlags(name string) *clusterFlags {
	f := &clusterFlags{FlagSet: flag.NewFlagSet("cluster "+name, flag.ExitOnError)}
	f.Var(&f.servers, "server", "path of the server binary, or NAME=PATH; some commands take several")
	f.IntVar(&f.members, "members", 3, "number of members")
	f.StringVar(&f.flags, "flags", "", "more flags for every member, with blanks between them")
	f.StringVar(&f.mixed, "mixed", "", "path of another server binary, which every second member runs")
	f.StringVar(&f.out, "out", "", "directory for what helps to explain a failure; default: one in the working directory, made when it is needed")
	return f
}

// parse ends the program when there is no server.
func (f *clusterFlags) parse(args []string, severalServers bool) {
	_ = f.Parse(args) // ExitOnError
	if len(f.servers) == 0 || len(f.servers) > 1 && !severalServers || f.members < 1 || f.NArg() > 0 {
		f.Usage()
		os.Exit(2)
	}
}

func (f *clusterFlags) options(s namedServer, proxied bool) cluster.Options {
	return cluster.Options{Server: s.path, Members: f.members, Mixed: f.mixed, Flags: strings.Fields(f.flags), Proxied: proxied}
}

// failureDir makes the directory for a failure.
func (f *clusterFlags) failureDir() (string, error) {
	dir := f.out
	if dir == "" {
		dir = "failure-" + time.Now().Format("20060102-150405")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

type namedServer struct{ name, path string }

// servers is a flag that may be given several times.
type servers []namedServer

func (s *servers) String() string { return fmt.Sprint(*s) }

// Set takes PATH or NAME=PATH.
func (s *servers) Set(value string) error {
	name, path, named := strings.Cut(value, "=")
	if !named {
		path = value
		name = path[strings.LastIndexByte(path, '/')+1:]
	}
	if path == "" {
		return errors.New("empty path")
	}
	*s = append(*s, namedServer{name, path})
	return nil
}

// cannotRun prints why a run was not possible; the exit code says so too.
func cannotRun(what string, err error) int {
	fmt.Fprintf(os.Stderr, "interop cluster %s: %v\n", what, err)
	return 2
}

// pause waits and says whether the context is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// counts is a set of named counters.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
}
