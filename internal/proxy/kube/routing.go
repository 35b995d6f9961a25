package kube

import (
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// LocalityOf a BackendPolicy; nil: it says nothing that a choice of endpoints depends on. Preferences
// by label are not in it.
func LocalityOf(l *meshv1alpha1.BackendLocality) *proxy.Locality {
	out := &proxy.Locality{}
	switch l.Mode {
	case meshv1alpha1.LocalityStrict:
		out.Mode = proxy.LocalityStrict
	case meshv1alpha1.LocalityOff:
		out.Mode = proxy.LocalityOff
	}
	for i := range l.Failover {
		f := proxy.Failover{From: zones(l.Failover[i].From), Zones: zones(l.Failover[i].Zones)}
		switch l.Failover[i].To {
		case meshv1alpha1.FailoverNone:
			f.To = proxy.FailoverNone
		case meshv1alpha1.FailoverOnly:
			f.To = proxy.FailoverOnly
		case meshv1alpha1.FailoverAnyExcept:
			f.To = proxy.FailoverAnyExcept
		}
		out.Failover = append(out.Failover, f)
	}
	if out.Mode == proxy.LocalityPlan && out.Failover == nil {
		return nil
	}
	return out
}

func zones(in []string) []locality.Zone {
	var out []locality.Zone
	for _, z := range in {
		out = append(out, locality.Zone(z))
	}
	return out
}
