package mcs

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/mcs-api/conformance"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(connectVariable) != "" {
		os.Exit(connect(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// results of the suite's cases by their names.
var results = map[string]types.SpecReport{}

var _ = ginkgo.ReportAfterEach(func(r ginkgo.SpecReport) { results[strings.TrimSpace(r.FullText())] = r })

// TestConformance runs every case of the suite.
func TestConformance(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the lab needs root")
	}
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	if testing.Short() || os.Getenv("PROXIMA_MCS") == "" {
		t.Skip("it takes minutes: make interop-mcs")
	}
	name := fmt.Sprintf("m%d", os.Getpid()%1_000_000)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	l, err := lab.Start(ctx, lab.Spec{
		Name: name, Zones: 2, Nodes: 1, Mode: "nftables", Global: true, IPv4Only: true, Temporary: true,
		Executable: testkit.Binary(t), Progress: func(line string) { t.Log(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		if _, err := lab.Down(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
	zones := []string{"zone-a", "zone-b"}
	config := clientcmdapi.NewConfig()
	for i, zone := range zones {
		s := newStandIn(t, l, name, zone, i+1)
		config.Clusters[zone] = &clientcmdapi.Cluster{Server: s.url}
		config.AuthInfos[zone] = &clientcmdapi.AuthInfo{}
		config.Contexts[zone] = &clientcmdapi.Context{Cluster: zone, AuthInfo: zone}
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"kubeconfig": kubeconfig, "contexts": strings.Join(zones, ","),
		// The slices of a Service with a selector are the EndpointSlice controller's, as
		// the suite allows; those of other zones are not.
		"skip-verify-eps-managed-by": "true",
	} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	root := testkit.Root(t)
	t.Chdir(t.TempDir()) // the suite writes its report to the working directory
	passed := t.Run("suite", conformance.TestConformance)
	counts(t, root, passed)
}

// counts prints the results, and checks that no case was left out.
func counts(t *testing.T, root string, passed bool) {
	ran, skipped, ok := 0, 0, 0
	for _, name := range slices.Sorted(maps.Keys(results)) {
		r := results[name]
		switch r.State {
		case types.SpecStatePassed:
			ok++
		case types.SpecStateSkipped, types.SpecStatePending:
			skipped++
		}
		ran++
		fmt.Printf("%s\t%s\n", r.State, name)
	}
	commit := "unknown"
	if out, err := exec.Command("git", "-C", root, "rev-parse", "--short", "HEAD").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	fmt.Printf("interop-mcs: mcs-api conformance v0.5.0: %d of %d cases passed, %d skipped; commit %s, %s\n",
		ok, ran, skipped, commit, time.Now().UTC().Format(time.DateOnly))
	listed(t, filepath.Join(root, "test", "mcs", "README.md"))
	if passed && (ok != ran || ran == 0) && flag.Lookup("ginkgo.focus").Value.String() == "" {
		t.Errorf("%d of %d cases did not run", ran-ok, ran)
	}
}

// listed checks that README.md has the cases of the suite, and no others.
func listed(t *testing.T, path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(data), "## Cases")
	rows := map[string]bool{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| ") && len(cells) == 2 {
			rows[oneLine(strings.TrimPrefix(cells[0], "| "))] = true
		}
	}
	delete(rows, "case")
	for name := range results {
		if name = oneLine(name); !rows[name] {
			t.Errorf("%s does not list the case %q", path, name)
		}
		delete(rows, name)
	}
	for name := range rows {
		t.Errorf("%s lists %q, which is no case of the suite", path, name)
	}
}

// oneLine is a case's name as a page has it: without backquotes and double spaces.
func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "`", "")), " ")
}
