package describe

import (
	"context"
	"fmt"
	"net"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// gateway describes a ZoneIngress or ZoneEgress, with what its control plane observes of it.
func (d *Describer) gateway(ctx context.Context, p *page, of resource.Object, spec *mesh.ZoneGatewaySpec) error {
	p.fieldIf("Zone", spec.Zone)
	p.field("Address", net.JoinHostPort(spec.Address, strconv.Itoa(int(spec.Port))))
	p.field("Advertised", kind.GatewayAddress(spec))
	insights := kind.ZoneIngressInsight
	if _, egress := of.(*mesh.ZoneEgress); egress {
		insights = kind.ZoneEgressInsight
	}
	obj, err := d.Reader.Get(ctx, insights, resource.KeyOf(of))
	switch {
	case apierrors.IsNotFound(err) && of.GetLabels()[mesh.LabelOrigin] != "":
		p.note("what is observed of it is known to the control plane of its zone, and at global")
		return nil
	case apierrors.IsNotFound(err):
		p.note("no connection of it has been observed")
		return nil
	case apierrors.IsForbidden(err):
		p.note("%s can't be read: %v", insights.Resource, err)
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", insights.Resource, err)
	}
	status := insightStatus(obj)
	d.insight(p, status)
	return nil
}

func insightStatus(obj resource.Object) *mesh.ClientInsightStatus {
	if e, ok := obj.(*mesh.ZoneEgressInsight); ok {
		return &e.Status
	}
	return &obj.(*mesh.ZoneIngressInsight).Status
}

// insight of a gateway.
func (d *Describer) insight(p *page, s *mesh.ClientInsightStatus) {
	if v := s.Versions; v != nil {
		p.field("Engine", v.Proxy+" "+v.Version)
		p.fieldIf("Supervisor", v.Supervisor)
	}
	var rows [][]string
	for i := range s.Conditions {
		c := &s.Conditions[i]
		rows = append(rows, []string{c.Type, string(c.Status), c.Reason, c.Message})
	}
	p.table("Conditions", []string{"TYPE", "STATUS", "REASON", "MESSAGE"}, rows)
	rows = nil
	for i := range s.Subscriptions {
		c := &s.Subscriptions[i]
		ended := "open"
		if c.DisconnectTime != nil {
			ended = p.ago(c.DisconnectTime.Time)
		}
		rows = append(rows, []string{strconv.FormatInt(c.Generation, 10), c.Instance, p.ago(c.ConnectTime.Time), ended})
	}
	p.table("Connections", []string{"NUMBER", "INSTANCE", "BEGAN", "ENDED"}, rows)
	rows = nil
	if n := len(s.Subscriptions); n > 0 {
		for _, r := range s.Subscriptions[n-1].Resources {
			rows = append(rows, []string{r.Type, fmt.Sprint(r.Sent), fmt.Sprint(r.Acknowledged), fmt.Sprint(r.Rejected)})
		}
	}
	p.table("Configuration of the newest connection", []string{"TYPE", "SENT", "ACCEPTED", "REJECTED"}, rows)
	rows = nil
	for i := range s.Certificates {
		c := &s.Certificates[i]
		rows = append(rows, []string{c.Mesh, c.Identity, p.moment(c.Expiry.Time), strconv.FormatInt(c.Generations, 10)})
	}
	p.table("Certificates", []string{"MESH", "IDENTITY", "EXPIRY", "ISSUED"}, rows)
}
