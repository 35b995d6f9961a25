package delta

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

// reports keeps what a session reports.
type reports struct {
	refused func(Quarantined, bool) // nil: nothing
	acked   int
	// bad are the resources that are refused or withheld now, and why.
	bad map[string]string
}

func (r *reports) Acked(typ string, names []string) {
	r.acked++
	for _, name := range names {
		delete(r.bad, typ+"/"+name)
	}
}

func (r *reports) Nacked(typ string, names []string, reason string) {
	for _, name := range names {
		r.put(typ+"/"+name, reason)
	}
}

func (r *reports) put(name, reason string) {
	if r.bad == nil {
		r.bad = map[string]string{}
	}
	r.bad[name] = reason
}

func (r *reports) Refused(one Quarantined, alone bool) {
	if r.refused != nil {
		r.refused(one, alone)
	}
}

func (r *reports) Withheld(one Quarantined) { r.put(one.Type+"/"+one.Name, "withheld: "+one.Reason) }
func (r *reports) Released(ref Ref)         { delete(r.bad, ref.Type+"/"+ref.Name) }

func (r *reports) want(t *testing.T, when string, want ...string) {
	t.Helper()
	var got []string
	for _, name := range slices.Sorted(maps.Keys(r.bad)) {
		got = append(got, name+" "+r.bad[name])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: refused (-want +got):\n%s", when, diff)
	}
}

// TestReports: a resource counts as refused from when the client, or one like it, refused it until
// a later version is accepted, it is as the client has it already, or it is gone.
func TestReports(t *testing.T) {
	p, now := newPlane(), time.Unix(0, 0)
	for i := range 5 {
		p.set(Ref{"C", fmt.Sprint("c", i)}, "1")
	}
	e, first := newEnvoy(), &reports{}
	c := p.config()
	c.Report = first
	e.connect(c)
	e.settle(t)
	if first.acked == 0 {
		t.Error("no acknowledgement")
	}
	set := func(body string, names ...string) {
		for _, name := range names {
			p.set(Ref{"C", name}, body)
		}
		now = now.Add(2 * drain)
		e.now = now
		e.settle(t)
	}
	first.want(t, "at first")
	set("bad!", "c1", "c3")
	first.want(t, "two are malformed", "C/c1 malformed", "C/c3 malformed")
	set("2", "c0", "c2")
	first.want(t, "others are accepted", "C/c1 malformed", "C/c3 malformed")

	other, second := newEnvoy(), &reports{}
	c.Report = second
	other.now = now
	other.connect(c)
	other.settle(t)
	second.want(t, "the second proxy", "C/c1 withheld: malformed", "C/c3 withheld: malformed")

	set("2", "c1")
	first.want(t, "a later version of c1", "C/c3 malformed")
	set("1", "c3")
	first.want(t, "c3 is as it was")
	set("bad!", "c3", "new")
	first.want(t, "bad again, and a new one", "C/c3 withheld: malformed", "C/new malformed")
	set("", "c3", "new")
	first.want(t, "they are gone")
	other.now = now
	other.settle(t)
	second.want(t, "the second proxy, in the end")
}

// TestReportsFallback: what is accepted in place of what was refused leaves that refused.
func TestReportsFallback(t *testing.T) {
	p := newPlane()
	apply := func(body string) {
		p.at++
		_, err := p.top.Apply(Position{1, p.at}, []Change{{Resource: Resource{
			Type: "L", Name: "l", Body: []byte(body), Options: &ResourceOptions{Fallback: []byte("plain")},
		}}})
		must(err)
	}
	apply("patched!")
	e, r := newEnvoy(), &reports{}
	c := p.config()
	c.Report = r
	e.connect(c)
	e.settle(t)
	r.want(t, "the fallback was accepted", "L/l malformed")
	apply("patched")
	e.settle(t)
	r.want(t, "the patch is right now")
}

// TestReportsWhole: a client of state of the world refuses what its reason names, or everything.
func TestReportsWhole(t *testing.T) {
	p, r := newPlane(), &reports{}
	c := rules(p.config())
	c.Whole, c.Report = true, r
	s := NewLayered(c)
	answer := func(rejected string) {
		t.Helper()
		f, _ := s.Next(time.Unix(0, 0))
		if f == nil {
			t.Fatal("no response")
		}
		got := &discovery.DiscoveryResponse{}
		must(proto.Unmarshal(f.Data, got))
		must(s.Step(Request{Type: "C", Subscribe: []string{"xa", "xb"}, Nonce: got.Nonce, Rejected: rejected}))
	}
	p.set(ref("C/xa"), "1")
	p.set(ref("C/xb"), "1")
	must(s.Step(Request{Type: "C", Subscribe: []string{"xa", "xb"}}))
	answer("")
	p.set(ref("C/xa"), "2")
	answer("xa: no")
	r.want(t, "one is named", "C/xa xa: no")
	p.set(ref("C/xb"), "3")
	answer("")
	r.want(t, "another is accepted", "C/xa xa: no")
	p.set(ref("C/xa"), "4")
	answer("no")
	r.want(t, "none is named", "C/xa no", "C/xb no")
	p.set(ref("C/xa"), "5")
	answer("")
	r.want(t, "all are accepted")
}
