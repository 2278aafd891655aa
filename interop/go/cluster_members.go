package main

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mainstay/interop/cluster"
)

func runMembers(ctx context.Context, args []string) int {
	f := newClusterFlags("members")
	ctl := f.String("etcdctl", "", "an etcdctl, 3.4 to 3.7; without one its checks are left out")
	only := f.String("section", "", "run only the section of this name")
	f.parse(args, false)
	f.members = 3 // What is lost and cut here is one of three.
	t := &tally{show: 100}
	for _, section := range []struct {
		name    string
		proxied bool
		body    func(*membersWalk)
	}{
		{"list", false, (*membersWalk).list},
		{"etcdctl", false, (*membersWalk).etcdctl},
		{"refused", false, (*membersWalk).refusals},
		{"move-leader", false, (*membersWalk).moveLeader},
		{"update", false, (*membersWalk).update},
		{"reads", false, (*membersWalk).reads},
		{"alarms", false, (*membersWalk).alarms},
		{"leases", false, (*membersWalk).leases},
		{"learner", false, (*membersWalk).learner},
		{"replace", false, (*membersWalk).replaceLost},
		{"remove", false, (*membersWalk).removeLive},
		{"no-quorum", false, (*membersWalk).noQuorum},
		{"unstarted", false, (*membersWalk).unstarted},
		{"restart-all", false, (*membersWalk).restartAll},
		{"strangers", false, (*membersWalk).strangers},
		{"cut-off-follower", true, func(w *membersWalk) { w.cutOff(false) }},
		{"cut-off-leader", true, func(w *membersWalk) { w.cutOff(true) }},
	} {
		if *only != "" && *only != section.name {
			continue
		}
		before, started := t.passed+t.failed, time.Now()
		if code := membersSection(ctx, f, t, section.name, section.proxied, *ctl, section.body); code != 0 {
			return code
		}
		fmt.Printf("%-17s %4d checks, %.1f s\n", section.name, t.passed+t.failed-before, time.Since(started).Seconds())
	}
	return t.finish()
}

// membersSection gives a section a cluster of its own.
func membersSection(ctx context.Context, f *clusterFlags, t *tally, name string, proxied bool, ctl string, body func(*membersWalk)) int {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, f.options(f.servers[0], proxied))
	if err != nil {
		return cannotRun("members", err)
	}
	defer c.Close()
	client, err := cluster.Client(c.Members...)
	if err != nil {
		return cannotRun("members", err)
	}
	defer client.Close()
	w := &membersWalk{tally: t, ctx: ctx, name: name, c: c, m: c.Members, client: client, ctl: ctl, clients: map[*cluster.Member]*clientv3.Client{}}
	failed := t.failed
	body(w)
	for _, client := range w.clients {
		client.Close()
	}
	for _, death := range c.Deaths() {
		w.check(false, "%s: %s", name, death)
	}
	if t.failed > failed {
		fmt.Print(c.LogTails(6))
	}
	return 0
}

// membersWalk is one section's view of its cluster.
type membersWalk struct {
	*tally
	ctx    context.Context
	name   string
	c      *cluster.Cluster
	m      []*cluster.Member
	client *clientv3.Client
	ctl    string
	// clients are those that know one member only.
	clients map[*cluster.Member]*clientv3.Client
}

func (w *membersWalk) ok(err error, step string) bool {
	return w.check(err == nil, "%s: %s: %v", w.name, step, err)
}

// refused checks the code and the text of an error.
func (w *membersWalk) refused(err error, code codes.Code, text, step string) bool {
	gotCode, gotText := codes.OK, ""
	var known rpctypes.EtcdError
	switch {
	case err == nil:
	case errors.As(err, &known):
		gotCode, gotText = known.Code(), known.Error()
	default:
		s := status.Convert(err)
		gotCode, gotText = s.Code(), s.Message()
	}
	return w.check(gotCode == code && gotText == text, "%s: %s: want %v %q, got %v %q", w.name, step, code, text, gotCode, gotText)
}

func (w *membersWalk) at(m *cluster.Member) *clientv3.Client {
	if w.clients[m] == nil {
		c, err := cluster.ClientWithoutRetries(m)
		if !w.ok(err, "client of "+m.Name) {
			panic(err) // Cannot be: the configuration is ours.
		}
		w.clients[m] = c
	}
	return w.clients[m]
}

// within polls a condition.
func (w *membersWalk) within(d time.Duration, step string, condition func() bool) bool {
	ctx, cancel := context.WithTimeout(w.ctx, d)
	defer cancel()
	for !condition() {
		if !pause(ctx, 20*time.Millisecond) {
			return w.check(false, "%s: %s: not within %v", w.name, step, d)
		}
	}
	return w.check(true, "")
}

func (w *membersWalk) id(m *cluster.Member) uint64 {
	s, err := m.Status(w.ctx)
	if !w.ok(err, "status of "+m.Name) {
		return 0
	}
	return s.Header.MemberId
}

func (w *membersWalk) leader() *cluster.Member {
	l, err := w.c.Leader(w.ctx)
	if !w.ok(err, "leader") {
		return w.m[0]
	}
	return l
}

func (w *membersWalk) follower() *cluster.Member {
	leader := w.leader()
	for _, m := range w.c.Alive() {
		if m != leader {
			return m
		}
	}
	return leader
}

// list: every member tells the same membership, with the ids that etcd computes.
func (w *membersWalk) list() {
	ids := map[string]uint64{}
	var sorted []uint64
	for _, m := range w.m {
		sum := sha1.Sum([]byte(m.PeerURL + w.c.Token))
		ids[m.Name] = binary.BigEndian.Uint64(sum[:8])
		sorted = append(sorted, ids[m.Name])
	}
	slices.Sort(sorted)
	var all []byte
	for _, id := range sorted {
		all = binary.BigEndian.AppendUint64(all, id)
	}
	sum := sha1.Sum(all)
	clusterID := binary.BigEndian.Uint64(sum[:8])
	for _, m := range w.m {
		for _, opts := range [][]clientv3.OpOption{nil, {clientv3.WithSerializable()}} {
			var r *clientv3.MemberListResponse
			// A member publishes its name and client URLs only after it has started.
			w.within(10*time.Second, "all members published at "+m.Name, func() bool {
				var err error
				r, err = w.at(m).MemberList(w.ctx, opts...)
				return err == nil && len(r.Members) == 3 && !slices.ContainsFunc(r.Members, func(x *pb.Member) bool { return x.Name == "" })
			})
			if r == nil {
				continue
			}
			w.check(r.Header.ClusterId == clusterID, "%s: cluster id at %s: want %x, got %x", w.name, m.Name, clusterID, r.Header.ClusterId)
			w.check(r.Header.MemberId == ids[m.Name], "%s: member id at %s: want %x, got %x", w.name, m.Name, ids[m.Name], r.Header.MemberId)
			w.check(sort.SliceIsSorted(r.Members, func(i, j int) bool { return r.Members[i].ID < r.Members[j].ID }), "%s: members are in order of their ids", w.name)
			for _, x := range r.Members {
				i := slices.IndexFunc(w.m, func(m *cluster.Member) bool { return m.Name == x.Name })
				if !w.check(i >= 0, "%s: unknown member %q", w.name, x.Name) {
					continue
				}
				w.check(x.ID == ids[x.Name] && !x.IsLearner && slices.Equal(x.PeerURLs, []string{w.m[i].PeerURL}) && slices.Equal(x.ClientURLs, []string{"http://" + w.m[i].Endpoint}),
					"%s: member %v at %s", w.name, x, m.Name)
			}
		}
	}
	term, leader := uint64(0), uint64(0)
	for i, m := range w.m {
		s, err := m.Status(w.ctx)
		if !w.ok(err, "status") {
			return
		}
		if i > 0 {
			w.check(s.RaftTerm == term && s.Leader == leader, "%s: %s is in term %d of %x, m0 in term %d of %x", w.name, m.Name, s.RaftTerm, s.Leader, term, leader)
		}
		term, leader = s.RaftTerm, s.Leader
		w.check(len(s.Errors) == 0 && !s.IsLearner && s.RaftIndex >= s.RaftAppliedIndex && s.RaftAppliedIndex > 0, "%s: status %v", w.name, s)
	}
}

// run runs etcdctl and gives what it printed and its exit code.
func (w *membersWalk) run(endpoints string, args ...string) (string, string, int) {
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.ctl, append([]string{"--endpoints", endpoints, "--command-timeout", "20s"}, args...)...)
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	_ = cmd.Run() // The exit code says it.
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

// etcdctl: what operators type.
func (w *membersWalk) etcdctl() {
	if w.ctl == "" {
		w.leaveOut()
		return
	}
	one := w.m[0].Endpoint
	lines := func(text string) int { return strings.Count(strings.TrimRight(text, "\n"), "\n") + 1 }
	_, err := w.client.Put(w.ctx, "key", "value")
	w.ok(err, "put")
	for _, args := range [][]string{
		{"member", "list"}, {"endpoint", "status", "--cluster"}, {"endpoint", "hashkv", "--cluster"},
	} {
		out, said, code := w.run(one, args...)
		w.check(code == 0 && lines(out) == 3, "%s: etcdctl %v: exit code %d, %s%s", w.name, args, code, out, said)
	}
	out, said, code := w.run(one, "endpoint", "health", "--cluster")
	w.check(code == 0 && strings.Count(out+said, "is healthy: successfully committed proposal: took = ") == 3, "%s: etcdctl endpoint health: exit code %d, %s%s", w.name, code, out, said)
	w.within(10*time.Second, "equal hashes at all members", func() bool {
		out, _, code := w.run(one, "endpoint", "hashkv", "--cluster")
		hashes := map[string]bool{}
		for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
			if fields := strings.Split(line, ", "); len(fields) > 1 {
				hashes[fields[1]] = true
			}
		}
		return code == 0 && len(hashes) == 1
	})
	leader, follower := w.leader(), w.follower()
	from, to := w.id(leader), w.id(follower)
	out, said, code = w.run(leader.Endpoint, "move-leader", fmt.Sprintf("%x", to))
	w.check(code == 0 && out == fmt.Sprintf("Leadership transferred from %x to %x\n", from, to), "%s: etcdctl move-leader: exit code %d, %s%s", w.name, code, out, said)
	out, said, code = w.run(one, "alarm", "list")
	w.check(code == 0 && out == "", "%s: etcdctl alarm list: exit code %d, %s%s", w.name, code, out, said)
	out, said, code = w.run(one, "member", "remove", "1234")
	w.check(code != 0 && strings.Contains(said, "etcdserver: member not found"), "%s: etcdctl member remove: exit code %d, %s%s", w.name, code, out, said)
	var id string
	w.within(20*time.Second, "etcdctl member add", func() bool {
		out, said, code = w.run(one, "member", "add", "new", "--learner", "--peer-urls=http://127.0.0.1:1")
		if fields := strings.Fields(out); code == 0 && len(fields) > 1 {
			id = fields[1]
		}
		return code == 0
	})
	w.check(strings.Contains(out, "ETCD_INITIAL_CLUSTER_STATE=\"existing\"") && strings.Contains(out, "new=http://127.0.0.1:1"), "%s: etcdctl member add: %s%s", w.name, out, said)
	out, said, code = w.run(one, "member", "list")
	w.check(code == 0 && strings.Contains(out, id+", unstarted, , http://127.0.0.1:1, , true"), "%s: etcdctl member list: %s%s", w.name, out, said)
	out, said, code = w.run(one, "member", "update", id, "--peer-urls=http://127.0.0.1:2")
	w.check(code == 0 && strings.HasPrefix(out, fmt.Sprintf("Member %16s updated in cluster ", id)), "%s: etcdctl member update: exit code %d, %s%s", w.name, code, out, said)
	out, said, code = w.run(one, "member", "promote", id)
	w.check(code != 0 && strings.Contains(said, "etcdserver: can only promote a learner member which is in sync with leader"), "%s: etcdctl member promote: exit code %d, %s%s", w.name, code, out, said)
	w.within(20*time.Second, "etcdctl member remove", func() bool {
		out, said, code = w.run(one, "member", "remove", id)
		return code == 0
	})
	w.check(strings.HasPrefix(out, fmt.Sprintf("Member %16s removed from cluster ", id)), "%s: etcdctl member remove: %s%s", w.name, out, said)
}

// calm asks until the answer is not that the cluster is unhealthy: that is what
// servers say for some seconds after they started.
func calm[R any](w *membersWalk, ask func() (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	return whenHealthy(ctx, ask)
}

const unknownID = 0x1234

// refusals: requests that must be refused, and how.
func (w *membersWalk) refusals() {
	add := func(urls ...string) error {
		_, err := calm(w, func() (*clientv3.MemberAddResponse, error) { return w.client.MemberAdd(w.ctx, urls) })
		return err
	}
	w.refused(add(w.m[1].PeerURL), codes.FailedPrecondition, "etcdserver: Peer URLs already exists", "add with the URL of a member")
	// The client library would refuse these by itself.
	conn, err := w.m[0].Conn()
	if !w.ok(err, "connection") {
		return
	}
	raw := pb.NewClusterClient(conn)
	for _, urls := range [][]string{{"127.0.0.1:1"}, {"nonsense"}, {"http://127.0.0.1"}, {"ftp://127.0.0.1:1"}, {"http://127.0.0.1:1/path"}, {}} {
		_, err = raw.MemberAdd(w.ctx, &pb.MemberAddRequest{PeerURLs: urls})
		w.refused(err, codes.InvalidArgument, "etcdserver: given member URLs are invalid", fmt.Sprintf("add with %q", urls))
	}
	remove := func(id uint64) error {
		_, err := calm(w, func() (*clientv3.MemberRemoveResponse, error) { return w.client.MemberRemove(w.ctx, id) })
		return err
	}
	w.refused(remove(unknownID), codes.NotFound, "etcdserver: member not found", "remove an unknown member")
	_, err = w.client.MemberUpdate(w.ctx, unknownID, []string{"http://127.0.0.1:1"})
	w.refused(err, codes.NotFound, "etcdserver: member not found", "update an unknown member")
	_, err = w.client.MemberUpdate(w.ctx, w.id(w.m[0]), []string{w.m[1].PeerURL})
	w.refused(err, codes.FailedPrecondition, "etcdserver: Peer URLs already exists", "update to the URL of another member")
	// The same in an update is not asked: etcd accepts it, and all members end at
	// once, for good, when they apply it.
	_, err = w.client.MemberPromote(w.ctx, unknownID)
	w.refused(err, codes.NotFound, "etcdserver: member not found", "promote an unknown member")
	_, err = w.client.MemberPromote(w.ctx, w.id(w.m[0]))
	w.refused(err, codes.FailedPrecondition, "etcdserver: can only promote a learner member", "promote a voter")
	leader, follower := w.leader(), w.follower()
	_, err = w.at(leader).MoveLeader(w.ctx, unknownID)
	w.refused(err, codes.FailedPrecondition, "etcdserver: bad leader transferee", "move the leader to an unknown member")
	_, err = w.at(follower).MoveLeader(w.ctx, w.id(follower))
	w.refused(err, codes.FailedPrecondition, "etcdserver: not leader", "move the leader, asked of a follower")
	_, err = w.at(leader).MoveLeader(w.ctx, w.id(leader))
	w.ok(err, "move the leader to itself")
	list, err := w.client.MemberList(w.ctx)
	w.check(err == nil && len(list.Members) == 3, "%s: after all that there are three members: %v %v", w.name, list, err)
}

func (w *membersWalk) moveLeader() {
	leader := w.leader()
	for _, to := range w.m {
		if to == leader {
			continue
		}
		_, err := w.at(leader).MoveLeader(w.ctx, w.id(to))
		w.ok(err, "move the leader to "+to.Name)
		w.within(5*time.Second, "all agree that "+to.Name+" leads", func() bool {
			for _, m := range w.m {
				s, err := m.Status(w.ctx)
				if err != nil || s.Leader != w.id(to) {
					return false
				}
			}
			return true
		})
		began := time.Now()
		_, err = w.at(leader).Put(w.ctx, "moved", to.Name)
		w.ok(err, "put through the former leader")
		w.check(time.Since(began) < 2*time.Second, "%s: a put right after the move took %v", w.name, time.Since(began))
		leader = to
	}
}

// update gives a member another spelling of its address.
func (w *membersWalk) update() {
	m := w.follower()
	url := strings.Replace(m.PeerURL, "127.0.0.1", "localhost", 1)
	_, err := w.client.MemberUpdate(w.ctx, w.id(m), []string{url})
	if !w.ok(err, "update") {
		return
	}
	for _, at := range w.m {
		list, err := w.at(at).MemberList(w.ctx)
		if w.ok(err, "list") {
			w.check(slices.ContainsFunc(list.Members, func(x *pb.Member) bool { return x.Name == m.Name && slices.Equal(x.PeerURLs, []string{url}) }),
				"%s: %s does not list the new URL: %v", w.name, at.Name, list.Members)
		}
	}
	// The members still reach each other, also after the others started again.
	for _, at := range w.m {
		if at != m {
			w.ok(at.Terminate(30*time.Second), "end")
			w.ok(at.Start(), "start")
			w.ok(w.c.WaitHealthy(w.ctx, w.m...), "healthy again")
		}
	}
	w.converges()
}

// converges checks that a write is seen everywhere and all hashes are equal.
func (w *membersWalk) converges() {
	key := fmt.Sprintf("converges-%d", time.Now().UnixNano())
	put, err := w.client.Put(w.ctx, key, "x")
	if !w.ok(err, "put") {
		return
	}
	for _, m := range w.c.Alive() {
		r, err := w.at(m).Get(w.ctx, key)
		w.check(err == nil && len(r.Kvs) == 1 && r.Kvs[0].ModRevision == put.Header.Revision, "%s: read at %s: %v %v", w.name, m.Name, r, err)
	}
	err = sameHash(w.ctx, w.c.Alive())
	w.ok(err, "equal hashes")
}

// reads: what is written at one member is read at once at all others.
func (w *membersWalk) reads() {
	for n := range 60 {
		from := w.m[n%3]
		put, err := w.at(from).Put(w.ctx, "reads", fmt.Sprint(n))
		if !w.ok(err, "put at "+from.Name) {
			return
		}
		for _, m := range w.m {
			r, err := w.at(m).Get(w.ctx, "reads")
			w.check(err == nil && len(r.Kvs) == 1 && string(r.Kvs[0].Value) == fmt.Sprint(n) && r.Header.Revision >= put.Header.Revision,
				"%s: linearizable read at %s after put %d: %v %v", w.name, m.Name, n, r, err)
			// The linearizable read has brought this member so far.
			s, err := w.at(m).Get(w.ctx, "reads", clientv3.WithSerializable())
			w.check(err == nil && len(s.Kvs) == 1 && string(s.Kvs[0].Value) == fmt.Sprint(n), "%s: serializable read at %s after the linearizable one: %v %v", w.name, m.Name, s, err)
		}
	}
	// Without one in between, it comes soon.
	_, err := w.at(w.leader()).Put(w.ctx, "reads", "last")
	w.ok(err, "put")
	for _, m := range w.m {
		w.within(3*time.Second, "serializable read at "+m.Name, func() bool {
			r, err := w.at(m).Get(w.ctx, "reads", clientv3.WithSerializable())
			return err == nil && len(r.Kvs) == 1 && string(r.Kvs[0].Value) == "last"
		})
	}
}

func (w *membersWalk) alarms() {
	r, err := w.client.AlarmList(w.ctx)
	w.check(err == nil && len(r.Alarms) == 0, "%s: alarms of a new cluster: %v %v", w.name, r, err)
	id := w.id(w.m[0])
	_, err = w.client.AlarmDisarm(w.ctx, &clientv3.AlarmMember{MemberID: id})
	w.ok(err, "disarm nothing")
	r, err = w.client.AlarmDisarm(w.ctx, &clientv3.AlarmMember{})
	w.check(err == nil && len(r.Alarms) == 0, "%s: disarm all of none: %v %v", w.name, r, err)
	conn, err := w.m[1].Conn()
	if !w.ok(err, "connection") {
		return
	}
	raw := pb.NewMaintenanceClient(conn)
	for _, alarm := range []struct {
		alarm pb.AlarmType
		code  codes.Code
		text  string
	}{
		{pb.AlarmType_NOSPACE, codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded"},
		{pb.AlarmType_CORRUPT, codes.DataLoss, "etcdserver: corrupt cluster"},
	} {
		_, err = raw.Alarm(w.ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: alarm.alarm})
		w.ok(err, "activate "+alarm.alarm.String())
		for _, m := range w.m {
			r, err = w.at(m).AlarmList(w.ctx)
			w.check(err == nil && len(r.Alarms) == 1 && r.Alarms[0].MemberID == id && r.Alarms[0].Alarm == alarm.alarm, "%s: alarms at %s: %v %v", w.name, m.Name, r, err)
			_, err = w.at(m).Put(w.ctx, "x", "x")
			w.refused(err, alarm.code, alarm.text, "put at "+m.Name+" with the alarm")
			_, err = w.at(m).Get(w.ctx, "x", clientv3.WithSerializable())
			// A server may keep the member that the alarm names from answering.
			tolerated := err != nil && alarm.alarm == pb.AlarmType_CORRUPT && w.id(m) == id && strings.Contains(err.Error(), alarm.text)
			if !tolerated {
				w.ok(err, "serializable read at "+m.Name+" with the alarm")
			}
			s, err := m.Status(w.ctx)
			w.check(err == nil && len(s.Errors) == 1 && strings.Contains(s.Errors[0], fmt.Sprintf("alarm:%v", alarm.alarm)), "%s: status at %s: %v %v", w.name, m.Name, s, err)
		}
		w.check(!w.m[2].Healthy(w.ctx), "%s: /health is false with the alarm %v", w.name, alarm.alarm)
		_, err = w.at(w.m[2]).AlarmDisarm(w.ctx, &clientv3.AlarmMember{MemberID: id, Alarm: alarm.alarm})
		w.ok(err, "disarm")
		_, err = w.at(w.m[0]).Put(w.ctx, "x", "x")
		w.ok(err, "put after the alarm")
	}
	w.converges()
}

// leases belong to the cluster: any member grants, prolongs and tells them, and
// a new leader neither forgets them nor ends them early.
func (w *membersWalk) leases() {
	const ttl = 12
	grant, err := w.at(w.m[0]).Grant(w.ctx, ttl)
	if !w.ok(err, "grant") {
		return
	}
	_, err = w.at(w.m[2]).Put(w.ctx, "leased", "x", clientv3.WithLease(grant.ID))
	w.ok(err, "put with the lease")
	for _, m := range w.m {
		alive, err := w.at(m).KeepAliveOnce(w.ctx, grant.ID)
		w.check(err == nil && alive.TTL == ttl, "%s: keep alive at %s: %v %v", w.name, m.Name, alive, err)
		left, err := w.at(m).TimeToLive(w.ctx, grant.ID, clientv3.WithAttachedKeys())
		w.check(err == nil && left.GrantedTTL == ttl && left.TTL >= ttl-2 && left.TTL <= ttl && len(left.Keys) == 1, "%s: time to live at %s: %v %v", w.name, m.Name, left, err)
		list, err := w.at(m).Leases(w.ctx)
		w.check(err == nil && len(list.Leases) == 1, "%s: leases at %s: %v %v", w.name, m.Name, list, err)
	}
	// A lease that nobody keeps, half of it gone when the leader dies.
	const short = 6
	dying, err := w.client.Grant(w.ctx, short)
	w.ok(err, "grant a short one")
	_, err = w.client.Put(w.ctx, "dying", "x", clientv3.WithLease(dying.ID))
	granted := time.Now()
	w.ok(err, "put with the short one")
	pause(w.ctx, short*time.Second/2)
	leader := w.leader()
	leader.Kill()
	next := w.leader()
	// The election takes as long as it takes; the next leader starts the time of leases again.
	led := time.Now()
	for _, m := range w.c.Alive() {
		var left *clientv3.LeaseTimeToLiveResponse
		w.within(10*time.Second, "time to live at "+m.Name+" after the leader's end", func() bool {
			left, err = w.at(m).TimeToLive(w.ctx, grant.ID)
			return err == nil
		})
		if err == nil {
			// A new leader starts the time again, and adds its election timeout.
			passed := int64(time.Since(granted).Seconds()) + 2
			w.check(left.TTL >= ttl-passed && left.TTL <= ttl+3, "%s: at %s %d s of %d are left after the leader's end", w.name, m.Name, left.TTL, ttl)
		}
	}
	alive, err := w.at(next).KeepAliveOnce(w.ctx, grant.ID)
	w.check(err == nil && alive.TTL == ttl, "%s: keep alive at the new leader: %v %v", w.name, alive, err)
	gone := func() bool {
		r, err := w.client.Get(w.ctx, "dying")
		return err == nil && len(r.Kvs) == 0
	}
	w.within(3*short*time.Second, "the short lease ends after the leader's end", gone)
	w.check(time.Since(granted) >= short*time.Second, "%s: the short lease ended %v after its grant", w.name, time.Since(granted))
	w.check(time.Since(led) < (short+6)*time.Second, "%s: the short lease of %d s ended %v after there was another leader", w.name, short, time.Since(led))
	w.ok(leader.Start(), "start")
	w.ok(w.c.WaitHealthy(w.ctx, w.m...), "healthy again")
	for _, m := range w.m {
		_, err = w.at(m).KeepAliveOnce(w.ctx, dying.ID)
		w.refused(err, codes.NotFound, "etcdserver: requested lease not found", "keep a dead lease alive at "+m.Name)
		left, err := w.at(m).TimeToLive(w.ctx, dying.ID)
		w.check(err == nil && left.TTL == -1, "%s: time to live of a dead lease at %s: %v %v", w.name, m.Name, left, err)
	}
	_, err = w.at(w.follower()).Revoke(w.ctx, grant.ID)
	w.ok(err, "revoke at a follower")
	r, err := w.client.Get(w.ctx, "leased")
	w.check(err == nil && len(r.Kvs) == 0, "%s: the key of a revoked lease: %v %v", w.name, r, err)
	w.converges()
}

// loaded writes all the time until stop; it gives how many writes failed for
// good and how many there were.
func (w *membersWalk) loaded(endpoints ...*cluster.Member) (stop func() (failed, written int64)) {
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan struct{})
	var failed, written atomic.Int64
	c, err := cluster.Client(endpoints...)
	if !w.ok(err, "client") {
		cancel()
		return func() (int64, int64) { return 1, 0 }
	}
	go func() {
		defer close(done)
		defer c.Close()
		for ctx.Err() == nil {
			attempt, cancel := context.WithTimeout(w.ctx, 5*time.Second)
			_, err := c.Put(attempt, fmt.Sprintf("loaded/%d", written.Load()%1000), strings.Repeat("x", 200))
			cancel()
			written.Add(1)
			if err != nil {
				failed.Add(1)
			}
			pause(ctx, time.Millisecond)
		}
	}()
	return func() (int64, int64) {
		cancel()
		<-done
		return failed.Load(), written.Load()
	}
}

// learner: a fourth member comes as a learner, under load, and is promoted.
func (w *membersWalk) learner() {
	stop := w.loaded(w.m...)
	joining, err := w.c.Join("m3", w.m...)
	if !w.ok(err, "allot") {
		return
	}
	added, err := calm(w, func() (*clientv3.MemberAddResponse, error) {
		return w.client.MemberAddAsLearner(w.ctx, []string{joining.PeerURL})
	})
	if !w.ok(err, "add a learner") {
		return
	}
	id := added.Member.ID
	w.check(added.Member.IsLearner && added.Member.Name == "" && len(added.Members) == 4, "%s: the answer to add: %v", w.name, added)
	_, err = calm(w, func() (*clientv3.MemberAddResponse, error) {
		return w.client.MemberAddAsLearner(w.ctx, []string{"http://127.0.0.1:1"})
	})
	w.refused(err, codes.FailedPrecondition, "etcdserver: too many learner members in cluster", "add a second learner")
	_, err = w.client.MemberPromote(w.ctx, id)
	w.refused(err, codes.FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader", "promote a learner that has not started")
	_, err = w.at(w.leader()).MoveLeader(w.ctx, id)
	w.refused(err, codes.FailedPrecondition, "etcdserver: bad leader transferee", "move the leader to a learner")
	w.ok(joining.Start(), "start the learner")
	w.within(20*time.Second, "the learner answers", func() bool {
		s, err := joining.Status(w.ctx)
		return err == nil && s.IsLearner && s.RaftAppliedIndex > 0
	})
	l := w.at(joining)
	w.within(20*time.Second, "a serializable read at the learner sees data", func() bool {
		r, err := l.Get(w.ctx, "loaded/0", clientv3.WithSerializable())
		return err == nil && len(r.Kvs) == 1
	})
	_, err = l.Get(w.ctx, "loaded/0")
	w.refused(err, codes.FailedPrecondition, "etcdserver: rpc not supported for learner", "a linearizable read at the learner")
	_, err = l.Put(w.ctx, "x", "x")
	w.refused(err, codes.FailedPrecondition, "etcdserver: rpc not supported for learner", "a put at the learner")
	_, err = l.MemberList(w.ctx)
	w.refused(err, codes.FailedPrecondition, "etcdserver: rpc not supported for learner", "a list of members at the learner")
	_, err = l.Grant(w.ctx, 10)
	w.refused(err, codes.FailedPrecondition, "etcdserver: rpc not supported for learner", "a lease at the learner")
	promoteCtx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	w.ok(promote(promoteCtx, w.client, id), "promote")
	cancel()
	w.within(10*time.Second, "the promoted member is a voter at all", func() bool {
		for _, m := range w.m[:3] {
			list, err := w.at(m).MemberList(w.ctx)
			if err != nil || len(list.Members) != 4 || slices.ContainsFunc(list.Members, func(x *pb.Member) bool { return x.IsLearner || x.Name == "" }) {
				return false
			}
		}
		return true
	})
	w.ok(w.c.WaitHealthy(w.ctx, joining), "the promoted member is healthy")
	_, err = l.Put(w.ctx, "promoted", "x")
	w.ok(err, "a put at the promoted member")
	failed, written := stop()
	w.check(failed == 0 && written > 0, "%s: of %d writes meanwhile %d failed", w.name, written, failed)
	_, err = w.at(w.leader()).MoveLeader(w.ctx, id)
	w.ok(err, "move the leader to the promoted member")
	w.converges()
}

// replaceLost: a member dies together with its disk; it is removed, and a new
// one takes its place.
func (w *membersWalk) replaceLost() {
	for n := range 200 {
		_, err := w.client.Put(w.ctx, fmt.Sprintf("kept/%d", n), "x")
		w.ok(err, "put")
	}
	lost := w.leader()
	id := w.id(lost)
	lost.Kill()
	w.ok(lost.Wipe(), "wipe")
	lost.Gone = true
	w.leader()
	remaining, err := cluster.Client(w.c.Alive()...)
	if !w.ok(err, "client") {
		return
	}
	defer remaining.Close()
	removed, err := calm(w, func() (*clientv3.MemberRemoveResponse, error) { return remaining.MemberRemove(w.ctx, id) })
	w.check(err == nil && len(removed.Members) == 2, "%s: remove the lost member: %v %v", w.name, removed, err)
	_, err = remaining.MemberRemove(w.ctx, id)
	w.refused(err, codes.NotFound, "etcdserver: member not found", "remove it again")
	others := w.c.Alive()
	joining, err := w.c.Join("m4", others...)
	if !w.ok(err, "allot") {
		return
	}
	added, err := calm(w, func() (*clientv3.MemberAddResponse, error) {
		return remaining.MemberAdd(w.ctx, []string{joining.PeerURL})
	})
	w.check(err == nil && !added.Member.IsLearner && len(added.Members) == 3, "%s: add the new member: %v %v", w.name, added, err)
	w.ok(joining.Start(), "start the new member")
	w.ok(w.c.WaitHealthy(w.ctx, joining), "the new member is healthy")
	r, err := w.at(joining).Get(w.ctx, "kept/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	w.check(err == nil && r.Count == 200, "%s: keys at the new member: %v %v", w.name, r, err)
	w.client.SetEndpoints(others[0].Endpoint, others[1].Endpoint, joining.Endpoint)
	w.converges()
	// The new one counts: the cluster survives another loss.
	others[0].Kill()
	w.leader()
	w.client.SetEndpoints(others[1].Endpoint, joining.Endpoint)
	_, err = w.client.Put(w.ctx, "kept/after", "x")
	w.ok(err, "put after a second loss")
	w.ok(others[0].Start(), "start")
	w.ok(w.c.WaitHealthy(w.ctx, w.c.Alive()...), "healthy again")
	w.converges()
}

// removeLive: a member that is removed ends, and does not come back.
func (w *membersWalk) removeLive() {
	m := w.follower()
	m.ExpectExit()
	id := w.id(m)
	_, err := calm(w, func() (*clientv3.MemberRemoveResponse, error) { return w.at(w.leader()).MemberRemove(w.ctx, id) })
	if !w.ok(err, "remove") {
		return
	}
	w.within(20*time.Second, "the removed member ends", func() bool { return !m.Running() })
	w.ok(m.Start(), "start the removed member again")
	m.ExpectExit()
	w.within(20*time.Second, "the removed member ends again", func() bool { return !m.Running() })
	m.Gone = true
	w.client.SetEndpoints(w.c.Alive()[0].Endpoint, w.c.Alive()[1].Endpoint)
	w.converges()
	// The leader goes as well: one member stays, and it is a cluster of its own.
	leader := w.leader()
	leader.ExpectExit()
	id = w.id(leader)
	_, err = calm(w, func() (*clientv3.MemberRemoveResponse, error) { return w.client.MemberRemove(w.ctx, id) })
	w.ok(err, "remove the leader")
	w.within(20*time.Second, "the removed leader ends", func() bool { return !leader.Running() })
	leader.Gone = true
	last := w.leader()
	w.client.SetEndpoints(last.Endpoint)
	w.converges()
	_, err = calm(w, func() (*clientv3.MemberRemoveResponse, error) { return w.at(last).MemberRemove(w.ctx, w.id(last)) })
	w.refused(err, codes.FailedPrecondition, "etcdserver: re-configuration failed due to not enough started members", "remove the last member")
}

// noQuorum: with one of three down, a server refuses what would cost the quorum.
func (w *membersWalk) noQuorum() {
	down := w.follower()
	downID := w.id(down)
	// Connections must be old enough, or "unhealthy" would hide the other reasons.
	_, err := calm(w, func() (*clientv3.MemberAddResponse, error) {
		return w.client.MemberAdd(w.ctx, []string{w.m[0].PeerURL})
	})
	w.refused(err, codes.FailedPrecondition, "etcdserver: Peer URLs already exists", "add with the URL of a member")
	down.Kill()
	leader := w.leader()
	var other *cluster.Member
	for _, m := range w.c.Alive() {
		if m != leader {
			other = m
		}
	}
	at := w.at(leader)
	// The leader notices the loss when the connections break; until then it would do what it is to refuse. This it refuses either
	// way.
	w.within(10*time.Second, "the leader notices that a member is down", func() bool {
		_, err = at.MemberAdd(w.ctx, []string{w.m[0].PeerURL})
		return errors.Is(err, rpctypes.ErrUnhealthy)
	})
	_, err = at.MemberRemove(w.ctx, w.id(other))
	w.refused(err, codes.Unavailable, "etcdserver: unhealthy cluster", "remove the other live member")
	_, err = at.MemberAdd(w.ctx, []string{"http://127.0.0.1:1"})
	w.refused(err, codes.Unavailable, "etcdserver: unhealthy cluster", "add a voter")
	list, err := at.MemberList(w.ctx)
	w.check(err == nil && len(list.Members) == 3, "%s: three members are left: %v %v", w.name, list, err)
	_, err = at.MemberRemove(w.ctx, downID)
	w.ok(err, "remove the one that is down")
	down.Gone = true
	w.client.SetEndpoints(leader.Endpoint, other.Endpoint)
	w.converges()
	// Two of two are needed now. Without quorum nothing is decided.
	other.Kill()
	ctx, cancel := context.WithTimeout(w.ctx, 15*time.Second)
	defer cancel()
	_, err = at.Put(ctx, "x", "x")
	w.check(err != nil && outcome(err) != 0, "%s: a put without quorum: %v", w.name, err)
	_, err = at.Get(ctx, "x", clientv3.WithSerializable())
	w.ok(err, "a serializable read without quorum")
	w.ok(other.Start(), "start")
	w.ok(w.c.WaitHealthy(w.ctx, w.c.Alive()...), "healthy again")
	w.converges()
}

// unstarted: members that were added and never started count for the quorum.
func (w *membersWalk) unstarted() {
	const refusal = "etcdserver: re-configuration failed due to not enough started members"
	// A member judges a change by what it has applied itself, and another may not have applied the change before yet.
	w.client.SetEndpoints(w.c.Alive()[0].Endpoint)
	add := func(n int) (*clientv3.MemberAddResponse, error) {
		return calm(w, func() (*clientv3.MemberAddResponse, error) {
			return w.client.MemberAdd(w.ctx, []string{fmt.Sprintf("http://127.0.0.1:%d", n)})
		})
	}
	remove := func(id uint64) error {
		_, err := calm(w, func() (*clientv3.MemberRemoveResponse, error) { return w.client.MemberRemove(w.ctx, id) })
		return err
	}
	var added []uint64
	for n := range 2 {
		r, err := add(n + 1)
		if !w.ok(err, "add a voter that does not start") {
			return
		}
		added = append(added, r.Member.ID)
	}
	_, err := add(3)
	w.refused(err, codes.FailedPrecondition, refusal, "add a third that does not start")
	w.refused(remove(w.id(w.m[0])), codes.FailedPrecondition, refusal, "remove one of three started, of five")
	_, err = w.client.Put(w.ctx, "x", "x")
	w.ok(err, "put with three of five")
	for _, id := range added {
		w.ok(remove(id), "remove one that has not started")
	}
	w.converges()
}

// restartAll: everything is still there after all members ended at once.
func (w *membersWalk) restartAll() {
	lease, err := w.client.Grant(w.ctx, 60)
	if !w.ok(err, "grant") {
		return
	}
	_, err = w.client.Put(w.ctx, "leased", "x", clientv3.WithLease(lease.ID))
	w.ok(err, "put with a lease")
	for _, how := range []string{"kill -9", "SIGTERM"} {
		stop := w.loaded(w.m...)
		pause(w.ctx, time.Second)
		before, err := w.client.Put(w.ctx, "before", how)
		w.ok(err, "put")
		for _, m := range w.m {
			if how == "SIGTERM" {
				w.ok(m.Terminate(30*time.Second), "end "+m.Name)
			} else {
				m.Kill()
			}
		}
		w.ok(w.c.StartAll(w.ctx), "all members come back after "+how)
		stop()
		r, err := w.client.Get(w.ctx, "before")
		w.check(err == nil && len(r.Kvs) == 1 && string(r.Kvs[0].Value) == how && r.Kvs[0].ModRevision == before.Header.Revision, "%s: after %s: %v %v", w.name, how, r, err)
		left, err := w.client.TimeToLive(w.ctx, lease.ID, clientv3.WithAttachedKeys())
		w.check(err == nil && left.TTL > 0 && left.TTL <= 63 && len(left.Keys) == 1, "%s: the lease after %s: %v %v", w.name, how, left, err)
		w.converges()
	}
}

// strangers: processes that do not belong to the cluster.
func (w *membersWalk) strangers() {
	stranger, err := w.c.Join("stranger", w.m...)
	if !w.ok(err, "allot") {
		return
	}
	w.ok(stranger.Start(), "start a member that was never added")
	stranger.ExpectExit()
	w.within(20*time.Second, "a member that was never added ends", func() bool { return !stranger.Running() })
	stranger.Gone = true
	id := fmt.Sprintf("%x", w.id(w.m[0]))
	list, err := w.client.MemberList(w.ctx)
	if !w.ok(err, "list") {
		return
	}
	right := fmt.Sprintf("%x", list.Header.ClusterId)
	post := func(headers map[string]string) (int, string, string) {
		r, err := http.NewRequestWithContext(w.ctx, http.MethodPost, w.m[0].PeerURL+"/raft", strings.NewReader("x"))
		if !w.ok(err, "request") {
			return 0, "", ""
		}
		for name, value := range headers {
			r.Header.Set(name, value)
		}
		answer, err := http.DefaultClient.Do(r)
		if !w.ok(err, "post to the peer address") {
			return 0, "", ""
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body) // A part of it is as good for the report.
		return answer.StatusCode, strings.TrimSpace(string(body)), answer.Header.Get("X-Etcd-Cluster-Id")
	}
	peer := func(clusterID string) map[string]string {
		return map[string]string{"X-Etcd-Cluster-ID": clusterID, "X-Server-From": id, "X-Server-Version": "3.6.0", "X-Min-Cluster-Version": "3.0.0"}
	}
	code, body, told := post(peer("1234"))
	w.check(code == http.StatusPreconditionFailed && body == "cluster ID mismatch" && told == right, "%s: a message with another cluster id: %d %q, cluster id %q of %q", w.name, code, body, told, right)
	code, body, _ = post(peer(right))
	w.check(code == http.StatusBadRequest && body == "error unmarshalling raft message", "%s: a message that is none: %d %q", w.name, code, body)
	for _, path := range []string{"/members", "/version", "/health"} {
		answer, err := http.Get(w.m[0].PeerURL + path)
		if !w.ok(err, path) {
			continue
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		switch path {
		case "/members":
			w.check(answer.StatusCode == 200 && strings.Count(string(body), "\"peerURLs\"") == 3 && answer.Header.Get("X-Etcd-Cluster-Id") == right, "%s: %s on the peer address: %d %s", w.name, path, answer.StatusCode, body)
		case "/version":
			w.check(answer.StatusCode == 200 && strings.Contains(string(body), "etcdcluster"), "%s: %s on the peer address: %d %s", w.name, path, answer.StatusCode, body)
		default:
			w.check(answer.StatusCode == 404, "%s: %s on the peer address: %d %s", w.name, path, answer.StatusCode, body)
		}
	}
	w.converges()
}

// cutOff: what one member answers that hears nothing of the others.
func (w *membersWalk) cutOff(leading bool) {
	m := w.follower()
	if leading {
		m = w.leader()
	}
	c := w.at(m)
	_, err := w.client.Put(w.ctx, "key", "before")
	w.ok(err, "put")
	_, err = c.Get(w.ctx, "key")
	w.ok(err, "a linearizable read before the cut")
	watchCtx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	strict := c.Watch(clientv3.WithRequireLeader(watchCtx), "key", clientv3.WithCreatedNotify())
	loose := c.Watch(watchCtx, "key", clientv3.WithCreatedNotify())
	for _, watch := range []clientv3.WatchChan{strict, loose} {
		r, open := w.receive(watch, 5*time.Second)
		w.check(open && r.Created, "%s: a watch is created: %v", w.name, r)
	}
	w.c.Network.Cut(m.Index, cluster.Rule{Hold: true})
	cut := time.Now()
	_, err = c.Get(w.ctx, "key", clientv3.WithSerializable())
	w.ok(err, "a serializable read right after the cut")
	r, _ := w.receive(strict, 15*time.Second)
	w.check(errors.Is(r.Err(), rpctypes.ErrNoLeader), "%s: a watch that requires a leader: want %v, got %v %v", w.name, rpctypes.ErrNoLeader, r, r.Err())
	fmt.Printf("  a watch that requires a leader ended %v after the cut\n", time.Since(cut).Round(10*time.Millisecond))
	s, err := m.Status(w.ctx)
	w.check(err == nil && s.Leader == 0 && slices.Contains(s.Errors, "etcdserver: no leader"), "%s: status: %v %v", w.name, s, err)
	limited := func() (context.Context, context.CancelFunc) { return context.WithTimeout(w.ctx, 20*time.Second) }
	ctx, stop := limited()
	_, err = c.Get(clientv3.WithRequireLeader(ctx), "key")
	w.refused(err, codes.Unavailable, "etcdserver: no leader", "a read that requires a leader")
	stop()
	ctx, stop = limited()
	began := time.Now()
	_, err = c.Get(ctx, "key")
	w.refused(err, codes.Unavailable, "etcdserver: request timed out", "a linearizable read")
	fmt.Printf("  a linearizable read failed after %v\n", time.Since(began).Round(10*time.Millisecond))
	stop()
	ctx, stop = limited()
	began = time.Now()
	_, err = c.Put(ctx, "key", "cut off")
	w.refused(err, codes.DeadlineExceeded, "context deadline exceeded", "a put")
	fmt.Printf("  a put failed after %v: %v\n", time.Since(began).Round(10*time.Millisecond), err)
	stop()
	ctx, stop = limited()
	_, err = c.MemberList(ctx)
	w.check(err != nil && strings.HasPrefix(err.Error(), "etcdserver: request timed out"), "%s: a list of members: %v", w.name, err)
	stop()
	list, err := c.MemberList(w.ctx, clientv3.WithSerializable())
	w.check(err == nil && len(list.Members) == 3, "%s: a serializable list of members: %v %v", w.name, list, err)
	got, err := c.Get(w.ctx, "key", clientv3.WithSerializable())
	w.check(err == nil && len(got.Kvs) == 1 && string(got.Kvs[0].Value) == "before", "%s: a serializable read: %v %v", w.name, got, err)
	w.check(!m.Healthy(w.ctx), "%s: /health is false", w.name)
	// The others go on.
	var others []*cluster.Member
	for _, other := range w.m {
		if other != m {
			others = append(others, other)
		}
	}
	majority, err := cluster.Client(others...)
	if !w.ok(err, "client") {
		return
	}
	defer majority.Close()
	w.within(15*time.Second, "the others go on", func() bool {
		ctx, stop := context.WithTimeout(w.ctx, time.Second)
		defer stop()
		_, err := majority.Put(ctx, "key", "after")
		return err == nil
	})
	got, err = c.Get(w.ctx, "key", clientv3.WithSerializable())
	w.check(err == nil && string(got.Kvs[0].Value) == "before", "%s: a serializable read after a write of the others: %v %v", w.name, got, err)
	w.c.Network.Heal(true)
	healed := time.Now()
	w.within(20*time.Second, "the member is healthy again", func() bool { return m.Healthy(w.ctx) })
	fmt.Printf("  healthy %v after the healing\n", time.Since(healed).Round(10*time.Millisecond))
	got, err = c.Get(w.ctx, "key")
	w.check(err == nil && len(got.Kvs) == 1, "%s: a linearizable read after the healing: %v %v", w.name, got, err)
	// The watch that did not mind went through all that and sees what it missed.
	seen := ""
	for seen != "after" {
		r, open := w.receive(loose, 10*time.Second)
		if !w.check(open && r.Err() == nil && len(r.Events) > 0, "%s: the watch that does not require a leader: %v %v", w.name, r, r.Err()) {
			break
		}
		seen = string(r.Events[len(r.Events)-1].Kv.Value)
	}
	w.converges()
}

func (w *membersWalk) receive(watch clientv3.WatchChan, within time.Duration) (clientv3.WatchResponse, bool) {
	select {
	case r, open := <-watch:
		return r, open
	case <-time.After(within):
		return clientv3.WatchResponse{}, false
	}
}
