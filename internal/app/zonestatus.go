package app

import (
	"context"
	"errors"
	"fmt"

	grpcstatus "google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
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
func (l *zoneLink) State(context.Context) (*admin.FederationStatus, error) {
	s := &admin.FederationStatus{Zone: l.cfg.Zone, Global: l.cfg.Global}
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
	s.Types = append(zones.Received(meshv1alpha1.SyncToZone, link.inlet.Status()), zones.Sent(meshv1alpha1.SyncToGlobal, status.Sender)...)
	return s, nil
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
