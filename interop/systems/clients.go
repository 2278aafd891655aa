package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	capi "github.com/hashicorp/consul/api"
	natsio "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-zookeeper/zk"
)

var errAbsent = errors.New("the key is absent")

// etcd's client, for etcd and Mainstay. A get is linearizable, a local one serializable.
type etcd struct{}

type etcdClient struct{ of *clientv3.Client }

func (etcd) open(ctx context.Context, port int) (client, error) {
	of, err := clientv3.New(clientv3.Config{
		Endpoints: []string{fmt.Sprintf("127.0.0.1:%d", port)}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	return etcdClient{of}, err
}

func (c etcdClient) put(ctx context.Context, key string, value []byte) error {
	_, err := c.of.Put(ctx, key, string(value))
	return err
}

func (c etcdClient) get(ctx context.Context, key string) ([]byte, error) { return c.read(ctx, key) }

func (c etcdClient) getLocal(ctx context.Context, key string) ([]byte, error) {
	return c.read(ctx, key, clientv3.WithSerializable())
}

func (c etcdClient) read(ctx context.Context, key string, how ...clientv3.OpOption) ([]byte, error) {
	answer, err := c.of.Get(ctx, key, how...)
	if err != nil {
		return nil, err
	}
	if len(answer.Kvs) == 0 {
		return nil, errAbsent
	}
	return answer.Kvs[0].Value, nil
}

func (c etcdClient) watch(ctx context.Context, key string) (<-chan []byte, error) {
	events := c.of.Watch(ctx, key, clientv3.WithCreatedNotify())
	if answer, ok := <-events; !ok || answer.Err() != nil {
		return nil, fmt.Errorf("no watch: %w", answer.Err())
	}
	values := make(chan []byte, 16)
	go func() {
		defer close(values)
		for answer := range events {
			for _, event := range answer.Events {
				values <- event.Kv.Value
			}
		}
	}()
	return values, nil
}

func (c etcdClient) close() { _ = c.of.Close() }

// Consul's client. A get is of the mode `consistent`, a local one `stale`; a watch is a blocking query.
type consul struct{}

type consulClient struct {
	kv   *capi.KV
	idle func()
}

func (consul) open(_ context.Context, port int) (client, error) {
	way := &http.Transport{MaxIdleConnsPerHost: 2}
	of, err := capi.NewClient(&capi.Config{Address: fmt.Sprintf("127.0.0.1:%d", port), Transport: way})
	if err != nil {
		return nil, err
	}
	return consulClient{of.KV(), way.CloseIdleConnections}, nil
}

func (c consulClient) put(ctx context.Context, key string, value []byte) error {
	_, err := c.kv.Put(&capi.KVPair{Key: key, Value: value}, (&capi.WriteOptions{}).WithContext(ctx))
	return err
}

func (c consulClient) get(ctx context.Context, key string) ([]byte, error) {
	value, _, err := c.read(ctx, key, capi.QueryOptions{RequireConsistent: true})
	return value, err
}

func (c consulClient) getLocal(ctx context.Context, key string) ([]byte, error) {
	value, _, err := c.read(ctx, key, capi.QueryOptions{AllowStale: true})
	return value, err
}

func (c consulClient) read(ctx context.Context, key string, how capi.QueryOptions) ([]byte, uint64, error) {
	pair, meta, err := c.kv.Get(key, how.WithContext(ctx))
	if err != nil {
		return nil, 0, err
	}
	if pair == nil {
		return nil, 0, errAbsent
	}
	return pair.Value, meta.LastIndex, nil
}

func (c consulClient) watch(ctx context.Context, key string) (<-chan []byte, error) {
	_, index, err := c.read(ctx, key, capi.QueryOptions{})
	if err != nil {
		return nil, err
	}
	values := make(chan []byte, 16)
	go func() {
		defer close(values)
		for {
			value, next, err := c.read(ctx, key, capi.QueryOptions{WaitIndex: index})
			if err != nil {
				return
			}
			index = next
			values <- value
		}
	}()
	return values, nil
}

func (c consulClient) close() { c.idle() }

// NATS' client, with a bucket of JetStream's key-value store. Reads of a bucket are direct gets, which any replica of the stream may
// answer; with one member that is the only copy. The client's buckets have no other read, so both are the same.
type nats struct{}

type natsClient struct {
	of *natsio.Conn
	kv jetstream.KeyValue
}

func (nats) open(ctx context.Context, port int) (client, error) {
	of, err := natsio.Connect(fmt.Sprintf("nats://127.0.0.1:%d", port), natsio.NoReconnect())
	if err != nil {
		return nil, err
	}
	stream, err := jetstream.New(of)
	if err != nil {
		of.Close()
		return nil, err
	}
	kv, err := stream.KeyValue(ctx, "load")
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = stream.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "load", Storage: jetstream.FileStorage, Replicas: 1})
	}
	if err != nil {
		of.Close()
		return nil, err
	}
	return natsClient{of, kv}, nil
}

func (c natsClient) put(ctx context.Context, key string, value []byte) error {
	_, err := c.kv.Put(ctx, key, value)
	return err
}

func (c natsClient) get(ctx context.Context, key string) ([]byte, error) {
	entry, err := c.kv.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return entry.Value(), nil
}

func (c natsClient) getLocal(ctx context.Context, key string) ([]byte, error) { return c.get(ctx, key) }

func (c natsClient) watch(ctx context.Context, key string) (<-chan []byte, error) {
	watcher, err := c.kv.Watch(ctx, key, jetstream.UpdatesOnly())
	if err != nil {
		return nil, err
	}
	values := make(chan []byte, 16)
	go func() {
		defer close(values)
		for entry := range watcher.Updates() {
			if entry != nil {
				values <- entry.Value()
			}
		}
	}()
	return values, nil
}

func (c natsClient) close() { c.of.Close() }

// The Go client of ZooKeeper. A get is `sync` and then a read; a local one is the read alone. A watch fires once and does not have the
// value, so it is set by the read that fetches the value.
type zookeeper struct{}

type zookeeperClient struct{ of *zk.Conn }

type silent struct{}

func (silent) Printf(string, ...any) {}

func (zookeeper) open(ctx context.Context, port int) (client, error) {
	of, events, err := zk.Connect([]string{fmt.Sprintf("127.0.0.1:%d", port)}, 20*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case event := <-events:
			if event.State == zk.StateHasSession {
				return zookeeperClient{of}, nil
			}
		case <-ctx.Done():
			of.Close()
			return nil, ctx.Err()
		}
	}
}

func (c zookeeperClient) put(_ context.Context, key string, value []byte) error {
	_, err := c.of.Set("/"+key, value, -1)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	_, err = c.of.Create("/"+key, value, 0, zk.WorldACL(zk.PermAll))
	if errors.Is(err, zk.ErrNoNode) {
		if _, err := c.of.Create("/k", nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
		_, err = c.of.Create("/"+key, value, 0, zk.WorldACL(zk.PermAll))
	}
	if errors.Is(err, zk.ErrNodeExists) {
		_, err = c.of.Set("/"+key, value, -1)
	}
	return err
}

func (c zookeeperClient) get(ctx context.Context, key string) ([]byte, error) {
	if _, err := c.of.Sync("/" + key); err != nil {
		return nil, err
	}
	return c.getLocal(ctx, key)
}

func (c zookeeperClient) getLocal(_ context.Context, key string) ([]byte, error) {
	value, _, err := c.of.Get("/" + key)
	return value, err
}

func (c zookeeperClient) watch(ctx context.Context, key string) (<-chan []byte, error) {
	_, _, fired, err := c.of.GetW("/" + key)
	if err != nil {
		return nil, err
	}
	values := make(chan []byte, 16)
	go func() {
		defer close(values)
		for {
			select {
			case <-fired:
			case <-ctx.Done():
				return
			}
			var value []byte
			if value, _, fired, err = c.of.GetW("/" + key); err != nil {
				return
			}
			values <- value
		}
	}()
	return values, nil
}

func (c zookeeperClient) close() { c.of.Close() }
