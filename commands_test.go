package proxima_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// fenced is a block of code with its indentation, the line above it, its label and its text.
	fenced = regexp.MustCompile("(?m)^(.*)\n( *)```(\\w*)\n((?s:.*?))^ *```$")
	// typed is the first line of a block that a reader would type.
	typed = regexp.MustCompile(`^(\$ |\()?(sudo )?([A-Z_]+=\S* )*(proxima|proxima\.exe|kubectl|make|curl|go|apt-get|dnf|systemctl|helm|ctr|podman|docker|openssl|sed|cat|install|export|umask|bin/\S+|tools/\S+|bench/\S+|psql|createuser|etcdctl|etcdutl|ssh|kube-proxy|git|dig|nft|sysctl|chmod)( |$)`)
	// bare is an assignment of what a command prints.
	bare = regexp.MustCompile(`^[A-Z_]+=\$\(`)
	// mark is what stands above a block of commands.
	mark    = regexp.MustCompile(`^ *<!-- (test|sidecars|not run): (.*) -->$`)
	testRef = regexp.MustCompile(`\b([a-z][a-z0-9/]+): (Test\w+)`)
)

// TestCommandBlocks: each block of commands in the documentation is run by a test, or says why not. A test that
// a reason names exists, and a page with blocks that are run is named by a test.
func TestCommandBlocks(t *testing.T) {
	followed := testsThatReadPages(t)
	blocks, run := 0, 0
	for _, page := range documentation(t) {
		if page == "docs/reference/commands.md" {
			continue // synopses and examples of the commands' own help, which internal/cli tests
		}
		text := readText(t, page)
		for _, m := range fenced.FindAllStringSubmatch(text, -1) {
			above, label, first := m[1], m[3], strings.TrimSpace(strings.SplitN(m[4], "\n", 2)[0])
			found := mark.FindStringSubmatch(above)
			if found != nil && found[1] != "not run" {
				run++
				if !followed[filepath.Base(page)] {
					t.Errorf("%s: %q is marked as run by a test, and no test reads this page", page, first)
				}
			}
			isCommand := label == "sh" || label == "console" || label == "" && (typed.MatchString(first) || bare.MatchString(first))
			if !isCommand {
				continue
			}
			blocks++
			switch {
			case found == nil:
				t.Errorf("%s: the block %q needs <!-- test: NAME -->, if a test runs it, or <!-- not run: REASON --> above it", page, first)
			case found[1] == "not run" && len(found[2]) < 10:
				t.Errorf("%s: the block %q has no reason for not being run", page, first)
			}
			if found != nil {
				for _, ref := range testRef.FindAllStringSubmatch(found[2], -1) {
					if !hasTest(t, ref[1], ref[2]) {
						t.Errorf("%s: package %s has no test %s", page, ref[1], ref[2])
					}
				}
			}
		}
		checkIndented(t, page, text)
	}
	if run == 0 || blocks < 100 {
		t.Errorf("%d blocks of commands, of which %d are run: they are not recognised", blocks, run)
	}
}

// checkIndented: commands are in fences, where they can be marked.
func checkIndented(t *testing.T, page, text string) {
	t.Helper()
	before := ""
	for line := range strings.Lines(fence.ReplaceAllString(text, "")) {
		code, indented := strings.CutPrefix(line, "    ")
		if indented && strings.TrimSpace(before) == "" && typed.MatchString(strings.TrimRight(code, "\n")) {
			t.Errorf("%s: %q is indented: put commands between ``` lines", page, strings.TrimSpace(line))
		}
		before = line
	}
}

// documentation is README.md and the pages of docs but for decisions.
func documentation(t *testing.T) (out []string) {
	t.Helper()
	for _, page := range pages(t) {
		if page == "README.md" || strings.HasPrefix(page, "docs/") && !strings.HasPrefix(page, "docs/adr/") {
			out = append(out, page)
		}
	}
	return out
}

// testsThatReadPages are the file names of the pages that tests of other packages name.
func testsThatReadPages(t *testing.T) map[string]bool {
	t.Helper()
	out, name := map[string]bool{}, regexp.MustCompile(`\b([\w-]+)\.md\b`)
	walkFiles(t, func(path string) {
		if !strings.HasSuffix(path, "_test.go") || filepath.Dir(path) == "." {
			return
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(data), -1) {
			out[m[1]+".md"] = true
		}
		if strings.Contains(string(data), `"docs", "tutorials"`) {
			for _, m := range regexp.MustCompile(`"([a-z-]+)": +\{`).FindAllStringSubmatch(string(data), -1) {
				out[m[1]+".md"] = true
			}
		}
	})
	return out
}
