package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
	"one member":    `{replicas: 1, antiAffinity: none}`,
	"TLS":           `{tls: {client: {secretName: c, clientSecretName: u}, peer: {secretName: p}}, antiAffinity: preferred}`,
	"a backup":      `{backup: {enabled: true, keep: 3}}`,
	"another claim": `{backup: {enabled: true, existingClaim: taken, schedule: "@daily"}}`,
	"all of it": `{replicas: 5, tls: {client: {secretName: c, clientSecretName: u}, peer: {secretName: p}}, backup: {enabled: true},
		networkPolicy: {enabled: true, clients: [{podSelector: {matchLabels: {a: b}}}], metrics: [{namespaceSelector: {}}]},
		extraFlags: ["--auto-compaction-retention=1"], extraEnv: [{name: ETCD_LOG_LEVEL, value: warn}], nodeSelector: {a: b},
		tolerations: [{operator: Exists}], priorityClassName: high, podAnnotations: {a: b}, imagePullSecrets: [{name: r}],
		storage: {size: 20Gi, className: fast}, serviceAccount: {annotations: {a: b}}, image: {tag: "1.2.3"}}`,
	"a policy":           `{networkPolicy: {enabled: true}}`,
	"an account":         `{serviceAccount: {name: other}}`,
	"no budget":          `{podDisruptionBudget: {enabled: false}, metrics: {annotate: false}}`,
	"no resources asked": `{resources: {}}`,
}

// Values that have to be refused.
var bad = map[string]string{
	"two members":                 `{replicas: 2}`,
	"a number as text":            `{replicas: "3"}`,
	"a value that is not there":   `{replica: 3}`,
	"a nested one":                `{backup: {enable: true}}`,
	"a flag without dashes":       `{extraFlags: [auto-compaction-retention=1]}`,
	"no size":                     `{storage: {size: big}}`,
	"no affinity":                 `{antiAffinity: hard}`,
	"no schedule":                 `{backup: {schedule: never}}`,
	"nothing kept":                `{backup: {keep: 0}}`,
	"no image":                    `{image: {repository: ""}}`,
	"a backup without its secret": `{backup: {enabled: true}, tls: {client: {secretName: c}}}`,
}

// render does what `helm template` does.
func render(path, name, values string) ([]runtime.Object, error) {
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
	files, err := engine.Render(chart, filled)
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
		members, err := checkRelease(all)
		t.check("the objects with "+what, err)
		if err != nil {
			continue
		}
		entry := map[string]any{"members": members.Spec.Template.Spec.Containers[0], "replicas": *members.Spec.Replicas}
		for _, object := range all {
			if job, ok := object.(*batchv1.CronJob); ok {
				entry["backup"] = job.Spec.JobTemplate.Spec.Template.Spec
			}
			if pod, ok := object.(*corev1.Pod); ok {
				entry["test"] = pod.Spec.Containers[0]
			}
		}
		started[what] = entry
	}
	for what, values := range bad {
		_, err := render(path, "mainstay", values)
		t.refused("the chart with "+what, err)
	}
	all, err := render(path, strings.Repeat("a-long-name-", 4)+"x", `{backup: {enabled: true}}`)
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
	return started
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
	for _, mistake := range []struct{ file, from, to string }{
		{"templates/statefulset.yaml", "livenessProbe:", "livenessprobe:"},
		{"templates/statefulset.yaml", "mountPath: /var/lib/etcd", "mountpath: /var/lib/etcd"},
		{"templates/statefulset.yaml", "- name: data\n              mountPath", "- name: date\n              mountPath"},
		{"templates/services.yaml", "targetPort: client", "targetPort: clients"},
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
		all, err := render(folder, "mainstay", `{}`)
		if err == nil {
			_, err = checkRelease(all)
		}
		if err == nil {
			return fmt.Errorf("%s: %q was not found", mistake.file, mistake.to)
		}
	}
	return nil
}
