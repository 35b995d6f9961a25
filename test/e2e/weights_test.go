package e2e

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// consoleCommands are those of a how-to page's blocks of type console, in order. One that has
// a here-document has all lines of it.
func consoleCommands(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testkit.Root(t), "docs", "how-to", page))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				out = append(out, command)
			} else if len(out) > 0 {
				out[len(out)-1] += line
			}
		}
	}
	return out
}

// guide runs the commands of a page, with ports and programs of the test.
type guide struct {
	t        *testing.T
	env      []string
	adapt    *strings.Replacer
	commands []string
	dns      int
}

// next runs the next command, which must have a text in it, and returns what it prints. One
// that ends with "&" goes on until the test ends.
func (g *guide) next(has string) string {
	g.t.Helper()
	if len(g.commands) == 0 || !strings.Contains(g.commands[0], has) {
		g.t.Fatalf("the next command is %q, want one with %q", g.commands[:min(1, len(g.commands))], has)
	}
	line := g.adapt.Replace(strings.TrimSpace(g.commands[0]))
	g.commands = g.commands[1:]
	if background, ok := strings.CutSuffix(line, " &"); ok {
		words := strings.Fields(background)
		testkit.Start(g.t, g.env, filepath.Join(filepath.Dir(testkit.Binary(g.t)), words[0]), words[1:]...)
		return ""
	}
	return g.shell(line)
}

func (g *guide) shell(line string) string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), testkit.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "set -e\n"+line)
	cmd.Env = append(testkit.CleanEnv(), g.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// eventually a command prints what matches.
func (g *guide) eventually(pattern, line string) string {
	g.t.Helper()
	out, want := "", regexp.MustCompile(pattern)
	testkit.Eventually(g.t, line+" prints "+pattern, func() bool {
		out = g.shell(line)
		return want.MatchString(out)
	})
	return out
}

// share of connections to the Service that a backend answers, by so many.
func (g *guide) share(name string, connections int) float64 {
	g.t.Helper()
	at := strings.TrimSpace(g.shell("kubectl get service web -o jsonpath={.spec.clusterIP}"))
	n := 0
	for range connections {
		by, _, err := who(net.JoinHostPort(at, "8080"))
		if err != nil {
			g.t.Fatal(err)
		}
		if by == name {
			n++
		}
	}
	return float64(n) / float64(connections)
}

// TestWeightsGuide follows docs/how-to/weights.md: what its commands promise holds.
func TestWeightsGuide(t *testing.T) {
	home, bin := t.TempDir(), t.TempDir()
	data := filepath.Join(home, "data")
	ports := map[string]string{}
	var pairs []string
	for _, port := range []string{"8081", "8082", "5432"} {
		ports[port] = strconv.Itoa(testkit.FreePort(t))
		pairs = append(pairs, port, ports[port])
	}
	// Programs that the page starts say who they are.
	for name, script := range map[string]string{
		"python3":  `exec ` + testkit.Binary(t) + ` demo backend --name "$3" --listen "127.0.0.1:$3"`,
		"postgres": `exec ` + testkit.Binary(t) + ` demo backend --name db --listen 127.0.0.1:` + ports["5432"],
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g := &guide{t: t, adapt: strings.NewReplacer(pairs...), commands: consoleCommands(t, "weights.md"), dns: testkit.FreePort(t)}
	g.env = []string{
		"HOME=" + home, "PATH=" + strings.Join([]string{bin, filepath.Dir(testkit.Kubectl(t)), filepath.Dir(testkit.Binary(t)), os.Getenv("PATH")}, ":"),
		"PROXIMA_DATA_DIR=" + data, "PROXIMA_HEALTH_PORT=0", "PROXIMA_METRICS_PORT=0", "PROXIMA_MODE=userspace", "PROXIMA_DNS_PORT=" + strconv.Itoa(g.dns),
		"PROXIMA_API_ADDRESS=127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)), "PROXIMA_GRPC_PORT=" + strconv.Itoa(testkit.FreePort(t)),
		"KUBECONFIG=" + filepath.Join(data, "kubeconfig"),
	}
	testkit.Start(t, g.env, testkit.Binary(t), "up").FirstLine()

	g.next("--weight 95")
	g.next("--weight 5 ")
	g.next("proxima apply")
	g.eventually(`127\.0\.0\.1:`+ports["8082"]+` .* 5\.0 %`, "proxima explain service default/web")
	out := g.next("proxima explain service default/web")
	for _, want := range []string{"95 %", "5.0 %", "used: weight 5 (100 is the default)"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	for port, weight := range map[string]string{"8081": "95", "8082": "5"} {
		g.eventually(`127\.0\.0\.1 +ready +`+weight+` .*dataplane/web-`+port[3:], "proxima describe service web")
	}
	// Userspace is exact, within a connection or two.
	wantShare := func(when string, want float64) {
		t.Helper()
		const n = 400
		testkit.Eventually(t, fmt.Sprintf("%s %.3f of the connections go to web-2", when, want), func() bool {
			return math.Abs(g.share(ports["8082"], n)-want) <= 2./n
		})
	}
	wantShare("at first", 0.05)
	g.next(`{"weight":50}`)
	wantShare("with weight 50 beside 95", 50./145)
	g.next(`{"enabled":false}`)
	wantShare("in maintenance of the other", 1)
	if out := g.shell("kubectl get dataplanes"); !regexp.MustCompile(`web-1 .*Disabled`).MatchString(out) {
		t.Errorf("column READY does not say Disabled:\n%s", out)
	}
	g.shell(`kubectl patch dataplane web-1 --type merge -p '{"spec":{"enabled":true}}'`)
	wantShare("after it", 50./145)
	g.next("topology.proxima.dev/warmup=30s")
	g.eventually(`Warm-up: +30s`, "proxima describe service web")

	// A shell would wait for it.
	g.commands[0] = strings.TrimSpace(g.commands[0]) + " &"
	g.shell("kubectl create service clusterip db --clusterip=None --tcp=5432:" + ports["5432"])
	g.next("--hostname db-0 --subdomain db -- postgres")
	n := &node{dns: g.dns}
	testkit.Eventually(t, "the workload has its name", func() bool {
		got, err := n.lookup("db-0.db.default.svc.cluster.local.")
		return err == nil && len(got) == 1 && got[0] == "127.0.0.1"
	})
	if len(g.commands) > 0 {
		t.Errorf("commands of the page that were not run: %q", g.commands)
	}
}
