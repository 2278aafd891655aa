package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The oldest release of the format that has all that is needed.
const specification = cyclonedx.SpecVersion1_5

// schema returns CycloneDX's own schema, which its Go module brings.
func schema() (*jsonschema.Schema, error) {
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	// Name by which others refer to it, and that of the file.
	for name, base := range map[string]string{
		"bom-1.5.schema.json": "bom-1.5.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		path := filepath.Join(strings.TrimSpace(string(folder)), "schema", base)
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		document, err := jsonschema.UnmarshalJSON(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := compiler.AddResource("http://cyclonedx.org/schema/"+name, document); err != nil {
			return nil, err
		}
	}
	return compiler.Compile("http://cyclonedx.org/schema/bom-1.5.schema.json")
}

// judgeBom holds a list against the schema and what this does not say: digests, licences, references that lead somewhere.
func judgeBom(text string, schema *jsonschema.Schema) error {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	if err := schema.Validate(document); err != nil {
		return err
	}
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(strings.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		return err
	}
	if bom.SpecVersion != specification || bom.Metadata == nil || bom.Metadata.Component == nil || bom.Components == nil || bom.Dependencies == nil {
		return errors.New("version, subject, components or dependencies are missing")
	}
	if bom.SerialNumber != "" || bom.Metadata.Timestamp != "" {
		return errors.New("it has what differs from run to run")
	}
	known := map[string]bool{bom.Metadata.Component.BOMRef: true}
	foreign := 0
	for _, component := range *bom.Components {
		if known[component.BOMRef] {
			return fmt.Errorf("%s is there twice", component.BOMRef)
		}
		known[component.BOMRef] = true
		if component.Version == "" || component.PackageURL == "" || component.Licenses == nil {
			return fmt.Errorf("%s lacks a version, a URL or a licence", component.Name)
		}
		own := component.Name == "mainstay" || strings.HasPrefix(component.Name, "mainstay-")
		if !own && component.Hashes == nil {
			return fmt.Errorf("%s has no digest", component.Name)
		}
		if !own {
			foreign++
		}
	}
	if foreign < 30 || !known["pkg:cargo/mainstay-server@"+bom.Metadata.Component.Version] {
		return fmt.Errorf("it lists only %d packages of others", foreign)
	}
	for _, dependency := range *bom.Dependencies {
		if !known[dependency.Ref] {
			return fmt.Errorf("%s is no component", dependency.Ref)
		}
		for _, on := range *dependency.Dependencies {
			if !known[on] {
				return fmt.Errorf("%s is no component", on)
			}
		}
	}
	if len(*bom.Dependencies) != len(known) {
		return errors.New("not every component says what it depends on")
	}
	return nil
}

func checkBom(t *tally, path string) {
	compiled, err := schema()
	t.check("CycloneDX's schema", err)
	text, readErr := os.ReadFile(path)
	t.check("the SBOM", readErr)
	if err != nil || readErr != nil {
		return
	}
	t.check("the SBOM", judgeBom(string(text), compiled))
	for what, mistake := range map[string][2]string{
		"a licence in no form":        {`"licenses": [`, `"licenses": [ 7, `},
		"another kind of component":   {`"type": "library"`, `"type": "crate"`},
		"a digest that is cut":        {`"alg": "SHA-256"`, `"alg": "SHA256"`},
		"a field that is not there":   {`"specVersion"`, `"specversion"`},
		"a reference to nothing":      {`"ref": "pkg:cargo/bytes@`, `"ref": "pkg:cargo/byte@`},
		"a component without version": {`"version": "0`, `"versio": "0`},
	} {
		changed := strings.Replace(string(text), mistake[0], mistake[1], 1)
		if changed == string(text) {
			t.check("planted in the SBOM: "+what, errors.New("could not be planted"))
			continue
		}
		t.refused("planted in the SBOM: "+what, judgeBom(changed, compiled))
	}
}
