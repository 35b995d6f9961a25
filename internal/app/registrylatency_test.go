package app

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestRegistryLatency measures, with PROXIMA_SOAK=1, how long after a registration clients of Nacos are told of it,
// in the same zone, and in another one, which is told of the weight of the
// site. Stores are in memory.
func TestRegistryLatency(t *testing.T) {
	if os.Getenv("PROXIMA_SOAK") == "" {
		t.Skip("PROXIMA_SOAK=1 measures")
	}
	s := &sites{t: t, globalStore: memory.New(memory.Options{})}
	s.global = startPlane(t, planeConfig(t, RoleGlobal), s.globalStore)
	s.global.cfg.APIAddress = s.global.global.api.address.String()
	s.a, s.b = s.startRegistrySite("a", "10.96.0.0/24"), s.startRegistrySite("b", "10.97.0.0/24")
	exportAll(s)
	if _, err := s.a.cp.api.client.Create(t.Context(), kind.ZoneIngress, &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "i"}, Spec: meshv1alpha1.ZoneGatewaySpec{Zone: "a", Address: "192.0.2.1", Port: 10001},
	}); err != nil {
		t.Fatal(err)
	}
	const warmUp, count = 20, 220
	told := map[string]chan toldOf{"same zone": make(chan toldOf, 10*count), "other zone": make(chan toldOf, 10*count)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	for name, p := range map[string]*plane{"same zone": s.a, "other zone": s.b} {
		c := &nacosClient{t: t, servers: []string{fmt.Sprintf("127.0.0.1:%d", p.cfg.Registries.NacosPort+nacosGRPCOffset)}, heard: told[name]}
		go func() { c.run(ctx); done <- struct{}{} }()
	}
	t.Cleanup(func() { cancel(); <-done; <-done })
	took := map[string][]time.Duration{}
	for n := 1; n <= count; n++ {
		begun := time.Now()
		s.a.register("orders", net.JoinHostPort("10.1.0.7", strconv.Itoa(10000+n)), nil)
		for name, c := range told {
			for {
				var got toldOf
				select {
				case got = <-c:
				case <-time.After(testkit.Timeout):
					t.Fatalf("instance %d is not told of in the %s", n, name)
				}
				if name == "same zone" && got.instances == n || name == "other zone" && int(got.weight+.5) == n {
					if n > warmUp {
						took[name] = append(took[name], got.at.Sub(begun))
					}
					break
				}
			}
		}
	}
	for name, all := range took {
		slices.Sort(all)
		t.Logf("%s: p50 %s, p99 %s, most %s of %d registrations", name, all[len(all)/2].Round(10*time.Microsecond),
			all[len(all)*99/100].Round(10*time.Microsecond), all[len(all)-1].Round(10*time.Microsecond), len(all))
	}
}
