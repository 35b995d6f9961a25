package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	grpcstatus "google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/federation/zones"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// admin is what the status of a zone says of global; nil: there is none.
func (l *zoneLink) admin() admin.Federation {
	if l == nil {
		return nil
	}
	return l
}

// State implements admin.Federation.
func (l *zoneLink) State(ctx context.Context) (*admin.FederationStatus, error) {
	s := &admin.FederationStatus{Zone: l.cfg.Zone, Global: l.cfg.Global}
	if slices.ContainsFunc(l.kinds, func(k local.Kind) bool { return k.Descriptor == kind.ZoneIngressInsight }) {
		addGateways(ctx, s, l.client, l.cfg.Zone)
	} else { // a cluster has no insights, and no role to ask for them
		s.GatewaysUnknown = "the gateways of a cluster are Pods, which Kubernetes watches: \"kubectl get pods\""
	}
	certificate := l.renewer.Status()
	s.CertificateNotAfter, s.Problem = certificate.NotAfter, certificate.Problem
	if certificate.Fix != "" {
		s.Problem += ": " + certificate.Fix
	}
	link := l.current.Load()
	if link == nil {
		s.Elsewhere = true
		return s, nil
	}
	status := link.zone.Status()
	s.Instance = link.plane.instance()
	s.Connected = status.Receiving && status.Sending
	s.LastCheck = status.LastCheck
	switch {
	case s.Connected || s.Problem != "":
	case status.Refused != "":
		s.Problem = "global refuses it: " + status.Refused
	case status.LastError != nil:
		s.Problem = grpcstatus.Convert(status.LastError).Message()
	}
	for _, t := range status.Sender.Types {
		s.Behind += t.Unsent
	}
	s.Behind += uint64(status.Sender.InFlight)
	s.Link = syncLink(&status.Link, meshv1alpha1.SyncToGlobal)
	s.Types = append(zones.Received(meshv1alpha1.SyncToZone, link.inlet.Status()), zones.Sent(meshv1alpha1.SyncToGlobal, status.Sender)...)
	return s, nil
}

// syncLink is a link, of which this side sends in a direction.
func syncLink(l *stream.Link, sends string) *admin.SyncLink {
	out := &admin.SyncLink{Epoch: l.Epoch, Sent: syncLag(l.Lag), Received: syncLag(l.PeerLag)}
	receives := meshv1alpha1.SyncToZone
	if sends == receives {
		receives = meshv1alpha1.SyncToGlobal
	}
	for _, r := range l.Refused {
		direction := receives
		if r.ByPeer {
			direction = sends
		}
		out.LastRefused = append(out.LastRefused, admin.LastRefused{
			Type: r.Type, Direction: direction, Resource: strings.TrimPrefix(r.Resource, "/"), Reason: r.Reason, At: r.At,
		})
	}
	return out
}

func syncLag(l stream.Lag) *admin.SyncLag {
	if l.Samples == 0 && l.Waiting == 0 {
		return nil
	}
	return &admin.SyncLag{Samples: l.Samples, P50Seconds: l.P50.Seconds(), P99Seconds: l.P99.Seconds(), WaitingSeconds: l.Waiting.Seconds()}
}

// addGateways to a status, or why they are not known.
func addGateways(ctx context.Context, s *admin.FederationStatus, client resource.Client, zone string) {
	var err error
	if s.Gateways, err = gatewayStates(ctx, client, zone); err != nil {
		s.GatewaysUnknown = err.Error()
	}
}

// gatewayStates are the gateways of a zone, or of all if it is empty, that this control plane has insights of.
func gatewayStates(ctx context.Context, client resource.Client, zone string) ([]admin.GatewayState, error) {
	var out []admin.GatewayState
	for _, k := range []struct {
		name              string
		gateways, insight *resource.Descriptor
	}{{"ingress", kind.ZoneIngress, kind.ZoneIngressInsight}, {"egress", kind.ZoneEgress, kind.ZoneEgressInsight}} {
		gateways, _, err := client.List(ctx, k.gateways, resource.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list gateways: %w", err)
		}
		seen, _, err := client.List(ctx, k.insight, resource.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list insights of gateways: %w", err)
		}
		insights := map[resource.Key]resource.Object{}
		for _, obj := range seen {
			insights[resource.KeyOf(obj)] = obj
		}
		for _, obj := range gateways {
			g := admin.GatewayState{Kind: k.name, Name: cmp.Or(obj.GetLabels()[federation.LabelDisplayName], obj.GetName())}
			insight := insights[resource.KeyOf(obj)]
			if g.Zone = specOfGateway(obj).Zone; insight == nil || zone != "" && cmp.Or(g.Zone, zone) != zone {
				continue // nobody has looked yet, or it is another's
			}
			status := gatewayInsight(insight)
			g.Connected = status.Online
			if n := len(status.Subscriptions); n > 0 {
				last := status.Subscriptions[n-1]
				g.Since = last.ConnectTime.Time
				if last.DisconnectTime != nil {
					g.Since = last.DisconnectTime.Time
				}
			}
			out = append(out, g)
		}
	}
	return out, nil
}

func specOfGateway(obj resource.Object) *meshv1alpha1.ZoneGatewaySpec {
	if i, ok := obj.(*meshv1alpha1.ZoneIngress); ok {
		return &i.Spec
	}
	return &obj.(*meshv1alpha1.ZoneEgress).Spec
}

func gatewayInsight(obj resource.Object) *meshv1alpha1.ClientInsightStatus {
	if i, ok := obj.(*meshv1alpha1.ZoneIngressInsight); ok {
		return &i.Status
	}
	return &obj.(*meshv1alpha1.ZoneEgressInsight).Status
}

// Confirm implements admin.Federation.
func (l *zoneLink) Confirm(ctx context.Context, zone, typ, token string) (int, error) {
	if zone != l.cfg.Zone {
		return 0, fmt.Errorf("this is the control plane of zone %s: what it holds of other zones is confirmed there, and what global holds of %s at global",
			l.cfg.Zone, zone)
	}
	link := l.current.Load()
	if link == nil {
		return 0, &elsewhereError{errors.New("another instance of this control plane has the connection to global")}
	}
	return zones.Confirm(ctx, link.inlet, typ, token)
}

// zoneStates are the zones, as their objects say.
func zoneStates(ctx context.Context, client resource.Client) ([]admin.ZoneState, error) {
	objects, _, err := client.List(ctx, kind.Zone, resource.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list zones: %w", err)
	}
	out := []admin.ZoneState{}
	for _, obj := range objects {
		zone := obj.(*meshv1alpha1.Zone)
		s := admin.ZoneState{Name: zone.Name, Enabled: kind.ZoneEnabled(zone)}
		insight, err := client.Get(ctx, kind.ZoneInsight, resource.Key{Name: zone.Name})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read the insight of zone %s: %w", zone.Name, err)
		}
		if err == nil {
			s.Insight = &insight.(*meshv1alpha1.ZoneInsight).Status
		}
		out = append(out, s)
	}
	return out, nil
}
