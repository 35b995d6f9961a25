package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/tools/clientcmd"

	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// attend answers questions as the supervisor of a proxy, in parts of 3 bytes.
func (p *proxyPlane) attend(id string, answer func(*sidecarv1.Call) (string, error)) (stop func()) {
	p.t.Helper()
	certificate, err := tls.X509KeyPair(p.rest.CertData, p.rest.KeyData)
	if err != nil {
		p.t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(credentials.NewTLS(p.tls(certificate))))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	stream, err := sidecarv1.NewCallsClient(conn).Attend(ctx)
	if err == nil {
		err = stream.Send(&sidecarv1.Answer{Hello: &sidecarv1.Hello{Node: id, Version: "1.0.0"}})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			call, err := stream.Recv()
			if err != nil {
				return
			}
			body, err := answer(call)
			if err != nil {
				s := status.Convert(err)
				_ = stream.Send(&sidecarv1.Answer{Id: call.GetId(), Last: true, Code: uint32(s.Code()), Message: s.Message()}) // Recv fails, too
				continue
			}
			for part := range slices.Chunk([]byte(body), 3) {
				_ = stream.Send(&sidecarv1.Answer{Id: call.GetId(), Part: part})
			}
			_ = stream.Send(&sidecarv1.Answer{Id: call.GetId(), Last: true})
		}
	}()
	return func() {
		cancel()
		<-done
		conn.Close()
	}
}

// supervised answers as a supervisor whose proxy holds one listener.
func supervised(call *sidecarv1.Call) (string, error) {
	switch call.GetQuestion() {
	case wire.AskConfig:
		return `{"configs":["of Envoy"]}`, nil
	case wire.AskHeld:
		return `{"` + build.ListenerType + `":{"old":"7"}}`, nil
	case wire.AskStatus:
		return `{"ready":"true"}`, nil
	case wire.AskLogging:
		return "levels after " + call.GetArgument(), nil
	}
	return "", status.Errorf(codes.Unimplemented, "unknown %s", call.GetQuestion())
}

// testProxiedCalls: whichever instance is asked, the supervisor answers, whose proxy has its stream
// to the instance at address.
func testProxiedCalls(t *testing.T, planes map[string]*plane, at *plane, address string) {
	cfg, err := clientcmd.BuildConfigFromFlags("", at.cfg.DataDir+"/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	at.create(kind.Dataplane, workloadAt("proxied", "10.1.0.3"))
	proxy := &proxyPlane{t: t, rest: cfg, address: address}
	proxy.follow("default/default/proxied")
	defer proxy.attend("default/default/proxied", supervised)()
	of := []string{"name", "proxied", "namespace", "default"}
	for name, p := range planes {
		until(t, name+" reaches the supervisor", func() bool {
			code, got := p.proxy(admin.ProxyConfigPath, "", of...)
			return code == http.StatusOK && got == `{"configs":["of Envoy"]}`
		})
		for _, test := range []struct {
			path string
			code int
			want string
		}{
			{admin.ProxyStatusPath, http.StatusOK, `"own":{"ready":"true"}`},
			{admin.ProxyDiffPath, http.StatusOK, `{"type":"Listener","name":"old","held":"7","state":"removed"}`},
			{admin.ProxyLoggingPath, http.StatusOK, "levels after "},
			{admin.ProxyStatsPath, http.StatusServiceUnavailable, "of another version than this control plane (v0.1.0-dev): unknown stats"},
		} {
			if code, got := p.proxy(test.path, "", of...); code != test.code || !strings.Contains(got, test.want) {
				t.Errorf("%s, %s: %d %.300q, want %q", name, test.path, code, got, test.want)
			}
		}
		if code, got := p.proxy(admin.ProxyLoggingPath, "", append(of, "level", "debug")...); code != http.StatusMethodNotAllowed {
			t.Errorf("%s: a level is changed by GET: %d %q", name, code, got)
		}
		if code, got := p.proxyBy(http.MethodPost, admin.ProxyLoggingPath, "", append(of, "level", "debug")...); code != http.StatusOK ||
			got != "levels after debug" {
			t.Errorf("%s: a change of levels: %d %q", name, code, got)
		}
		if code, got := p.proxy(admin.ProxyStatusPath, "", "name", "web", "namespace", "default"); code != http.StatusConflict ||
			!strings.Contains(got, "Dataplane default/web: no proxy of it is connected") {
			t.Errorf("%s: the status of one without a proxy: %d %q", name, code, got)
		}
	}
}

// TestProxyWithoutSupervisor: an Envoy of its own has a state, and nobody who could be asked.
func TestProxyWithoutSupervisor(t *testing.T) {
	p := startProxyPlane(t)
	if _, err := p.client.Create(t.Context(), kind.Dataplane, workloadAt("web-1", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	p.follow("default/default/web-1")
	call := admin.ProxyCall{Question: admin.ProxyStatus, Namespace: "default", Name: "web-1"}
	eventually(t, "its state", func() bool {
		body, err := p.cp.calls.Call(t.Context(), call)
		var s admin.ProxyState
		return err == nil && json.Unmarshal(body, &s) == nil && s.Kind == "direct" && s.Version == "1.40.0" && len(s.Types) == 2 &&
			s.Types[0].Acknowledged > 0 && s.Reason == "it has no supervisor" && s.Own == nil
	})
	call.Question = admin.ProxyConfig
	if _, err := p.cp.calls.Call(t.Context(), call); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has no supervisor") {
		t.Errorf("its configuration: %v", err)
	}
	// A stream that ends while an answer is awaited.
	asked, never := make(chan struct{}), make(chan struct{})
	stop := p.attend("default/default/web-1", func(c *sidecarv1.Call) (string, error) {
		if c.GetQuestion() == wire.AskStats {
			close(asked)
			<-never
		}
		return "{}", nil
	})
	eventually(t, "an answer", func() bool {
		_, err := p.cp.calls.Call(t.Context(), call)
		return err == nil
	})
	call.Question = admin.ProxyStats
	failed := make(chan error, 1)
	go func() {
		_, err := p.cp.calls.Call(t.Context(), call)
		failed <- err
	}()
	<-asked
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	if err := <-failed; status.Code(err) != codes.FailedPrecondition {
		t.Errorf("when the supervisor goes: %v", err)
	}
	close(never)
	<-stopped
}

func TestCompareHeld(t *testing.T) {
	ref := func(name string) delta.Ref { return delta.Ref{Type: "x.v3.Cluster", Name: name} }
	st := xds.StreamStatus{Types: []delta.LaneStatus{{Refused: []delta.Quarantined{
		{Ref: ref("bad"), Reason: "no"}, {Ref: ref("new"), Reason: "neither"},
	}}}}
	sent := []xds.SentResource{{Ref: ref("a"), Version: "1"}, {Ref: ref("late"), Version: "2"}, {Ref: ref("bad"), Version: "1"}}
	got := compareHeld(st, sent, map[string]map[string]string{"x.v3.Cluster": {"a": "1", "late": "1", "bad": "1", "gone": "4"}})
	want := []admin.ProxyComparison{
		{Type: "Cluster", Name: "a", Sent: "1", Held: "1", State: admin.ProxySame},
		{Type: "Cluster", Name: "bad", Sent: "1", Held: "1", State: admin.ProxyRejected, Reason: "no"},
		{Type: "Cluster", Name: "gone", Held: "4", State: admin.ProxyRemoved},
		{Type: "Cluster", Name: "late", Sent: "2", Held: "1", State: admin.ProxyPending},
		{Type: "Cluster", Name: "new", State: admin.ProxyRejected, Reason: "neither"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
