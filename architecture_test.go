// Package proxima_test polices the repository itself.
package proxima_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/proxima-mesh/proxima/"

// layer of a package, by the longest prefix that matches. A package may import
// packages of its own layer's lower neighbours only; see docs/ARCHITECTURE.md.
type layer int

const (
	api layer = iota
	base
	catalog
	core
	adapter
	app
	command
)

var layers = map[string]layer{
	"api/":                     api,
	"internal/version":         base,
	"internal/machine":         base,
	"internal/listener":        base,
	"internal/atomicfile":      base,
	"internal/backoff":         base,
	"internal/payload":         base,
	"internal/audit":           base,
	"internal/resource":        base,
	"internal/store":           base,
	"internal/store/memory":    adapter,
	"internal/store/sqlite":    adapter,
	"internal/store/postgres":  adapter,
	"internal/store/backup":    core,
	"internal/planner":         core,
	"internal/demand":          core,
	"internal/trafficplan":     core,
	"internal/demand/report":   adapter,
	"internal/diag":            core,
	"internal/proxy":           base,
	"internal/identity":        core,
	"internal/catalog":         catalog,
	"internal/controller":      core,
	"internal/delta":           core,
	"internal/proxy/choose":    core,
	"internal/node":            core,
	"internal/workload":        core,
	"internal/node/cluster":    adapter,
	"internal/node/view":       adapter,
	"internal/delta/stream":    adapter,
	"internal/apiserver":       adapter,
	"internal/keyring":         adapter,
	"internal/witness":         adapter,
	"internal/kubeclient":      adapter,
	"internal/proxy/userspace": adapter,
	"internal/proxy/nftables":  adapter,
	"internal/proxy/proxytest": adapter,
	"internal/proxy/conntrack": adapter,
	"internal/proxy/iptables":  adapter,
	"internal/proxy/modes":     app,
	"internal/testkit":         adapter,
	"internal/netns":           base,
	"internal/lab":             app,
	"internal/demo":            app,
	"internal/app":             app,
	"internal/cli":             command,
	"cmd/":                     command,
	"tools/":                   command,
	"test/":                    command,
	"bench/":                   command,

	// The language of rules, which admission checks, too.
	"internal/planner/heuristic": base,
}

// siblings lists the adapters that one adapter may import all the same: parts
// of one room.
var siblings = map[string][]string{
	"internal/node/view":    {"internal/delta/stream"},
	"internal/node/cluster": {"internal/node/view"},
	// iptables-nft keeps its rules in nf_tables, which nfnl reads.
	"internal/proxy/iptables": {"internal/proxy/conntrack", "internal/proxy/nftables"},
	// The kernel suite lays its network with the test kit.
	"internal/proxy/proxytest": {"internal/testkit"},
}

// onlyImporters names heavy or peculiar libraries and the one room that may
// import them.
var onlyImporters = map[string][]string{
	"k8s.io/apiserver/pkg/server":   {"internal/apiserver"},
	"k8s.io/apiserver/pkg/registry": {"internal/apiserver"},
	"k8s.io/apiserver/pkg/storage":  {"internal/apiserver", "internal/keyring"},
	"modernc.org/sqlite":            {"internal/store/sqlite"},
	"github.com/jackc/pgx":          {"internal/store/postgres"},
	"github.com/spf13/cobra":        {"internal/cli"},
	"github.com/google/cel-go":      {"internal/planner/heuristic"},
	"github.com/vishvananda/netlink": {
		"internal/proxy", "internal/testkit", "internal/netns",
	},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func TestImportDirection(t *testing.T) {
	for _, p := range listPackages(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours {
			continue // this test
		}
		own, ok := layerOf(name)
		if !ok {
			t.Errorf("%s has no layer: add it to the table, and to docs/ARCHITECTURE.md", name)
			continue
		}
		for _, path := range p.Imports {
			imported, ours := strings.CutPrefix(path, module)
			if !ours {
				checkLibrary(t, name, path)
				continue
			}
			theirs, _ := layerOf(imported)
			switch {
			case theirs > own:
				t.Errorf("%s imports %s: dependencies point from cmd to app to adapters to core to catalog to api", name, imported)
			case own == adapter && theirs == adapter && room(name) != room(imported) && !slices.Contains(siblings[room(name)], room(imported)):
				t.Errorf("%s imports %s: adapters never import each other, app wires them", name, imported)
			}
		}
	}
}

func checkLibrary(t *testing.T, name, path string) {
	t.Helper()
	for library, rooms := range onlyImporters {
		if path != library && !strings.HasPrefix(path, library+"/") {
			continue
		}
		if !slices.ContainsFunc(rooms, func(r string) bool { return name == r || strings.HasPrefix(name, r+"/") }) {
			t.Errorf("%s imports %s: only %v may", name, path, rooms)
		}
	}
}

// TestEveryPackageIsOnTheMap: docs/ARCHITECTURE.md has a room for each package. The
// first cell of a row names paths; "…/x" is below the first of them, and a path with
// "…" or "/" at its end, or in a cell with "and below", stands for all below it.
func TestEveryPackageIsOnTheMap(t *testing.T) {
	doc, err := os.ReadFile("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	exact, below := map[string]bool{}, []string{}
	for line := range strings.SplitSeq(string(doc), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		first := ""
		for i, path := range strings.Split(cells[1], "`") {
			if i%2 == 0 {
				continue // between two paths
			}
			if name, ok := strings.CutPrefix(path, "…/"); ok {
				path = first + "/" + name
			} else if first == "" {
				first = path
			}
			open := strings.TrimSuffix(strings.TrimSuffix(path, "…"), "/")
			exact[open] = true
			if open != path || strings.Contains(cells[1], "and below") {
				below = append(below, open+"/")
			}
		}
	}
	for _, p := range listPackages(t) {
		name, ours := strings.CutPrefix(p.ImportPath, module)
		if ours && !exact[name] && !slices.ContainsFunc(below, func(b string) bool { return strings.HasPrefix(name, b) }) {
			t.Errorf("%s has no room in docs/ARCHITECTURE.md", name)
		}
	}
}

// room is the prefix of the layer table that a package falls under.
func room(name string) string {
	best := ""
	for prefix := range layers {
		if (name == prefix || strings.HasPrefix(name, strings.TrimSuffix(prefix, "/")+"/")) && len(prefix) > len(best) {
			best = prefix
		}
	}
	return best
}

func layerOf(name string) (layer, bool) {
	l, ok := layers[room(name)]
	return l, ok
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
