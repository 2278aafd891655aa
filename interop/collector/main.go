// Command collector runs a real OpenTelemetry collector by packaging/otel/collector.yaml, with a member that sends it spans and is scraped.
//
//	go run -tags remove_all_sd . --config ../../packaging/otel/collector.yaml --server PATH/mainstay
//
// Only addresses are replaced. What the collector exports has to arrive at a server for OTLP over HTTP: spans of the member's calls, and
// its metrics. Each of the mistakes that are planted in copies of the file has to keep the collector from starting. Ends with "N passed, M failed".
// The build tag leaves out Prometheus' discovery of clouds.
package main

import (
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func factories() (otelcol.Factories, error) {
	var made otelcol.Factories
	var err error
	if made.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory(), prometheusreceiver.NewFactory()); err != nil {
		return made, err
	}
	if made.Processors, err = otelcol.MakeFactoryMap[processor.Factory](batchprocessor.NewFactory(), memorylimiterprocessor.NewFactory()); err != nil {
		return made, err
	}
	made.Telemetry = otelconftelemetry.NewFactory()
	made.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](otlphttpexporter.NewFactory())
	return made, err
}

func collector(path string) (*otelcol.Collector, error) {
	return otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo:               component.NewDefaultBuildInfo(),
		Factories:               factories,
		DisableGracefulShutdown: true,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs:              []string{"file:" + path},
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		}},
		LoggingOptions: []zap.Option{zap.IncreaseLevel(zapcore.FatalLevel)},
	})
}

// validate does what `otelcol validate` does.
func validate(folder, text string) error {
	path := filepath.Join(folder, "validated.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	made, err := collector(path)
	if err != nil {
		return err
	}
	return made.DryRun(context.Background())
}

// sink takes what the collector exports, and notes the names of spans and metrics, and the services that they are of.
type sink struct {
	mu             sync.Mutex
	spans, metrics map[string]bool
}

func (s *sink) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	body := io.Reader(request.Body)
	if request.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(request.Body)
		if err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	text, err := io.ReadAll(body)
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch request.URL.Path {
	case "/v1/traces":
		taken := ptraceotlp.NewExportRequest()
		if err = taken.UnmarshalProto(text); err != nil {
			break
		}
		for _, resource := range taken.Traces().ResourceSpans().All() {
			service, _ := resource.Resource().Attributes().Get("service.name")
			for _, scope := range resource.ScopeSpans().All() {
				for _, span := range scope.Spans().All() {
					s.spans[service.AsString()+" "+span.Name()] = true
				}
			}
		}
	case "/api/v1/otlp/v1/metrics":
		taken := pmetricotlp.NewExportRequest()
		if err = taken.UnmarshalProto(text); err != nil {
			break
		}
		for _, resource := range taken.Metrics().ResourceMetrics().All() {
			service, _ := resource.Resource().Attributes().Get("service.name")
			for _, scope := range resource.ScopeMetrics().All() {
				for _, metric := range scope.Metrics().All() {
					s.metrics[service.AsString()+" "+metric.Name()] = true
				}
			}
		}
	default:
		err = fmt.Errorf("no such page: %s", request.URL.Path)
	}
	if err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
	}
}

func (s *sink) has(of func(*sink) map[string]bool, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return of(s)[name]
}

// address is one of the loopback that nobody listens on.
func address() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func waits(what string, is func() bool) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if is() {
			return nil
		}
	}
	return errors.New(what + " did not come")
}

type tally struct{ passed, failed int }

func (t *tally) check(what string, err error) {
	if err == nil {
		t.passed++
		return
	}
	t.failed++
	fmt.Printf("FAILED %s: %v\n", what, err)
}

func main() {
	config := flag.String("config", "", "the collector's configuration")
	server := flag.String("server", "", "the member's program")
	flag.Parse()
	if *config == "" || *server == "" {
		fmt.Fprintln(os.Stderr, "collector: --config and --server are needed")
		os.Exit(2)
	}
	folder, err := os.MkdirTemp("", "collector")
	if err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(2)
	}
	t := &tally{}
	err = run(t, folder, *config, *server)
	_ = os.RemoveAll(folder)
	if err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(2)
	}
	fmt.Printf("%d passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 {
		os.Exit(1)
	}
}

func run(t *tally, folder, config, server string) error {
	bytes, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	text := string(bytes)
	t.check("the collector takes the file", validate(folder, text))
	for what, mistake := range map[string][2]string{
		"a receiver that is not there":    {"receivers: [otlp]", "receivers: [otlb]"},
		"a field that is not there":       {"limit_mib:", "limit_mb:"},
		"a field of Prometheus":           {"scrape_interval:", "scrape_intervall:"},
		"an interval that is none":        {"scrape_interval: 15s", "scrape_interval: often"},
		"an exporter without an endpoint": {"    endpoint: http://traces:4318\n", "    endpoint: \"\"\n"},
	} {
		changed := strings.Replace(text, mistake[0], mistake[1], 1)
		err := errors.New("could not be planted")
		if changed != text {
			if err = nil; validate(folder, changed) == nil {
				err = errors.New("was not found")
			}
		}
		t.check("planted in the collector's file: "+what, err)
	}

	noted := &sink{spans: map[string]bool{}, metrics: map[string]bool{}}
	exported := httptest.NewServer(noted)
	defer exported.Close()
	addresses := map[string]string{}
	for _, name := range []string{"otlp", "client", "peer", "metrics"} {
		if addresses[name], err = address(); err != nil {
			return err
		}
	}
	for _, replacement := range [][2]string{
		{"0.0.0.0:4317", addresses["otlp"]},
		{`["m1:2381", "m2:2381", "m3:2381"]`, `["` + addresses["metrics"] + `"]`},
		{"http://traces:4318", exported.URL},
		{"http://prometheus:9090", exported.URL},
		{"scrape_interval: 15s", "scrape_interval: 1s"},
	} {
		if !strings.Contains(text, replacement[0]) {
			return fmt.Errorf("%s: there is no %s", config, replacement[0])
		}
		text = strings.Replace(text, replacement[0], replacement[1], 1)
	}
	// The collector's own figures, at a port that others may have.
	text += "  telemetry:\n    metrics:\n      level: none\n"
	path := filepath.Join(folder, "collector.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	made, err := collector(path)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- made.Run(context.Background()) }()
	t.check("the collector runs", waits("that it runs", func() bool { return made.GetState() == otelcol.StateRunning }))

	// The flags that the file names, with every call traced.
	flags := regexp.MustCompile(`--[a-z-]*distributed-tracing[a-z-]*(?:=\S+)?`).FindAllString(string(bytes), -1)
	var given []string
	for _, one := range flags {
		one = strings.Replace(one, "COLLECTOR:4317", addresses["otlp"], 1)
		one = strings.Replace(one, "sampling-rate=100", "sampling-rate=1000000", 1)
		if one == "--distributed-tracing-instance-id" {
			one += "=m1"
		}
		given = append(given, one)
	}
	if len(given) != 4 {
		return fmt.Errorf("%s names the flags %q", config, flags)
	}
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	member := exec.Command(server, append([]string{
		"--name=m1", "--data-dir=" + filepath.Join(folder, "data"),
		"--listen-client-urls=http://" + addresses["client"], "--advertise-client-urls=http://" + addresses["client"],
		"--listen-peer-urls=http://" + addresses["peer"], "--initial-advertise-peer-urls=http://" + addresses["peer"],
		"--initial-cluster=m1=http://" + addresses["peer"], "--listen-metrics-urls=http://" + addresses["metrics"],
	}, given...)...)
	member.Stdout, member.Stderr = log, log
	if err := member.Start(); err != nil {
		return err
	}
	put := func() bool {
		done := exec.Command(server, "ctl", "--endpoints=http://"+addresses["client"], "put", "k", "v")
		return done.Run() == nil
	}
	t.check("the member serves", waits("an answer", put))
	spans := func(s *sink) map[string]bool { return s.spans }
	metrics := func(s *sink) map[string]bool { return s.metrics }
	t.check("a span", waits("a span of a put", func() bool { return noted.has(spans, "etcd etcdserverpb.KV/Put") }))
	for _, name := range []string{"etcd_server_has_leader", "mainstay_request_stage_seconds", "grpc_server_handled_total"} {
		t.check("a metric", waits(name, func() bool { return noted.has(metrics, "mainstay "+name) }))
	}
	if err := member.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	t.check("the member ends", func() error {
		if err := member.Wait(); err != nil {
			return err
		}
		return nil
	}())
	made.Shutdown()
	t.check("the collector ends", <-ended)
	return nil
}
