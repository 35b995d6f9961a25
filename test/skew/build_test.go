package skew

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// revision is a program that takes part.
type revision struct {
	// name in the table: an abbreviated commit, or tree.
	name string
	// controls: it runs as the control plane of global and of zones too.
	controls bool
	// what it is, for readers.
	what string
	// binary, once it is built.
	binary string
}

const tree = "this tree"

// listed revisions, in the order of the file. Arguments stand for the whole list: COMMIT for
// one that runs as everything, COMMIT:agent for one that runs as an agent alone.
func listed(t testing.TB, arguments []string) []revision {
	t.Helper()
	var out []revision
	for _, a := range arguments {
		name, role, _ := strings.Cut(a, ":")
		out = append(out, revision{name: name, controls: role != "agent", what: "named on the command line"})
	}
	if len(out) > 0 {
		return out
	}
	file, err := os.Open("revisions")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		if len(fields) != 3 || fields[1] != "agent" && fields[1] != "all" {
			t.Fatalf("revisions: %q: want COMMIT agent|all WHAT", line)
		}
		out = append(out, revision{name: fields[0], controls: fields[1] == "all", what: fields[2]})
	}
	if err := lines.Err(); err != nil || len(out) == 0 {
		t.Fatalf("revisions: no line, %v", err)
	}
	return out
}

// build a revision below bin/, unless it is there, from a work tree that goes afterwards.
func (r *revision) build(t testing.TB) {
	t.Helper()
	root := testkit.Root(t)
	commit := git(t, root, "rev-parse", "--verify", "--quiet", r.name+"^{commit}")
	r.binary = filepath.Join(root, "bin", "skew", commit, "proxima")
	if _, err := os.Stat(r.binary); err == nil {
		return
	}
	source := filepath.Join(t.TempDir(), "tree")
	git(t, root, "worktree", "add", "--detach", source, commit)
	defer git(t, root, "worktree", "remove", "--force", source)
	cmd := exec.Command("go", "build", "-trimpath", "-o", r.binary, "./cmd/proxima")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", r.name, err, out)
	}
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// String is the name.
func (r *revision) String() string { return r.name }

// described names the revision of this tree for the caption of the table.
func described(t testing.TB) string {
	root := testkit.Root(t)
	name := git(t, root, "rev-parse", "--short=7", "HEAD")
	if git(t, root, "status", "--porcelain", "--untracked-files=no") != "" {
		name += " with changes"
	}
	return fmt.Sprintf("%s of %s", name, git(t, root, "show", "-s", "--format=%cs", "HEAD"))
}
