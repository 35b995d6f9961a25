package doctor

import (
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/registry"
)

func TestRegistries(t *testing.T) {
	if f, ok := registries(&admin.Status{}); ok {
		t.Errorf("without registries: %+v", f)
	}
	served := []registry.Status{{Protocol: registry.Nacos, Instances: 3}, {Protocol: registry.Eureka, Instances: 2}}
	if f, ok := registries(&admin.Status{Registries: served}); !ok || f.Problem != "" || f.Note != "5 instances are registered" {
		t.Errorf("all is well: %+v", f)
	}
	for reason, want := range map[registry.TroubleReason][2]string{
		registry.NotServed: {"2 instances came by zookeeper, which is not served here: shop/a, shop/b", "--zookeeper-port"},
		registry.Orphaned:  {"wait for their clients", "1m30s"},
		registry.Loopback:  {"loopback addresses", "an address by which others reach them"},
		registry.NameTaken: {"not selected by the Service", registry.LabelService},
		registry.Full:      {"2 clients of zookeeper are connected", "open files"},
		registry.QuotaUsed: {"2 nodes that clients of zookeeper have", "--zookeeper-extra-quota"},
		"Newer":            {"Newer of 2 instances", "upgrade"},
	} {
		status := &admin.Status{RegistryTroubles: []registry.Trouble{{Reason: reason, Protocol: registry.ZooKeeper, Count: 2, Examples: []string{"shop/a", "shop/b"}}}}
		f, ok := registries(status)
		if !ok || f.Code != problem.RegistryTrouble || !strings.Contains(f.Problem, want[0]) || !strings.Contains(f.Fix, want[1]) {
			t.Errorf("%s: %+v", reason, f)
		}
	}
}
