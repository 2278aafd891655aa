package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
)

// As the kubelet does by default: the Lease is renewed at a quarter of its 40 s, the status of the node every five minutes.
const (
	leaseSeconds  = 40
	renewalPeriod = leaseSeconds / 4 * time.Second
	statusPeriod  = 5 * time.Minute
	// How soon a failed renewal is tried again: kubelets double this up to seven seconds.
	renewalRetry = 200 * time.Millisecond
	registering  = 16
	leases       = "kube-node-lease"
	// A node of a cluster in use is 10 to 20 KB, most of which are the names of its images.
	imagesOfNode = 40
)

// kubelets are those of all nodes. Real ones watch the pods of their node each; here one watch tells all of them.
type kubelets struct {
	client  *kubernetes.Clientset
	count   int
	workers int
	figures *figures
	// Nodes that are registered.
	registered atomic.Int64
	queue      workqueue.TypedRateLimitingInterface[types.UID]

	mutex sync.Mutex
	pods  map[types.UID]*pod
	// Nodes that the control plane holds to be not ready, or that it has tainted.
	unready map[string]bool
}

func newKubelets(client *kubernetes.Clientset, count, workers int, figures *figures) *kubelets {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, 3*time.Second)
	return &kubelets{
		client: client, count: count, workers: workers, figures: figures, pods: map[types.UID]*pod{}, unready: map[string]bool{},
		queue: workqueue.NewTypedRateLimitingQueue(limiter),
	}
}

func nodeName(number int) string { return fmt.Sprintf("node-%05d", number) }

func (k *kubelets) run(ctx context.Context) {
	numbers := make(chan int)
	for range min(registering, k.count) {
		go func() {
			for number := range numbers {
				k.register(ctx, number)
				go k.beat(ctx, number)
			}
		}()
	}
	for range k.workers {
		go k.work(ctx)
	}
	for number := range k.count {
		numbers <- number
	}
	close(numbers)
	<-ctx.Done()
	k.queue.ShutDown()
}

func (k *kubelets) register(ctx context.Context, number int) {
	for ctx.Err() == nil {
		began := time.Now()
		_, err := k.client.CoreV1().Nodes().Create(ctx, node(number), metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			k.figures.took("node create", time.Since(began))
			k.registered.Add(1)
			return
		}
		k.figures.fails("node create", err)
		pause(ctx, retryAfter)
	}
}

// beat renews the Lease and reports the status of one node. Nodes are spread over the period.
func (k *kubelets) beat(ctx context.Context, number int) {
	var lease *coordinationv1.Lease
	spread := renewalPeriod * time.Duration(number) / time.Duration(k.count)
	reported := time.Now().Add(-statusPeriod * time.Duration(number) / time.Duration(k.count))
	renewed, due := time.Now(), time.Now().Add(spread)
	for ctx.Err() == nil {
		pause(ctx, time.Until(due))
		began := time.Now()
		next, err := k.renew(ctx, number, lease)
		switch {
		case err == nil:
			k.figures.took("lease renewal", time.Since(began))
			k.figures.took("between renewals", time.Since(renewed))
			lease, renewed = next, time.Now()
			due = due.Add(renewalPeriod)
			// What could not be renewed in time is not caught up on.
			if time.Until(due) < 0 {
				due = time.Now()
			}
		case ctx.Err() != nil:
			return
		default:
			k.figures.fails("lease renewal", err)
			lease, due = nil, time.Now().Add(renewalRetry)
		}
		if time.Since(reported) >= statusPeriod {
			began := time.Now()
			_, err := k.client.CoreV1().Nodes().Patch(ctx, nodeName(number), types.StrategicMergePatchType, heartbeat(), metav1.PatchOptions{}, "status")
			if err != nil {
				k.figures.fails("node status", err)
				continue
			}
			k.figures.took("node status", time.Since(began))
			reported = began
		}
	}
}

// renew is given the Lease as it was last told, or nil if it has to be read first.
func (k *kubelets) renew(ctx context.Context, number int, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	client, name, now := k.client.CoordinationV1().Leases(leases), nodeName(number), metav1.NowMicro()
	if lease == nil {
		read, err := client.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			seconds := int32(leaseSeconds)
			return client.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: leases},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now},
			}, metav1.CreateOptions{})
		}
		if err != nil {
			return nil, err
		}
		lease = read
	}
	lease = lease.DeepCopy()
	lease.Spec.RenewTime = &now
	return client.Update(ctx, lease, metav1.UpdateOptions{})
}

// watchNodes notes which nodes the control plane holds to be lost, which happens when it does not see their Leases renewed.
func (k *kubelets) watchNodes(ctx context.Context, client *kubernetes.Clientset) {
	nodes := client.CoreV1().Nodes()
	look := func(one *corev1.Node) {
		lost := false
		for _, condition := range one.Status.Conditions {
			lost = lost || condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue
		}
		for _, taint := range one.Spec.Taints {
			lost = lost || taint.Key == corev1.TaintNodeUnreachable
		}
		k.mutex.Lock()
		defer k.mutex.Unlock()
		if lost && !k.unready[one.Name] {
			k.figures.watch("nodes", "held to be lost")
		}
		if lost {
			k.unready[one.Name] = true
		} else {
			delete(k.unready, one.Name)
		}
	}
	for ctx.Err() == nil {
		list, err := nodes.List(ctx, metav1.ListOptions{})
		if err != nil {
			k.figures.watch("nodes", "list failed: "+reason(err))
			pause(ctx, retryAfter)
			continue
		}
		for at := range list.Items {
			look(&list.Items[at])
		}
		stream, err := nodes.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			pause(ctx, retryAfter)
			continue
		}
		for event := range stream.ResultChan() {
			if one, ok := event.Object.(*corev1.Node); ok && event.Type != watch.Deleted {
				look(one)
			}
		}
		stream.Stop()
	}
}

func node(number int) *corev1.Node {
	name := nodeName(number)
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("500Gi"),
	}
	one := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", number%3), corev1.LabelTopologyRegion: "region",
		}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity, Conditions: conditions(),
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addressOf(10, number)}, {Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.37.0", ContainerRuntimeVersion: "containerd://2.2.0",
				KernelVersion: "6.18.0", OSImage: "simulated", MachineID: name, SystemUUID: name, BootID: name,
			},
		},
	}
	for image := range imagesOfNode {
		repository := fmt.Sprintf("registry.example.com/team-%02d/service-%02d", image%7, image)
		one.Status.Images = append(one.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("%s@sha256:%064x", repository, image+1), fmt.Sprintf("%s:v1.%d.0", repository, image)},
			SizeBytes: int64(image+1) << 20,
		})
	}
	return one
}

func conditions() []corev1.NodeCondition {
	now := metav1.Now()
	one := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: reason, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return []corev1.NodeCondition{
		one(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
		one(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
		one(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
		one(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
	}
}

// heartbeat is the patch of a node whose state has not changed.
func heartbeat() []byte {
	now := metav1.Now().UTC().Format(time.RFC3339)
	patch := `{"status":{"conditions":[`
	for at, one := range conditions() {
		if at > 0 {
			patch += ","
		}
		patch += fmt.Sprintf(`{"type":%q,"status":%q,"lastHeartbeatTime":%q}`, one.Type, one.Status, now)
	}
	return []byte(patch + `]}}`)
}

// addressOf makes an address of a network of /8, of which each number has another one.
func addressOf(network, number int) string {
	return fmt.Sprintf("%d.%d.%d.%d", network, number>>16&255, number>>8&255, number&255)
}
