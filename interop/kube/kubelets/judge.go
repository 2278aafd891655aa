package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	watchSeconds = 300
	retryAfter   = 300 * time.Millisecond
)

// source is how one kind of object is listed and watched.
type source struct {
	list  func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	watch func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

func allPods(client *kubernetes.Clientset) source {
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	return source{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) },
		watch: pods.Watch,
	}
}

func configMaps(client *kubernetes.Clientset, namespace string) source {
	maps := client.CoreV1().ConfigMaps(namespace)
	return source{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return maps.List(ctx, o) },
		watch: maps.Watch,
	}
}

// judge follows all objects of one kind as a client with a cache does, and holds what it is told to the promises of the API:
//
//   - resource versions of a watch rise with every event;
//   - an object is added once, changed only between its addition and its deletion, and deleted once;
//   - no two objects have the same name at the same time;
//   - a pod that is bound to a node stays bound to it;
//   - a list without a resource version is not older than anything that was told before it.
//
// A watch may end at any time, and be refused as too old after a compaction: then the objects are listed again. Both are counted
// by reason and are no mistakes; whoever reads the counts knows which were to be expected.
type judge struct {
	what    string
	figures *figures
	// Called with each state of an object, in order; the object is nil if it was deleted while no watch was open.
	told func(kind watch.EventType, uid types.UID, object runtime.Object, listed bool)

	mutex sync.Mutex
	known map[types.UID]*knownObject
	names map[string]types.UID
	gone  map[types.UID]bool
	// The newest resource version that was told.
	newest uint64
	// Incremented by forget, so that a watch that began before it ends.
	era int
}

type knownObject struct {
	name, node string
	version    uint64
}

func newJudge(what string, figures *figures, told func(watch.EventType, types.UID, runtime.Object, bool)) *judge {
	one := &judge{what: what, figures: figures, told: told}
	one.forget()
	one.era = 0
	return one
}

// forget makes the next list the first one.
func (j *judge) forget() {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.known, j.names, j.gone = map[types.UID]*knownObject{}, map[string]types.UID{}, map[types.UID]bool{}
	j.newest = 0
	j.era++
}

func (j *judge) live() int {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return len(j.known)
}

func (j *judge) follow(ctx context.Context, from source) {
	for ctx.Err() == nil {
		era := j.currentEra()
		list, err := from.list(ctx, metav1.ListOptions{})
		if err != nil {
			j.figures.watch(j.what, "list failed: "+reason(err))
			pause(ctx, retryAfter)
			continue
		}
		at, ok := j.listed(list, era)
		if !ok {
			continue
		}
		j.figures.watch(j.what, "listed")
		for ctx.Err() == nil && j.currentEra() == era {
			seconds := int64(watchSeconds)
			stream, err := from.watch(ctx, metav1.ListOptions{
				ResourceVersion: strconv.FormatUint(at, 10), AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
			})
			if err == nil {
				at, err = j.stream(stream, at, era)
				stream.Stop()
			}
			if err == nil {
				j.figures.watch(j.what, "closed")
				continue
			}
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				j.figures.watch(j.what, "expired")
				break
			}
			j.figures.watch(j.what, "failed: "+reason(err))
			pause(ctx, retryAfter)
		}
	}
}

func (j *judge) currentEra() int {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return j.era
}

// listed takes over a list: what is missing in it was deleted without being seen.
func (j *judge) listed(list runtime.Object, era int) (uint64, bool) {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		panic(err)
	}
	at := parse(accessor.GetResourceVersion())
	objects, err := meta.ExtractList(list)
	if err != nil {
		panic(err)
	}
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if j.era != era {
		return 0, false
	}
	if at < j.newest {
		j.figures.wrong("%s: a list is of %d, after %d was told", j.what, at, j.newest)
	}
	j.newest = max(j.newest, at)
	present := map[types.UID]bool{}
	for _, object := range objects {
		item := object.(metav1.Object)
		present[item.GetUID()] = true
		if before := j.known[item.GetUID()]; before != nil && before.version == parse(item.GetResourceVersion()) {
			continue
		}
		if _, ok := j.known[item.GetUID()]; ok {
			j.change(watch.Modified, object, true)
		} else {
			if other, ok := j.names[nameOf(item)]; ok && !present[other] {
				j.remove(other)
				j.told(watch.Deleted, other, nil, true)
			}
			j.change(watch.Added, object, true)
		}
	}
	for uid := range j.known {
		if !present[uid] {
			j.remove(uid)
			j.told(watch.Deleted, uid, nil, true)
			j.figures.watch(j.what, "deleted while no watch was open")
		}
	}
	return at, true
}

func (j *judge) remove(uid types.UID) {
	if j.names[j.known[uid].name] == uid {
		delete(j.names, j.known[uid].name)
	}
	delete(j.known, uid)
	j.gone[uid] = true
}

// stream takes events until the watch ends. The error is that of the server; none if it closed the watch.
func (j *judge) stream(stream watch.Interface, at uint64, era int) (uint64, error) {
	for event := range stream.ResultChan() {
		if event.Type == watch.Error {
			return at, apierrors.FromObject(event.Object)
		}
		item, ok := event.Object.(metav1.Object)
		if !ok {
			continue
		}
		version := parse(item.GetResourceVersion())
		j.mutex.Lock()
		if j.era != era {
			j.mutex.Unlock()
			return at, nil
		}
		if event.Type == watch.Bookmark {
			if version < at {
				j.figures.wrong("%s: a bookmark is of %d, after %d", j.what, version, at)
			}
		} else {
			if version <= at {
				j.figures.wrong("%s: %s of %s is of %d, after %d", j.what, event.Type, nameOf(item), version, at)
			}
			j.change(event.Type, event.Object, false)
		}
		at = max(at, version)
		j.newest = max(j.newest, at)
		j.mutex.Unlock()
	}
	return at, nil
}

// change judges one event. The mutex is held.
func (j *judge) change(kind watch.EventType, object runtime.Object, listed bool) {
	item := object.(metav1.Object)
	uid, name, version := item.GetUID(), nameOf(item), parse(item.GetResourceVersion())
	before := j.known[uid]
	switch {
	case j.gone[uid]:
		j.figures.wrong("%s: %s of %s after it was deleted", j.what, kind, name)
	case kind == watch.Added && before != nil:
		j.figures.wrong("%s: %s was added twice", j.what, name)
	case kind != watch.Added && before == nil:
		j.figures.wrong("%s: %s of %s, which was not added", j.what, kind, name)
	case before != nil && version <= before.version:
		j.figures.wrong("%s: %s of %s went from %d to %d", j.what, kind, name, before.version, version)
	}
	if other, ok := j.names[name]; ok && other != uid {
		j.figures.wrong("%s: two objects are called %s: %s and %s", j.what, name, other, uid)
	}
	now := &knownObject{name: name, version: version}
	if pod, ok := object.(*corev1.Pod); ok {
		now.node = pod.Spec.NodeName
	}
	if before != nil && before.node != "" && before.node != now.node {
		j.figures.wrong("%s: %s went from %s to %q", j.what, name, before.node, now.node)
	}
	j.known[uid], j.names[name] = now, uid
	if kind == watch.Deleted {
		j.remove(uid)
	}
	j.told(kind, uid, object, listed)
}

func nameOf(item metav1.Object) string { return item.GetNamespace() + "/" + item.GetName() }

// parse reads a resource version, which is a revision of the store.
func parse(version string) uint64 {
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		panic("resource version " + strconv.Quote(version))
	}
	return number
}

// pause waits, but not beyond the end of the context.
func pause(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}
