package lab_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

var commands = regexp.MustCompile("(?s)<!-- test: \\w+ -->\n```\n(.*?)```")

// TestGuide follows docs/how-to/lab.md, in a lab of another name and one
// zone less.
func TestGuide(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	clearKilledRuns(t)
	doc, err := os.ReadFile(filepath.Join(testkit.Root(t), "docs", "how-to", "lab.md"))
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(testkit.Binary(t), filepath.Join(bin, "proxima")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := lab.Down(context.Background(), labName()); err != nil {
			t.Error(err)
		}
		nothingLeft(t)
	})
	adapt := strings.NewReplacer("pxlab-lab-", "pxlab-"+labName()+"-", "/lab/lab/", "/lab/"+labName()+"/",
		"--zones 3 --nodes 2", "--zones 2 --nodes 2 --mode userspace", "client-c", "client-b")
	script := "set -ex\n"
	for _, block := range commands.FindAllStringSubmatch(string(doc), -1) {
		script += block[1]
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", adapt.Replace(script))
	cmd.Env = append(testkit.CleanEnv(), "PATH="+bin+":"+os.Getenv("PATH"), "PROXIMA_LAB="+labName())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"zone-b is cut off", "the agent of a-2 is dead", "a-2    10.200.1.12   up      True    dead", "fd00:200:1::12", "zone-a   IPv6   12",
		"the lab is whole", `"controlPlane": "running"`, "web-", "default via 10.201.2.1", "is down",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

// clearKilledRuns takes down what earlier runs of this test left that were
// killed: the command line's labs have no owner.
func clearKilledRuns(t *testing.T) {
	t.Helper()
	names, err := netns.List("pxlab-t")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		name, _, _ := strings.Cut(strings.TrimPrefix(n, "pxlab-"), "-")
		pid, err := strconv.Atoi(name[1:])
		if err != nil {
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			continue
		}
		if _, err := lab.Down(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
}

var sidecarCommands = regexp.MustCompile("(?s)<!-- sidecars: (\\w+) -->\n```\n(.*?)```")

// TestSidecarGuide follows the part of docs/how-to/lab.md about sidecars, in a lab of another
// name and one zone less.
func TestSidecarGuide(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	if _, err := cgroup.Find(); err != nil {
		t.Skip(err)
	}
	clearKilledRuns(t)
	doc, err := os.ReadFile(filepath.Join(testkit.Root(t), "docs", "how-to", "lab.md"))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Binary(t)
	testkit.Sidecar(t)
	t.Cleanup(func() {
		if _, err := lab.Down(context.Background(), labName()); err != nil {
			t.Error(err)
		}
		nothingLeft(t)
	})
	adapt := strings.NewReplacer("/lab/lab/", "/lab/"+labName()+"/", "make build\n", "", "lab up --sidecars", "lab up --zones 2 --sidecars",
		"$(tools/envoy)", envoytest.Binary(t))
	// What status shows of a step comes after a moment.
	awaited := map[string]string{
		"IPv4 and IPv6 fail, sidecars do not": `zone-a +IPv4 +12 +12 .*\n(.*IPv6.*\n)?zone-a +sidecar +12 +0 `,
		"shop-a is answered":                  `zone-a +sidecar +12 +12 .*403 Forbidden`,
		"half of all requests fail":           `zone-a +sidecar +12 +[1-9].*503`,
		"still without a sidecar":             `(?s)zone-a +IPv4 +12 +[1-9].*zone-a +sidecar +12 +0 `,
		"web-c-2 gets one in ten":             `zone-a +sidecar +12 +0 .*web-b-2 [1-6]×`,
	}
	for _, block := range sidecarCommands.FindAllStringSubmatch(string(doc), -1) {
		for line := range strings.Lines(adapt.Replace(block[2])) {
			run := func() string {
				cmd := exec.CommandContext(t.Context(), "sh", "-ec", line)
				cmd.Dir = testkit.Root(t)
				cmd.Env = append(testkit.CleanEnv(), "PATH="+filepath.Join(testkit.Root(t), "bin")+":"+os.Getenv("PATH"), "PROXIMA_LAB="+labName())
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %s%v\n%s", block[1], line, err, out)
				}
				return string(out)
			}
			_, comment, _ := strings.Cut(line, "# ")
			found := strings.TrimSpace(comment) == ""
			for text, want := range awaited {
				if !strings.Contains(comment, text) {
					continue
				}
				found = true
				testkit.Eventually(t, block[1]+": "+comment, func() bool { return regexp.MustCompile(want).MatchString(run()) })
			}
			if !found {
				t.Errorf("%s: nothing is known of %q", block[1], comment)
			}
			if comment == "" {
				if out := run(); block[1] == "look" && !strings.Contains(out, `"ready":"true"`) && !strings.Contains(out, "in|8080") {
					t.Errorf("%s\n%s", line, out)
				}
			}
		}
	}
}
