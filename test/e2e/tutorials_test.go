package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// tutorialBlock is a block of commands: start are programs that go on, a line each, use is a script.
var tutorialBlock = regexp.MustCompile("(?s)<!-- test: (start|use) -->\n```\n(.*?)```")

// TestTutorials follows each page of docs/tutorials, as its reader does.
func TestTutorials(t *testing.T) {
	for page, wants := range map[string][]string{
		"first-minutes": {`"name":"web-a"`, "web    proxima.dev/Adaptive", "all stays", "zone-b: 75.0 % of demand", `"name":"web-b"`},
		"history":       {`"name":"web-1"`, "(kubectl-patch)", "spec.selector.app: web -> wbe", "spec.selector.app: wbe -> web"},
		"registry":      {"nacos", `"name":"orders-1"`, `"serviceName":"DEFAULT_GROUP@@orders"`, "nacos, until it is deregistered", "No resources found"},
	} {
		t.Run(page, func(t *testing.T) {
			r := newReader(t)
			text, err := os.ReadFile(filepath.Join(testkit.Root(t), "docs", "tutorials", page+".md"))
			if err != nil {
				t.Fatal(err)
			}
			for _, block := range tutorialBlock.FindAllStringSubmatch(string(text), -1) {
				if block[1] == "use" {
					r.use(block[2])
					continue
				}
				for line := range strings.Lines(block[2]) {
					r.start(strings.Fields(line))
				}
			}
			for _, want := range wants {
				if !strings.Contains(r.said, want) {
					t.Errorf("%q is missing in:\n%s", want, r.said)
				}
			}
		})
	}
	pages, err := filepath.Glob(filepath.Join(testkit.Root(t), "docs", "tutorials", "*.md"))
	if err != nil || len(pages) != 3 {
		t.Errorf("%d tutorials, and 3 are followed: %v", len(pages), err)
	}
}

// reader of a page, on a machine of their own: ports and the data directory of a real installation may be taken.
type reader struct {
	*testing.T
	home  string
	env   []string
	adapt *strings.Replacer
	said  string
}

func newReader(t *testing.T) *reader {
	home := t.TempDir()
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(testkit.Binary(t), filepath.Join(bin, "proxima")); err != nil {
		t.Fatal(err)
	}
	port := func() string { return strconv.Itoa(testkit.FreePort(t)) }
	return &reader{
		T: t, home: home, adapt: strings.NewReplacer("8081", port(), "8082", port(), "8848", port()),
		env: append(testkit.CleanEnv(),
			"HOME="+home, "PATH="+bin+":"+filepath.Dir(testkit.Kubectl(t))+":"+os.Getenv("PATH"),
			"PROXIMA_DATA_DIR="+filepath.Join(home, ".local", "share", "proxima"), "PROXIMA_HEALTH_PORT=0", "PROXIMA_METRICS_PORT=0", "PROXIMA_DNS_PORT=0",
			"PROXIMA_PROBE_PORT=0", "PROXIMA_XDS_PORT=0", "PROXIMA_API_ADDRESS=127.0.0.1:"+port(), "PROXIMA_GRPC_PORT="+port()),
	}
}

func (r *reader) start(words []string) {
	r.Helper()
	for i := range words {
		words[i] = r.adapt.Replace(words[i])
	}
	p := testkit.Start(r.T, r.env, testkit.Binary(r.T), words[1:]...)
	if words[1] == "up" {
		p.FirstLine()
	}
}

// use a script; what it exports holds in those that follow.
func (r *reader) use(script string) {
	r.Helper()
	script = "set -e\ntouch vars; . ./vars\n" + r.adapt.Replace(script) + "\nexport -p > vars\n"
	cmd := exec.CommandContext(r.Context(), "sh", "-c", script)
	cmd.Dir, cmd.Env = r.home, r.env
	out, err := cmd.CombinedOutput()
	r.said += string(out)
	if err != nil {
		r.Fatalf("%v\n%s\n%s", err, script, out)
	}
}
