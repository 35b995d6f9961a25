package cli

import (
	"bytes"
	"context"
	"flag"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

var update = flag.Bool("update", false, "write what commands print into the scripts")

// TestScripts runs the scripts in testdata/script against one control plane.
// Each has a namespace of its own, named like the script, and these commands:
//
//	proxima ARGS [<FILE] [>FILE]  runs it in process; must succeed ("!": exit with 1)
//	misuse ARGS                  the same; must exit with 2
//	until REGEXP ARGS            repeats it until standard output matches
//	report NAME True|False REASON MESSAGE   sets a Dataplane's condition Ready
//	watch ARGS                   begins "get --watch" in the background
//	seen REGEXP                  waits until it has printed a line that matches
//	interrupt                    ends it as Ctrl-C does, and shows what it printed
//	background ARGS              begins a command that goes on; there may be several
//	ended                        waits until all of them have; each must succeed
//	authority NAME               makes $WORK/NAME, a kubeconfig that trusts another authority
//	credential NAME FILE         makes $WORK/NAME, a kubeconfig with the token in FILE
//	revoke NAME                  revokes the token that was made for NAME
//	edit NAME KEY VALUE          sets a key of a ConfigMap, as the field manager "editor"
//
// What differs from run to run is normalised in the output: see normalise.
func TestScripts(t *testing.T) { runScripts(t, app.RoleStandalone, "memory", "script") }

// TestGlobalScripts runs the scripts in testdata/global against a global control plane, with
// the same commands.
func TestGlobalScripts(t *testing.T) { runScripts(t, app.RoleGlobal, "memory", "global") }

// TestFeedScripts runs the scripts in testdata/feed against a control plane with a change feed, with the same commands.
func TestFeedScripts(t *testing.T) { runScripts(t, app.RoleStandalone, "sqlite", "feed") }

// TestDamagedFeedScripts runs the scripts in testdata/feeddamage, which damage the segments of their control plane: there is one for them alone.
func TestDamagedFeedScripts(t *testing.T) { runScripts(t, app.RoleStandalone, "sqlite", "feeddamage") }

func runScripts(t *testing.T, role app.Role, store, dir string) {
	kubeconfig := startControlPlane(t, role, store)
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", dir),
		UpdateScripts: *update,
		Setup:         func(env *testscript.Env) error { return setUp(env, kubeconfig) },
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"proxima": func(ts *testscript.TestScript, neg bool, args []string) {
				want := 0
				if neg {
					want = 1
				}
				runScripted(ts, want, args)
			},
			"misuse": func(ts *testscript.TestScript, _ bool, args []string) { runScripted(ts, 2, args) },
			"until":  until,
			"report": report,
			"edit":   edit,
			"damage": damage,

			"watch":     watch,
			"seen":      seen,
			"interrupt": interrupt,

			"background": inBackground,
			"ended":      ended,

			"authority":  authority,
			"credential": credential,
			"revoke":     revoke,
		},
	})
}

// quietKlog discards what client-go and the API server log. klog's logger may be set only
// before anything logs, and control planes of earlier tests log while they end: so once.
var quietKlog = sync.OnceFunc(func() { adoptKlog(slog.New(slog.DiscardHandler)) })

// startControlPlane runs one until the test ends, and returns its kubeconfig.
func startControlPlane(t *testing.T, role app.Role, store string) string {
	t.Helper()
	grpcPort := 0
	if role == app.RoleGlobal {
		grpcPort = testkit.FreePort(t)
	}
	quietKlog()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan app.Serving, 1), make(chan error, 1)
	go func() {
		done <- app.RunControlPlane(ctx, app.ControlPlaneConfig{
			Store: store, DataDir: dir, APIAddress: "127.0.0.1:0", GRPCPort: grpcPort, Role: role,
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		}, func(s app.Serving) { ready <- s })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("control plane: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("the control plane ended: %v", err)
	}
	return filepath.Join(dir, "kubeconfig")
}

type (
	clientKey struct{}
	watchKey  struct{}
	othersKey struct{}
)

// setUp gives a script its namespace and its kubeconfig.
func setUp(env *testscript.Env, kubeconfig string) error {
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
	cfg.Contexts[cfg.CurrentContext].Namespace = name
	own := filepath.Join(env.WorkDir, "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, own); err != nil {
		return err
	}
	restCfg, err := clientcmd.BuildConfigFromFlags("", own)
	if err != nil {
		return err
	}
	restCfg.UserAgent = "editor" // the name under which the server notes its changes
	client, err := kubeclient.New(restCfg, kind.All())
	if err != nil {
		return err
	}
	env.Values[clientKey{}], env.Values[watchKey{}] = client, &background{}
	env.Values[othersKey{}] = &[]*background{}
	env.Setenv("PROXIMA_MODE", "userspace") // never this machine's own kernel tables
	env.Setenv("PROXIMA_KUBECONFIG", own)
	env.Setenv("PROXIMA_DATA_DIR", filepath.Join(env.WorkDir, "data"))
	env.Setenv("KUBECONFIG", "")
	env.Setenv("NAMESPACE", name)
	env.Setenv("SERVER", restCfg.Host)
	env.Setenv("PLANE", filepath.Dir(kubeconfig))
	_, err = client.Create(context.Background(), kind.Namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return err
}

// runScripted runs one command line, and checks its exit code.
func runScripted(ts *testscript.TestScript, want int, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, errs, code := runOnce(ctx, ts, args)
	io.WriteString(ts.Stdout(), out)
	io.WriteString(ts.Stderr(), errs)
	if code != want {
		ts.Fatalf("exit code %d, want %d\n%s%s", code, want, out, errs)
	}
}

func runOnce(ctx context.Context, ts *testscript.TestScript, args []string) (out, errs string, code int) {
	save := ""
	if n := len(args); n > 0 && strings.HasPrefix(args[n-1], ">") {
		save, args = ts.MkAbs(args[n-1][1:]), args[:n-1]
	}
	var stdin io.Reader = strings.NewReader("")
	if n := len(args); n > 0 && strings.HasPrefix(args[n-1], "<") {
		stdin = strings.NewReader(ts.ReadFile(strings.TrimPrefix(args[n-1], "<")))
		args = args[:n-1]
	}
	// Commands run in this process, whose directory is not the script's.
	args = slices.Clone(args)
	for i := range args {
		if i > 0 && slices.Contains([]string{"-f", "--config", "--kubeconfig"}, args[i-1]) && args[i] != "-" {
			args[i] = ts.MkAbs(args[i])
		}
	}
	var stdout, stderr bytes.Buffer
	s := &settings{io: IO{In: stdin, Out: &stdout, Err: &stderr, Env: envOf(ts)}}
	code = execute(ctx, s, args)
	if save != "" { // as it is, for another command to read
		ts.Check(os.WriteFile(save, stdout.Bytes(), 0o600))
	}
	return normalise(ts, stdout.String()), normalise(ts, stderr.String()), code
}

// until repeats a command: what it shows takes the control plane a moment.
func until(ts *testscript.TestScript, _ bool, args []string) {
	pattern, err := regexp.Compile("(?ms)" + args[0])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		out, errs, _ := runOnce(ctx, ts, args[1:])
		if pattern.MatchString(out) {
			io.WriteString(ts.Stdout(), out)
			io.WriteString(ts.Stderr(), errs)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			ts.Fatalf("no match for %s in\n%s%s", args[0], out, errs)
		}
	}
}

// background is a command that goes on while the script does.
type background struct {
	cancel context.CancelFunc
	code   chan int
	errs   bytes.Buffer

	mu    sync.Mutex
	out   bytes.Buffer
	lines chan struct{} // signalled after every write
}

// Write keeps what was printed.
func (b *background) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.lines <- struct{}{}:
	default:
	}
	return b.out.Write(p)
}

func (b *background) printed() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.String()
}

func watch(ts *testscript.TestScript, _ bool, args []string) {
	b := ts.Value(watchKey{}).(*background)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel, b.code, b.lines = cancel, make(chan int, 1), make(chan struct{}, 1)
	b.out.Reset()
	s := &settings{io: IO{In: strings.NewReader(""), Out: b, Err: &b.errs, Env: envOf(ts)}}
	go func() { b.code <- execute(ctx, s, append([]string{"get", "--watch"}, args...)) }()
	ts.Defer(func() {
		cancel()
		if b.code != nil {
			<-b.code
		}
	})
}

func seen(ts *testscript.TestScript, _ bool, args []string) {
	b := ts.Value(watchKey{}).(*background)
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	late := time.After(time.Minute)
	for !pattern.MatchString(normalise(ts, b.printed())) {
		select {
		case <-b.lines:
		case code := <-b.code:
			b.code = nil
			ts.Fatalf("the watch ended with %d: %s", code, &b.errs)
		case <-late:
			ts.Fatalf("no match for %s in\n%s", args[0], b.printed())
		}
	}
}

func interrupt(ts *testscript.TestScript, _ bool, _ []string) {
	b := ts.Value(watchKey{}).(*background)
	b.cancel()
	code := <-b.code
	b.code = nil
	if code != 0 {
		ts.Fatalf("exit code %d\n%s", code, &b.errs)
	}
	io.WriteString(ts.Stdout(), normalise(ts, b.printed()))
}

// inBackground begins a command, which has to end by itself.
func inBackground(ts *testscript.TestScript, _ bool, args []string) {
	b := &background{code: make(chan int, 1), lines: make(chan struct{}, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.cancel = cancel
	s := &settings{io: IO{In: strings.NewReader(""), Out: b, Err: &b.errs, Env: envOf(ts)}}
	go func() { b.code <- execute(ctx, s, args) }()
	all := ts.Value(othersKey{}).(*[]*background)
	*all = append(*all, b)
	ts.Defer(cancel)
}

func ended(ts *testscript.TestScript, _ bool, _ []string) {
	all := ts.Value(othersKey{}).(*[]*background)
	late := time.After(time.Minute)
	for _, b := range *all {
		select {
		case code := <-b.code:
			if code != 0 {
				ts.Fatalf("exit code %d\n%s", code, &b.errs)
			}
		case <-late:
			ts.Fatalf("it does not end\n%s", b.printed())
		}
	}
	*all = nil
}

func envOf(ts *testscript.TestScript) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value := ts.Getenv(name)
		return value, value != ""
	}
}

// report says whether a Dataplane is ready, as the agent that probes it does.
func report(ts *testscript.TestScript, _ bool, args []string) {
	client := ts.Value(clientKey{}).(resource.Client)
	ctx := context.Background()
	obj, err := client.Get(ctx, kind.Dataplane, resource.Key{Namespace: ts.Getenv("NAMESPACE"), Name: args[0]})
	ts.Check(err)
	dp := obj.(*v1alpha1.Dataplane)
	dp.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.DataplaneReady, Status: metav1.ConditionStatus(args[1]), Reason: args[2], Message: args[3],
		LastTransitionTime: metav1.Now(),
	}}
	_, err = client.UpdateStatus(ctx, kind.Dataplane, dp)
	ts.Check(err)
}

// edit a ConfigMap as another user.
func edit(ts *testscript.TestScript, _ bool, args []string) {
	client := ts.Value(clientKey{}).(resource.Client)
	ctx := context.Background()
	obj, err := client.Get(ctx, kind.ConfigMap, resource.Key{Namespace: ts.Getenv("NAMESPACE"), Name: args[0]})
	ts.Check(err)
	cm := obj.(*corev1.ConfigMap)
	cm.Data[args[1]] = args[2]
	_, err = client.Update(ctx, kind.ConfigMap, cm)
	ts.Check(err)
}

// damage changes a byte in the middle of the first file that a pattern matches.
func damage(ts *testscript.TestScript, _ bool, args []string) {
	files, err := filepath.Glob(args[0])
	ts.Check(err)
	if len(files) == 0 {
		ts.Fatalf("no file is %s", args[0])
	}
	data, err := os.ReadFile(files[0])
	ts.Check(err)
	data[len(data)/2] ^= 1
	ts.Check(os.WriteFile(files[0], data, 0o600))
}

// authority makes a kubeconfig that trusts another authority.
func authority(ts *testscript.TestScript, _ bool, args []string) {
	stranger, err := identity.Open(ts.MkAbs("pki-" + args[0]))
	ts.Check(err)
	writeKubeconfig(ts, args[0], func(cluster *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
		cluster.CertificateAuthorityData = stranger.PEM()
	})
}

// credential makes a kubeconfig with a token.
func credential(ts *testscript.TestScript, _ bool, args []string) {
	token := strings.TrimSpace(ts.ReadFile(args[1]))
	writeKubeconfig(ts, args[0], func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
		*user = clientcmdapi.AuthInfo{Token: token}
	})
}

// writeKubeconfig like the script's own, with a change.
func writeKubeconfig(ts *testscript.TestScript, name string, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) {
	cfg, err := clientcmd.LoadFromFile(ts.MkAbs("kubeconfig"))
	ts.Check(err)
	current := cfg.Contexts[cfg.CurrentContext]
	change(cfg.Clusters[current.Cluster], cfg.AuthInfos[current.AuthInfo])
	ts.Check(clientcmd.WriteToFile(*cfg, ts.MkAbs(name)))
}

// revoke the token of a name.
func revoke(ts *testscript.TestScript, _ bool, args []string) {
	out, errs, _ := runOnce(context.Background(), ts, []string{"token", "list"})
	for line := range strings.Lines(out) {
		if cells := strings.Fields(line); len(cells) > 2 && cells[2] == args[0] {
			runScripted(ts, 0, []string{"token", "revoke", cells[0]})
			return
		}
	}
	ts.Fatalf("there is no token of %s\n%s%s", args[0], out, errs)
}

// volatile is what differs from run to run, and what stands for it.
var volatile = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "TIME"},
	{regexp.MustCompile(`TIME {2}\d+ {2}`), "TIME  N  "}, // a position of the change feed
	{regexp.MustCompile(`(resourceVersion"?: )"\d+"`), `${1}"RV"`},
	{regexp.MustCompile(`\b10\.96\.\d+\.\d+\b`), "VIP"},
	// The alphabet of names that the server generates.
	{regexp.MustCompile(`\bweb(-headless)?-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "web$1-XXXXX"},
	{regexp.MustCompile(`\b(\d+[dhms])+\b`), "AGE"},
	{regexp.MustCompile(`\bproxima_1_\S+`), "TOKEN"},
	{regexp.MustCompile(`token [a-z2-7]{16}\b`), "token ID"},
	{regexp.MustCompile(`\bgo1\.[0-9.]+`), "GO"},
	{regexp.MustCompile(`\b(linux|darwin|windows)/[a-z0-9]+\b`), "PLATFORM"},
	{regexp.MustCompile(`revision \d+, \d+ kB`), "revision N, N kB"},
	// Columns are as wide as what is in them.
	{regexp.MustCompile(`(\S) {2,}`), "$1  "},
}

func normalise(ts *testscript.TestScript, text string) string {
	text = strings.ReplaceAll(text, ts.Getenv("SERVER"), "SERVER")
	text = strings.ReplaceAll(text, ts.Getenv("WORK"), "WORK")
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.by)
	}
	return text
}
