package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// confirm asks an instance to apply the deletions of a type, and returns what it answers.
func (p *plane) confirm(zone, typ string) string {
	p.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.cfg.DataDir, "kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	body, err := json.Marshal(admin.ConfirmRequest{Zone: zone, Type: typ})
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := client.Post(cfg.Host+admin.ConfirmPath, "application/json", strings.NewReader(string(body)))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return "ok"
	}
	var status metav1.Status
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		p.t.Fatal(err)
	}
	return status.Message
}

// TestInstancesOfGlobalAndZone: two instances of global and two of a zone. The connection
// moves when one ends or is killed, and resumes; a call goes to the instance that has the connection; the
// leader sees that a zone is gone.
func TestInstancesOfGlobalAndZone(t *testing.T) {
	several := func(cfg ControlPlaneConfig, key string) ControlPlaneConfig {
		cfg.Store, cfg.ClusterKeyFile, cfg.ZoneTimeout = "postgres://test", key, 3*time.Second
		return cfg
	}
	ofGlobal, ofZone := store.Store(memory.New(memory.Options{})), store.Store(memory.New(memory.Options{}))
	t.Cleanup(func() { ofGlobal.Close(); ofZone.Close() })
	globalKey, zoneKey := clusterKey(t), clusterKey(t)
	var globals []*plane
	for range 2 {
		globals = append(globals, startPlane(t, several(planeConfig(t, RoleGlobal), globalKey), ofGlobal))
	}
	s := &sites{t: t, global: globals[0]}
	s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	var zone []*plane
	for _, g := range globals {
		cfg := several(s.zoneConfig("a", "a"), zoneKey)
		// Nothing listens at the first address: the zone joins by the second one.
		cfg.Global, cfg.OtherGlobals = "127.0.0.1:1", []string{g.global.api.address.String()}
		zone = append(zone, startPlane(t, cfg, ofZone))
		until(t, "zone a is online", func() bool { return s.online("a") })
	}
	connected := func(g *plane) bool {
		all := s.insight("a").Subscriptions
		return len(all) > 0 && all[len(all)-1].DisconnectTime == nil && all[len(all)-1].Instance == instanceName(g.global.api.address)
	}
	until(t, "the zone is connected to the first instance of global", func() bool { return connected(globals[0]) })
	globals[1].create(kind.Mesh, namedMesh("one"))
	until(t, "the mesh is in the zone", func() bool { return zone[1].has(kind.Mesh, "one") })

	// Whichever instance is asked, the one with the connection answers.
	for _, p := range []*plane{globals[0], globals[1]} {
		if got := p.confirm("a", "Dataplane"); got != "no deletions of Dataplane are held" {
			t.Errorf("global, of zone a: %q", got)
		}
		if got := p.confirm("b", "Dataplane"); !strings.Contains(got, "zone b is not connected to this instance") {
			t.Errorf("global, of a zone that is not connected: %q", got)
		}
	}
	for _, p := range zone {
		if got := p.confirm("a", "Mesh"); got != "no deletions of Mesh are held" {
			t.Errorf("zone, of global: %q", got)
		}
	}

	// The leader of the zone ends. The other one goes on where it was.
	before := copied(zone[1].displayed(kind.Mesh)["one"])
	zone[0].stop()
	globals[0].create(kind.Mesh, namedMesh("two"))
	until(t, "the zone is connected to the second instance of global", func() bool { return connected(globals[1]) })
	until(t, "the second mesh is in the zone", func() bool { return zone[1].has(kind.Mesh, "two") })
	if now := copied(zone[1].displayed(kind.Mesh)["one"]); now != before {
		t.Errorf("the copy of the first mesh was written again: %s, before %s", now, before)
	}
	if got := globals[0].confirm("a", "Dataplane"); got != "no deletions of Dataplane are held" {
		t.Errorf("global, after the connection has moved: %q", got)
	}
	zone[1].create(kind.Dataplane, workloadAt("w", "10.0.0.7"))
	until(t, "the workload is at global", func() bool { return globals[0].has(kind.Dataplane, "w") })

	// The instance that has the connection is killed. Global has told the zone of the other one,
	// and it goes on there, at once.
	until(t, "the zone knows both instances", func() bool { return len(zone[1].cp.zone.globals.ports("127.0.0.1:1")) == 3 })
	began := time.Now()
	globals[1].crashed = true
	globals[1].global.instance.server.Stop() // closes the port and all connections, as a kill does
	globals[0].create(kind.Mesh, namedMesh("three"))
	until(t, "the third mesh is in the zone", func() bool { return zone[1].has(kind.Mesh, "three") })
	if took := time.Since(began); took > 20*time.Second { // it is much less on a machine with nothing else to do
		t.Errorf("the zone needed %s to move to the other instance", took)
	}
	globals[1].stop()
	until(t, "the zone is connected to the first instance of global", func() bool { return connected(globals[0]) })
	if now := copied(zone[1].displayed(kind.Mesh)["one"]); now != before {
		t.Errorf("the copy of the first mesh was written again: %s, before %s", now, before)
	}

	// The zone ends. The leader of global sees that nobody holds it.
	zone[1].stop()
	until(t, "the leader of global sees that nobody holds the zone", func() bool { return !s.online("a") })
	for _, sub := range s.insight("a").Subscriptions {
		if sub.DisconnectTime == nil {
			t.Errorf("a connection has no end: %+v", sub)
		}
	}
	if !globals[0].has(kind.Dataplane, "w") {
		t.Error("offline withdraws the objects of the zone")
	}
}

// copied is what the copy of an object has of its original. The zone itself writes the status.
func copied(o resource.Object) string {
	return fmt.Sprint(o.GetUID(), o.GetGeneration(), o.GetLabels(), o.GetAnnotations())
}
