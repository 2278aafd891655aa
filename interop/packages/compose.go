package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// project reads a compose file as `docker compose config` does.
func project(path string) (*types.Project, error) {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithWorkingDirectory(filepath.Dir(path)),
		cli.WithResolvedPaths(true), cli.WithConsistency(true), cli.WithNormalization(true))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}

func checkCompose(t *tally, path string) any {
	loaded, err := project(path)
	t.check("Compose reads compose.yaml", err)
	if err != nil {
		return nil
	}
	text, err := os.ReadFile(path)
	t.check("compose.yaml", err)
	for what, mistake := range map[string][2]string{
		"a key that is not there":         {"    hostname: m1\n", "    host_name: m1\n"},
		"a service that is not there":     {"    certificates:\n      condition", "    certificate:\n      condition"},
		"a volume that is not declared":   {`"m1:/var/lib/etcd"`, `"m4:/var/lib/etcd"`},
		"a port that is no number":        {"127.0.0.1:2379:2379", "127.0.0.1:client:2379"},
		"a condition that is not defined": {"service_completed_successfully", "service_completed"},
	} {
		changed := strings.Replace(string(text), mistake[0], mistake[1], 1)
		if changed == string(text) {
			t.check("planted in compose.yaml: "+what, errors.New("could not be planted"))
			continue
		}
		folder, err := os.MkdirTemp("", "compose")
		t.check("a folder", err)
		copied := filepath.Join(folder, "compose.yaml")
		t.check("a copy", os.WriteFile(copied, []byte(changed), 0o600))
		_, err = project(copied)
		t.refused("planted in compose.yaml: "+what, err)
		t.check("a folder", os.RemoveAll(folder))
	}

	services := map[string]any{}
	ports := map[string]string{}
	for name, service := range loaded.Services {
		environment := map[string]string{}
		for key, value := range service.Environment {
			if value != nil {
				environment[key] = *value
			}
		}
		services[name] = map[string]any{"command": service.Command, "environment": environment}
		if name != "certificates" && (service.Image != "mainstay:0.1.0" || service.MemLimit != 4<<30) {
			t.check("service "+name, fmt.Errorf("it has the image %s and %d bytes of memory", service.Image, service.MemLimit))
		}
		build := service.Build
		if build == nil {
			t.check("service "+name, errors.New("it has no build"))
			continue
		}
		_, err := os.Stat(filepath.Join(build.Context, build.Dockerfile))
		t.check("the Dockerfile of service "+name, err)
		for _, port := range service.Ports {
			var err error
			if other, taken := ports[port.Published]; taken {
				err = fmt.Errorf("%s is published by %s, too", port.Published, other)
			} else if port.HostIP != "127.0.0.1" {
				err = fmt.Errorf("%s is published to %q", port.Published, port.HostIP)
			}
			ports[port.Published] = name
			t.check("a port of service "+name, err)
		}
	}
	names := loaded.ServiceNames()
	sort.Strings(names)
	if got := strings.Join(names, " "); got != "certificates m1 m2 m3" {
		t.check("the services", fmt.Errorf("they are %s", got))
	}
	return services
}
