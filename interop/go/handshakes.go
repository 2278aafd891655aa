package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// handshakeFigures is what `interop handshakes` prints. Latencies are those of
// linearizable ranges of established clients, in milliseconds.
type handshakeFigures struct {
	Connections int     `json:"connections"`
	Failed      int     `json:"failed"`
	Seconds     float64 `json:"seconds"`
	CPUMicros   float64 `json:"cpu_us"`
	P50Before   float64 `json:"p50_before_ms"`
	P99Before   float64 `json:"p99_before_ms"`
	P50During   float64 `json:"p50_during_ms"`
	P99During   float64 `json:"p99_during_ms"`
	MaxDuring   float64 `json:"max_during_ms"`
}

// runHandshakes lets many TLS connections arrive at once, and measures what a
// handshake costs the server and what established clients feel. Those are in a
// process of their own, and the one that makes the connections has the lowest
// priority: what they feel then comes from the server.
func runHandshakes(args []string) int {
	flags := flag.NewFlagSet("handshakes", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "endpoint (host:port)")
	info := transport.TLSInfo{}
	flags.StringVar(&info.TrustedCAFile, "cacert", "", "authority of the server")
	flags.StringVar(&info.CertFile, "cert", "", "certificate of the clients")
	flags.StringVar(&info.KeyFile, "key", "", "its key")
	connections := flags.Int("connections", 5000, "connections that arrive at once")
	resume := flags.Bool("resume", false, "let connections resume the session of the first one")
	established := flags.Int("established", 10, "clients that are there before and ask for ranges all the time; 0: none")
	rate := flags.Int("rate", 100, "ranges of each of them in a second")
	quiet := flags.Duration("quiet", 5*time.Second, "time to measure them before the others come")
	priority := flags.String("load-priority", "chrt --idle 0", "command by which the process that makes the connections runs")
	pid := flags.Int("pid", 0, "process of the server, to measure its CPU")
	_ = flags.Parse(args) // ExitOnError
	if *endpoint == "" || info.TrustedCAFile == "" {
		flags.Usage()
		return 2
	}
	figures, err := handshakes(*endpoint, info, *connections, *resume, *established, *rate, *quiet, *pid,
		strings.Fields(*priority))
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop handshakes:", err)
		return 2
	}
	out, err := json.Marshal(figures)
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop handshakes:", err)
		return 2
	}
	fmt.Println(string(out))
	return 0
}

// latencies gathers durations; which of two phases they belong to is decided
// when the request begins.
type latencies struct {
	sync.Mutex
	during atomic.Bool
	phases [2][]time.Duration
}

func (l *latencies) phase() int {
	if l.during.Load() {
		return 1
	}
	return 0
}

func (l *latencies) add(phase int, took time.Duration) {
	l.Lock()
	l.phases[phase] = append(l.phases[phase], took)
	l.Unlock()
}

func handshakes(endpoint string, info transport.TLSInfo, connections int, resume bool, established, rate int,
	quiet time.Duration, pid int, priority []string) (handshakeFigures, error) {
	var figures handshakeFigures
	config, err := info.ClientConfig()
	if err != nil {
		return figures, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	// Runs after the cancel below it: readers end first.
	defer readers.Wait()
	defer cancel()
	seen := &latencies{}
	for range established {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{"https://" + endpoint}, TLS: config.Clone(), DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return figures, err
		}
		if _, err := client.Get(ctx, "handshakes"); err != nil {
			return figures, err
		}
		readers.Add(1)
		go func() {
			defer readers.Done()
			defer client.Close()
			readAtRate(ctx, client, rate, seen)
		}()
	}
	if established > 0 {
		time.Sleep(quiet)
	}
	seen.during.Store(true)
	if established == 0 {
		figures, err = arrive(endpoint, config, connections, resume, pid)
	} else {
		figures, err = arriveNicely(endpoint, info, connections, resume, pid, priority)
	}
	if err != nil {
		return figures, err
	}
	cancel()
	readers.Wait()
	figures.P50Before, figures.P99Before = ms(percentile(seen.phases[0], 50)), ms(percentile(seen.phases[0], 99))
	figures.P50During, figures.P99During = ms(percentile(seen.phases[1], 50)), ms(percentile(seen.phases[1], 99))
	figures.MaxDuring = ms(percentile(seen.phases[1], 100))
	return figures, nil
}

// arrive makes the connections in this process.
func arrive(endpoint string, config *tls.Config, connections int, resume bool, pid int) (handshakeFigures, error) {
	figures := handshakeFigures{Connections: connections}
	if resume {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(connections)
		if err := primeSession(endpoint, config); err != nil {
			return figures, err
		}
	}
	before := cpuMicros(pid)
	began := time.Now()
	held, failed := openAll(endpoint, config, connections)
	figures.Seconds = time.Since(began).Seconds()
	figures.CPUMicros = (cpuMicros(pid) - before) / float64(connections)
	figures.Failed = failed
	for _, conn := range held {
		conn.Close()
	}
	return figures, nil
}

// arriveNicely makes them in a process of its own, with the lowest priority.
func arriveNicely(endpoint string, info transport.TLSInfo, connections int, resume bool, pid int,
	priority []string) (handshakeFigures, error) {
	var figures handshakeFigures
	program, err := os.Executable()
	if err != nil {
		return figures, err
	}
	words := append(priority, program, "handshakes", "--endpoint", endpoint, "--cacert", info.TrustedCAFile,
		"--cert", info.CertFile, "--key", info.KeyFile, "--connections", strconv.Itoa(connections),
		"--resume="+strconv.FormatBool(resume), "--pid", strconv.Itoa(pid), "--established", "0")
	command := exec.Command(words[0], words[1:]...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return figures, err
	}
	return figures, json.Unmarshal(out, &figures)
}

// readAtRate begins ranges at fixed times, whatever the server does: a latency
// counts from the time at which the range was meant to begin.
func readAtRate(ctx context.Context, client *clientv3.Client, rate int, seen *latencies) {
	step := time.Second / time.Duration(rate)
	for at := time.Now(); ctx.Err() == nil; at = at.Add(step) {
		if wait := time.Until(at); wait > 0 {
			time.Sleep(wait)
		}
		phase := seen.phase()
		if _, err := client.Get(ctx, "handshakes"); err != nil {
			if ctx.Err() != nil {
				return
			}
			fmt.Fprintln(os.Stderr, "interop handshakes: range:", err)
		}
		seen.add(phase, time.Since(at))
	}
}

// openAll makes all connections at once and keeps them.
func openAll(endpoint string, config *tls.Config, connections int) (held []net.Conn, failed int) {
	var mutex sync.Mutex
	var all sync.WaitGroup
	for range connections {
		all.Add(1)
		go func() {
			defer all.Done()
			conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", endpoint, config)
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				if failed++; failed <= 3 {
					fmt.Fprintln(os.Stderr, "interop handshakes:", err)
				}
				return
			}
			held = append(held, conn)
		}()
	}
	all.Wait()
	return held, failed
}

// primeSession makes a connection whose ticket the next ones show. With TLS 1.3
// tickets come after the handshake, so something has to be read.
func primeSession(endpoint string, config *tls.Config) error {
	conn, err := tls.Dial("tcp", endpoint, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET /version HTTP/1.1\r\nHost: " + endpoint + "\r\nConnection: close\r\n\r\n")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1024))
	return err
}

// cpuMicros is the time that a process has used, in microseconds; 0 without one.
func cpuMicros(pid int) float64 {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	// Linux counts in hundredths of a second.
	return (user + system) * 1e4
}
