package console

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// program is bin/proxima, which "make build" makes, or PROXIMA_PROGRAM.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("PROXIMA_PROGRAM"); path != "" {
		return path
	}
	path, err := filepath.Abs("../../bin/proxima")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make build", err)
	}
	return path
}

// start a command, and return the first line of its output with a text.
func start(t *testing.T, text string, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program(t), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was ended
	})
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			if strings.Contains(s.Text(), text) {
				lines <- s.Text()
				break
			}
		}
		_, _ = io.Copy(io.Discard, r)
	}()
	select {
	case line := <-lines:
		return line
	case <-time.After(patience):
		t.Fatalf("proxima %s did not say %q", strings.Join(args, " "), text)
		return ""
	}
}

const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.1.0.1], zone: zone-a}, {addresses: [10.1.0.2], zone: zone-b}]
`

// testCode opens the console as users do, on a real control plane.
func testCode(t *testing.T) {
	dir := t.TempDir()
	start(t, "ready", "control-plane", "--data-dir", dir, "--api-address", "127.0.0.1:0", "--grpc-port", "0", "--xds-port", "0")
	file := filepath.Join(dir, "objects.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(program(t), "--data-dir", dir, "apply", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	address := start(t, "#code=", "--data-dir", dir, "console", "--no-browser")
	origin, _, _ := strings.Cut(address, "/console/")
	b := openTab(t, origin)
	b.do(chromedp.Navigate(address))
	b.sees("Services")
	for _, hash := range []string{"#/", "#/services", "#/services/shop/web", "#/problems", "#/nodes", "#/policies", "#/history?namespace=shop"} {
		b.at(hash)
		b.is(settled)
		if text := b.text("main .note.error"); text != "" {
			t.Errorf("%s: %s", hash, text)
		}
	}
	b.at("#/services")
	b.sees("shop/web")
	b.do(chromedp.Reload())
	b.sees("shop/web")
	if b.text(".write") != "" {
		t.Error("without --write there is a write")
	}
	var leaked bool
	b.eval("location.href.includes('code=') || document.cookie !== ''", &leaked)
	if leaked {
		t.Error("the code stays in the address, or there is a cookie")
	}
	tabs(b)
	// The code is used up.
	other := openTab(t, origin)
	other.expect("401")
	other.do(chromedp.Navigate(address))
	other.sees("a code that is wrong, used or older than a minute")
}

// tabs of a browser share one stream, as there are more of them than a browser opens connections to a host.
func tabs(b *tab) {
	b.Helper()
	b.at("#/")
	b.is("document.querySelector('.pulse.live')")
	ask := func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true).WithUserGesture(true)
	}
	for i := range 8 {
		b.do(chromedp.Evaluate(fmt.Sprintf("(window.others ??= []).push(open(location.href, '', 'popup,left=%d,width=400,height=300')); 0", 20*i), nil, ask))
	}
	b.is(`others.every(w => w.document.querySelector('.pulse.live') && w.document.querySelector('.facts') && !w.document.hidden)`)
	var holders int
	b.do(chromedp.Evaluate("navigator.locks.query().then(q => q.held.length)", &holders, ask))
	if holders != 1 {
		b.Errorf("%d windows have the stream", holders)
	}
}
