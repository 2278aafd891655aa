// Checks what mainstay is packaged in, by the code that will read it: BuildKit's for the Dockerfile, Compose's for the compose file,
// Helm's for the chart, Kubernetes' types for every manifest, Grafana's for the dashboard, CycloneDX's schema for the list of parts.
//
//	go run . --root REPOSITORY --sbom FILE --out FILE
//
// Each checker also has to find mistakes that are planted in copies. FILE gets, as JSON, how members are started by each
// package; packages.py starts them so. Ends with "N passed, M failed".
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// tally counts checks.
type tally struct{ passed, failed int }

func (t *tally) check(what string, err error) {
	if err == nil {
		t.passed++
		return
	}
	t.failed++
	fmt.Printf("FAILED %s: %v\n", what, err)
}

// refused is a check that something is found wrong.
func (t *tally) refused(what string, err error) {
	if err != nil {
		t.passed++
		return
	}
	t.failed++
	fmt.Printf("FAILED %s: nothing was found\n", what)
}

func main() {
	root := flag.String("root", "", "root of the repository")
	sbom := flag.String("sbom", "", "what `cargo xtask sbom` wrote")
	out := flag.String("out", "", "file for how members are started")
	flag.Parse()
	if *root == "" || *out == "" || *sbom == "" {
		fmt.Fprintln(os.Stderr, "packages: --root, --sbom and --out are needed")
		os.Exit(2)
	}
	t := &tally{}
	started := map[string]any{
		"image":      checkDockerfile(t, *root),
		"compose":    checkCompose(t, filepath.Join(*root, "packaging/compose/compose.yaml")),
		"chart":      checkChart(t, filepath.Join(*root, "packaging/helm/mainstay")),
		"static pod": checkStaticPod(t, filepath.Join(*root, "packaging/kubernetes")),
	}
	checkDashboard(t, filepath.Join(*root, "packaging/grafana/mainstay.json"))
	checkBom(t, *sbom)
	text, err := json.MarshalIndent(started, "", "  ")
	if err == nil {
		err = os.WriteFile(*out, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(2)
	}
	fmt.Printf("%d passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 {
		os.Exit(1)
	}
}
