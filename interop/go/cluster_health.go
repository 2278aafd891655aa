package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"mainstay/interop/cluster"
)

// healthPaths are asked for in each state.
var healthPaths = []string{
	"/health", "/health?serializable=true", "/health?serializable=false", "/health?exclude=NOSPACE", "/health?exclude=CORRUPT",
	"/health?exclude=NOSPACE&exclude=CORRUPT", "/health?exclude=NOSPACE&serializable=true", "/health?exclude=", "/health?exclude=nonsense",
	"/livez", "/livez?verbose", "/livez?exclude=serializable_read", "/livez?exclude=serializable_read&verbose", "/livez?allowlist=serializable_read",
	"/livez/serializable_read", "/livez/serializable_read?verbose", "/livez/linearizable_read", "/livez/ping",
	"/readyz", "/readyz?verbose", "/readyz?exclude=data_corruption&verbose", "/readyz?exclude=linearizable_read&verbose",
	"/readyz?exclude=non_learner&exclude=linearizable_read&exclude=data_corruption&verbose", "/readyz?exclude=none&verbose",
	"/readyz?allowlist=serializable_read&verbose", "/readyz/data_corruption", "/readyz/data_corruption?verbose",
	"/readyz/serializable_read", "/readyz/linearizable_read", "/readyz/linearizable_read?verbose", "/readyz/non_learner",
	"/readyz/non_learner?verbose", "/readyz/non_learner?exclude=non_learner&verbose", "/readyz/read_index", "/readyz/", "/version",
}

// healthState brings a cluster into a state; the member whose pages are compared is returned.
type healthState struct {
	name    string
	members int
	reach   func(context.Context, *cluster.Cluster) (*cluster.Member, error)
}

var healthStates = []healthState{
	{"healthy", 3, func(_ context.Context, c *cluster.Cluster) (*cluster.Member, error) { return c.Members[0], nil }},
	{"one member", 1, func(_ context.Context, c *cluster.Cluster) (*cluster.Member, error) { return c.Members[0], nil }},
	{"nospace", 3, alarmed(0, pb.AlarmType_NOSPACE)},
	{"nospace elsewhere", 3, alarmed(1, pb.AlarmType_NOSPACE)},
	{"corrupt", 3, alarmed(0, pb.AlarmType_CORRUPT)},
	{"corrupt elsewhere", 3, alarmed(1, pb.AlarmType_CORRUPT)},
	{"both", 1, alarmed(0, pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT)},
	{"users", 1, withUsers},
	{"learner", 1, withLearner},
	{"defragmented", 1, defragmented},
	{"no leader", 3, withoutLeader},
}

func alarmed(at int, alarms ...pb.AlarmType) func(context.Context, *cluster.Cluster) (*cluster.Member, error) {
	return func(ctx context.Context, c *cluster.Cluster) (*cluster.Member, error) {
		conn, err := c.Members[0].Conn()
		if err != nil {
			return nil, err
		}
		status, err := c.Members[at].Status(ctx)
		if err != nil {
			return nil, err
		}
		for _, alarm := range alarms {
			request := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: alarm}
			if _, err := pb.NewMaintenanceClient(conn).Alarm(ctx, request); err != nil {
				return nil, err
			}
		}
		return c.Members[0], nil
	}
}

func withUsers(ctx context.Context, c *cluster.Cluster) (*cluster.Member, error) {
	client, err := cluster.Client(c.Members...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, err = client.UserAdd(ctx, "root", "p"); err == nil {
		if _, err = client.UserGrantRole(ctx, "root", "root"); err == nil {
			_, err = client.AuthEnable(ctx)
		}
	}
	return c.Members[0], err
}

func withLearner(ctx context.Context, c *cluster.Cluster) (*cluster.Member, error) {
	client, err := cluster.Client(c.Members...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	learner, err := c.Join("learner", c.Members[0])
	if err != nil {
		return nil, err
	}
	if _, err := client.MemberAddAsLearner(ctx, []string{learner.PeerURL}); err != nil {
		return nil, err
	}
	if err := learner.Start(); err != nil {
		return nil, err
	}
	// It serves once it knows the cluster.
	for range 200 {
		if status, _, err := page(ctx, learner, "/health?serializable=true"); err == nil && status == http.StatusOK {
			return learner, nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	return nil, fmt.Errorf("the learner does not serve")
}

func defragmented(ctx context.Context, c *cluster.Cluster) (*cluster.Member, error) {
	client, err := cluster.Client(c.Members...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var defragment clientv3.Maintenance = client
	_, err = defragment.Defragment(ctx, c.Members[0].Endpoint)
	return c.Members[0], err
}

func withoutLeader(ctx context.Context, c *cluster.Cluster) (*cluster.Member, error) {
	c.Members[1].Kill()
	c.Members[2].Kill()
	for range 200 {
		if _, body, err := page(ctx, c.Members[0], "/health"); err == nil && strings.Contains(body, "NO LEADER") {
			return c.Members[0], nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	return nil, fmt.Errorf("the member still knows a leader")
}

// page asks for a page; returns the status, and the headers that mean something and the body in one text. The lines of
// checks come in any order, and patch levels of versions do not count.
func page(ctx context.Context, m *cluster.Member, path string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Endpoint+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, "", err
	}
	lines := strings.SplitAfter(string(body), "\n")
	slices.Sort(lines)
	var headers []string
	for name, values := range response.Header {
		if name != "Date" && name != "Content-Length" {
			headers = append(headers, name+": "+strings.Join(values, " | "))
		}
	}
	slices.Sort(headers)
	return response.StatusCode, fmt.Sprintf("%d %q %q", response.StatusCode, headers, lines), nil
}

// runHealth compares the pages of probes of two servers, the first of which is right by definition, in several states.
func runHealth(ctx context.Context, args []string) int {
	f := newClusterFlags("health")
	only := f.String("state", "", "compare only in the state of this name")
	f.parse(args, true)
	if len(f.servers) != 2 {
		fmt.Fprintln(os.Stderr, "interop cluster health: name two servers, the reference first")
		return 2
	}
	t := &tally{show: 200}
	for _, state := range healthStates {
		if *only != "" && *only != state.name {
			continue
		}
		var answers [2]map[string]string
		for side, server := range f.servers {
			options := f.options(server, false)
			options.Members = state.members
			found, err := healthOf(ctx, options, state)
			if err != nil {
				return cannotRun(fmt.Sprintf("cluster health: %s: %s", server.name, state.name), err)
			}
			answers[side] = found
		}
		for _, path := range healthPaths {
			reference, subject := answers[0][path], answers[1][path]
			if strings.HasPrefix(path, "/version") {
				reference, subject = withoutPatch(reference), withoutPatch(subject)
			}
			if state.name == "both" {
				// Which of them is told first, etcd's map decides.
				reference, subject = eitherAlarm.Replace(reference), eitherAlarm.Replace(subject)
			}
			t.check(reference == subject, "%s: %s\n    reference %s\n    subject   %s", state.name, path, reference, subject)
		}
	}
	return t.finish()
}

var eitherAlarm = strings.NewReplacer("ALARM CORRUPT", "ALARM", "ALARM NOSPACE", "ALARM")

var patch = regexp.MustCompile(`(\d+\.\d+)\.\d+`)

// withoutPatch cuts the patch levels off the versions in a text.
func withoutPatch(text string) string { return patch.ReplaceAllString(text, "$1") }

func healthOf(ctx context.Context, options cluster.Options, state healthState) (map[string]string, error) {
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := awaitVersion(ctx, c.Members[0]); err != nil {
		return nil, err
	}
	member, err := state.reach(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := awaitVersion(ctx, member); err != nil {
		return nil, err
	}
	// All at once: without a leader etcd takes seconds for each.
	answers := make([]string, len(healthPaths))
	var asking sync.WaitGroup
	for at, path := range healthPaths {
		asking.Go(func() {
			_, answer, err := page(ctx, member, path)
			if err != nil {
				answer = "no answer within 20 s"
			}
			answers[at] = answer
		})
	}
	asking.Wait()
	found := map[string]string{}
	for at, path := range healthPaths {
		found[path] = answers[at]
	}
	return found, nil
}

var decided = regexp.MustCompile(`etcdcluster\\*":\\*"(\d+\.\d+)\..*storage\\*":\\*"(\d+\.\d+)\.`)

// awaitVersion waits until a member tells the versions of the cluster and of its storage, and they are equal: some seconds after
// the start.
func awaitVersion(ctx context.Context, m *cluster.Member) error {
	var last string
	for range 600 {
		_, body, err := page(ctx, m, "/version")
		if versions := decided.FindStringSubmatch(body); err == nil && versions != nil && versions[1] == versions[2] {
			return nil
		}
		last = fmt.Sprintf("%s %v", body, err)
		if !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	return fmt.Errorf("%s does not tell the same version of its cluster and of its storage: %s", m.Name, last)
}
