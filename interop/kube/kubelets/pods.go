package main

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// pod is what a kubelet needs to know of one.
type pod struct {
	namespace, name, node string
	containers            []string
	phase                 corev1.PodPhase
	ready, ends           bool
	// When a watch told of it for the first time; zero if it was listed.
	seen  time.Time
	bound time.Time
}

// podSeen is told of every state of every pod.
func (k *kubelets) podSeen(kind watch.EventType, uid types.UID, object runtime.Object, listed bool) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if kind == watch.Deleted {
		delete(k.pods, uid)
		return
	}
	from, now := object.(*corev1.Pod), time.Now()
	one := k.pods[uid]
	if one == nil {
		one = &pod{namespace: from.Namespace, name: from.Name}
		for _, container := range from.Spec.Containers {
			one.containers = append(one.containers, container.Name)
		}
		if !listed {
			one.seen = now
		}
		k.pods[uid] = one
	}
	if one.node == "" && from.Spec.NodeName != "" && !one.seen.IsZero() {
		k.figures.took("pod bound", now.Sub(one.seen))
		one.bound = now
	}
	running := from.Status.Phase == corev1.PodRunning && isReady(from)
	if running && !one.ready && !one.seen.IsZero() {
		k.figures.took("pod started", now.Sub(one.seen))
	}
	one.node, one.phase, one.ready, one.ends = from.Spec.NodeName, from.Status.Phase, running, from.DeletionTimestamp != nil
	if one.node != "" && (one.ends || one.phase == corev1.PodPending) {
		k.queue.Add(uid)
	}
}

func (k *kubelets) forget() {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	clear(k.pods)
}

func isReady(one *corev1.Pod) bool {
	for _, condition := range one.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (k *kubelets) counts() map[string]int {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	counts := map[string]int{"all": len(k.pods), "bound": 0, "running": 0, "ending": 0, "unready nodes": len(k.unready)}
	for _, one := range k.pods {
		if one.node != "" {
			counts["bound"]++
		}
		if one.ready && !one.ends {
			counts["running"]++
		}
		if one.ends {
			counts["ending"]++
		}
	}
	return counts
}

func (k *kubelets) work(ctx context.Context) {
	for {
		uid, over := k.queue.Get()
		if over {
			return
		}
		if k.handle(ctx, uid) {
			k.queue.Forget(uid)
		} else {
			k.queue.AddRateLimited(uid)
		}
		k.queue.Done(uid)
	}
}

// handle does what the kubelet of its node would do for a pod next. It returns false if that has to be tried again.
func (k *kubelets) handle(ctx context.Context, uid types.UID) bool {
	k.mutex.Lock()
	known := k.pods[uid]
	if known == nil {
		k.mutex.Unlock()
		return true
	}
	one := *known
	k.mutex.Unlock()
	pods, began := k.client.CoreV1().Pods(one.namespace), time.Now()
	var kind string
	var err error
	switch {
	case one.ends:
		kind = "pod delete"
		now := int64(0)
		err = pods.Delete(ctx, one.name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid}})
		// Another pod may have the name by now.
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return true
		}
	case one.phase == corev1.PodPending && one.node != "":
		kind = "pod status"
		_, err = pods.Patch(ctx, one.name, types.StrategicMergePatchType, started(uid, &one), metav1.PatchOptions{}, "status")
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
			return true
		}
	default:
		return true
	}
	if err != nil {
		k.figures.fails(kind, err)
		return ctx.Err() != nil
	}
	k.figures.took(kind, time.Since(began))
	return true
}

// Addresses of pods, each of which is given once.
var nextAddress atomic.Int64

// started is the patch by which a kubelet reports that all containers of a pod run and are ready. It fails for another pod of that name.
func started(uid types.UID, one *pod) []byte {
	now := metav1.Now()
	address := addressOf(100, int(nextAddress.Add(1)))
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: "10.0.0.1", HostIPs: []corev1.HostIP{{IP: "10.0.0.1"}},
		PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}, StartTime: &now,
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	yes := true
	for _, name := range one.containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: name, Ready: true, Started: &yes, Image: "registry.example.com/service:v1",
			ImageID:     "registry.example.com/service@sha256:0000000000000000000000000000000000000000000000000000000000000001",
			ContainerID: "containerd://" + string(uid) + "/" + name,
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": status})
	if err != nil {
		panic(err)
	}
	return patch
}

// listedPod is a pod as interop/kube_e2e.py compares it.
type listedPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Node      string `json:"node"`
	App       string `json:"app"`
	Running   bool   `json:"running"`
	Ends      bool   `json:"ends"`
	// Of its ReplicaSet.
	Hash string `json:"hash"`
}

func listPods(ctx context.Context, client *kubernetes.Clientset) ([]listedPod, error) {
	list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	answer := make([]listedPod, 0, len(list.Items))
	for at := range list.Items {
		one := &list.Items[at]
		answer = append(answer, listedPod{
			Namespace: one.Namespace, Name: one.Name, UID: string(one.UID), Node: one.Spec.NodeName, App: one.Labels["app"],
			Running: one.Status.Phase == corev1.PodRunning && isReady(one), Ends: one.DeletionTimestamp != nil,
			Hash: one.Labels["pod-template-hash"],
		})
	}
	return answer, nil
}
