package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

var strict = serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
	serializer.SerializerOptions{Yaml: true, Strict: true})

// objects reads the manifests of a file. A field that the type does not have, or that is there twice, is an error.
func objects(text string) ([]runtime.Object, error) {
	var found []runtime.Object
	for _, document := range strings.Split("\n"+text, "\n---") {
		lines := strings.Split(document, "\n")
		empty := true
		for _, line := range lines {
			line = strings.TrimSpace(line)
			empty = empty && (line == "" || strings.HasPrefix(line, "#"))
		}
		if empty {
			continue
		}
		if strings.Contains(document, "apiVersion: monitoring.coreos.com/") {
			monitor, err := serviceMonitor(document)
			if err != nil {
				return nil, err
			}
			found = append(found, monitor)
			continue
		}
		object, _, err := strict.Decode([]byte(document), nil, nil)
		if err != nil {
			return nil, err
		}
		found = append(found, object)
	}
	return found, nil
}

// monitorShape is what the chart uses of the Prometheus operator's kind, by the names of its documentation.
type monitorShape struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		JobLabel  string               `json:"jobLabel"`
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// serviceMonitor reads an object of a kind that is not Kubernetes' own. A field that the chart should not have is an error.
func serviceMonitor(document string) (*unstructured.Unstructured, error) {
	var shape monitorShape
	if err := yaml.UnmarshalStrict([]byte(document), &shape); err != nil {
		return nil, err
	}
	if shape.APIVersion != "monitoring.coreos.com/v1" || shape.Kind != "ServiceMonitor" || len(shape.Spec.Endpoints) != 1 {
		return nil, fmt.Errorf("%s %s with %d endpoints", shape.APIVersion, shape.Kind, len(shape.Spec.Endpoints))
	}
	var content map[string]any
	err := yaml.Unmarshal([]byte(document), &content)
	return &unstructured.Unstructured{Object: content}, err
}

// checkMonitor holds that a ServiceMonitor finds the services of all sets, by a port that they have, and no pod twice.
func checkMonitor(object *unstructured.Unstructured, services map[string]*corev1.Service, pods []map[string]string) error {
	text, err := yaml.Marshal(object.Object)
	if err != nil {
		return err
	}
	var shape monitorShape
	if err := yaml.UnmarshalStrict(text, &shape); err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(&shape.Spec.Selector)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		count := 0
		for _, service := range services {
			if !selector.Matches(labels.Set(service.Labels)) || !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod)) {
				continue
			}
			for _, port := range service.Spec.Ports {
				if port.Name == shape.Spec.Endpoints[0].Port {
					count++
				}
			}
		}
		if count != 1 {
			return fmt.Errorf("the ServiceMonitor finds pods %v by %d services", pod, count)
		}
	}
	return nil
}

// checkPod holds what the types do not: what is mounted is there, and so are the ports of probes.
func checkPod(spec *corev1.PodSpec, claims []corev1.PersistentVolumeClaim) error {
	volumes := map[string]bool{}
	for _, volume := range spec.Volumes {
		volumes[volume.Name] = true
	}
	for _, claim := range claims {
		volumes[claim.Name] = true
	}
	used := map[string]bool{}
	for _, container := range append(append([]corev1.Container{}, spec.InitContainers...), spec.Containers...) {
		if container.Image == "" || strings.HasSuffix(container.Image, ":") {
			return fmt.Errorf("container %s has the image %q", container.Name, container.Image)
		}
		for _, mount := range container.VolumeMounts {
			if !volumes[mount.Name] {
				return fmt.Errorf("container %s mounts %s, which is no volume", container.Name, mount.Name)
			}
			used[mount.Name] = true
		}
		if err := checkKills(&container); err != nil {
			return err
		}
		ports := map[string]bool{}
		for _, port := range container.Ports {
			if errs := validation.IsValidPortName(port.Name); len(errs) > 0 {
				return errors.New(strings.Join(errs, "; "))
			}
			ports[port.Name] = true
		}
		for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
			if probe == nil || probe.HTTPGet == nil {
				continue
			}
			if port := probe.HTTPGet.Port; port.StrVal != "" && !ports[port.StrVal] {
				return fmt.Errorf("a probe of %s asks at port %s", container.Name, port.StrVal)
			}
		}
	}
	for name := range volumes {
		if !used[name] {
			return fmt.Errorf("volume %s is not mounted", name)
		}
	}
	return nil
}

// checkKills holds that no probe ends a member for what other members do: a lost majority, or a long way to catch up.
func checkKills(container *corev1.Container) error {
	for kind, probe := range map[string]*corev1.Probe{"startup": container.StartupProbe, "liveness": container.LivenessProbe} {
		if probe == nil {
			continue
		}
		if probe.HTTPGet == nil || probe.HTTPGet.Path != "/livez" {
			return fmt.Errorf("the %s probe of %s does not ask /livez", kind, container.Name)
		}
	}
	if probe := container.StartupProbe; probe != nil && probe.FailureThreshold*probe.PeriodSeconds < 24*60*60 {
		return fmt.Errorf("the startup probe ends %s after %d s", container.Name, probe.FailureThreshold*probe.PeriodSeconds)
	}
	return nil
}

// selects holds that a selector finds the pods that it is meant for.
func selects(what string, selector *metav1.LabelSelector, pod map[string]string) error {
	found, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return err
	}
	if found.Empty() || !found.Matches(labels.Set(pod)) {
		return fmt.Errorf("%s does not select the members: %s", what, found)
	}
	return nil
}

// checkSet holds that the parts of a StatefulSet fit each other, and that its pods have names by which others reach them.
func checkSet(set *appsv1.StatefulSet, services map[string]*corev1.Service) error {
	pod := set.Spec.Template.Labels
	if err := selects("the StatefulSet "+set.Name, set.Spec.Selector, pod); err != nil {
		return err
	}
	if err := checkPod(&set.Spec.Template.Spec, set.Spec.VolumeClaimTemplates); err != nil {
		return err
	}
	names := services[set.Spec.ServiceName]
	if names == nil || names.Spec.ClusterIP != corev1.ClusterIPNone {
		return fmt.Errorf("%s is no service without an address", set.Spec.ServiceName)
	}
	if err := selects("service "+names.Name, &metav1.LabelSelector{MatchLabels: names.Spec.Selector}, pod); err != nil {
		return err
	}
	spec := set.Spec.Template.Spec
	for _, constraint := range spec.TopologySpreadConstraints {
		if err := selects("the spread", constraint.LabelSelector, pod); err != nil {
			return err
		}
	}
	if spec.Affinity == nil || spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	terms := spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for _, weighted := range spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		terms = append(terms, weighted.PodAffinityTerm)
	}
	for _, term := range terms {
		if err := selects("the anti-affinity", term.LabelSelector, pod); err != nil {
			return err
		}
	}
	return nil
}

// checkZone holds that the observers of a zone run in it, say so, and are fed by the members.
func checkZone(set *appsv1.StatefulSet, members *appsv1.StatefulSet) error {
	var zones []string
	if affinity := set.Spec.Template.Spec.Affinity; affinity != nil && affinity.NodeAffinity != nil {
		for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, expression := range term.MatchExpressions {
				if expression.Key == corev1.LabelTopologyZone && expression.Operator == corev1.NodeSelectorOpIn {
					zones = append(zones, expression.Values...)
				}
			}
		}
	}
	if len(zones) != 1 {
		return fmt.Errorf("%s runs in the zones %v", set.Name, zones)
	}
	container := set.Spec.Template.Spec.Containers[0]
	feeds := 0
	stated := false
	for _, word := range container.Args {
		stated = stated || word == "--zone="+zones[0]
		if urls, ok := strings.CutPrefix(word, "--feed="); ok {
			for i, url := range strings.Split(urls, ",") {
				if !strings.Contains(url, fmt.Sprintf("//%s-%d.%s.", members.Name, i, members.Spec.ServiceName)) {
					return fmt.Errorf("%s is fed by %s", set.Name, url)
				}
				feeds++
			}
		}
	}
	if !stated || feeds != int(*members.Spec.Replicas) {
		return fmt.Errorf("%s runs in zone %s with %v", set.Name, zones[0], container.Args)
	}
	return nil
}

// release is what was found in the objects of a release.
type release struct {
	members   *appsv1.StatefulSet
	observers []*appsv1.StatefulSet
}

// checkRelease holds that the objects of a release fit each other.
func checkRelease(all []runtime.Object) (*release, error) {
	found := &release{}
	services, claims := map[string]*corev1.Service{}, map[string]bool{}
	for _, object := range all {
		switch object := object.(type) {
		case *appsv1.StatefulSet:
			if object.Spec.Template.Labels["app.kubernetes.io/component"] == "observer" {
				found.observers = append(found.observers, object)
			} else {
				found.members = object
			}
		case *corev1.Service:
			services[object.Name] = object
		case *corev1.PersistentVolumeClaim:
			claims[object.Name] = true
		}
	}
	members := found.members
	if members == nil {
		return nil, errors.New("there is no StatefulSet")
	}
	sets := append([]*appsv1.StatefulSet{members}, found.observers...)
	ports := map[string]bool{}
	for _, port := range members.Spec.Template.Spec.Containers[0].Ports {
		ports[port.Name] = true
	}
	for i, set := range sets {
		if err := checkSet(set, services); err != nil {
			return nil, err
		}
		if i > 0 {
			if err := checkZone(set, members); err != nil {
				return nil, err
			}
		}
		for _, other := range sets[:i] {
			if other.Name == set.Name || selects("", other.Spec.Selector, set.Spec.Template.Labels) == nil {
				return nil, fmt.Errorf("%s takes pods of %s", other.Name, set.Name)
			}
		}
	}
	// anySet holds that a selector is meant for some set, and with all of them that it is meant for all.
	anySet := func(what string, selector *metav1.LabelSelector, all bool) error {
		var err error
		for _, set := range sets {
			if err = selects(what, selector, set.Spec.Template.Labels); (err == nil) != all {
				return err
			}
		}
		return err
	}
	var pods []map[string]string
	for _, set := range sets {
		pods = append(pods, set.Spec.Template.Labels)
	}
	for _, object := range all {
		if shipper, ok := object.(*appsv1.Deployment); ok {
			pods = append(pods, shipper.Spec.Template.Labels)
		}
	}
	for _, object := range all {
		var err error
		switch object := object.(type) {
		case *corev1.Service:
			if object.Spec.Selector["app.kubernetes.io/component"] == "shipper" {
				if len(pods) == len(sets) {
					err = errors.New("a service leads to a shipper that is not there")
				} else {
					err = selects("service "+object.Name, &metav1.LabelSelector{MatchLabels: object.Spec.Selector}, pods[len(pods)-1])
				}
				break
			}
			near := object.Spec.TrafficDistribution != nil
			err = anySet("service "+object.Name, &metav1.LabelSelector{MatchLabels: object.Spec.Selector}, near)
			for _, port := range object.Spec.Ports {
				if err == nil && !ports[port.TargetPort.StrVal] {
					err = fmt.Errorf("service %s leads to port %s", object.Name, port.TargetPort.StrVal)
				}
			}
		case *policyv1.PodDisruptionBudget:
			err = anySet("the PodDisruptionBudget", object.Spec.Selector, false)
		case *networkingv1.NetworkPolicy:
			err = anySet("the NetworkPolicy", &object.Spec.PodSelector, false)
			for _, rule := range object.Spec.Ingress {
				for _, port := range rule.Ports {
					if err == nil && (port.Port == nil || !ports[port.Port.StrVal]) {
						err = errors.New("the NetworkPolicy names a port that is not there")
					}
					if err == nil && port.Port.StrVal == "peer" {
						// Members talk to all that have a peer port; observers to members and to each other.
						admitted := pods
						if selects("", &object.Spec.PodSelector, members.Spec.Template.Labels) != nil {
							admitted = pods[:len(sets)]
						}
						err = checkPeers(rule, admitted)
					}
				}
			}
		case *batchv1.CronJob:
			template := object.Spec.JobTemplate.Spec.Template
			err = checkPod(&template.Spec, nil)
			for _, volume := range template.Spec.Volumes {
				if claim := volume.PersistentVolumeClaim; err == nil && claim != nil && claim.ClaimName != "taken" && !claims[claim.ClaimName] {
					err = fmt.Errorf("the backup's claim %s is not there", claim.ClaimName)
				}
			}
			if err == nil && selects("", members.Spec.Selector, template.Labels) == nil {
				err = errors.New("the StatefulSet takes the backup's pod for a member")
			}
		case *batchv1.Job:
			err = checkPod(&object.Spec.Template.Spec, nil)
			if err == nil && selects("", members.Spec.Selector, object.Spec.Template.Labels) == nil {
				err = errors.New("the StatefulSet takes the pod that makes users for a member")
			}
		case *appsv1.Deployment:
			err = checkPod(&object.Spec.Template.Spec, nil)
			if err == nil {
				err = selects("the Deployment", object.Spec.Selector, object.Spec.Template.Labels)
			}
			for _, set := range sets {
				if err == nil && (selects("", set.Spec.Selector, object.Spec.Template.Labels) == nil || selects("", object.Spec.Selector, set.Spec.Template.Labels) == nil) {
					err = fmt.Errorf("the Deployment and %s take each other's pods", set.Name)
				}
			}
		case *unstructured.Unstructured:
			err = checkMonitor(object, services, pods)
		case *corev1.Pod:
			err = checkPod(&object.Spec, nil)
		}
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// checkPeers holds that members and observers reach each other's peer ports.
func checkPeers(rule networkingv1.NetworkPolicyIngressRule, pods []map[string]string) error {
	for _, pod := range pods {
		admitted := false
		for _, from := range rule.From {
			admitted = admitted || from.PodSelector != nil && selects("", from.PodSelector, pod) == nil
		}
		if !admitted {
			return fmt.Errorf("the NetworkPolicy keeps %v from the peer port", pod)
		}
	}
	return nil
}

func checkStaticPod(t *tally, folder string) any {
	text, err := os.ReadFile(filepath.Join(folder, "etcd.yaml"))
	if err != nil {
		t.check("etcd.yaml", err)
		return nil
	}
	found, err := objects(string(text))
	t.check("the static pod has only fields that a Pod has", err)
	if err != nil || len(found) != 1 {
		return nil
	}
	pod, ok := found[0].(*corev1.Pod)
	if !ok {
		t.check("the static pod", fmt.Errorf("it is a %T", found[0]))
		return nil
	}
	t.check("the static pod", checkPod(&pod.Spec, nil))
	for what, mistake := range map[string][2]string{
		"a field that is not there":     {"failureThreshold: 8\n", "failureTreshold: 8\n"},
		"a kill for a lost majority":    {"failureThreshold: 8640\n        httpGet:\n          host: 127.0.0.1\n          path: /livez", "failureThreshold: 8640\n        httpGet:\n          host: 127.0.0.1\n          path: /readyz"},
		"a kill while it catches up":    {"failureThreshold: 8640", "failureThreshold: 24"},
		"a number that is a text":       {"periodSeconds: 1\n", "periodSeconds: one\n"},
		"a field in a wrong place":      {"  hostNetwork: true\n", "hostNetwork: true\n"},
		"a volume that is not declared": {"name: etcd-data\n        -", "name: etcd-date\n        -"},
	} {
		changed := strings.Replace(string(text), mistake[0], mistake[1], 1)
		if changed == string(text) {
			t.check("planted in the static pod: "+what, errors.New("could not be planted"))
			continue
		}
		found, err := objects(changed)
		if err == nil {
			err = checkPod(&found[0].(*corev1.Pod).Spec, nil)
		}
		t.refused("planted in the static pod: "+what, err)
	}
	t.check("the patch for kubeadm", checkPatch(pod, filepath.Join(folder, "patches/etcd+strategic.yaml")))
	return pod.Spec.Containers[0]
}

// checkPatch applies the patch to a manifest as kubeadm writes it, in the way that kubeadm does.
func checkPatch(pod *corev1.Pod, path string) error {
	base := pod.DeepCopy()
	base.Spec.Containers[0].Image = "registry.k8s.io/etcd:3.6.5-0"
	base.Spec.Containers[0].SecurityContext = nil
	base.Spec.Containers[0].StartupProbe.FailureThreshold = 24
	base.Spec.Containers[0].StartupProbe.HTTPGet.Path = "/readyz"
	before, err := json.Marshal(base)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	patch, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(after))
	decoder.DisallowUnknownFields()
	var patched corev1.Pod
	if err := decoder.Decode(&patched); err != nil {
		return err
	}
	container := patched.Spec.Containers[0]
	if len(patched.Spec.Containers) != 1 || container.Image != pod.Spec.Containers[0].Image {
		return fmt.Errorf("the image is %s", container.Image)
	}
	if err := checkKills(&container); err != nil {
		return err
	}
	if len(container.Command) != len(base.Spec.Containers[0].Command) || len(container.VolumeMounts) != 2 {
		return errors.New("it changes kubeadm's flags or mounts")
	}
	if container.SecurityContext == nil || container.SecurityContext.RunAsUser == nil || *container.SecurityContext.RunAsUser != 0 {
		return errors.New("the member could not read kubeadm's keys")
	}
	return nil
}
