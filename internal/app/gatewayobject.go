package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

type getCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// gatewaySpec is what others learn of a gateway.
type gatewaySpec meshv1alpha1.ZoneGatewaySpec

// object of the gateway. Its zone is that of the control plane, which issues certificates
// to it; it is empty until that is known.
func (g *gateway) object() gatewaySpec {
	spec := gatewaySpec{
		Address: g.cfg.Address.String(), Port: int32(g.cfg.Port),
		AdvertisedAddress: g.cfg.AdvertisedAddress, AdvertisedPort: int32(g.cfg.AdvertisedPort),
	}
	if g.ids.nodeIdentity != nil {
		spec.Zone = g.ids.Zone()
	}
	return spec
}

// address HOST:PORT by which it is reached from elsewhere.
func (s gatewaySpec) address() string {
	return net.JoinHostPort(cmp.Or(s.AdvertisedAddress, s.Address), strconv.Itoa(int(cmp.Or(s.AdvertisedPort, s.Port))))
}

// registration keeps the gateway's ZoneIngress or ZoneEgress as it should be. The object
// stays when the process ends: a restart withdraws nothing, and clients avoid a gateway
// that does not answer. Who removes a gateway for good deletes its object.
type registration struct {
	client resource.Client
	kind   *resource.Descriptor
	name   string
	spec   func() gatewaySpec
	log    *slog.Logger
}

func (a *agent) registration() (*registration, error) {
	r := &registration{kind: kind.ZoneIngress, name: a.cfg.Name, spec: a.gateway.object, log: a.gateway.log}
	if a.gateway.cfg.Egress {
		r.kind = kind.ZoneEgress
	}
	var err error
	r.client, err = kubeclient.New(a.restConfig(), []*resource.Descriptor{r.kind})
	return r, err
}

// registerEvery is how soon an object is repaired that someone has changed or deleted.
const registerEvery = 10 * time.Second

func (r *registration) run(ctx context.Context) error {
	pause := backoff.Backoff{Policy: backoff.Policy{First: 100 * time.Millisecond, Last: registerEvery, Jitter: 0.2}}
	failed := false
	for ctx.Err() == nil {
		delay := registerEvery
		zoneKnown := r.spec().Zone != ""
		changed, err := r.ensure(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failed {
				r.log.Warn("the gateway is not registered; it is tried again", "kind", r.kind.GVK.Kind, "name", r.name, "error", err)
			}
			delay = pause.Next()
		default:
			pause.Reset()
			if changed {
				r.log.Info("the gateway is registered", "kind", r.kind.GVK.Kind, "name", r.name, "address", r.spec().address())
			}
		}
		failed = err != nil
		if !zoneKnown {
			delay = min(delay, time.Second) // the control plane tells it with what is trusted
		}
		backoff.Sleep(ctx, delay)
	}
	return nil
}

// ensure that the object is as it should be.
func (r *registration) ensure(ctx context.Context) (changed bool, err error) {
	within, cancel := context.WithTimeout(ctx, registerEvery)
	defer cancel()
	want := meshv1alpha1.ZoneGatewaySpec(r.spec())
	got, err := r.client.Get(within, r.kind, resource.Key{Name: r.name})
	if apierrors.IsNotFound(err) {
		_, err = r.client.Create(within, r.kind, r.object(metav1.ObjectMeta{Name: r.name}, want))
		return true, err
	}
	if err != nil {
		return false, err
	}
	spec := gatewaySpecOf(got)
	if want.Zone == "" {
		want.Zone = spec.Zone
	}
	if *spec == want {
		return false, nil
	}
	*spec = want
	_, err = r.client.Update(within, r.kind, got)
	return true, err
}

func (r *registration) object(meta metav1.ObjectMeta, spec meshv1alpha1.ZoneGatewaySpec) resource.Object {
	if r.kind == kind.ZoneEgress {
		return &meshv1alpha1.ZoneEgress{ObjectMeta: meta, Spec: spec}
	}
	return &meshv1alpha1.ZoneIngress{ObjectMeta: meta, Spec: spec}
}

func gatewaySpecOf(o resource.Object) *meshv1alpha1.ZoneGatewaySpec {
	switch o := o.(type) {
	case *meshv1alpha1.ZoneEgress:
		return &o.Spec
	case *meshv1alpha1.ZoneIngress:
		return &o.Spec
	}
	return &meshv1alpha1.ZoneGatewaySpec{}
}
