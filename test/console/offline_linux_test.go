package console

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestConsoleOffline opens every page, and the documentation, in a network namespace that has no way out. No request leaves its
// origin, which openTab sees to. test/e2e builds the program without node before.
func TestConsoleOffline(t *testing.T) {
	if os.Getenv("PROXIMA_OFFLINE") == "" {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		flags := "-n"
		if os.Getuid() != 0 {
			flags = "-rn"
		}
		cmd := exec.Command("unshare", flags, "sh", "-c", `ip link set lo up && exec "$0" "$@"`, self, "-test.run=^TestConsoleOffline$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), "PROXIMA_OFFLINE=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	links, err := net.Interfaces()
	if err != nil || len(links) != 1 || links[0].Flags&net.FlagLoopback == 0 {
		t.Fatalf("there is a way out: %+v, %v", links, err)
	}
	t.Run("every page", func(t *testing.T) {
		_, url := serve(t, small)
		b := openTab(t, url)
		b.enter()
		for _, p := range pages {
			b.at(p.hash)
			b.is(settled + " && document.querySelector('main h1').innerText.startsWith(" + quote(p.name) + ")")
		}
		b.do(chromedp.Reload())
		b.is(settled)
	})
	t.Run("control plane", func(t *testing.T) {
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
		b.do(chromedp.Navigate(address), chromedp.WaitVisible("nav"))
		b.sees("Flows between zones")
		var menu []string
		b.eval("[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))", &menu)
		if len(menu) < 5 {
			t.Errorf("the menu has %q", menu)
		}
		for _, hash := range append(menu, "#/services/shop/web") {
			b.at(hash)
			b.is(settled)
			if text := b.text("main .note.error"); text != "" {
				t.Errorf("%s: %s", hash, text)
			}
		}
	})
	t.Run("documentation", func(t *testing.T) {
		b := openDocs(t)
		b.is("document.querySelector('h1')")
		b.ask("what does traffic between zones cost")
		b.is("document.querySelector('#found a')")
	})
}
