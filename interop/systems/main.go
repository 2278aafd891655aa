// Command systems puts the same load on Mainstay, etcd, Consul, NATS JetStream and ZooKeeper, one member each, by the Go client that
// their users have, and prints one table. It starts the servers itself, with fresh data, and they take turns.
//
//	go build -o systems . && ./systems --server mainstay=PATH --server etcd-3.7=PATH --server nats=PATH \
//	    --server consul=PATH --server zookeeper=/usr/share/java/zookeeper.jar
//
// A put is acknowledged when it is on the disk, in all of them: kinds.go says by which setting, and --syncs counts, by strace, the
// syncs that a put causes. Linux only. The exit code is 1 if a load failed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// load is one row for each server: what the clients do, and how many of them.
type load struct {
	name    string
	clients int
	do      func(ctx context.Context, one client, key string, value []byte) error
}

func put(ctx context.Context, one client, key string, value []byte) error {
	return one.put(ctx, key, value)
}

func get(ctx context.Context, one client, key string, value []byte) error {
	return got(value)(one.get(ctx, key))
}

func getLocal(ctx context.Context, one client, key string, value []byte) error {
	return got(value)(one.getLocal(ctx, key))
}

// got fails if an answer is not a value as the load has put it.
func got(value []byte) func([]byte, error) error {
	return func(answer []byte, err error) error {
		if err == nil && len(answer) != len(value) {
			return fmt.Errorf("a value of %d bytes came back, not of %d", len(answer), len(value))
		}
		return err
	}
}

type options struct {
	seconds, runs, keys, fill, valueBytes int
	syncs                                 bool
	only                                  string
}

// servers is what --server gives, in its order.
type servers []named

type named struct{ name, path string }

func (s *servers) String() string { return "" }

func (s *servers) Set(text string) error {
	name, path, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("not NAME=PATH: %s", text)
	}
	if kindOf(name) == nil {
		return fmt.Errorf("a name begins with mainstay, etcd, consul, nats or zookeeper, not as %s", name)
	}
	// Each server runs in a directory of its own, from which a relative path leads elsewhere.
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	*s = append(*s, named{name, path})
	return nil
}

func main() {
	var list servers
	var set options
	flag.Var(&list, "server", "NAME=PATH, as often as there are servers; of ZooKeeper the path of its jar")
	flag.IntVar(&set.seconds, "seconds", 8, "length of each load")
	flag.IntVar(&set.runs, "runs", 3, "how often each server has its turn")
	flag.IntVar(&set.keys, "keys", 10000, "different keys")
	flag.IntVar(&set.fill, "fill", 30000, "puts before the loads, after which memory and files are measured")
	flag.IntVar(&set.valueBytes, "value-bytes", 256, "length of each value")
	flag.BoolVar(&set.syncs, "syncs", false, "count the syncs of one put after the other instead, by strace")
	flag.StringVar(&set.only, "only", "", "these loads only, with commas between")
	dir := flag.String("dir", "", "where the servers keep their data (a directory for temporary files otherwise)")
	out := flag.String("json", "", "file to write all figures to")
	saved := flag.String("table", "", "print the table of a file that --json wrote, and measure nothing")
	flag.Parse()
	if *saved != "" {
		var all []figures
		text, err := os.ReadFile(*saved)
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("%s: no figures", *saved)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		table(os.Stdout, all)
		return
	}
	if len(list) == 0 || flag.NArg() != 0 || set.seconds < 1 || set.runs < 1 || set.keys < 1 || set.fill < set.keys || set.valueBytes < 1 {
		fmt.Fprintln(os.Stderr, "give --server at least once, numbers above 0, and no fewer puts of --fill than --keys")
		os.Exit(2)
	}
	work, err := os.MkdirTemp(*dir, "systems-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	all, err := turns(list, set, work)
	if gone := os.RemoveAll(work); gone != nil {
		fmt.Fprintln(os.Stderr, gone)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *out != "" {
		text, _ := json.MarshalIndent(all, "", " ")
		if err := os.WriteFile(*out, text, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	table(os.Stdout, all)
	for _, one := range all {
		if one.Others > 0.1 {
			fmt.Fprintf(os.Stderr, "disturbed: %.2f processors were busy with something else during %s at %s\n", one.Others, one.Load, one.Server)
		}
	}
}

// figures are those of one load at one server, in one run.
type figures struct {
	Load   string  `json:"load"`
	Server string  `json:"server"`
	Rate   float64 `json:"per_second"`
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
	CPU    float64 `json:"server_cpu_us"`
	// Written is what the server gave to the disk for each operation, in bytes.
	Written float64 `json:"written_bytes"`
	// Others is how many processors were busy with something else meanwhile.
	Others float64 `json:"others"`
	// Syncs of each put, with --syncs only.
	Syncs float64 `json:"syncs,omitempty"`
	// Of the fill only: memory and files after it.
	MemoryMB float64 `json:"memory_mb,omitempty"`
	FilesMB  float64 `json:"files_mb,omitempty"`
}

func turns(list servers, set options, work string) ([]figures, error) {
	var all []figures
	for run := range set.runs {
		for _, one := range list {
			dir := filepath.Join(work, fmt.Sprintf("%s-%d", one.name, run))
			these, err := turn(one, set, dir)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", one.name, err)
			}
			all = append(all, these...)
			if err := os.RemoveAll(dir); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// turn is one server, from its start with nothing to its end.
func turn(one named, set options, dir string) ([]figures, error) {
	server, err := start(one, dir, set.syncs)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	if set.syncs {
		found, err := countSyncs(server, set)
		return []figures{found}, err
	}
	var all []figures
	note := func(found figures, err error) error {
		found.Server = one.name
		all = append(all, found)
		if err == nil {
			fmt.Fprintf(os.Stderr, "%-12s %-12s %9.0f/s  p50 %7.3f  p99 %7.3f ms  cpu %6.1f us  others %.2f\n",
				one.name, found.Load, found.Rate, found.P50, found.P99, found.CPU, found.Others)
		}
		return err
	}
	if err := note(fill(server, set)); err != nil {
		return nil, fmt.Errorf("fill: %w", err)
	}
	for _, what := range []load{
		{"put", 1, put}, {"put", 64, put}, {"get", 1, get}, {"get", 64, get}, {"get-local", 64, getLocal},
	} {
		name := fmt.Sprintf("%s-%d", what.name, what.clients)
		if !wanted(set, name) {
			continue
		}
		if err := note(timed(server, set, name, what)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if wanted(set, "watch") {
		if err := note(watched(server, set)); err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
	}
	return all, nil
}

func wanted(set options, name string) bool {
	return set.only == "" || slices.Contains(strings.Split(set.only, ","), name)
}

// table prints the medians of all runs, a column for each server; behind a rate stand the lowest and the highest.
func table(out *os.File, all []figures) {
	var loads, servers []string
	for _, one := range all {
		if !slices.Contains(loads, one.Load) {
			loads = append(loads, one.Load)
		}
		if !slices.Contains(servers, one.Server) {
			servers = append(servers, one.Server)
		}
	}
	fmt.Fprintf(out, "| load | | %s |\n|---|---|%s\n", strings.Join(servers, " | "), strings.Repeat("---|", len(servers)))
	for _, name := range loads {
		shown := name
		row := func(what string, cell func(values func(func(figures) float64) []float64) string) {
			fmt.Fprintf(out, "| %s | %s |", shown, what)
			for _, server := range servers {
				if !slices.ContainsFunc(all, func(one figures) bool { return one.Load == name && one.Server == server }) {
					fmt.Fprint(out, " |")
					continue
				}
				fmt.Fprintf(out, " %s |", cell(func(which func(figures) float64) []float64 {
					var values []float64
					for _, one := range all {
						if one.Load == name && one.Server == server {
							values = append(values, which(one))
						}
					}
					slices.Sort(values)
					return values
				}))
			}
			fmt.Fprintln(out)
			shown = ""
		}
		middle := func(what, format string, which func(figures) float64) {
			row(what, func(values func(func(figures) float64) []float64) string {
				return fmt.Sprintf(format, median(values(which)))
			})
		}
		if name == "syncs" {
			middle("of a put", "%.2f", func(f figures) float64 { return f.Syncs })
			continue
		}
		fill := name == "fill"
		row("per second", func(values func(func(figures) float64) []float64) string {
			rates := values(func(f figures) float64 { return f.Rate })
			return fmt.Sprintf("%.0f (%.0f to %.0f)", median(rates), rates[0], rates[len(rates)-1])
		})
		middle("p50, ms", "%.2f", func(f figures) float64 { return f.P50 })
		middle("p99, ms", "%.2f", func(f figures) float64 { return f.P99 })
		middle("server CPU, us", "%.0f", func(f figures) float64 { return f.CPU })
		if fill {
			middle("written to the disk for each, bytes", "%.0f", func(f figures) float64 { return f.Written })
			middle("memory then, MB", "%.0f", func(f figures) float64 { return f.MemoryMB })
			middle("files then, MB", "%.0f", func(f figures) float64 { return f.FilesMB })
		}
	}
}

// median of values in order.
func median(values []float64) float64 {
	half := len(values) / 2
	if len(values)%2 == 1 {
		return values[half]
	}
	return (values[half-1] + values[half]) / 2
}

// pause is how long a start may take.
const pause = 60 * time.Second
