package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// runDrain drains the connections of a member again and again while etcd's own
// client works on it. No call may fail, a watch may miss nothing, and a lease
// and a lock that waits must live on.
func runDrain(args []string) int {
	flags := flag.NewFlagSet("drain", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "endpoint to test (host:port)")
	program := flags.String("mainstay", "", "program whose `ctl connections drain` gives the order")
	clients := flags.Int("clients", 20, "clients that put all the time")
	rounds := flags.Int("rounds", 10, "times that all connections are drained")
	info := tlsFlags(flags)
	_ = flags.Parse(args) // ExitOnError
	if *endpoint == "" || *program == "" {
		flags.Usage()
		return 2
	}
	d := &drainCheck{tally: &tally{show: 20}, endpoint: hostPort(*endpoint), info: info}
	if err := d.run(*program, *clients, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "interop drain:", err)
		return 2
	}
	return d.finish()
}

type drainCheck struct {
	*tally
	endpoint string
	info     *transport.TLSInfo
}

func (d *drainCheck) dial() (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: []string{d.endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}
	if d.info.TrustedCAFile != "" {
		secured, err := d.info.ClientConfig()
		if err != nil {
			return nil, err
		}
		config.TLS = secured
		config.Endpoints = []string{"https://" + d.endpoint}
	}
	return clientv3.New(config)
}

func (d *drainCheck) run(program string, clients, rounds int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	prefix := fmt.Sprintf("drain/%d/", time.Now().UnixNano())
	watching, err := d.dial()
	if err != nil {
		return err
	}
	defer watching.Close()
	events := watching.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if created := <-events; created.Err() != nil || !created.Created {
		return fmt.Errorf("no watch: %v", created.Err())
	}

	// A lock that another session holds until the end.
	first, err := concurrency.NewSession(watching, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	held := concurrency.NewMutex(first, prefix+"lock")
	if err := held.Lock(ctx); err != nil {
		return err
	}
	other, err := d.dial()
	if err != nil {
		return err
	}
	defer other.Close()
	second, err := concurrency.NewSession(other, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	locked := make(chan error, 1)
	go func() { locked <- concurrency.NewMutex(second, prefix+"lock").Lock(ctx) }()

	var stop atomic.Bool
	var writers sync.WaitGroup
	var puts atomic.Int64
	for n := range clients {
		client, err := d.dial()
		if err != nil {
			return err
		}
		defer client.Close()
		writers.Add(1)
		go func() {
			defer writers.Done()
			for i := 0; !stop.Load(); i++ {
				_, err := client.Put(ctx, fmt.Sprintf("%sput/%d", prefix, n), fmt.Sprint(i))
				d.check(err == nil, "put: %v", err)
				if err == nil {
					puts.Add(1)
				}
				_, err = client.Get(ctx, fmt.Sprintf("%sput/%d", prefix, n))
				d.check(err == nil, "get: %v", err)
			}
		}()
	}
	for range rounds {
		words := []string{"ctl", "--endpoints", d.endpoint, "connections", "drain", "--percent", "100", "--over", "300ms"}
		if d.info.TrustedCAFile != "" {
			words = append(words, "--cacert", d.info.TrustedCAFile, "--cert", d.info.CertFile, "--key", d.info.KeyFile)
		}
		before := puts.Load()
		out, err := exec.CommandContext(ctx, program, words...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		fmt.Print(string(out))
		time.Sleep(700 * time.Millisecond)
		d.check(puts.Load() > before, "no put in a round")
	}
	stop.Store(true)
	writers.Wait()
	last, err := watching.Put(ctx, prefix+"put/end", "")
	if err != nil {
		return err
	}
	seen, revision := int64(0), int64(0)
	for revision < last.Header.Revision {
		response, ok := <-events
		if !d.check(ok && response.Err() == nil, "the watch ended: %v", response.Err()) {
			return nil
		}
		for _, event := range response.Events {
			d.check(event.Kv.ModRevision > revision, "revision %d came after %d", event.Kv.ModRevision, revision)
			revision = event.Kv.ModRevision
			if string(event.Kv.Key[:len(prefix)+4]) == prefix+"put/" {
				seen++
			}
		}
	}
	d.check(seen == puts.Load()+1, "the watch saw %d of %d puts", seen, puts.Load()+1)
	select {
	case <-first.Done():
		d.check(false, "the session that holds the lock ended")
	case <-second.Done():
		d.check(false, "the session that waits for the lock ended")
	case err := <-locked:
		d.check(false, "the lock was given, or failed: %v", err)
	default:
		d.check(true, "")
	}
	d.check(held.Unlock(ctx) == nil, "unlock")
	err = <-locked
	d.check(err == nil, "the lock that waited: %v", err)
	fmt.Printf("%d puts, %d rounds\n", puts.Load(), rounds)
	return nil
}
