package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kubeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	helmlint "helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

// Values with which the chart has to work.
var good = map[string]string{
	"the defaults":  `{}`,
	"one member":    `{formedWith: 1, replicas: 1, antiAffinity: none}`,
	"TLS":           `{tls: {client: {secretName: c, clientSecretName: u}, peer: {secretName: p}}, antiAffinity: preferred}`,
	"a backup":      `{backup: {enabled: true, keep: 3}}`,
	"another claim": `{backup: {enabled: true, existingClaim: taken, schedule: "@daily"}}`,
	"all of it": `{formedWith: 5, replicas: 5, tls: {client: {secretName: c, clientSecretName: u}, peer: {secretName: p}}, backup: {enabled: true},
		networkPolicy: {enabled: true, clients: [{podSelector: {matchLabels: {a: b}}}], metrics: [{namespaceSelector: {}}]},
		extraFlags: ["--auto-compaction-retention=1"], extraEnv: [{name: ETCD_LOG_LEVEL, value: warn}], nodeSelector: {a: b},
		tolerations: [{operator: Exists}], priorityClassName: high, podAnnotations: {a: b}, imagePullSecrets: [{name: r}],
		storage: {size: 20Gi, className: fast}, serviceAccount: {annotations: {a: b}}, image: {tag: "1.2.3"}}`,
	"a policy":              `{networkPolicy: {enabled: true}}`,
	"an account":            `{serviceAccount: {name: other}}`,
	"no budget":             `{podDisruptionBudget: {enabled: false}, metrics: {annotate: false}}`,
	"no resources asked":    `{resources: {}}`,
	"zones":                 `{zones: {enabled: true}}`,
	"a zone as a flag":      `{zones: {enabled: true}, extraFlags: ["--zone=a", "--zone-networks=a=127.0.0.0/8"]}`,
	"no zone as a flag":     `{zones: {enabled: true}, extraFlags: ["--zone="]}`,
	"networks alone":        `{zones: {enabled: true}, extraFlags: ["--zone-networks=a=127.0.0.0/8"]}`,
	"a registry":            `{image: {registry: "registry.example.com/team/", repository: store, tag: "1"}}`,
	"a monitor":             `{metrics: {serviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}}, zones: {enabled: true, observers: [{zone: a}]}}`,
	"a spread":              `{topologySpread: [{topologyKey: topology.kubernetes.io/zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}], zones: {enabled: true}}`,
	"compaction of our own": `{extraFlags: ["--auto-compaction-mode=revision", "--auto-compaction-retention=1000"]}`,
	"compaction by others":  `{autoCompaction: {mode: periodic, retention: "0"}}`,
	"users": `{formedWith: 1, replicas: 1, auth: {enabled: true, rootSecretName: root, roles: [{name: app, permissions: [{type: readwrite, prefix: /app/}]}],
		users: [{name: app, secretName: app, roles: [app]}, {name: operator, secretName: operator, roles: [root]}]}, backup: {enabled: true, keep: 3}}`,
	"users with TLS":      `{auth: {enabled: true, rootSecretName: root}, tls: {client: {secretName: c, clientSecretName: u}}}`,
	"a continuous backup": `{formedWith: 1, replicas: 1, continuousBackup: {enabled: true, to: "s3://bucket/prefix", credentialsSecretName: keys}}`,
	"a continuous backup with TLS": `{continuousBackup: {enabled: true, to: "gs://bucket/prefix", serviceAccountName: writer}, tls: {peer: {secretName: p}},
		networkPolicy: {enabled: true}, resources: {}}`,
	// As after `helm upgrade --reuse-values` from a chart that had no zones.
	"no values of zones": `{zones: null}`,
	"observers": `{formedWith: 1, replicas: 1, zones: {enabled: true, observers: [{zone: eu-1a, replicas: 2}, {zone: eu-1b}],
		observerFlags: ["--log-level=info"]}, extraFlags: ["--zone-networks=eu-1a=127.0.0.0/8", "--zone-member-list=only"]}`,
	"all of observers": `{tls: {client: {secretName: c, clientSecretName: u}, peer: {secretName: p}}, networkPolicy: {enabled: true},
		backup: {enabled: true}, zones: {enabled: true, trafficDistribution: PreferClose, observers: [{zone: A.b_c-1}],
		observerResources: {requests: {cpu: 1}}, observerStorage: {size: 1Gi, className: fast}}, metrics: {annotate: false},
		tolerations: [{operator: Exists}], nodeSelector: {a: b}, priorityClassName: high, podAnnotations: {a: b}}`,
}

// Values that have to be refused.
var bad = map[string]string{
	"two members":                 `{formedWith: 2, replicas: 2}`,
	"one of three members":        `{replicas: 1}`,
	"no members":                  `{formedWith: 0, replicas: 0}`,
	"eight members":               `{replicas: 8}`,
	"a number as text":            `{replicas: "3"}`,
	"a value that is not there":   `{replica: 3}`,
	"a nested one":                `{backup: {enable: true}}`,
	"a flag without dashes":       `{extraFlags: [auto-compaction-retention=1]}`,
	"no size":                     `{storage: {size: big}}`,
	"no affinity":                 `{antiAffinity: hard}`,
	"no schedule":                 `{backup: {schedule: never}}`,
	"nothing kept":                `{backup: {keep: 0}}`,
	"no image":                    `{image: {repository: ""}}`,
	"observers without zones":     `{zones: {observers: [{zone: a}]}}`,
	"a zone twice":                `{zones: {enabled: true, observers: [{zone: a}, {zone: a}]}}`,
	"a zone that is no label":     `{zones: {enabled: true, observers: [{zone: "a b"}]}}`,
	"observers of no zone":        `{zones: {enabled: true, observers: [{replicas: 2}]}}`,
	"no observers in a zone":      `{zones: {enabled: true, observers: [{zone: a, replicas: 0}]}}`,
	"another distribution":        `{zones: {enabled: true, trafficDistribution: PreferSameNode}}`,
	"users without root's secret": `{auth: {enabled: true}}`,
	"a user of no role":           `{auth: {enabled: true, rootSecretName: r, users: [{name: a, secretName: s, roles: [b]}]}}`,
	"a second root":               `{auth: {enabled: true, rootSecretName: r, users: [{name: root, secretName: s}]}}`,
	"a right of no kind":          `{auth: {roles: [{name: a, permissions: [{type: all, prefix: /}]}]}}`,
	"no mode of compaction":       `{autoCompaction: {mode: never}}`,
	"a spread of other pods":      `{topologySpread: [{topologyKey: a, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]}`,
	"a bucket of no kind":         `{continuousBackup: {enabled: true, to: "ftp://bucket"}}`,
	"a backup to nowhere":         `{continuousBackup: {enabled: true}}`,
	"a backup without its secret": `{backup: {enabled: true}, tls: {client: {secretName: c}}}`,
}

// Sizes that a cluster has one after the other: how it is formed, and how it is grown. packages.py starts the members of each.
var sizes = map[string]string{
	"1 of 1": `{formedWith: 1, replicas: 1}`,
	"2 of 1": `{formedWith: 1, replicas: 2}`,
	"3 of 1": `{formedWith: 1, replicas: 3}`,
	"3 of 3": `{formedWith: 3, replicas: 3}`,
	"4 of 3": `{formedWith: 3, replicas: 4}`,
	"5 of 3": `{formedWith: 3, replicas: 5}`,
	"7 of 3": `{formedWith: 3, replicas: 7}`,
	"1 of 0": `{formedWith: 0, replicas: 1}`,
	"3 of 0": `{formedWith: 0, replicas: 3}`,
}

// upgrades are values over what is in Kubernetes already, and a word of the text that refuses them; none if they are taken.
var upgrades = map[string]struct {
	there  objectsThere
	values string
	says   string
}{
	"the same again":              {set(3, "3"), `{}`, ""},
	"one more":                    {set(3, "3"), `{replicas: 4}`, ""},
	"one more than one":           {set(1, "1"), `{formedWith: 1, replicas: 2}`, ""},
	"as many as were formed":      {set(1, "1"), `{formedWith: 3, replicas: 3}`, "Leave it so"},
	"formed with more":            {set(3, "3"), `{formedWith: 7, replicas: 7}`, "Leave it so"},
	"formed already":              {set(3, "3"), `{formedWith: 0}`, ""},
	"forming what was formed":     {set(1, "0"), `{}`, "Leave it so"},
	"more, of an earlier chart":   {set(1, ""), `{}`, "Leave it so"},
	"the same, of an earlier one": {set(3, ""), `{}`, ""},
	"fewer":                       {set(5, "3"), `{}`, "member remove"},
	"fewer, others removed":       {set(5, "3"), `{removedTo: 4}`, "member remove"},
	"more, after removal":         {set(3, "3"), `{replicas: 4, removedTo: 3}`, "removedTo: 3 is not"},
	"fewer, after removal":        {set(5, "3"), `{removedTo: 3}`, ""},
	"fewer than formed":           {set(3, "3"), `{replicas: 1, removedTo: 1}`, "formedWith: 0"},
	"fewer than formed, said":     {set(3, "3"), `{formedWith: 0, replicas: 1, removedTo: 1}`, ""},
	"fewer than formed, at once":  {set(3, "3"), `{formedWith: 0, replicas: 1}`, "member remove"},
	"claims of all members":       {claims(3), `{}`, ""},
	"a claim of one member":       {claims(1), `{}`, "claims of an earlier release"},
	"claims of some members":      {claims(3), `{formedWith: 5, replicas: 5}`, "claims of an earlier release"},
	"claims, and growing":         {claims(3), `{replicas: 4}`, ""},
}

// objectsThere are objects that templates find by `lookup`, by kind and name.
type objectsThere map[string]map[string]any

// set is a StatefulSet as an upgrade finds it.
func set(replicas int64, formedWith string) objectsThere {
	annotations := map[string]any{}
	if formedWith != "" {
		annotations["mainstay/formed-with"] = formedWith
	}
	return objectsThere{"StatefulSet/mainstay": {
		"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"replicas": replicas},
	}}
}

// claims are those of an earlier release's members.
func claims(count int) objectsThere {
	there := objectsThere{}
	for i := range count {
		there[fmt.Sprintf("PersistentVolumeClaim/data-mainstay-%d", i)] = map[string]any{"spec": map[string]any{}}
	}
	return there
}

func (there objectsThere) GetClientFor(_, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return found{there: there, kind: kind}, true, nil
}

// found answers the one request that `lookup` makes for a single object.
type found struct {
	dynamic.NamespaceableResourceInterface
	there objectsThere
	kind  string
}

func (f found) Namespace(string) dynamic.ResourceInterface { return f }

func (f found) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	if object, ok := f.there[f.kind+"/"+name]; ok {
		return &unstructured.Unstructured{Object: object}, nil
	}
	return nil, apierrors.NewNotFound(kubeschema.GroupResource{Resource: f.kind}, name)
}

// render does what `helm install` does in a namespace that has nothing yet.
func render(path, name, values string) ([]runtime.Object, error) {
	return renderOver(path, name, values, nil)
}

// renderOver does what `helm upgrade` does where there are objects.
func renderOver(path, name, values string, there objectsThere) ([]runtime.Object, error) {
	chart, err := loader.Load(path)
	if err != nil {
		return nil, err
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: name, Namespace: "apps", IsInstall: true, Revision: 1}
	filled, err := chartutil.ToRenderValues(chart, given, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.RenderWithClientProvider(chart, filled, there)
	if err != nil {
		return nil, err
	}
	var all []runtime.Object
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		found, err := objects(files[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func lintChart(path string, values string) error {
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return err
	}
	linter := helmlint.All(path, given, "apps", true)
	var found []string
	for _, message := range linter.Messages {
		if message.Severity >= support.WarningSev {
			found = append(found, message.Error())
		}
	}
	if len(found) > 0 {
		return errors.New(strings.Join(found, "; "))
	}
	return nil
}

func checkChart(t *tally, path string) any {
	started := map[string]any{}
	for what, values := range good {
		t.check("helm lint with "+what, lintChart(path, values))
		all, err := render(path, "mainstay", values)
		t.check("helm template with "+what, err)
		if err != nil {
			continue
		}
		found, err := checkRelease(all)
		t.check("the objects with "+what, err)
		if err != nil {
			continue
		}
		t.check("what is rendered for the values of "+what, checkValues(all, found, values))
		t.check("what is rendered of zones with "+what, checkZones(all, found, values))
		members := found.members
		entry := map[string]any{"members": members.Spec.Template.Spec.Containers[0], "replicas": *members.Spec.Replicas}
		var observers []map[string]any
		for _, set := range found.observers {
			observers = append(observers, map[string]any{
				"name": set.Name, "container": set.Spec.Template.Spec.Containers[0], "replicas": *set.Spec.Replicas,
			})
		}
		entry["observers"] = observers
		for _, object := range all {
			if job, ok := object.(*batchv1.CronJob); ok {
				entry["backup"] = job.Spec.JobTemplate.Spec.Template.Spec
			}
			if job, ok := object.(*batchv1.Job); ok {
				entry["users"] = job.Spec.Template.Spec
			}
			if shipper, ok := object.(*appsv1.Deployment); ok {
				entry["shipper"] = shipper.Spec.Template.Spec.Containers[0]
			}
			if pod, ok := object.(*corev1.Pod); ok {
				entry["test"] = pod.Spec.Containers[0]
			}
		}
		started[what] = entry
	}
	grown := map[string]any{}
	for what, values := range sizes {
		all, err := render(path, "mainstay", values)
		t.check("helm template with members "+what, err)
		if err != nil {
			continue
		}
		found, err := checkRelease(all)
		t.check("the objects with members "+what, err)
		if err == nil {
			members := found.members
			grown[what] = map[string]any{"members": members.Spec.Template.Spec.Containers[0], "replicas": *members.Spec.Replicas}
		}
	}
	for what, values := range bad {
		_, err := render(path, "mainstay", values)
		t.refused("the chart with "+what, err)
	}
	for what, upgrade := range upgrades {
		_, err := renderOver(path, "mainstay", upgrade.values, upgrade.there)
		if upgrade.says != "" && (err == nil || !strings.Contains(err.Error(), upgrade.says)) {
			err = fmt.Errorf("it is not refused for %q: %v", upgrade.says, err)
		} else if upgrade.says != "" {
			err = nil
		}
		t.check("helm upgrade: "+what, err)
	}
	all, err := render(path, strings.Repeat("a-long-name-", 4)+"x", `{backup: {enabled: true}, zones: {enabled: true, observers: [{zone: a}]}}`)
	t.check("helm template with a long name", err)
	if err == nil {
		_, err = checkRelease(all)
		t.check("the objects with a long name", err)
		for _, object := range all {
			switch object := object.(type) {
			case *appsv1.StatefulSet:
				t.check("a long name", short(object.Name, 52))
			case *batchv1.CronJob:
				t.check("a long name", short(object.Name, 52))
			}
		}
	}
	t.check("planted in the chart", planted(path))
	return map[string]any{"started": started, "grown": grown}
}

// checkValues holds that each of these values has its effect, and none without it.
func checkValues(all []runtime.Object, found *release, values string) error {
	var given struct {
		Image          struct{ Registry string }
		AutoCompaction *struct{ Mode, Retention string }
		TopologySpread []map[string]any
		Metrics        struct{ ServiceMonitor struct{ Enabled bool } }
		Auth           struct {
			Enabled bool
			Roles   []struct{ Permissions []any }
			Users   []struct{ Roles []string }
		}
		ContinuousBackup struct{ Enabled bool }
		Zones            struct{ Enabled bool }
		ExtraFlags       []string
	}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return err
	}
	member := found.members.Spec.Template.Spec.Containers[0]
	if given.Image.Registry != "" && member.Image != "registry.example.com/team/store:1" {
		return fmt.Errorf("the image is %s", member.Image)
	}
	compaction := []string{"--auto-compaction-mode=periodic", "--auto-compaction-retention=1"}
	if given.AutoCompaction != nil {
		compaction = []string{"--auto-compaction-mode=" + given.AutoCompaction.Mode, "--auto-compaction-retention=" + given.AutoCompaction.Retention}
	}
	if strings.Contains(strings.Join(given.ExtraFlags, " "), "--auto-compaction-") {
		compaction = nil
		for _, flag := range given.ExtraFlags {
			if strings.HasPrefix(flag, "--auto-compaction-") {
				compaction = append(compaction, flag)
			}
		}
	}
	var has []string
	for _, flag := range member.Args {
		if strings.HasPrefix(flag, "--auto-compaction-") {
			has = append(has, flag)
		}
	}
	if strings.Join(has, " ") != strings.Join(compaction, " ") {
		return fmt.Errorf("compaction is %v, not %v", has, compaction)
	}
	wanted := len(given.TopologySpread)
	if given.Zones.Enabled {
		wanted++
	}
	spread := found.members.Spec.Template.Spec.TopologySpreadConstraints
	for _, constraint := range spread {
		if err := selects("a spread", constraint.LabelSelector, found.members.Spec.Template.Labels); err != nil {
			return err
		}
	}
	if len(spread) != wanted {
		return fmt.Errorf("%d constraints of spread, not %d", len(spread), wanted)
	}
	monitors, jobs, shippers := 0, 0, 0
	for _, object := range all {
		switch object := object.(type) {
		case *unstructured.Unstructured:
			monitors++
		case *batchv1.Job:
			jobs++
			// That the cluster answers, root with its role, and one step for each role, permission, user and role of a user.
			steps := 3
			for _, role := range given.Auth.Roles {
				steps += 1 + len(role.Permissions)
			}
			for _, user := range given.Auth.Users {
				steps += 1 + len(user.Roles)
			}
			if pod := object.Spec.Template.Spec; len(pod.InitContainers) != steps || strings.Join(pod.Containers[0].Args, " ") != "auth enable" {
				return fmt.Errorf("%d steps make users, not %d, and then %v", len(pod.InitContainers), steps, pod.Containers[0].Args)
			}
		case *appsv1.Deployment:
			shippers++
		}
	}
	for _, one := range []struct {
		what   string
		found  int
		wanted bool
	}{{"ServiceMonitor", monitors, given.Metrics.ServiceMonitor.Enabled}, {"Job for users", jobs, given.Auth.Enabled}, {"shipper", shippers, given.ContinuousBackup.Enabled}} {
		if (one.found == 1) != one.wanted || one.found > 1 {
			return fmt.Errorf("%d of %s", one.found, one.what)
		}
	}
	return nil
}

// checkZones holds that there is what the values ask for: a service for clients of a zone, the zone that Kubernetes gives a member, and
// a set of observers for each zone; and nothing of it if zones are off.
func checkZones(all []runtime.Object, found *release, values string) error {
	var given struct {
		Zones struct {
			Enabled             bool
			TrafficDistribution string
			Observers           []struct {
				Zone     string
				Replicas int32
			}
		}
		ExtraFlags []string
	}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return err
	}
	near := ""
	for _, object := range all {
		if service, ok := object.(*corev1.Service); ok && service.Spec.TrafficDistribution != nil {
			near = service.Name + ": " + *service.Spec.TrafficDistribution
		}
	}
	zone := ""
	for _, variable := range found.members.Spec.Template.Spec.Containers[0].Env {
		if variable.Name == "ETCD_ZONE" {
			zone = variable.ValueFrom.FieldRef.FieldPath
		}
	}
	wantNear, wantZone := "", ""
	if given.Zones.Enabled {
		wantNear, wantZone = "mainstay-near: PreferSameZone", "metadata.labels['"+corev1.LabelTopologyZone+"']"
		if given.Zones.TrafficDistribution != "" {
			wantNear = "mainstay-near: " + given.Zones.TrafficDistribution
		}
	}
	// A member refuses a flag that is in its environment, too.
	for _, flag := range given.ExtraFlags {
		if strings.HasPrefix(flag, "--zone=") {
			wantZone = ""
		}
	}
	if near != wantNear || zone != wantZone || len(found.observers) != len(given.Zones.Observers) {
		return fmt.Errorf("service %q, zone %q, %d sets of observers", near, zone, len(found.observers))
	}
	for i, wanted := range given.Zones.Observers {
		set := found.observers[i]
		if set.Spec.Template.Labels["mainstay/zone"] != wanted.Zone || *set.Spec.Replicas != max(wanted.Replicas, 1) {
			return fmt.Errorf("%s has %d observers of zone %s", set.Name, *set.Spec.Replicas, set.Spec.Template.Labels["mainstay/zone"])
		}
	}
	return nil
}

// short holds a name against the length from which names of pods made of it are cut.
func short(name string, most int) error {
	if len(name) > most {
		return fmt.Errorf("%s has %d characters", name, len(name))
	}
	return nil
}

// planted holds that mistakes in a copy of the chart are found.
func planted(path string) error {
	zoned := `{networkPolicy: {enabled: true}, metrics: {serviceMonitor: {enabled: true}}, auth: {enabled: true, rootSecretName: r},
		continuousBackup: {enabled: true, to: "s3://b"}, zones: {enabled: true, observers: [{zone: a}, {zone: b}]}}`
	for _, mistake := range []struct{ file, from, to string }{
		{"templates/observers.yaml", "values: [{{ $zone | quote }}]", "values: [a]"},
		{"templates/observers.yaml", "- --zone={{ $zone }}", "- --zone=z"},
		{"templates/observers.yaml", "      mainstay/zone: {{ $zone | quote }}\n  template", "  template"},
		{"templates/observers.yaml", "mainstay/serves: clients", "mainstay/serves: nobody"},
		{"templates/observers.yaml", "name: data\n              mountPath", "name: date\n              mountPath"},
		{"templates/services.yaml", "component: observer", "component: observers"},
		{"templates/networkpolicy.yaml", "component: observer", "component: observers"},
		{"templates/statefulset.yaml", "mainstay/serves: clients", "mainstay/serves: nobody"},
		{"templates/statefulset.yaml", "livenessProbe:", "livenessprobe:"},
		{"templates/statefulset.yaml", "mountPath: /var/lib/etcd", "mountpath: /var/lib/etcd"},
		{"templates/statefulset.yaml", "- name: data\n              mountPath", "- name: date\n              mountPath"},
		{"templates/services.yaml", "targetPort: client", "targetPort: clients"},
		{"templates/services.yaml", "mainstay/scraped: \"true\"", "mainstay/scraped: \"false\""},
		{"templates/networkpolicy.yaml", "component: shipper", "component: ship"},
		{"templates/servicemonitor.yaml", "port: metrics", "port: metric"},
		{"templates/servicemonitor.yaml", "endpoints:", "endpoint:"},
		{"templates/continuous-backup.yaml", "component: shipper\n  template", "component: member\n  template"},
		{"templates/users.yaml", "component: users", "component: member"},
		{"templates/poddisruptionbudget.yaml", "component: member", "component: members"},
		{"templates/poddisruptionbudget.yaml", "maxUnavailable: 1", "maxUnavailable: [1]"},
		{"templates/_helpers.tpl", "mainstay.members\"", "mainstay.member\""},
	} {
		folder, err := os.MkdirTemp("", "chart")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		if err := os.CopyFS(folder, os.DirFS(path)); err != nil {
			return err
		}
		file := filepath.Join(folder, mistake.file)
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed := strings.Replace(string(text), mistake.from, mistake.to, 1)
		if changed == string(text) {
			return fmt.Errorf("%s: %q could not be planted", mistake.file, mistake.from)
		}
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			return err
		}
		for _, values := range []string{`{}`, zoned} {
			var all []runtime.Object
			if all, err = render(folder, "mainstay", values); err == nil {
				_, err = checkRelease(all)
			}
			if err != nil {
				break
			}
		}
		if err == nil {
			return fmt.Errorf("%s: %q was not found", mistake.file, mistake.to)
		}
	}
	return nil
}
