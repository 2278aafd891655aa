// Evaluates expressions of etcd's alert rules and dashboards, by Prometheus' own engine, over scrapes of the members of a cluster.
//
//	go run . BEFORE,AFTER [BEFORE,AFTER ...]
//
// Each argument names two scrapes of one member; the second counts as five minutes younger. An expression passes if it has a
// result: a series that a rule or a panel asks for is there, with the labels that it selects, joins and groups by. The conditions of
// alerts are left out, since a healthy cluster meets none of them; with --alerts each is evaluated whole and must not fire.
//
//	go run . --ours PACKAGING --troubled BEFORE,AFTER BEFORE,AFTER [BEFORE,AFTER ...]
//
// looks at the rules, alerts, tests of alerts and the dashboard that Mainstay brings itself, in the same way (ours.go).
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

const job = `job=~".*etcd.*"`
const failures = `grpc_code=~"Unknown|FailedPrecondition|ResourceExhausted|Internal|Unavailable|DataLoss|DeadlineExceeded"`

// An alert rule: the side of its condition that has to have a value, and the rest of the condition.
type rule struct{ name, selects, condition string }

var rules = []rule{
	{"etcdMembersDown", `max without (endpoint) (sum without (instance) (up{` + job + `} == bool 0) or count without (To) (sum without (instance) (rate(etcd_network_peer_sent_failures_total{` + job + `}[5m])) > 0.01))`, `> 0`},
	{"etcdInsufficientMembers", `sum(up{` + job + `} == bool 1) without (instance)`, `< ((count(up{` + job + `}) without (instance) + 1) / 2)`},
	{"etcdNoLeader", `etcd_server_has_leader{` + job + `}`, `== 0`},
	{"etcdHighNumberOfLeaderChanges", `increase((max without (instance) (etcd_server_leader_changes_seen_total{` + job + `}) or 0*absent(etcd_server_leader_changes_seen_total{` + job + `}))[15m:1m])`, `>= 4`},
	{"etcdHighNumberOfFailedGRPCRequests", `100 * sum(rate(grpc_server_handled_total{` + job + `, ` + failures + `}[5m])) without (grpc_type, grpc_code) / sum(rate(grpc_server_handled_total{` + job + `}[5m])) without (grpc_type, grpc_code)`, `> 100`},
	{"etcdGRPCRequestsSlow", `histogram_quantile(0.99, sum(rate(grpc_server_handling_seconds_bucket{` + job + `, grpc_method!="Defragment", grpc_type="unary"}[5m])) without (grpc_type))`, `> 100`},
	{"etcdMemberCommunicationSlow", `histogram_quantile(0.99, rate(etcd_network_peer_round_trip_time_seconds_bucket{` + job + `}[5m]))`, `> 100`},
	{"etcdHighNumberOfFailedProposals", `rate(etcd_server_proposals_failed_total{` + job + `}[15m])`, `> 5`},
	{"etcdHighFsyncDurations", `histogram_quantile(0.99, rate(etcd_disk_wal_fsync_duration_seconds_bucket{` + job + `}[5m]))`, `> 100`},
	{"etcdHighCommitDurations", `histogram_quantile(0.99, rate(etcd_disk_backend_commit_duration_seconds_bucket{` + job + `}[5m]))`, `> 100`},
	{"etcdDatabaseQuotaLowSpace", `last_over_time(etcd_mvcc_db_total_size_in_bytes{` + job + `}[5m]) / last_over_time(etcd_server_quota_backend_bytes{` + job + `}[5m]) * 100`, `> 95`},
	{"etcdExcessiveDatabaseGrowth", `predict_linear(etcd_mvcc_db_total_size_in_bytes{` + job + `}[4h], 4*60*60)`, `> 1000 * etcd_server_quota_backend_bytes{` + job + `}`},
	{"etcdDatabaseHighFragmentationRatio", `last_over_time(etcd_mvcc_db_total_size_in_use_in_bytes{` + job + `}[5m]) / last_over_time(etcd_mvcc_db_total_size_in_bytes{` + job + `}[5m])`, `< 0.5 and etcd_mvcc_db_total_size_in_use_in_bytes{` + job + `} > 104857600`},
}

// Panels of dashboards: that of etcd's mixin, and "Etcd by Prometheus" (3070).
var panels = []struct{ name, expression string }{
	{"up", `sum(etcd_server_has_leader{` + job + `})`},
	{"leader", `max(etcd_server_has_leader)`},
	{"leader changes", `max(etcd_server_leader_changes_seen_total)`},
	{"elections in a day", `changes(etcd_server_leader_changes_seen_total[1d])`},
	{"failed proposals", `max(etcd_server_proposals_failed_total)`},
	{"rate of calls", `sum(rate(grpc_server_started_total{grpc_type="unary"}[5m]))`},
	{"rate of failed calls", `sum(rate(grpc_server_handled_total{grpc_type="unary",` + failures + `}[5m]))`},
	{"calls by code", `sum by (grpc_code) (rate(grpc_server_handled_total[5m]))`},
	{"watch streams", `sum(grpc_server_started_total{grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"}) - sum(grpc_server_handled_total{grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"})`},
	{"lease streams", `sum(grpc_server_started_total{grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"}) - sum(grpc_server_handled_total{grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"})`},
	{"database", `etcd_mvcc_db_total_size_in_bytes{` + job + `}`},
	{"fsync", `histogram_quantile(0.99, sum(rate(etcd_disk_wal_fsync_duration_seconds_bucket[5m])) by (instance, le))`},
	{"commit", `histogram_quantile(0.99, sum(rate(etcd_disk_backend_commit_duration_seconds_bucket[5m])) by (instance, le))`},
	{"fsync, mean", `rate(etcd_disk_wal_fsync_duration_seconds_sum[5m]) / rate(etcd_disk_wal_fsync_duration_seconds_count[5m])`},
	{"memory", `process_resident_memory_bytes{` + job + `}`},
	{"processor", `rate(process_cpu_seconds_total{` + job + `}[5m])`},
	{"files", `process_open_fds / process_max_fds`},
	{"files, as etcd counts them", `os_fd_used / os_fd_limit`},
	{"from clients", `rate(etcd_network_client_grpc_received_bytes_total[5m])`},
	{"to clients", `rate(etcd_network_client_grpc_sent_bytes_total[5m])`},
	{"from peers", `sum(rate(etcd_network_peer_received_bytes_total[5m])) by (instance)`},
	{"to peers", `sum(rate(etcd_network_peer_sent_bytes_total[5m])) by (instance)`},
	{"round trips", `histogram_quantile(0.99, sum by (instance, le) (rate(etcd_network_peer_round_trip_time_seconds_bucket[5m])))`},
	{"proposals that failed", `sum(rate(etcd_server_proposals_failed_total[5m]))`},
	{"proposals that wait", `sum(etcd_server_proposals_pending)`},
	{"proposals committed", `sum(rate(etcd_server_proposals_committed_total[5m]))`},
	{"proposals applied", `sum(rate(etcd_server_proposals_applied_total[5m]))`},
	{"committed and not applied", `etcd_server_proposals_committed_total - etcd_server_proposals_applied_total`},
	{"versions", `count by (server_version) (etcd_server_version)`},
	{"version of the cluster", `count by (cluster_version) (etcd_cluster_version == 1)`},
	{"keys", `sum(etcd_debugging_mvcc_keys_total) by (instance)`},
	{"slow watchers", `etcd_debugging_mvcc_slow_watcher_total`},
	{"slow applies", `rate(etcd_server_slow_apply_total[5m])`},
	{"slow read indexes", `rate(etcd_server_slow_read_indexes_total[5m])`},
	{"snapshots to clients", `histogram_quantile(0.99, rate(etcd_disk_backend_snapshot_duration_seconds_bucket[5m]))`},
}

// Time between the two scrapes of a member.
const between = 5 * time.Minute

func main() {
	alerts := flag.Bool("alerts", true, "also evaluate the conditions of alerts, which must not hold")
	folder := flag.String("ours", "", "look at what is in this folder, packaging/ of the repository")
	troubled := flag.String("troubled", "", "with --ours, two scrapes of a member that has raised NOSPACE")
	flag.Parse()
	if flag.NArg() == 0 || (*folder != "") != (*troubled != "") {
		fmt.Fprintln(os.Stderr, "promql: name two scrapes of each member, with a comma between them")
		os.Exit(2)
	}
	var passed, failed int
	var err error
	if *folder != "" {
		passed, failed, err = checkOurs(*folder, flag.Args(), *troubled)
	} else {
		passed, failed, err = evaluate(flag.Args(), *alerts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(2)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func evaluate(members []string, alerts bool) (passed, failed int, err error) {
	database := &memory{series: map[string]*kept{}}
	now := time.Now()
	for i, member := range members {
		if err := loadBoth(database, member, "etcd", fmt.Sprintf("10.0.0.%d:2379", i+1), now); err != nil {
			return 0, 0, err
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	count := func(name, expression string) int {
		query, err := engine.NewInstantQuery(context.Background(), database, nil, expression, now)
		if err != nil {
			fmt.Printf("FAILED %s: %v\n", name, err)
			return -1
		}
		defer query.Close()
		result := query.Exec(context.Background())
		if result.Err != nil {
			fmt.Printf("FAILED %s: %v\n", name, result.Err)
			return -1
		}
		vector, err := result.Vector()
		if err != nil {
			fmt.Printf("FAILED %s: %v\n", name, err)
			return -1
		}
		return len(vector)
	}
	check := func(name, expression string) {
		switch count(name, expression) {
		case -1:
			failed++
		case 0:
			failed++
			fmt.Printf("FAILED %s: no series: %s\n", name, expression)
		default:
			passed++
		}
	}
	for _, rule := range rules {
		check(rule.name, rule.selects)
		if !alerts {
			continue
		}
		switch count(rule.name, "("+rule.selects+") "+rule.condition) {
		case 0:
			passed++
		case -1:
			failed++
		default:
			failed++
			fmt.Printf("FAILED %s: fires in a healthy cluster\n", rule.name)
		}
	}
	for _, panel := range panels {
		check("panel "+panel.name, panel.expression)
	}
	return passed, failed, nil
}

// loadBoth adds the two scrapes of a member.
func loadBoth(database *memory, member, job, instance string, now time.Time) error {
	before, after, ok := strings.Cut(member, ",")
	if !ok {
		return fmt.Errorf("%s: two files are needed", member)
	}
	// The first scrape stands for the minutes before, too, so that windows of five minutes hold several samples.
	for at := now.Add(-between); at.Before(now); at = at.Add(time.Minute) {
		if err := load(database, before, job, instance, at); err != nil {
			return err
		}
	}
	return load(database, after, job, instance, now)
}

// load adds a scrape to the database, with the labels that Prometheus gives to a target.
func load(database *memory, path, job, instance string, at time.Time) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	scrape := textparse.NewPromParser(text, labels.NewSymbolTable(), false)
	add := func(of labels.Labels, value float64) {
		builder := labels.NewBuilder(of)
		builder.Set("job", job).Set("instance", instance)
		database.add(builder.Labels(), at.UnixMilli(), value)
	}
	add(labels.FromStrings("__name__", "up"), 1)
	for {
		entry, err := scrape.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := scrape.Series()
		var of labels.Labels
		scrape.Labels(&of)
		add(of, value)
	}
}

// memory is a database of few series, which are looked through one by one.
type memory struct{ series map[string]*kept }

type kept struct {
	labels  labels.Labels
	samples []chunks.Sample
}

type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

func (m *memory) add(of labels.Labels, at int64, value float64) {
	name := of.String()
	if m.series[name] == nil {
		m.series[name] = &kept{labels: of}
	}
	m.series[name].samples = append(m.series[name].samples, sample{at, value})
}

func (m *memory) Querier(_, _ int64) (storage.Querier, error) { return m, nil }

func (m *memory) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, series := range m.series {
		fits := true
		for _, matcher := range matchers {
			fits = fits && matcher.Matches(series.labels.Get(matcher.Name))
		}
		if fits {
			found = append(found, storage.NewListSeries(series.labels, series.samples))
		}
	}
	sort.Slice(found, func(i, j int) bool { return labels.Compare(found[i].Labels(), found[j].Labels()) < 0 })
	return &list{series: found, at: -1}
}

// list is what was found, in order.
type list struct {
	series []storage.Series
	at     int
}

func (l *list) Next() bool                        { l.at++; return l.at < len(l.series) }
func (l *list) At() storage.Series                { return l.series[l.at] }
func (l *list) Err() error                        { return nil }
func (l *list) Warnings() annotations.Annotations { return nil }

func (m *memory) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (m *memory) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (m *memory) Close() error { return nil }
