package main

import (
	"fmt"
	"slices"
	"strings"
)

// parts lists, for --without, what a server may lack on purpose.
type parts struct {
	known []string
	names []string
}

func (p *parts) String() string { return strings.Join(p.names, ",") }

// Set takes a list of names with commas between them.
func (p *parts) Set(list string) error {
	for _, name := range strings.Split(list, ",") {
		if !slices.Contains(p.known, name) {
			return fmt.Errorf("unknown part %q; there are %s", name, strings.Join(p.known, ", "))
		}
		p.names = append(p.names, name)
	}
	return nil
}

func (p *parts) has(name string) bool { return slices.Contains(p.names, name) }
