package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// units returns the ids of Grafana's units, as the constants of its SDK have them.
func units() (map[string]bool, error) {
	folder, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/grafana/grafana-foundation-sdk/go/units").Output()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(folder)), "*.go"))
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return nil, err
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			if value, ok := node.(*ast.BasicLit); ok && value.Kind == token.STRING {
				if id, err := strconv.Unquote(value.Value); err == nil {
					ids[id] = true
				}
			}
			return true
		})
	}
	if len(ids) < 100 {
		return nil, fmt.Errorf("only %d units were found", len(ids))
	}
	return ids, nil
}

// named leaves out an error that names nothing: the SDK returns an empty list of errors as one.
func named(err error) error {
	if err != nil && err.Error() == "" {
		return nil
	}
	return err
}

// judge reads a dashboard by Grafana's own types, strictly, and looks at what these do not hold.
func judge(text []byte, units map[string]bool) error {
	var read dashboard.Dashboard
	if err := named(read.UnmarshalJSONStrict(text)); err != nil {
		return fmt.Errorf("Grafana's types: %w", err)
	}
	if err := named(read.Validate()); err != nil {
		return fmt.Errorf("Grafana's constraints: %w", err)
	}
	var plain struct {
		UID, Title string
		Panels     []struct {
			ID          int
			Type, Title string
			Targets     []struct {
				Expr, RefID string
				Datasource  struct{ UID string }
			}
			FieldConfig struct{ Defaults struct{ Unit string } }
		}
		Templating struct{ List []struct{ Name string } }
	}
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	if plain.UID == "" || plain.Title == "" || len(plain.Panels) < 10 {
		return errors.New("a dashboard without a name or panels")
	}
	ids := map[int]string{}
	variables := map[string]bool{}
	for _, variable := range plain.Templating.List {
		variables[variable.Name] = true
	}
	for _, name := range []string{"datasource", "job", "instance"} {
		if !variables[name] {
			return fmt.Errorf("there is no variable %s", name)
		}
	}
	for _, panel := range plain.Panels {
		if other, taken := ids[panel.ID]; taken || panel.ID == 0 {
			return fmt.Errorf("panels %q and %q have the id %d", other, panel.Title, panel.ID)
		}
		ids[panel.ID] = panel.Title
		if panel.Title == "" {
			return fmt.Errorf("panel %d has no title", panel.ID)
		}
		if panel.Type == "row" {
			continue
		}
		if !units[panel.FieldConfig.Defaults.Unit] {
			return fmt.Errorf("panel %q: Grafana has no unit %q", panel.Title, panel.FieldConfig.Defaults.Unit)
		}
		letters := map[string]bool{}
		for _, target := range panel.Targets {
			if target.Expr == "" || letters[target.RefID] || target.Datasource.UID != "${datasource}" {
				return fmt.Errorf("panel %q: target %q", panel.Title, target.RefID)
			}
			letters[target.RefID] = true
		}
		if len(panel.Targets) == 0 {
			return fmt.Errorf("panel %q shows nothing", panel.Title)
		}
	}
	return nil
}

func checkDashboard(t *tally, path string) {
	plugins.RegisterDefaultPlugins()
	known, err := units()
	t.check("Grafana's units", err)
	text, err := os.ReadFile(path)
	if err != nil {
		t.check("the dashboard", err)
		return
	}
	t.check("the dashboard", judge(text, known))
	for what, mistake := range map[string][2]string{
		"a field that is not there":  {`"graphTooltip":`, `"graphTooltips":`},
		"an option of a chart":       {`"showLegend": true`, `"showLegends": true`},
		"a unit that is not there":   {`"unit": "s"`, `"unit": "sec"`},
		"an id that is there twice":  {`"id": 3,`, `"id": 2,`},
		"a text for a number":        {`"schemaVersion": 39`, `"schemaVersion": "39"`},
		"a field of a chart's style": {`"lineWidth":`, `"linewidth":`},
	} {
		changed := strings.Replace(string(text), mistake[0], mistake[1], 1)
		if changed == string(text) {
			t.check("planted in the dashboard: "+what, errors.New("could not be planted"))
			continue
		}
		t.refused("planted in the dashboard: "+what, judge([]byte(changed), known))
	}
}
