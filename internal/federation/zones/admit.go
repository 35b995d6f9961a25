package zones

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// mayConnect refuses a zone that has no Zone object, or a disabled one.
func mayConnect(name string, zone *meshv1alpha1.Zone) error {
	switch {
	case zone == nil || zone.DeletionTimestamp != nil:
		return status.Errorf(codes.PermissionDenied, "global has no zone %s: it was deleted there, or not made yet; "+
			"\"proxima zone create %s\" at global makes it, with a token for --token-file", name, name)
	case !kind.ZoneEnabled(zone):
		return status.Errorf(codes.PermissionDenied, "zone %s was disabled at global: \"proxima zone enable %s\" there admits it again", name, name)
	}
	return nil
}

// Caller is the zone of a call by a zone that may connect. Errors are gRPC statuses.
func (z *Zones) Caller(ctx context.Context) (string, error) {
	name, err := z.config.Caller(ctx)
	if err != nil {
		return "", err
	}
	return name, z.checkZone(ctx, name)
}

// admit decides on a stream or a health check.
func (z *Zones) admit(ctx context.Context) (stream.Admission, error) {
	name, err := z.config.Caller(ctx)
	if err != nil {
		return stream.Admission{}, err
	}
	version := stream.VersionOf(ctx)
	if z.config.CheckVersion != nil {
		if err := z.config.CheckVersion(name, version); err != nil {
			return stream.Admission{}, status.Error(codes.PermissionDenied, err.Error())
		}
	}
	if err := z.checkZone(ctx, name); err != nil {
		return stream.Admission{}, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.ctx == nil || z.ctx.Err() != nil {
		return stream.Admission{}, status.Error(codes.Unavailable, "this control plane is starting or ending; try again in a moment")
	}
	p := z.peers[name]
	if p == nil {
		if p, err = z.newPeer(name); err != nil {
			return stream.Admission{}, status.Error(codes.Internal, err.Error())
		}
		z.peers[name] = p
	}
	method, _ := grpc.Method(ctx)
	return stream.Admission{
		Zone: name, Outlet: z.outlet, Inlet: p.inlet, End: p.end,
		Opened: func() func() { return z.opened(name, p, version, method) },
	}, nil
}

// checkZone compares with what is known, and reads the store where that refuses: it may be
// a moment behind.
func (z *Zones) checkZone(ctx context.Context, name string) error {
	z.mu.Lock()
	err := mayConnect(name, z.known[name])
	z.mu.Unlock()
	if err == nil {
		return nil
	}
	obj, readErr := z.config.Client.Get(ctx, kind.Zone, resource.Key{Name: name})
	if apierrors.IsNotFound(readErr) {
		return err
	}
	if readErr != nil {
		return status.Errorf(codes.Unavailable, "read Zone %s: %v", name, readErr)
	}
	zone := obj.(*meshv1alpha1.Zone)
	if err := mayConnect(name, zone); err != nil {
		return err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.known[name] = zone
	return nil
}

// opened notes a stream. The streams that are open at the same time are one subscription.
func (z *Zones) opened(name string, p *peer, version, method string) (closed func()) {
	z.mu.Lock()
	defer z.mu.Unlock()
	p.streams++
	if p.subscription == nil {
		p.subscription = &meshv1alpha1.Subscription{
			ID: strings.ToLower(rand.Text()), Instance: z.config.Instance, Version: version, Protocol: 2, ConnectTime: metav1.NowMicro(),
		}
	}
	if method == federationv1.MultiplexedSync_Stream_FullMethodName {
		p.subscription.Protocol = 1
	}
	z.kick()
	return func() { z.closed(name, p) }
}

func (z *Zones) closed(name string, p *peer) {
	z.mu.Lock()
	defer z.mu.Unlock()
	p.streams--
	if p.streams > 0 || p.subscription == nil || p.ended {
		return
	}
	s := p.subscription
	p.subscription = nil
	now := metav1.NewMicroTime(time.Now())
	s.DisconnectTime = &now
	z.running.Go(func() { z.recordEnd(name, s) })
}

// Confirm deletes what is held of a type of a zone's objects. token names what the operator
// saw; empty: what is held now. It returns how many are deleted. Errors: *NotHereError, that
// nothing is held, or federation.ErrChanged.
func (z *Zones) Confirm(ctx context.Context, zone, typ, token string) (int, error) {
	z.mu.Lock()
	p := z.peers[zone]
	here := p != nil && p.streams > 0
	z.mu.Unlock()
	if !here {
		return 0, &NotHereError{Zone: zone, Instance: z.config.Instance}
	}
	return Confirm(ctx, p.inlet, typ, token)
}

// Call makes a call into a zone; see stream.Global.
func (z *Zones) Call(ctx context.Context, zone string, call *federationv1.Call) ([]byte, error) {
	return z.global.Call(ctx, zone, call)
}

// NotHereError: a zone has no stream to this instance. It may have one to another.
type NotHereError struct{ Zone, Instance string }

func (e *NotHereError) Error() string {
	return fmt.Sprintf("zone %s is not connected to this instance (%s)", e.Zone, e.Instance)
}
