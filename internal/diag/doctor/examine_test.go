package doctor

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fallback"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// fakeAgent reports what it holds.
type fakeAgent struct {
	state AgentState
	dump  *admin.NodeDump
}

func (a fakeAgent) State(context.Context) AgentState { return a.state }

func (a fakeAgent) Dump(context.Context) (admin.NodeDump, error) { return *a.dump, nil }

// fakePlane answers with what it holds, or with err.
type fakePlane struct {
	err      error
	skew     time.Duration
	status   admin.Status
	proxies  []Proxy
	refusals []Refusal
	// hangs until the context ends.
	hangs bool
}

func (p fakePlane) Host() string { return "https://192.0.2.1:6443" }

func (p fakePlane) Version(ctx context.Context) (version.Info, time.Time, error) {
	if p.hangs {
		<-ctx.Done()
		return version.Info{}, time.Time{}, ctx.Err()
	}
	return version.Info{GitVersion: "v1"}, time.Now().Add(p.skew), p.err
}

func (p fakePlane) Status(context.Context) (*admin.Status, error) { return &p.status, p.err }

func (p fakePlane) ServiceRanges(context.Context) ([]netip.Prefix, error) {
	return []netip.Prefix{netip.MustParsePrefix("127.96.0.0/16")}, p.err
}

func (p fakePlane) Proxies(context.Context) ([]Proxy, error) {
	return p.proxies, p.err
}

func (p fakePlane) Refusals(context.Context, []Proxy) []Refusal { return p.refusals }

func find(findings []Finding, id string) Finding {
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.ID == id })
	if i < 0 {
		return Finding{}
	}
	return findings[i]
}

// TestExamine: what is wrong has a documented code and a fix, and each finding is that
// of a documented check.
func TestExamine(t *testing.T) {
	connected := &admin.NodeStatus{API: "https://192.0.2.1:6443", View: &admin.ViewStatus{Connected: true}, Agent: node.Status{Mode: "userspace"}}
	full := admin.Status{}
	full.Store.Problem = "disk full"
	unreachable := &problem.Error{Code: problem.APIUnreachable, Err: errors.New("refused"), Hint: "start it"}
	for name, tc := range map[string]struct {
		cfg  Config
		want map[string]problem.Code // by check; "": no problem
	}{
		"all is well": {
			Config{Agent: fakeAgent{state: AgentState{Status: connected}}, ControlPlane: fakePlane{}},
			map[string]problem.Code{checkControlPlane: "", checkStore: "", checkAudit: "", checkMachines: "", checkAgent: "", checkAgentState: "", checkServiceRange: ""},
		},
		"the control plane is away": {
			Config{Agent: fakeAgent{state: AgentState{Status: connected}}, ControlPlane: fakePlane{err: unreachable}},
			map[string]problem.Code{checkControlPlane: problem.APIUnreachable, checkAgent: ""},
		},
		"its clock is another": {
			Config{Agent: fakeAgent{state: AgentState{Status: connected}}, ControlPlane: fakePlane{skew: time.Hour}},
			map[string]problem.Code{checkControlPlane: problem.ClockSkew},
		},
		"its disk is full": {
			Config{Agent: fakeAgent{state: AgentState{Status: connected}}, ControlPlane: fakePlane{status: full}},
			map[string]problem.Code{checkStore: problem.StoreUnwritable},
		},
		"no agent, though one has joined": {
			Config{
				Agent:        fakeAgent{state: AgentState{Err: &local.NoAgentError{DataDir: "/d"}, Joined: &identity.Credentials{Server: "192.0.2.1:6444"}}},
				ConfigErr:    errors.New("no kubeconfig"),
				Unconfigured: true,
			},
			map[string]problem.Code{checkControlPlane: "", checkAgent: problem.AgentNotRunning},
		},
		"an agent in a cluster is alone": {
			Config{Agent: fakeAgent{state: AgentState{Status: &admin.NodeStatus{
				View: &admin.ViewStatus{}, Fallback: &fallback.Status{Direct: true}, Agent: node.Status{Mode: "userspace"},
			}}}, ControlPlane: fakePlane{err: unreachable}},
			map[string]problem.Code{checkAgent: problem.AgentDisconnected},
		},
		"an agent waits for its node": {
			Config{Agent: fakeAgent{state: AgentState{Status: &admin.NodeStatus{Waiting: "node a: it has no address yet"}}}, ControlPlane: fakePlane{}},
			map[string]problem.Code{checkAgent: problem.AgentWaiting},
		},
		"neither": {
			Config{Agent: fakeAgent{state: AgentState{Err: &local.NoAgentError{DataDir: "/d"}}}, ConfigErr: errors.New("bad file")},
			map[string]problem.Code{checkControlPlane: problem.KubeconfigInvalid, checkAgent: ""},
		},
		"both hang": {
			Config{Agent: fakeAgent{state: AgentState{Err: &local.HungError{Socket: "/s"}}}, ControlPlane: fakePlane{hangs: true}},
			map[string]problem.Code{checkControlPlane: problem.APITimeout, checkAgent: problem.AgentNotAnswering, checkResolver: ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.DataDir, tc.cfg.Root = t.TempDir(), rootWith(t, map[string]string{"etc/resolv.conf": "nameserver 127.9.9.9\n"})
			findings := Examine(t.Context(), tc.cfg)
			for _, f := range findings {
				if !slices.ContainsFunc(Checks(), func(c Check) bool { return c.ID == f.ID }) {
					t.Errorf("%+v is of no documented check", f)
				}
				documented := slices.ContainsFunc(problem.Definitions(), func(d problem.Definition) bool { return d.Code == f.Code })
				if (f.Problem != "") != (f.Code != "") || f.Problem != "" && (!documented || f.Fix == "") {
					t.Errorf("%+v has no documented code, or no fix", f)
				}
			}
			for id, code := range tc.want {
				if f := find(findings, id); f.ID == "" || f.Code != code {
					t.Errorf("check %s: %+v, want code %q", id, f, code)
				}
			}
		})
	}
}

// signalling closes queried when its state was read.
type signalling struct {
	fakeAgent
	queried chan struct{}
}

func (a signalling) State(ctx context.Context) AgentState {
	defer close(a.queried)
	return a.fakeAgent.State(ctx)
}

// Meanwhile waits for what it runs, also when the agent has answered before.
func TestMeanwhileWaits(t *testing.T) {
	ended := false
	agent := signalling{fakeAgent{state: AgentState{Err: &local.NoAgentError{}}}, make(chan struct{})}
	state := Meanwhile(t.Context(), agent, func(context.Context) {
		<-agent.queried
		ended = true
	})
	if !ended || !state.Absent() {
		t.Errorf("ended %t, agent %v", ended, state.Err)
	}
}
