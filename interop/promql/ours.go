package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// What Grafana fills into the expressions of the dashboard.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$job", "mainstay", "$instance", ".*")

// readRules reads a file of rules as Prometheus does, and as `promtool check rules`.
func readRules(path string, language parser.Parser) ([]rulefmt.Rule, error) {
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, language, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	var rules []rulefmt.Rule
	for _, group := range groups.Groups {
		rules = append(rules, group.Rules...)
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s has no rules", path)
	}
	return rules, nil
}

// ours evaluates the rules, alerts and panels that Mainstay brings over scrapes, and their tests.
type ours struct {
	engine         *promql.Engine
	language       parser.Parser
	records        []rulefmt.Rule
	alerts         []rulefmt.Rule
	passed, failed int
}

func (o *ours) check(what string, err error) {
	if err == nil {
		o.passed++
		return
	}
	o.failed++
	fmt.Printf("FAILED %s: %v\n", what, err)
}

func (o *ours) vector(database *memory, expression string, at time.Time) (promql.Vector, error) {
	query, err := o.engine.NewInstantQuery(context.Background(), database, nil, expression, at)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		return nil, result.Err
	}
	if number, err := result.Scalar(); err == nil {
		return promql.Vector{{F: number.V}}, nil
	}
	found, err := result.Vector()
	// The engine takes the memory back when the query is closed.
	return slices.Clone(found), err
}

// record adds the series that recording rules make at a time.
func (o *ours) record(database *memory, rules []rulefmt.Rule, at time.Time) error {
	for _, rule := range rules {
		found, err := o.vector(database, rule.Expr, at)
		if err != nil {
			return fmt.Errorf("%s: %w", rule.Record, err)
		}
		for _, sample := range found {
			database.add(labels.NewBuilder(sample.Metric).Set("__name__", rule.Record).Labels(), at.UnixMilli(), sample.F)
		}
	}
	return nil
}

// checkOurs looks at the files in a folder like packaging/. Members are scrapes as in `evaluate`; the troubled one has raised NOSPACE.
func checkOurs(folder string, members []string, troubled string) (passed, failed int, err error) {
	language := parser.NewParser(parser.Options{})
	o := &ours{
		engine:   promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, Parser: language}),
		language: language,
	}
	rules := filepath.Join(folder, "prometheus")
	o.records, err = readRules(filepath.Join(rules, "mainstay-rules.yaml"), language)
	o.check("Prometheus reads the recording rules", err)
	o.alerts, err = readRules(filepath.Join(rules, "mainstay-alerts.yaml"), language)
	o.check("Prometheus reads the alerts", err)
	if o.failed > 0 {
		return o.passed, o.failed, nil
	}
	o.checkPlanted(filepath.Join(rules, "mainstay-alerts.yaml"))

	database := &memory{series: map[string]*kept{}}
	now := time.Now()
	for i, member := range members {
		if err := loadBoth(database, member, "mainstay", fmt.Sprintf("10.0.0.%d:2381", i+1), now); err != nil {
			return 0, 0, err
		}
	}
	if err := loadBoth(database, troubled, "mainstay-troubled", "10.0.1.1:2381", now); err != nil {
		return 0, 0, err
	}
	for _, rule := range o.records {
		found, err := o.vector(database, rule.Expr, now)
		if err == nil && len(found) == 0 {
			err = errors.New("it makes no series")
		}
		o.check("rule "+rule.Record, err)
	}
	if err := o.record(database, o.records, now); err != nil {
		return 0, 0, err
	}
	for _, alert := range o.alerts {
		o.check("what the alert "+alert.Alert+" looks at", o.selectsAll(database, alert.Expr, now))
		found, err := o.vector(database, alert.Expr, now)
		troubles := 0
		for _, sample := range found {
			if sample.Metric.Get("job") == "mainstay-troubled" {
				troubles++
			} else if err == nil {
				err = fmt.Errorf("it holds in a healthy cluster: %s", sample.Metric)
			}
		}
		if alert.Alert == "MainstayAlarm" && err == nil && troubles == 0 {
			err = errors.New("it does not hold at a member that has raised NOSPACE")
		}
		o.check("the alert "+alert.Alert, err)
	}
	if err := o.checkDashboard(database, filepath.Join(folder, "grafana/mainstay.json"), now); err != nil {
		return 0, 0, err
	}
	if err := o.runTests(filepath.Join(rules, "mainstay-test.yaml")); err != nil {
		return 0, 0, err
	}
	return o.passed, o.failed, nil
}

// checkPlanted holds that mistakes in a copy of the alerts are found.
func (o *ours) checkPlanted(path string) {
	text, err := os.ReadFile(path)
	o.check("the alerts", err)
	for what, mistake := range map[string][2]string{
		"an expression that is none":    {"> 0.1\n", "> > 0.1\n"},
		"a template that is none":       {"{{ $labels.instance }}", "{{ $labels.instance }"},
		"a field that is not there":     {"for: 1m", "fore: 1m"},
		"a duration that is none":       {"for: 1m", "for: 1 minute"},
		"an alert without an expr":      {"        expr: |-\n          etcd_server_has_leader == 0\n", ""},
		"a function that is not there":  {"increase(", "increases("},
		"an aggregation with a mistake": {"by (job)", "by job"},
	} {
		changed := strings.Replace(string(text), mistake[0], mistake[1], 1)
		copied := filepath.Join(os.TempDir(), fmt.Sprintf("alerts-%d.yaml", os.Getpid()))
		err := os.WriteFile(copied, []byte(changed), 0o600)
		if err == nil && changed == string(text) {
			err = errors.New("could not be planted")
		}
		if err == nil {
			if _, wrong := readRules(copied, o.language); wrong == nil {
				err = errors.New("was not found")
			}
		}
		o.check("planted in the alerts: "+what, errors.Join(err, os.Remove(copied)))
	}
}

// selectsAll holds that each selector of an expression finds a series.
func (o *ours) selectsAll(database *memory, expression string, at time.Time) error {
	parsed, err := o.language.ParseExpr(expression)
	if err != nil {
		return err
	}
	selectors := 0
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok || err != nil {
			return nil
		}
		selectors++
		found, wrong := o.vector(database, selector.String(), at)
		if wrong == nil && len(found) == 0 {
			wrong = fmt.Errorf("no series: %s", selector)
		}
		err = wrong
		return nil
	})
	if err == nil && selectors == 0 {
		err = errors.New("it looks at nothing")
	}
	return err
}

// checkDashboard evaluates every expression of the dashboard.
func (o *ours) checkDashboard(database *memory, path string, at time.Time) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	panels := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			panels++
			found, err := o.vector(database, variables.Replace(target.Expr), at)
			if err == nil && len(found) == 0 {
				err = fmt.Errorf("no series: %s", target.Expr)
			}
			if err == nil && !strings.Contains(target.Expr, "vector(0)") {
				err = o.selectsAll(database, variables.Replace(target.Expr), at)
			}
			o.check("panel "+panel.Title, err)
		}
	}
	if panels == 0 {
		return fmt.Errorf("%s has no expressions", path)
	}
	return nil
}

// A file for `promtool test rules`.
type tests struct {
	RuleFiles          []string `yaml:"rule_files"`
	EvaluationInterval string   `yaml:"evaluation_interval"`
	Tests              []test
}

type test struct {
	Name        string
	Interval    string
	InputSeries []struct{ Series, Values string } `yaml:"input_series"`
	Expressions []struct {
		Expr    string
		At      string `yaml:"eval_time"`
		Samples []struct {
			Labels string
			Value  float64
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

func (o *ours) runTests(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var file tests
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(file.RuleFiles) != 2 || file.EvaluationInterval != "1m" || len(file.Tests) != 2*len(o.alerts) {
		return fmt.Errorf("%s: two files of rules, steps of a minute and two tests of each alert are expected", path)
	}
	for _, test := range file.Tests {
		o.check("test "+test.Name, o.run(test))
	}
	return nil
}

// run evaluates rules minute by minute, as Prometheus does: an alert fires once its expression has held for so long. Of the rules
// only those are evaluated that the test depends on.
func (o *ours) run(test test) error {
	if test.Interval != "1m" || len(test.Expressions) != 1 || len(test.InputSeries) == 0 {
		return errors.New("series a minute apart and one expression are expected")
	}
	expected := test.Expressions[0]
	var alerts, records []rulefmt.Rule
	for _, alert := range o.alerts {
		if strings.Contains(expected.Expr, `"`+alert.Alert+`"`) {
			alerts = append(alerts, alert)
		}
	}
	if len(alerts) != 1 {
		return fmt.Errorf("it is about %d alerts: %s", len(alerts), expected.Expr)
	}
	for _, rule := range o.records {
		if strings.Contains(alerts[0].Expr, rule.Record) {
			records = append(records, rule)
		}
	}
	end, err := time.ParseDuration(expected.At)
	if err != nil {
		return err
	}
	type input struct {
		labels labels.Labels
		values []parser.SequenceValue
	}
	var inputs []input
	for _, series := range test.InputSeries {
		of, values, err := o.language.ParseSeriesDesc(series.Series + " " + series.Values)
		if err != nil {
			return fmt.Errorf("%s: %w", series.Series, err)
		}
		inputs = append(inputs, input{of, values})
	}
	database := &memory{series: map[string]*kept{}}
	since := map[string]time.Time{}
	for minute := 0; time.Duration(minute)*time.Minute <= end; minute++ {
		at := time.UnixMilli(0).Add(time.Duration(minute) * time.Minute)
		for _, input := range inputs {
			if minute < len(input.values) && !input.values[minute].Omitted {
				database.add(input.labels, at.UnixMilli(), input.values[minute].Value)
			}
		}
		if err := o.record(database, records, at); err != nil {
			return err
		}
		found, err := o.vector(database, alerts[0].Expr, at)
		if err != nil {
			return err
		}
		holds := map[string]time.Time{}
		for _, sample := range found {
			state := "pending"
			name := sample.Metric.String()
			holds[name] = at
			if began, ok := since[name]; ok {
				holds[name] = began
			}
			if at.Sub(holds[name]) >= time.Duration(alerts[0].For) {
				state = "firing"
			}
			of := labels.NewBuilder(sample.Metric).Set("__name__", "ALERTS").Set("alertname", alerts[0].Alert).Set("alertstate", state)
			database.add(of.Labels(), at.UnixMilli(), 1)
		}
		since = holds
	}
	found, err := o.vector(database, expected.Expr, time.UnixMilli(0).Add(end))
	if err != nil {
		return err
	}
	if len(found) != len(expected.Samples) {
		return fmt.Errorf("%d series, not %d: %s", len(found), len(expected.Samples), expected.Expr)
	}
	for i, sample := range found {
		if sample.F != expected.Samples[i].Value || sample.Metric.String() != expected.Samples[i].Labels {
			return fmt.Errorf("%s %v, not %v: %s", sample.Metric, sample.F, expected.Samples[i].Value, expected.Expr)
		}
	}
	return nil
}
