package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestMain lets this binary be the command that is run.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "fake-sidecar" {
		fakeSidecar(os.Args[2])
	}
	switch os.Getenv("WORKLOAD_TEST_COMMAND") {
	case "":
		os.Exit(m.Run())
	case "exit":
		os.Exit(7)
	case "serve":
		serveUntilTold(os.Getenv("WORKLOAD_TEST_LISTEN"))
	case "proxied":
		proxied()
	}
}

func serveUntilTold(listen string) {
	reported := make(chan os.Signal, 1)
	signal.Notify(reported, syscall.SIGTERM)
	l, err := net.Listen("tcp", listen)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() { _ = http.Serve(l, nil) }() //nolint:gosec // a test's server
	<-reported
	os.Exit(42)
}

func command(name string) []string { return []string{os.Args[0], "-test.run=^$", name} }

func config(t *testing.T, name, listen string) (Config, *resourcetest.Client) {
	t.Helper()
	client := resourcetest.New(resourcetest.Descriptors()...)
	return Config{
		Client: client,
		Dataplane: &v1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"app": "web"}},
			Spec:       v1alpha1.DataplaneSpec{Addresses: []string{"127.0.0.1"}},
		},
		Holder: "host/1", Command: command(name),
		Env:    []string{"WORKLOAD_TEST_COMMAND=" + name, "WORKLOAD_TEST_LISTEN=" + listen},
		Stdout: io.Discard, Stderr: os.Stderr,
		Logger: slog.New(slog.DiscardHandler), Clock: clock.RealClock{},
	}, client
}

func get(client resource.Client) (*v1alpha1.Dataplane, error) {
	obj, err := client.Get(context.Background(), kind.Dataplane, resource.Key{Namespace: "default", Name: "web-1"})
	if err != nil {
		return nil, err
	}
	return obj.(*v1alpha1.Dataplane), nil
}

// awaitCondition follows the Dataplane until its Ready condition has a reason.
func awaitCondition(t *testing.T, client resource.Client, reason string) *v1alpha1.Dataplane {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w, err := client.Watch(ctx, kind.Dataplane, resource.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		dp, ok := event.Object.(*v1alpha1.Dataplane)
		if !ok {
			continue
		}
		if c := meta.FindStatusCondition(dp.Status.Conditions, v1alpha1.DataplaneReady); c != nil && c.Reason == reason {
			return dp
		}
	}
	t.Fatalf("the condition never became %s", reason)
	return nil
}

func freeAddress(t *testing.T) (address string, port int32) {
	t.Helper()
	free := testkit.FreePort(t)
	return fmt.Sprintf("127.0.0.1:%d", free), int32(free)
}

func TestExitCodePassesAndNothingStays(t *testing.T) {
	cfg, client := config(t, "exit", "")
	code, err := Run(t.Context(), cfg)
	if err != nil || code != 7 {
		t.Fatalf("Run = %d, %v; want 7", code, err)
	}
	if dp, err := get(client); !apierrors.IsNotFound(err) {
		t.Errorf("after the end: dataplane %v, %v; want it gone", dp, err)
	}
}

func TestReadyWhileItAnswersDrainedWhenTold(t *testing.T) {
	listen, port := freeAddress(t)
	cfg, client := config(t, "serve", listen)
	cfg.Dataplane.Spec.Ports = []v1alpha1.DataplanePort{{Name: "http", Port: port}}
	signals := make(chan os.Signal)
	cfg.Signals = signals
	var deletes []bool
	client.Intercept(func(call resourcetest.Call) error {
		if call.Verb == resourcetest.Delete {
			deletes = append(deletes, call.Now)
		}
		return nil
	})
	done := make(chan int)
	go func() {
		code, err := Run(context.Background(), cfg)
		if err != nil {
			t.Error(err)
		}
		done <- code
	}()
	dp := awaitCondition(t, client, "ProbeSucceeded")
	if dp.Status.Lease == nil || dp.Status.Lease.Holder != "host/1" {
		t.Errorf("lease = %+v, want one held by host/1", dp.Status.Lease)
	}
	signals <- syscall.SIGTERM
	if code := <-done; code != 42 {
		t.Errorf("exit code = %d, want 42", code)
	}
	if want := []bool{false, true}; !slices.Equal(deletes, want) {
		t.Errorf("deletes, now or in good order: %v; want %v: terminating first, then gone", deletes, want)
	}
	if _, err := get(client); !apierrors.IsNotFound(err) {
		t.Errorf("after the end: %v, want the dataplane gone", err)
	}
}

func TestProbe(t *testing.T) {
	_, okPort := httpServer(t, http.StatusNoContent)
	_, badPort := httpServer(t, http.StatusServiceUnavailable)
	_, closedPort := freeAddress(t)
	dataplane := func(p v1alpha1.Probe) *v1alpha1.Dataplane {
		return &v1alpha1.Dataplane{Spec: v1alpha1.DataplaneSpec{
			Addresses: []string{"127.0.0.1"}, Readiness: &p,
			Ports: []v1alpha1.DataplanePort{{Name: "good", Port: okPort}, {Name: "bad", Port: badPort}},
		}}
	}
	for _, tc := range []struct {
		name  string
		probe v1alpha1.Probe
		ready bool
	}{
		{"http by name", v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetAction{Path: "/x", Port: intstr.FromString("good")}}, true},
		{"http 503", v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetAction{Port: intstr.FromString("bad")}}, false},
		{"http closed", v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetAction{Port: intstr.FromInt32(closedPort)}}, false},
		{"tcp open", v1alpha1.Probe{TCPSocket: &v1alpha1.TCPSocketAction{Port: intstr.FromInt32(badPort)}}, true},
		{"tcp closed", v1alpha1.Probe{TCPSocket: &v1alpha1.TCPSocketAction{Port: intstr.FromInt32(closedPort)}}, false},
		{"grpc on http", v1alpha1.Probe{GRPC: &v1alpha1.GRPCAction{Port: okPort}}, false},
		{"exec true", v1alpha1.Probe{Exec: &v1alpha1.ExecAction{Command: []string{"true"}}}, true},
		{"exec false", v1alpha1.Probe{Exec: &v1alpha1.ExecAction{Command: []string{"false"}}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := newProber(dataplane(tc.probe))
			if err != nil {
				t.Fatal(err)
			}
			p.timeout = 10 * time.Second
			if err := p.once(t.Context()); (err == nil) != tc.ready {
				t.Errorf("ready: %v, want %t", err, tc.ready)
			}
		})
	}
	for name, p := range map[string]v1alpha1.Probe{
		"no action":    {},
		"unknown port": {TCPSocket: &v1alpha1.TCPSocketAction{Port: intstr.FromString("nope")}},
	} {
		if _, err := newProber(dataplane(p)); err == nil || !strings.Contains(err.Error(), "spec.readiness") {
			t.Errorf("%s: %v, want an error that names the field", name, err)
		}
	}
}

func httpServer(t *testing.T, status int) (url string, port int32) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(srv.Close)
	return srv.URL, int32(srv.Listener.Addr().(*net.TCPAddr).Port)
}

// The thresholds, on a fake clock.
func TestProbeThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []bool{false, true, true, false, true, false, false, true}
		asked := 0
		var at []time.Duration
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		p := &prober{period: 5 * time.Second, startPeriod: startPeriod, timeout: time.Second, initialDelay: 3 * time.Second, successThreshold: 2, failureThreshold: 2}
		p.ask = func(context.Context) error {
			at = append(at, time.Since(start))
			ok := asked < len(answers) && answers[asked]
			if asked++; asked > len(answers) {
				cancel()
			}
			if !ok {
				return errors.New("no")
			}
			return nil
		}
		var got []bool
		out := p.watch(ctx, clock.RealClock{})
		for ctx.Err() == nil {
			select {
			case c := <-out:
				got = append(got, c.ready)
			case <-ctx.Done():
			}
		}
		synctest.Wait()
		// Ready after two successes; one failure is forgiven, two in a row are not.
		if want := []bool{true, false}; !slices.Equal(got, want) {
			t.Errorf("verdicts %v, want %v", got, want)
		}
		if at[0] != 3*time.Second || at[4]-at[3] != 5*time.Second || at[1]-at[0] != startPeriod {
			t.Errorf("asked at %v", at)
		}
	})
}

func TestRegistersAgainIfSomebodyDeletesIt(t *testing.T) {
	listen, port := freeAddress(t)
	cfg, client := config(t, "serve", listen)
	cfg.Dataplane.Spec.Ports = []v1alpha1.DataplanePort{{Port: port}}
	reg := newRegistration(cfg)
	if err := reg.announce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(t.Context(), kind.Dataplane, resource.KeyOf(cfg.Dataplane), resource.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	reg.ready = condition{ready: true, reason: "ProbeSucceeded"}
	if err := reg.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	dp, err := get(client)
	if err != nil || !meta.IsStatusConditionTrue(dp.Status.Conditions, v1alpha1.DataplaneReady) {
		t.Errorf("after a foreign delete: %v, %v; want it back and ready", dp, err)
	}
}

// TestNodeTakesNoNewWorkloads: one that is new on a drained node is registered when that is
// over, and one on a cordoned node is refused; what an earlier run left there is taken over,
// and is not ready.
func TestNodeTakesNoNewWorkloads(t *testing.T) {
	for _, tc := range []struct {
		cause   metav1.CauseType
		left    bool
		refused bool
	}{
		{v1alpha1.CauseNodeDrained, false, false},
		{v1alpha1.CauseNodeDrained, true, false},
		{v1alpha1.CauseNodeCordoned, false, true},
		{v1alpha1.CauseNodeCordoned, true, false},
	} {
		t.Run(fmt.Sprintf("%s %t", tc.cause, tc.left), func(t *testing.T) {
			cfg, client := config(t, "exit", "")
			if tc.left {
				old := cfg.Dataplane.DeepCopy()
				old.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DataplaneReady, Status: metav1.ConditionTrue}}
				client.Seed(old)
			}
			closed := true
			client.Intercept(func(call resourcetest.Call) error {
				if !closed || call.Verb != resourcetest.Create {
					return nil
				}
				err := apierrors.NewForbidden(kind.Dataplane.GroupResource(), "web-1", errors.New("kubectl uncordon n1"))
				err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: tc.cause}}
				return err
			})
			reg := newRegistration(cfg)
			err := reg.announce(t.Context())
			if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "kubectl uncordon n1") {
				t.Fatalf("announce: %v", err)
			}
			dp, err := get(client)
			if tc.left != (err == nil) || err == nil && meta.IsStatusConditionTrue(dp.Status.Conditions, v1alpha1.DataplaneReady) {
				t.Errorf("while the node takes none: %+v, %v", dp, err)
			}
			closed = false
			if err := reg.write(t.Context()); err != nil {
				t.Errorf("once the node takes them: %v", err)
			}
			if _, err := get(client); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNameInUse(t *testing.T) {
	for _, tc := range []struct {
		name   string
		lease  *v1alpha1.DataplaneLease
		refuse bool
	}{
		{"alive elsewhere", &v1alpha1.DataplaneLease{Holder: "other/9", RenewTime: metav1.NowMicro(), DurationSeconds: 40}, true},
		{"dead elsewhere", &v1alpha1.DataplaneLease{Holder: "other/9", RenewTime: metav1.NewMicroTime(time.Now().Add(-time.Minute)), DurationSeconds: 40}, false},
		{"without a lease", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, client := config(t, "exit", "")
			other := cfg.Dataplane.DeepCopy()
			other.Spec.Addresses = []string{"127.0.0.9"}
			other.Status.Lease = tc.lease
			client.Seed(other)
			_, err := Run(t.Context(), cfg)
			if refused := err != nil && strings.Contains(err.Error(), "registered by other/9"); refused != tc.refuse {
				t.Errorf("Run: %v; refused %t, want %t", err, refused, tc.refuse)
			}
		})
	}
}

func TestRefusalStartsNothing(t *testing.T) {
	cfg, client := config(t, "exit", "")
	client.Intercept(func(resourcetest.Call) error {
		return apierrors.NewInvalid(schema.GroupKind{Group: "mesh.proxima.dev", Kind: "Dataplane"}, "web-1", nil)
	})
	if _, err := Run(t.Context(), cfg); !apierrors.IsInvalid(err) {
		t.Errorf("Run: %v, want the server's refusal", err)
	}
}

func TestRunsWithoutControlPlane(t *testing.T) {
	cfg, client := config(t, "exit", "")
	client.Intercept(func(resourcetest.Call) error { return syscall.ECONNREFUSED })
	code, err := Run(t.Context(), cfg)
	if err != nil || code != 7 {
		t.Errorf("Run = %d, %v; want the command to run all the same and 7", code, err)
	}
}

func TestCommandNotFound(t *testing.T) {
	cfg, client := config(t, "exit", "")
	cfg.Command = []string{"/nonexistent/command"}
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "/nonexistent/command") {
		t.Errorf("Run: %v, want an error that names the command", err)
	}
	if _, err := get(client); !apierrors.IsNotFound(err) {
		t.Errorf("after the failure: %v, want the dataplane gone", err)
	}
}
