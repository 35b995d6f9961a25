package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
)

// consoleRig is a listener of the console in front of an API that notes what reaches it.
type consoleRig struct {
	t     *testing.T
	proxy *consoleProxy
	url   string
	host  string
	clock *testingclock.FakePassiveClock
	log   lockedLog
	// reached counts requests at the API; last is the newest of them.
	reached atomic.Int32
	last    atomic.Pointer[http.Request]
	ended   atomic.Pointer[error]
}

// lockedLog is written by handlers, and read by tests.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newConsoleRig(t *testing.T, write bool) *consoleRig {
	t.Helper()
	r := &consoleRig{t: t, clock: testingclock.NewFakePassiveClock(time.Now())}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.reached.Add(1)
		r.last.Store(q)
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(api.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	cfg := &rest.Config{Host: api.URL, BearerToken: "the-credentials"}
	r.proxy, err = newConsoleProxy(cfg, port, false, write, r.clock.Now().Add(8*time.Hour), slog.New(slog.NewTextHandler(&r.log, nil)), func(err error) { r.ended.Store(&err) })
	if err != nil {
		t.Fatal(err)
	}
	r.proxy.clock = r.clock
	srv := httptest.NewUnstartedServer(r.proxy)
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	r.host = fmt.Sprintf("127.0.0.1:%d", port)
	r.url = "http://" + r.host
	return r
}

// send a request as it is written, and return the code of the answer and its body.
func (r *consoleRig) send(method, target, body string, header ...string) (int, string) {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.host)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	host := r.host
	var text strings.Builder
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			host = header[i+1]
			continue
		}
		fmt.Fprintf(&text, "%s: %s\r\n", header[i], header[i+1])
	}
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s", method, target, host, len(body), text.String(), body)
	answer, err := io.ReadAll(conn)
	if err != nil {
		r.t.Fatal(err)
	}
	var code int
	if _, err := fmt.Sscanf(string(answer), "HTTP/1.1 %d", &code); err != nil {
		r.t.Fatalf("%s %s: %q", method, target, answer)
	}
	_, rest, _ := strings.Cut(string(answer), "\r\n\r\n")
	return code, rest
}

// secret for a new code.
func (r *consoleRig) secret() string {
	r.t.Helper()
	code, body := r.send("POST", consoleSessionPath, fmt.Sprintf(`{"code": %q}`, r.proxy.code()))
	var s consoleSession
	if err := json.Unmarshal([]byte(body), &s); code != 200 || err != nil || s.Secret == "" {
		r.t.Fatalf("a new code: %d %s", code, body)
	}
	return s.Secret
}

func TestConsoleProxyRefuses(t *testing.T) {
	r := newConsoleRig(t, false)
	secret := r.secret()
	bearer := []string{"Authorization", "Bearer " + secret}
	for _, c := range []struct {
		name, method, target string
		header               []string
		want                 int
	}{
		{"read", "GET", "/proxima/v1/status", nil, 200},
		{"read of an object", "GET", "/api/v1/namespaces/shop/services/web", nil, 200},
		{"access review", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", nil, 200},
		{"own origin", "GET", "/proxima/v1/status", []string{"Origin", "http://" + r.host}, 200},
		{"foreign host", "GET", "/proxima/v1/status", []string{"Host", "evil.example"}, 403},
		{"foreign host with the port", "GET", "/console/", []string{"Host", strings.Replace(r.host, "127.0.0.1", "evil.example", 1)}, 403},
		{"foreign origin", "GET", "/proxima/v1/status", []string{"Origin", "https://evil.example"}, 403},
		{"a page on another port", "GET", "/proxima/v1/status", []string{"Origin", "http://127.0.0.1:1"}, 403},
		{"a page without an origin", "GET", "/proxima/v1/status", []string{"Origin", "null"}, 403},
		{"a link from another site", "GET", "/console/", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"a page on another port, by its site", "GET", "/proxima/v1/status", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"write", "POST", "/api/v1/namespaces/shop/services", nil, 403},
		{"patch", "PATCH", "/api/v1/namespaces/shop/services/web", nil, 403},
		{"delete", "DELETE", "/api/v1/namespaces/shop/services/web", nil, 403},
		{"confirm", "POST", "/proxima/v1/zones/confirm", nil, 403},
		{"another path of ours", "POST", "/proxima/v1/tokens", nil, 403},
		{"secrets", "GET", "/api/v1/namespaces/shop/secrets/tls", nil, 403},
		{"secrets of all", "GET", "/api/v1/secrets", nil, 403},
		{"the way into a pod", "GET", "/api/v1/namespaces/shop/pods/web/exec", nil, 403},
		{"the way through a service", "GET", "/api/v1/namespaces/shop/services/web/proxy/admin", nil, 403},
		{"metrics", "GET", "/metrics", nil, 403},
		{"upgrade", "GET", "/proxima/v1/status", []string{"Upgrade", "websocket"}, 403},
		{"double slash", "GET", "//proxima/v1/status", nil, 403},
		{"double slash within", "GET", "/api/v1//secrets", nil, 403},
		{"climb", "GET", "/proxima/v1/../../api/v1/secrets", nil, 403},
		{"climb from the pages", "GET", "/console/../api/v1/secrets", nil, 403},
		{"encoded climb", "GET", "/proxima/v1/%2e%2e/%2e%2e/api/v1/secrets", nil, 403},
		{"encoded slash", "GET", "/api/v1%2fsecrets", nil, 403},
		{"double encoding", "GET", "/api/v1/%2573ecrets", nil, 403},
		{"backslash", "GET", `/api/v1\secrets`, nil, 403},
		{"request to a proxy", "GET", "http://evil.example/proxima/v1/status", nil, 403},
	} {
		before := r.reached.Load()
		code, body := r.send(c.method, c.target, "", append(bearer, c.header...)...)
		if code != c.want {
			t.Errorf("%s: %s %s: %d %s, want %d", c.name, c.method, c.target, code, body, c.want)
		}
		if reached := r.reached.Load() > before; reached != (c.want == 200) {
			t.Errorf("%s: %s %s: reached the API: %v", c.name, c.method, c.target, reached)
		}
	}
	if strings.Contains(r.log.String(), secret) {
		t.Error("the log has the secret")
	}
	if !strings.Contains(r.log.String(), "evil.example") {
		t.Error("the log does not have the refusals")
	}
}

func TestConsoleProxyCredentials(t *testing.T) {
	r := newConsoleRig(t, false)
	secret := r.secret()
	if code, _ := r.send("GET", "/proxima/v1/status?a=b", "", "Authorization", "Bearer "+secret, "Cookie", "c=d", "Impersonate-User", "root"); code != 200 {
		t.Fatalf("with the secret: %d", code)
	}
	got := r.last.Load()
	if got.Header.Get("Authorization") != "Bearer the-credentials" || got.URL.RawQuery != "a=b" {
		t.Errorf("the API got %q %q", got.Header.Get("Authorization"), got.URL)
	}
	for _, name := range []string{"Cookie", "Impersonate-User", "X-Forwarded-For"} {
		if got.Header.Get(name) != "" {
			t.Errorf("the API got %s: %s", name, got.Header.Get(name))
		}
	}
	resp, err := http.NewRequest("GET", r.url+"/proxima/v1/status", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Header.Set("Authorization", "Bearer "+secret)
	answer, err := http.DefaultClient.Do(resp)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.Header.Get("Set-Cookie") != "" || answer.Header.Get("Access-Control-Allow-Origin") != "" || answer.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("the browser got %v", answer.Header)
	}
}

func TestConsoleProxyWrites(t *testing.T) {
	r := newConsoleRig(t, true)
	bearer := []string{"Authorization", "Bearer " + r.secret()}
	for target, want := range map[string]int{
		"PATCH /api/v1/namespaces/shop/services/web":                 200,
		"POST /apis/mesh.proxima.dev/v1alpha1/zoneshifts":            200,
		"POST /proxima/v1/zones/confirm":                             200,
		"PUT /api/v1/namespaces/shop/services/web":                   403,
		"DELETE /api/v1/namespaces/shop/services/web":                403,
		"PATCH /api/v1/namespaces/shop/services/web/status":          403,
		"DELETE /apis/mesh.proxima.dev/v1alpha1/zoneshifts/a":        403,
		"POST /api/v1/namespaces/shop/secrets":                       403,
		"POST /proxima/v1/tokens":                                    403,
		"POST /apis/rbac.authorization.k8s.io/v1/clusterroles":       403,
		"POST /api/v1/namespaces/shop/serviceaccounts/default/token": 403,
	} {
		method, at, _ := strings.Cut(target, " ")
		if code, body := r.send(method, at, "{}", bearer...); code != want {
			t.Errorf("%s: %d %s, want %d", target, code, body, want)
		}
	}
}

func TestConsoleProxyCodes(t *testing.T) {
	r := newConsoleRig(t, false)
	exchange := func(code string) int {
		got, _ := r.send("POST", consoleSessionPath, fmt.Sprintf(`{"code": %q}`, code))
		return got
	}
	code := r.proxy.code()
	if len(code) < 22 {
		t.Errorf("a code of %d characters has less than 128 bits", len(code))
	}
	if got := exchange(code); got != 200 {
		t.Errorf("first use: %d", got)
	}
	if got := exchange(code); got != 401 {
		t.Errorf("second use: %d", got)
	}
	late := r.proxy.code()
	r.clock.SetTime(r.clock.Now().Add(consoleCodeFor))
	if got := exchange(late); got != 401 {
		t.Errorf("after a minute: %d", got)
	}
	secret := r.secret()
	if got, _ := r.send("GET", "/proxima/v1/status", ""); got != 401 {
		t.Errorf("without a secret: %d", got)
	}
	if r.ended.Load() != nil {
		t.Fatal("ended before 20 guesses")
	}
	guesses := func() int {
		r.proxy.mu.Lock()
		defer r.proxy.mu.Unlock()
		return r.proxy.guesses
	}
	for guesses() < maxConsoleGuesses {
		if got, _ := r.send("GET", "/proxima/v1/status", "", "Authorization", "Bearer guess"); got != 401 {
			t.Fatalf("a guess: %d", got)
		}
	}
	if r.ended.Load() == nil {
		t.Error("20 guesses do not end the listener")
	}
	if got, _ := r.send("GET", "/proxima/v1/status", "", "Authorization", "Bearer "+secret); got != 401 {
		t.Errorf("after 20 guesses: %d", got)
	}
	if strings.Contains(r.log.String(), late) {
		t.Error("the log has a code")
	}
}

func TestConsoleProxyTTL(t *testing.T) {
	r := newConsoleRig(t, false)
	secret := r.secret()
	r.clock.SetTime(r.clock.Now().Add(8 * time.Hour))
	if got, _ := r.send("GET", "/proxima/v1/status", "", "Authorization", "Bearer "+secret); got != 401 {
		t.Errorf("after --ttl: %d", got)
	}
}

// TestConsoleProxyBrowser: who reads the list of processes learns the name of a file that is the user's alone.
func TestConsoleProxyBrowser(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("DISPLAY", ":9")
	args := filepath.Join(dir, "args")
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\necho \"$@\" >"+args+".new\ncp \"$1\" "+args+".page\nmv "+args+".new "+args+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r := newConsoleRig(t, false)
	var out, log bytes.Buffer
	s := &settings{io: IO{Out: &out, Err: &log, Env: func(string) (string, bool) { return "", false }}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	remove, err := s.announceConsole(ctx, r.proxy, 1234, true)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	var shown []byte
	for start := time.Now(); time.Since(start) < 10*time.Second; {
		if shown, err = os.ReadFile(args); err == nil {
			break
		}
	}
	file := strings.TrimSpace(string(shown))
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the browser was started with %q: %v %v", file, info, err)
	}
	page, err := os.ReadFile(args + ".page")
	if err != nil || !strings.Contains(string(page), "http://127.0.0.1:1234/console/#code=") {
		t.Errorf("the file says %q (%v)", page, err)
	}
	if strings.Contains(file+out.String()+log.String(), "code=") {
		t.Errorf("the code is not in the file alone: %q %q %q", file, out.String(), log.String())
	}
	remove()
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file stays: %v", err)
	}
}

func TestConsoleProxySSH(t *testing.T) {
	if got := sshLine("192.0.2.1 50000 192.0.2.9 2222", 4321); !strings.HasPrefix(got, "ssh -p 2222 -N -L 4321:127.0.0.1:4321 ") || !strings.HasSuffix(got, "@192.0.2.9") {
		t.Error(got)
	}
}
