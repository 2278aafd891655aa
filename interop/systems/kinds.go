package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// kind is one of the systems: how a member of it starts, and how a client speaks to it.
type kind interface {
	// command starts a member that listens on 127.0.0.1 only, keeps its data in `data`, and acknowledges a put when it is on the disk.
	command(path, dir, data string, ports []int) ([]string, error)
	// open connects a client that shares its connection with no other.
	open(ctx context.Context, port int) (client, error)
}

type client interface {
	put(ctx context.Context, key string, value []byte) error
	// get is the strongest read that the system has.
	get(ctx context.Context, key string) ([]byte, error)
	// getLocal is the read that costs the system least.
	getLocal(ctx context.Context, key string) ([]byte, error)
	// watch gives each value of a key that is put after it has returned, until `ctx` ends. Systems that tell of a change without its
	// value are asked for it.
	watch(ctx context.Context, key string) (<-chan []byte, error)
	close()
}

func kindOf(name string) kind {
	for beginning, kind := range map[string]kind{
		"mainstay": etcd{}, "etcd": etcd{}, "consul": consul{}, "nats": nats{}, "zookeeper": zookeeper{},
	} {
		if strings.HasPrefix(name, beginning) {
			return kind
		}
	}
	return nil
}

// etcd is Mainstay as well. Both sync each batch of the log before they answer; there is nothing to set.
func (etcd) command(path, _, data string, ports []int) ([]string, error) {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	return []string{path, "--name=m1", "--data-dir=" + data, "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=m1=" + peer, "--log-level=error"}, nil
}

// Consul syncs its raft log, in BoltDB, before it answers, which is its default. Of its other parts, none that can be left out is on.
func (consul) command(path, dir, data string, ports []int) ([]string, error) {
	file := filepath.Join(dir, "consul.json")
	text := fmt.Sprintf(`{"server": true, "bootstrap": true, "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1", "data_dir": %q,
 "log_level": "error", "disable_update_check": true, "connect": {"enabled": false}, "performance": {"raft_multiplier": 1},
 "ports": {"http": %d, "server": %d, "serf_lan": %d, "serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1}}`,
		data, ports[0], ports[1], ports[2])
	return []string{path, "agent", "-config-file=" + file}, os.WriteFile(file, []byte(text), 0o600)
}

// JetStream syncs every two minutes by default; `sync_interval: always` has it sync before it answers.
func (nats) command(path, dir, data string, ports []int) ([]string, error) {
	file := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream { store_dir: %q, sync_interval: always }\n", ports[0], data)
	return []string{path, "-c", file}, os.WriteFile(file, []byte(text), 0o600)
}

// ZooKeeper syncs its log before it answers (`forceSync`, which is on by default). Its heap is bounded, as in production.
func (zookeeper) command(path, dir, data string, ports []int) ([]string, error) {
	file := filepath.Join(dir, "zoo.cfg")
	text := fmt.Sprintf("dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\ntickTime=2000\nforceSync=yes\nmaxClientCnxns=0\n"+
		"admin.enableServer=false\n", data, ports[0])
	return []string{"java", "-Xmx1000m", "-cp", path, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file},
		os.WriteFile(file, []byte(text), 0o600)
}
