package registries

import (
	"testing"

	"github.com/hudl/fargo"

	"github.com/proxima-mesh/proxima/internal/registry/eureka"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

// A client of Go, as it is.
func TestFargo(t *testing.T) {
	p := registrytest.New(t)
	c := fargo.NewConn("http://" + p.Serve(eureka.New(p.Core).Serve) + "/eureka/v2")
	in := &fargo.Instance{
		HostName: "h", Port: 8080, PortEnabled: true, App: "ORDERS", IPAddr: "10.1.0.7", VipAddress: "orders", DataCenterInfo: fargo.DataCenterInfo{Name: fargo.MyOwn},
		Status: fargo.UP, LeaseInfo: fargo.LeaseInfo{DurationInSecs: 90},
	}
	for _, useJSON := range []bool{true, false} {
		c.UseJson = useJSON
		if err := c.RegisterInstance(in); err != nil {
			t.Fatal(err)
		}
		p.Eventually("it is listed", func() bool {
			apps, err := c.GetApps()
			return err == nil && apps["ORDERS"] != nil && len(apps["ORDERS"].Instances) == 1 && apps["ORDERS"].Instances[0].IPAddr == "10.1.0.7"
		})
		if err := c.HeartBeatInstance(in); err != nil {
			t.Error(err)
		}
		if err := c.UpdateInstanceStatus(in, fargo.OUTOFSERVICE); err != nil {
			t.Error(err)
		}
		p.Eventually("it is out of service", func() bool {
			got, err := c.GetInstance("ORDERS", "h")
			return err == nil && got.Status == fargo.OUTOFSERVICE
		})
		if err := c.DeregisterInstance(in); err != nil {
			t.Error(err)
		}
		p.Eventually("it is gone", func() bool { return len(p.Dataplanes()) == 0 })
	}
}
