package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"mainstay/interop/cluster"
)

// Keys of the run. Whoever holds the lock, or leads, writes the create revision
// of its key to the fence, which tells who wrote when.
const (
	lockName  = "interop-lock"
	seatName  = "interop-seat"
	lockFence = "fence/lock"
	seatFence = "fence/seat"
	// leaseTTL outlives the loss of a leader.
	leaseTTL = 8
	// patience of one call: a waiting call whose member is gone is made again elsewhere.
	patience = 3 * time.Second
)

// contention is what one contender says at its end.
type contention struct {
	Locks, Terms, Fenced, Refused int
}

// runLocks has processes contend for a lock and for the lead over the gRPC
// services while the leader of the cluster is killed over and over.
func runLocks(ctx context.Context, args []string) int {
	f := newClusterFlags("locks")
	seconds := f.Int("seconds", 30, "length of the run")
	every := f.Duration("every", 5*time.Second, "how often the leader is killed")
	contenders := f.Int("contenders", 2, "processes that contend")
	f.parse(args, false)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*seconds)*time.Second+2*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, f.options(f.servers[0], false))
	if err != nil {
		return cannotRun("locks", err)
	}
	defer c.Close()
	var endpoints []string
	for _, m := range c.Members {
		endpoints = append(endpoints, m.Endpoint)
	}
	type process struct {
		cmd *exec.Cmd
		out bytes.Buffer
	}
	var processes []*process
	for n := range *contenders {
		p := &process{cmd: exec.CommandContext(ctx, os.Args[0], "contend",
			"--endpoints", strings.Join(endpoints, ","), "--seconds", strconv.Itoa(*seconds), "--name", strconv.Itoa(n))}
		p.cmd.Stdout, p.cmd.Stderr = &p.out, os.Stderr
		if err := p.cmd.Start(); err != nil {
			return cannotRun("locks", err)
		}
		processes = append(processes, p)
	}
	t := &tally{show: 20}
	kills, end := 0, time.Now().Add(time.Duration(*seconds)*time.Second)
	for time.Now().Before(end) && pause(ctx, *every) {
		leader, err := c.Leader(ctx)
		if err != nil {
			continue
		}
		leader.Kill()
		kills++
		pause(ctx, time.Second)
		if err := leader.Start(); err != nil {
			return cannotRun("locks", err)
		}
	}
	for n, p := range processes {
		if err := p.cmd.Wait(); !t.check(err == nil, "contender %d: %v", n, err) {
			continue
		}
		var said contention
		if err := json.Unmarshal(p.out.Bytes(), &said); !t.check(err == nil, "contender %d said %q", n, p.out.String()) {
			continue
		}
		fmt.Printf("contender %d  %d locks, %d terms, %d writes fenced off, %d calls made again\n", n, said.Locks, said.Terms, said.Fenced, said.Refused)
		t.check(said.Locks > 0, "contender %d never had the lock", n)
		t.check(said.Terms > 0, "contender %d never led", n)
	}
	if err := c.WaitHealthy(ctx, c.Members...); !t.check(err == nil, "the cluster is healthy again: %v", err) {
		return t.finish()
	}
	client, err := cluster.Client(c.Members...)
	if err != nil {
		return cannotRun("locks", err)
	}
	defer client.Close()
	for _, fence := range []string{lockFence, seatFence} {
		writes, disorder, err := fenceHistory(ctx, client, fence)
		t.check(err == nil, "history of %s: %v", fence, err)
		t.check(disorder == 0, "%s: %d of %d writes came behind one of a younger key", fence, disorder, writes)
		t.check(writes > 0, "%s: nobody wrote", fence)
	}
	// Leases end, and with them whatever a killed call left.
	for _, name := range []string{lockName, seatName} {
		left := int64(1)
		for deadline := time.Now().Add(4 * leaseTTL * time.Second); left > 0 && time.Now().Before(deadline); pause(ctx, 200*time.Millisecond) {
			if r, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err == nil {
				left = r.Count
			}
		}
		t.check(left == 0, "%d keys of %s are left", left, name)
	}
	t.check(kills > 0, "no leader was killed")
	fmt.Printf("leaders killed %d\n", kills)
	return t.finish()
}

// fenceHistory reads all that was written to a fence, and counts the writes by
// keys that are older than that of an earlier write: two had the lock at once.
func fenceHistory(ctx context.Context, client *clientv3.Client, fence string) (writes, disorder int, err error) {
	now, err := client.Get(ctx, fence)
	if err != nil || len(now.Kvs) == 0 {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	youngest := int64(0)
	for r := range client.Watch(ctx, fence, clientv3.WithRev(1)) {
		if r.Err() != nil {
			return writes, disorder, r.Err()
		}
		for _, e := range r.Events {
			created, err := strconv.ParseInt(string(e.Kv.Value), 10, 64)
			if err != nil {
				return writes, disorder, err
			}
			writes++
			if created < youngest {
				disorder++
			}
			youngest = max(youngest, created)
			if e.Kv.ModRevision >= now.Kvs[0].ModRevision {
				return writes, disorder, nil
			}
		}
	}
	return writes, disorder, errors.New("the watch ended")
}

// runContend is one contender.
func runContend(args []string) int {
	flags := flag.NewFlagSet("contend", flag.ExitOnError)
	list := flags.String("endpoints", "", "members, with commas between them")
	seconds := flags.Int("seconds", 10, "how long to contend")
	name := flags.String("name", "", "name of this contender")
	_ = flags.Parse(args) // ExitOnError
	endpoints := strings.Split(*list, ",")
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop contend:", err)
		return 2
	}
	defer client.Close()
	c := &contender{client: client, name: *name}
	for _, endpoint := range endpoints {
		s, err := grpc.NewClient("passthrough:///"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			fmt.Fprintln(os.Stderr, "interop contend:", err)
			return 2
		}
		defer s.Close()
		c.conns = append(c.conns, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*seconds)*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		c.turn(ctx)
	}
	_ = json.NewEncoder(os.Stdout).Encode(c.said)
	return 0
}

type contender struct {
	client *clientv3.Client
	conns  []*grpc.ClientConn
	name   string
	said   contention
}

// turn takes the lock once and leads once, with a lease of its own for each.
func (c *contender) turn(ctx context.Context) {
	lease, err := c.client.Grant(ctx, leaseTTL)
	if err != nil {
		pause(ctx, 100*time.Millisecond)
		return
	}
	kept, cancel := context.WithCancel(ctx)
	defer cancel()
	if alive, err := c.client.KeepAlive(kept, lease.ID); err == nil {
		go func() {
			for range alive {
			}
		}()
	}
	defer func() {
		last, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = c.client.Revoke(last, lease.ID) // it ends by itself otherwise
	}()
	answer := c.until(ctx, "v3lockpb.Lock", "Lock", fmt.Sprintf(`name:%q lease:%d`, lockName, lease.ID))
	if answer == nil {
		return
	}
	key := string(answer.Get(answer.Descriptor().Fields().ByName("key")).Bytes())
	c.said.Locks += c.write(ctx, key, lockFence)
	c.until(ctx, "v3lockpb.Lock", "Unlock", fmt.Sprintf(`key:%q`, key))

	answer = c.until(ctx, "v3electionpb.Election", "Campaign", fmt.Sprintf(`name:%q lease:%d value:%q`, seatName, lease.ID, c.name))
	if answer == nil {
		return
	}
	leader := answer.Get(answer.Descriptor().Fields().ByName("leader")).Message()
	key = string(leader.Get(leader.Descriptor().Fields().ByName("key")).Bytes())
	c.said.Terms += c.write(ctx, key, seatFence)
	text, err := prototext.Marshal(leader.Interface())
	if err == nil {
		c.until(ctx, "v3electionpb.Election", "Resign", fmt.Sprintf(`leader:{%s}`, text))
	}
}

// until makes a call at one member after the other until it succeeds.
func (c *contender) until(ctx context.Context, service, method, request string) protoreflect.Message {
	for first := rand.IntN(len(c.conns)); ctx.Err() == nil; first++ {
		in := dynamicpb.NewMessage(coordinators.ByName(protoreflect.Name(method + "Request")))
		if err := prototext.Unmarshal([]byte(request), in); err != nil {
			panic(err) // a request in this file is wrong
		}
		out := dynamicpb.NewMessage(coordinators.ByName(protoreflect.Name(method + "Response")))
		attempt, cancel := context.WithTimeout(ctx, patience)
		err := c.conns[first%len(c.conns)].Invoke(attempt, "/"+service+"/"+method, in, out)
		cancel()
		if err == nil {
			return out
		}
		c.said.Refused++
		if strings.Contains(err.Error(), "requested lease not found") || strings.Contains(err.Error(), "session is expired") {
			return nil
		}
		pause(ctx, 50*time.Millisecond)
	}
	return nil
}

// write writes the create revision of a key to a fence, if the key is still
// there; it gives 1 if it did.
func (c *contender) write(ctx context.Context, key, fence string) int {
	for range 3 {
		attempt, cancel := context.WithTimeout(ctx, patience)
		found, err := c.client.Get(attempt, key)
		if err == nil && len(found.Kvs) == 1 {
			created := found.Kvs[0].CreateRevision
			var done *clientv3.TxnResponse
			done, err = c.client.Txn(attempt).If(clientv3.Compare(clientv3.CreateRevision(key), "=", created)).
				Then(clientv3.OpPut(fence, strconv.FormatInt(created, 10))).Commit()
			if err == nil && done.Succeeded {
				cancel()
				return 1
			}
		}
		cancel()
		if err == nil {
			break
		}
	}
	c.said.Fenced++
	return 0
}
