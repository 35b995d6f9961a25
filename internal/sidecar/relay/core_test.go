package relay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// short names of types in tests.
var short = map[string]string{wire.Cluster: "C", wire.Endpoint: "E", wire.Listener: "L", wire.Route: "R", wire.Secret: "S", wire.Settings: "P"}

var long = map[string]string{"C": wire.Cluster, "E": wire.Endpoint, "L": wire.Listener, "R": wire.Route, "S": wire.Secret, "P": wire.Settings}

// res is a resource of "NAME=VERSION"; of a cluster "NAME=VERSION@SERVICE" has EDS.
func res(t testing.TB, typ, text string) wire.Resource {
	t.Helper()
	name, version, _ := strings.Cut(text, "=")
	version, service, eds := strings.Cut(version, "@")
	body := []byte{}
	if typ == "C" {
		c := &clusterv3.Cluster{Name: name}
		if eds {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
			c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{ServiceName: service}
		}
		var err error
		if body, err = proto.Marshal(c); err != nil {
			t.Fatal(err)
		}
	}
	return wire.NewResource(long[typ], name, version, body)
}

// rig drives a Core and prints what it sends.
type rig struct {
	t    *testing.T
	core *Core
	now  time.Time
}

func newRig(t *testing.T) *rig { return &rig{t, NewCore(), time.Unix(1e9, 0)} }

// restart is another process with what the last one left.
func (r *rig) restart() *rig {
	r.t.Helper()
	next := newRig(r.t)
	if err := next.core.Decode(r.core.Encode("n"), "n", next.now); err != nil {
		r.t.Fatal(err)
	}
	return next
}

// receive from the control plane: "C n1 a=1 b=2 -gone".
func (r *rig) receive(text string) {
	r.t.Helper()
	f := strings.Fields(text)
	out := wire.Response{TypeURL: long[f[0]], Nonce: f[1]}
	for _, item := range f[2:] {
		if name, removed := strings.CutPrefix(item, "-"); removed {
			out.Removed = append(out.Removed, name)
		} else {
			out.Resources = append(out.Resources, res(r.t, f[0], item))
		}
	}
	if err := r.core.Received(out); err != nil {
		r.t.Fatal(err)
	}
}

// request of a session: "C * +name -name name=version".
func (r *rig) request(id int, text string) {
	r.t.Helper()
	f := strings.Fields(text)
	out := wire.Request{TypeURL: long[f[0]], Versions: map[string]string{}}
	for _, item := range f[1:] {
		name, version, known := strings.Cut(item, "=")
		switch {
		case known:
			out.Versions[name] = version
		case item[0] == '-':
			out.Unsubscribe = append(out.Unsubscribe, item[1:])
		default:
			out.Subscribe = append(out.Subscribe, strings.TrimPrefix(item, "+"))
		}
	}
	r.core.Request(id, out)
}

// down takes what a session is sent, answers it, and compares: "C a=1 b=1 -gone | E x=1".
// refuse says which resources Envoy refuses.
func (r *rig) down(id int, want string, refuse ...string) {
	r.t.Helper()
	var got []string
	for _, response := range r.core.Downstream(id) {
		line := short[response.TypeURL]
		answer := wire.Request{TypeURL: response.TypeURL, Nonce: response.Nonce}
		for _, resource := range response.Resources {
			line += " " + resource.Name + "=" + resource.Version
			if slices.Contains(refuse, resource.Name) {
				answer.Error = &wire.Status{Code: 13, Message: "refused"}
			}
		}
		for _, name := range response.Removed {
			line += " -" + name
		}
		got = append(got, line)
		r.core.Request(id, answer)
	}
	if all := strings.Join(got, " | "); all != want {
		r.t.Errorf("session %d was sent\n\t%s\nwant\n\t%s", id, all, want)
	}
}

// up takes what the control plane is sent: "C +a -b a=1 | C ack n1 | E nack n2".
func (r *rig) up(want string) {
	r.t.Helper()
	var got []string
	for _, q := range r.core.Upstream() {
		line := short[q.TypeURL]
		switch {
		case q.Error != nil:
			line += " nack " + q.Nonce
		case q.Nonce != "":
			line += " ack " + q.Nonce
		}
		for _, n := range q.Subscribe {
			line += " +" + n
		}
		for _, n := range q.Unsubscribe {
			line += " -" + n
		}
		var versions []string
		for name, version := range q.Versions {
			versions = append(versions, fmt.Sprintf(" %s=%s", name, version))
		}
		slices.Sort(versions)
		got = append(got, line+strings.Join(versions, ""))
	}
	if all := strings.Join(got, " | "); all != want {
		r.t.Errorf("the control plane was sent\n\t%s\nwant\n\t%s", all, want)
	}
}

// TestPass: what Envoy asks for goes up as it is, what comes goes down, and answers go up with
// the nonce of the control plane.
func TestPass(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.up("C +*")
	r.receive("C n1 a=1@sa b=1")
	r.down(id, "C a=1 b=1")
	r.up("C ack n1")
	r.request(id, "E sa")
	r.up("E +sa")
	r.receive("E n2 sa=1")
	r.down(id, "E sa=1")
	r.up("E ack n2")
	r.receive("C n3 a=2@sa -b")
	r.down(id, "C a=2 -b | E sa=1")
	r.up("C ack n3")
	r.receive("E n4 sa=2")
	r.down(id, "E sa=2", "sa")
	r.up("E nack n4")
	if e := r.core.of(wire.Endpoint).accepted["sa"]; e.Version != "1" {
		t.Errorf("version %s is held after a refusal, want 1", e.Version)
	}
	r.request(id, "E -sa")
	r.up("E -sa")
}

// TestReconnect: another instance of the control plane gets names and versions; an empty answer
// of it is not passed on.
func TestReconnect(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.request(id, "C +vip|x")
	r.up("C +* | C +vip|x")
	r.receive("C n1 a=1 vip|x=1")
	r.down(id, "C a=1 vip|x=1")
	r.core.UpstreamClosed()
	r.core.UpstreamOpened()
	r.up("C +* +vip|x a=1 vip|x=1")
	r.receive("C m1")
	r.down(id, "")
	r.up("C ack m1")
}

// TestAnswerOfAnotherStream: an answer to a response of a stream that has ended goes nowhere,
// and counts here.
func TestAnswerOfAnotherStream(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.receive("C n1 a=1")
	r.core.UpstreamClosed()
	r.core.UpstreamOpened()
	r.up("C +*")
	r.down(id, "C a=1")
	r.up("")
	if r.core.of(wire.Cluster).accepted["a"] == nil {
		t.Error("what Envoy accepted is not held")
	}
}

// TestEmptyIsAnAnswer (first trap): after a restart without a control plane, a type of which
// there is nothing is answered, as Envoy serves nothing before.
func TestEmptyIsAnAnswer(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.request(id, "L")
	r.receive("C n1")
	r.receive("L n1 out=1")
	r.down(id, "C | L out=1")
	r = r.restart()
	id = r.core.Open()
	r.request(id, "C *")
	r.request(id, "L *")
	r.down(id, "C | L out=1")
}

// TestNothingIsNoAnswer: what no control plane ever answered is not answered.
func TestNothingIsNoAnswer(t *testing.T) {
	r := newRig(t).restart()
	id := r.core.Open()
	r.request(id, "C *")
	r.down(id, "")
}

// TestEndpointsFollowClusters (second trap): a second cluster with the same EDS service name is
// followed by the endpoints, which Envoy does not ask for, and so is one that changed.
func TestEndpointsFollowClusters(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.receive("C n1 shop/web:80=1@shop/web:80")
	r.down(id, "C shop/web:80=1")
	r.request(id, "E shop/web:80")
	r.receive("E n2 shop/web:80=7")
	r.down(id, "E shop/web:80=7")
	r.request(id, "C +vip|10.0.0.1:80")
	r.receive("C n3 vip|10.0.0.1:80=1@shop/web:80")
	r.down(id, "C vip|10.0.0.1:80=1 | E shop/web:80=7")

	// The same from the disk, in the order in which a new Envoy asks.
	r = r.restart()
	id = r.core.Open()
	r.request(id, "C *")
	r.down(id, "C shop/web:80=1")
	r.request(id, "E shop/web:80")
	r.down(id, "E shop/web:80=7")
	r.request(id, "C +vip|10.0.0.1:80")
	r.down(id, "C vip|10.0.0.1:80=1 | E shop/web:80=7")
}

// TestUnknownAddressStays (third trap): the answer for an unknown address is an entry of its
// subscription. What comes for the wildcard does not remove it, nor does another instance.
func TestUnknownAddressStays(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.request(id, "C +vip|10.0.0.9:80")
	r.receive("C n1 a=1")
	r.receive("C n2 vip|10.0.0.9:80=empty")
	r.down(id, "C a=1 | C vip|10.0.0.9:80=empty")
	r.receive("C n3 -a")
	r.down(id, "C -a")
	r.core.UpstreamClosed()
	r.core.Upstream()
	r.core.UpstreamOpened()
	r.up("C +* +vip|10.0.0.9:80 vip|10.0.0.9:80=empty")
	// Envoy comes back with what it has: nothing of it is removed.
	r.core.Close(id, r.now)
	id = r.core.Open()
	r.request(id, "C * vip|10.0.0.9:80 vip|10.0.0.9:80=empty")
	r.down(id, "C")
}

// TestOnDemandIsMarked (fourth trap): a new Envoy asks for the wildcard, and gets what it stands
// for alone; what was on demand comes when it asks by name, without a control plane.
func TestOnDemandIsMarked(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.request(id, "C +vip|x")
	r.receive("C n1 a=1 vip|x=1")
	r.down(id, "C a=1 vip|x=1")
	r = r.restart()
	id = r.core.Open()
	r.request(id, "C *")
	r.down(id, "C a=1")
	r.request(id, "C +vip|x")
	r.down(id, "C vip|x=1")
	r.request(id, "C +vip|y")
	r.down(id, "")
}

// TestNamesOfOneThatIsGone (fifth trap): names that Envoy gives up are given up at once; those of
// an Envoy that was killed stay subscribed until they have not been asked for long enough.
func TestNamesOfOneThatIsGone(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.request(id, "C +vip|x +vip|y +vip|z")
	r.receive("C n1 vip|x=1 vip|y=1 vip|z=1")
	r.down(id, "C vip|x=1 vip|y=1 vip|z=1")
	r.request(id, "C -vip|z")
	r.core.Close(id, r.now)
	r.core.Upstream()
	id = r.core.Open()
	r.request(id, "C *")
	r.request(id, "C +vip|y")
	r.down(id, "C | C vip|y=1")
	r.core.Expire(r.now.Add(-time.Second))
	r.up("")
	r.core.Expire(r.now.Add(time.Second))
	r.up("C -vip|x")
	if held := r.core.of(wire.Cluster).accepted; len(held) != 1 {
		t.Errorf("%d clusters are held, want vip|y alone", len(held))
	}
}

// TestRefusalOfWhatIsHeld (sixth trap): Envoy refuses what the disk has. It is found by halves,
// forgotten, and asked for again by another stream; the others are in use meanwhile.
func TestRefusalOfWhatIsHeld(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "L")
	r.receive("L n1 a=1 b=1 c=1 d=1 e=1")
	r.down(id, "L a=1 b=1 c=1 d=1 e=1")
	r = r.restart()
	r.core.UpstreamOpened()
	r.up("L +* a=1 b=1 c=1 d=1 e=1")
	var refused []string
	r.core.Refused = func(_, name, version, message string) { refused = append(refused, name+"="+version+" "+message) }
	id = r.core.Open()
	r.request(id, "L *")
	r.down(id, "L a=1 b=1 c=1 d=1 e=1", "d")
	r.down(id, "L a=1 b=1 | L c=1 d=1 e=1", "d")
	r.down(id, "L c=1 | L d=1 e=1", "d")
	r.down(id, "L d=1 | L e=1", "d")
	r.down(id, "")
	r.up("") // nothing of it concerns a response of the control plane
	if !slices.Equal(refused, []string{"d=1 refused"}) || !r.core.Resync || !r.core.Dirty {
		t.Fatalf("refused %q, resync %t", refused, r.core.Resync)
	}
	r.core.UpstreamClosed()
	r.core.UpstreamOpened()
	r.up("L +* a=1 b=1 c=1 e=1")
	r.receive("L m1 d=2")
	r.down(id, "L d=2")
	r.up("L ack m1")
}

// TestRefusalMeanwhileChanged: the control plane has sent another version of what Envoy refuses:
// that one is not forgotten.
func TestRefusalMeanwhileChanged(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "L")
	r.receive("L n1 a=1")
	r.down(id, "L a=1")
	r = r.restart()
	r.core.UpstreamOpened()
	r.core.Upstream()
	id = r.core.Open()
	r.request(id, "L *")
	r.receive("L m1 a=2")
	sent := r.core.Downstream(id)
	if len(sent) != 2 || sent[0].Resources[0].Version != "1" || sent[1].Resources[0].Version != "2" {
		t.Fatalf("sent %+v", sent)
	}
	r.core.Request(id, wire.Request{TypeURL: wire.Listener, Nonce: sent[1].Nonce})
	r.core.Request(id, wire.Request{TypeURL: wire.Listener, Nonce: sent[0].Nonce, Error: &wire.Status{Message: "late"}})
	if e := r.core.of(wire.Listener).accepted["a"]; e == nil || e.Version != "2" || r.core.Resync {
		t.Errorf("held %+v", e)
	}
}

// TestHotRestart: two Envoys follow; the newer decides what is accepted.
func TestHotRestart(t *testing.T) {
	r := newRig(t)
	first := r.core.Open()
	r.core.UpstreamOpened()
	r.request(first, "C")
	r.receive("C n1 a=1")
	r.down(first, "C a=1")
	second := r.core.Open()
	r.request(second, "C")
	r.down(second, "C a=1")
	r.core.Upstream()
	r.receive("C n2 a=2")
	r.down(first, "C a=2")
	r.up("")
	r.down(second, "C a=2")
	r.up("C ack n2")
	// The newer goes before it answers: the other decides.
	r.receive("C n3 a=3")
	r.down(first, "C a=3")
	r.core.Close(second, r.now)
	r.down(first, "C a=3")
	r.up("C ack n3")
}

// TestWithoutEnvoy: what comes while no Envoy is there waits for one.
func TestWithoutEnvoy(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "C")
	r.receive("C n1 a=1")
	r.down(id, "C a=1")
	r.core.Close(id, r.now)
	r.core.Upstream()
	r.receive("C n2 a=2")
	r.up("")
	id = r.core.Open()
	r.request(id, "C *")
	r.down(id, "C a=1 | C a=2")
	r.up("C ack n2")
}

// TestOwn: some secrets come from the supervisor, and no control plane is asked for them, nor can it replace them; others are
// the control plane's.
func TestOwn(t *testing.T) {
	r := newRig(t)
	r.core.SetOwn(wire.Secret, wire.OwnSecret, nil)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "S identity")
	r.down(id, "")
	own := func(all ...string) {
		var secrets []wire.Resource
		for _, one := range all {
			secrets = append(secrets, res(t, "S", one))
		}
		r.core.SetOwn(wire.Secret, wire.OwnSecret, secrets)
	}
	own("identity=1", "roots|d=1")
	r.down(id, "S identity=1")
	own("identity=2", "roots|d=1")
	r.down(id, "S identity=2")
	r.request(id, "S roots|d")
	r.down(id, "S roots|d=1")
	r.up("")
	r.request(id, "S ext|shop/pay")
	r.up("S +ext|shop/pay")
	r.receive("S n1 ext|shop/pay=1 identity=9")
	r.down(id, "S ext|shop/pay=1")
	r.up("S ack n1")
	own("identity=3", "roots|d=1")
	r.down(id, "S identity=3")

	next := r.restart()
	held := next.core.types[wire.Secret]
	if len(held.accepted) != 1 || held.accepted["ext|shop/pay"] == nil || len(held.names) != 1 {
		t.Errorf("the file of configurations has the secrets %v, asked for %v", held.accepted, held.names)
	}
	next.core.SetOwn(wire.Secret, wire.OwnSecret, nil)
	next.core.UpstreamOpened()
	next.up("S +ext|shop/pay ext|shop/pay=1")
	id = next.core.Open()
	next.request(id, "S identity ext|shop/pay")
	next.down(id, "S ext|shop/pay=1")
	next.up("")
}

// TestDamagedFile: it is refused as a whole, as is one of another node.
func TestDamagedFile(t *testing.T) {
	r := newRig(t)
	id := r.core.Open()
	r.core.UpstreamOpened()
	r.request(id, "L")
	r.receive("L n1 a=1")
	r.down(id, "L a=1")
	good := r.core.Encode("n")
	for name, data := range map[string][]byte{
		"empty": nil, "cut": good[:len(good)-3], "flipped": append(slices.Clone(good[:30]), append([]byte{good[30] ^ 1}, good[31:]...)...),
	} {
		if err := NewCore().Decode(data, "n", r.now); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	if err := NewCore().Decode(good, "other", r.now); err == nil || !strings.Contains(err.Error(), `"n"`) {
		t.Errorf("of another node: %v", err)
	}
}

// FuzzDecode: no file makes it panic.
func FuzzDecode(f *testing.F) {
	c := NewCore()
	id := c.Open()
	c.Request(id, wire.Request{TypeURL: wire.Cluster})
	f.Add(c.Encode("n"))
	f.Fuzz(func(_ *testing.T, data []byte) { _ = NewCore().Decode(data, "n", time.Time{}) })
}

// TestOwnSession: what the supervisor itself follows is asked for, answered and on disk as what is for Envoy. Its
// session is no Envoy: without one, names that Envoys have asked for do not expire.
func TestOwnSession(t *testing.T) {
	r := newRig(t)
	own := r.core.OpenOwn()
	follow := func() {
		r.core.Request(own, wire.Request{TypeURL: wire.Settings, Subscribe: []string{wire.Wildcard}})
	}
	follow()
	r.core.UpstreamOpened()
	r.up("P +*")
	id := r.core.Open()
	r.request(id, "C")
	r.request(id, "C +vip|x")
	r.up("C +* | C +vip|x")
	r.receive("C n1 vip|x=1")
	r.down(id, "C vip|x=1")
	r.receive("P n2 settings=1")
	r.down(id, "")
	r.down(own, "P settings=1")
	r.up("C ack n1 | P ack n2")
	r.receive("P n3 settings=2")
	r.down(own, "P settings=2", "settings")
	r.up("P nack n3")
	if n := r.core.Envoys(); n != 1 {
		t.Errorf("%d Envoys", n)
	}
	r.core.Close(id, r.now)
	r.core.Expire(r.now.Add(time.Hour))
	r.up("")

	next := r.restart()
	own = next.core.OpenOwn()
	next.core.Request(own, wire.Request{TypeURL: wire.Settings, Subscribe: []string{wire.Wildcard}})
	next.down(own, "P settings=1")
	next.core.Close(own, r.now)
	next.core.Forget(wire.Settings)
	next.core.UpstreamOpened()
	next.up("C +* +vip|x vip|x=1")
}
