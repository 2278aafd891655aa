package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	// The namespace of the writer's objects.
	written      = "written"
	writers      = 4
	writeTimeout = 20 * time.Second
)

// writer is a client that creates objects, changes each once, and reads it, at a steady rate. It knows what was acknowledged.
type writer struct {
	client  *kubernetes.Clientset
	rate    int
	figures *figures

	mutex   sync.Mutex
	changed *sync.Cond
	paused  bool
	busy    int
	objects map[string]*writtenObject
	// Names of this process's objects are told apart by its start.
	began int64
}

// writtenObject is an object with the newest state that was acknowledged.
type writtenObject struct {
	version uint64
	value   string
	// A request about it failed, so that a later state than the acknowledged one may be there.
	unsure bool
	// Versions that the watch told.
	told map[uint64]bool
}

func newWriter(client *kubernetes.Clientset, rate int, figures *figures) *writer {
	one := &writer{client: client, rate: rate, figures: figures, objects: map[string]*writtenObject{}, began: time.Now().Unix(), paused: true}
	one.changed = sync.NewCond(&one.mutex)
	return one
}

func (w *writer) count() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return len(w.objects)
}

func (w *writer) pause() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.paused = true
	for w.busy > 0 {
		w.changed.Wait()
	}
}

func (w *writer) resume() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.paused = false
}

func (w *writer) run(ctx context.Context) {
	for number := range writers {
		go w.write(ctx, number)
	}
	<-ctx.Done()
}

func (w *writer) write(ctx context.Context, number int) {
	period := time.Second * writers / time.Duration(w.rate)
	for turn := 0; ctx.Err() == nil; turn++ {
		pause(ctx, period)
		w.mutex.Lock()
		if w.paused {
			w.mutex.Unlock()
			continue
		}
		w.busy++
		w.mutex.Unlock()
		w.step(ctx, fmt.Sprintf("w%d-%d-%06d", w.began, number, turn))
		w.mutex.Lock()
		w.busy--
		w.changed.Broadcast()
		w.mutex.Unlock()
	}
}

// step creates an object, changes it, and reads it.
func (w *writer) step(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	maps := w.client.CoreV1().ConfigMaps(written)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": "1"}}
	one := &writtenObject{told: map[uint64]bool{}}
	w.mutex.Lock()
	w.objects[name] = one
	w.mutex.Unlock()
	acknowledged := func(kind string, began time.Time, object *corev1.ConfigMap, err error) bool {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		if err != nil {
			one.unsure = true
			w.figures.fails(kind, err)
			return false
		}
		w.figures.took(kind, time.Since(began))
		one.version, one.value = parse(object.ResourceVersion), object.Data["value"]
		return true
	}
	began := time.Now()
	made, err := maps.Create(ctx, object, metav1.CreateOptions{})
	if !acknowledged("object create", began, made, err) {
		return
	}
	began = time.Now()
	made = made.DeepCopy()
	made.Data["value"] = "2"
	made, err = maps.Update(ctx, made, metav1.UpdateOptions{})
	if !acknowledged("object update", began, made, err) {
		return
	}
	began = time.Now()
	read, err := maps.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && read.ResourceVersion != made.ResourceVersion {
		w.figures.wrong("a read of %s after its change was acknowledged at %s: %v", name, made.ResourceVersion, err)
	}
	if err != nil {
		w.figures.fails("object get", err)
		return
	}
	w.figures.took("object get", time.Since(began))
	began = time.Now()
	list, err := maps.List(ctx, metav1.ListOptions{Limit: 10})
	if err != nil {
		w.figures.fails("object list", err)
		return
	}
	w.figures.took("object list", time.Since(began))
	if parse(list.ResourceVersion) < parse(made.ResourceVersion) {
		w.figures.wrong("a list is of %s, after %s was acknowledged", list.ResourceVersion, made.ResourceVersion)
	}
}

// seen is told of every event of the writer's objects.
func (w *writer) seen(kind watch.EventType, uid types.UID, object runtime.Object, listed bool) {
	from, ok := object.(*corev1.ConfigMap)
	if !ok || kind == watch.Deleted {
		return
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if one := w.objects[from.Name]; one != nil {
		one.told[parse(from.ResourceVersion)] = true
	}
}

// verify compares what is there with what was acknowledged, and with what the watch told. Nothing may be under way.
func (w *writer) verify(ctx context.Context) (map[string]any, error) {
	list, err := w.client.CoreV1().ConfigMaps(written).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	there := map[string]*corev1.ConfigMap{}
	for at := range list.Items {
		there[list.Items[at].Name] = &list.Items[at]
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	wrong := []string{}
	acknowledged, unsure := 0, 0
	for name, one := range w.objects {
		if one.unsure {
			unsure++
		}
		found := there[name]
		delete(there, name)
		if one.version == 0 {
			continue
		}
		acknowledged++
		switch {
		case found == nil:
			wrong = append(wrong, name+" is lost")
		case one.unsure && parse(found.ResourceVersion) < one.version, !one.unsure && parse(found.ResourceVersion) != one.version,
			!one.unsure && found.Data["value"] != one.value:
			wrong = append(wrong, fmt.Sprintf("%s is of %s with %s, acknowledged was %d with %s", name, found.ResourceVersion,
				found.Data["value"], one.version, one.value))
		case !one.told[one.version]:
			wrong = append(wrong, name+" at "+strconv.FormatUint(one.version, 10)+" was not told by the watch")
		}
	}
	for name := range there {
		if name != "kube-root-ca.crt" {
			wrong = append(wrong, name+" was never created")
		}
	}
	if len(wrong) > mistakesMax {
		wrong = wrong[:mistakesMax]
	}
	return map[string]any{"acknowledged": acknowledged, "unsure": unsure, "wrong": wrong}, nil
}
