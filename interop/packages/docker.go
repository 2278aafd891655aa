package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
)

const dockerfile = "packaging/docker/Dockerfile"

// bases answers for the images that the Dockerfile builds on, which cannot be fetched here: each is a Linux without settings.
type bases struct{}

func (bases) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	config := []byte(`{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/local/bin:/usr/bin:/bin"]}}`)
	return ref, "", config, nil
}

// lint returns what BuildKit has to say of a Dockerfile: what `docker build --check` prints.
func lint(text []byte) error {
	results, err := dockerfile2llb.DockerfileLint(context.Background(), text, options(text, ""))
	if err != nil {
		return err
	}
	var found []string
	if results.Error != nil {
		found = append(found, results.Error.Message)
	}
	for _, warning := range results.Warnings {
		found = append(found, fmt.Sprintf("%s: %s", warning.RuleName, warning.Detail))
	}
	if len(found) > 0 {
		return errors.New(strings.Join(found, "; "))
	}
	return nil
}

func options(text []byte, target string) dockerfile2llb.ConvertOpt {
	platform := ocispecs.Platform{Architecture: "amd64", OS: "linux"}
	source := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", text)
	source.Definition = &llb.Definition{}
	return dockerfile2llb.ConvertOpt{
		Config:         dockerui.Config{Target: target},
		SourceMap:      source,
		TargetPlatform: &platform,
		MetaResolver:   bases{},
	}
}

// image is how the image runs its program.
type image struct {
	Cmd, Entrypoint []string
	User            string
	WorkingDir      string
	Env             []string
	ExposedPorts    map[string]struct{}
	Healthcheck     *struct{ Test []string }
}

func checkDockerfile(t *tally, root string) any {
	text, err := os.ReadFile(filepath.Join(root, dockerfile))
	if err != nil {
		t.check(dockerfile, err)
		return nil
	}
	t.check("BuildKit's linter", lint(text))
	for what, mistake := range map[string]func(string) string{
		"a variable that is not there": func(s string) string { return strings.Replace(s, "USER 65532:65532", "USER $NOBODY", 1) },
		"words in two cases": func(s string) string {
			return strings.Replace(s, "FROM scratch AS member", "FROM scratch as member", 1)
		},
		"an instruction that is not there": func(s string) string { return s + "\nRUNN true\n" },
		"a command without brackets":       func(s string) string { return s + "\nCMD /usr/local/bin/etcd\n" },
		"an argument without a value":      func(s string) string { return strings.Replace(s, "ARG DEBIAN=trixie", "ARG DEBIAN", 1) },
	} {
		changed := mistake(string(text))
		if changed == string(text) {
			t.check("planted in the Dockerfile: "+what, errors.New("could not be planted"))
			continue
		}
		t.refused("planted in the Dockerfile: "+what, lint([]byte(changed)))
	}

	other := strings.Replace(string(text), "--from=build", "--from=builder", 1)
	t.refused("planted in the Dockerfile: a stage that is not there", checkStages(other))
	result, err := dockerfile2llb.Dockerfile2LLB(context.Background(), text, options(text, "member"))
	t.check("the image can be built by its instructions", err)
	if err != nil {
		return nil
	}
	encoded, err := json.Marshal(result.Image.Config)
	t.check("the image's settings", err)
	var runs image
	t.check("the image's settings", json.Unmarshal(encoded, &runs))
	t.check("what etcd's image promises", promises(runs))
	t.check("what the image is made of", checkStages(string(text)))
	t.check("the context of the build", checkContext(root))
	return runs
}

// promises holds what a user of etcd's image relies on.
func promises(runs image) error {
	if strings.Join(runs.Cmd, " ") != "/usr/local/bin/etcd" || len(runs.Entrypoint) != 0 {
		return fmt.Errorf("it runs %q %q", runs.Entrypoint, runs.Cmd)
	}
	if runs.User == "" || strings.HasPrefix(runs.User, "0") || strings.HasPrefix(runs.User, "root") {
		return fmt.Errorf("it runs as %q", runs.User)
	}
	for _, port := range []string{"2379/tcp", "2380/tcp"} {
		if _, ok := runs.ExposedPorts[port]; !ok {
			return fmt.Errorf("port %s is not exposed", port)
		}
	}
	if runs.Healthcheck == nil || len(runs.Healthcheck.Test) < 2 || runs.Healthcheck.Test[0] != "CMD" {
		return errors.New("there is no check of its health by a program")
	}
	for _, variable := range runs.Env {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok && strings.Contains(path, "/usr/local/bin") {
			return nil
		}
	}
	return errors.New("`etcd` without a path is not found")
}

// checkStages holds that files are copied from stages of the Dockerfile: a name that is no stage would be taken for an image.
func checkStages(text string) error {
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return err
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return err
	}
	known, copied := map[string]bool{}, 0
	for _, stage := range stages {
		for _, command := range stage.Commands {
			command, ok := command.(*instructions.CopyCommand)
			if !ok || command.From == "" {
				continue
			}
			copied++
			if !known[command.From] {
				return fmt.Errorf("%s is no stage before that of %s", command.From, stage.Name)
			}
		}
		known[stage.Name] = true
	}
	if copied == 0 {
		return errors.New("nothing is copied from a stage")
	}
	return nil
}

// checkContext holds that .dockerignore lets through what the Dockerfile copies and the build reads, and keeps the rest out.
func checkContext(root string) error {
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		return err
	}
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err != nil {
		return err
	}
	matcher, err := patternmatcher.New(patterns)
	if err != nil {
		return err
	}
	for path, wanted := range map[string]bool{
		"Cargo.toml": true, "Cargo.lock": true, ".cargo/config.toml": true, "rust-toolchain.toml": true,
		"crates/mainstay/src/main.rs": true, "crates/api/src/proto/methods.rs": true,
		"packaging/docker/root-filesystem": true, "packaging/third-party-notices.txt": true, "LICENSE": true, "packaging/compose/make-certificates": true,
		"target/release/mainstay": false, ".git/HEAD": false, "default.etcd/member": false, "interop/go/main.go": false,
	} {
		ignored, err := matcher.MatchesOrParentMatches(path)
		if err != nil {
			return err
		}
		if ignored == wanted {
			return fmt.Errorf("%s: ignored is %v", path, ignored)
		}
	}
	return nil
}
