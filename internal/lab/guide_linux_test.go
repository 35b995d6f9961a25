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

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
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
