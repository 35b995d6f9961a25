package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/warning"

	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// WritePolicy changes and judges writes over HTTP; access.WritePolicy is one. Both
// methods may be called concurrently.
type WritePolicy interface {
	// Prepare may change Object. It runs before validation, and does not block.
	Prepare(w access.Write)
	// Allow returns why a write is refused. An error that has a status of the API
	// is the answer, any other is the reason of a 403.
	Allow(ctx context.Context, w access.Write) error
}

// writeCheck is the admission plugin that enforces a WritePolicy.
type writeCheck struct{ policy WritePolicy }

var (
	_ admission.MutationInterface   = writeCheck{}
	_ admission.ValidationInterface = writeCheck{}
)

// Handles implements admission.Interface.
func (writeCheck) Handles(op admission.Operation) bool { return op != admission.Connect }

// Admit implements admission.MutationInterface.
func (c writeCheck) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Delete {
		c.policy.Prepare(writeOf(ctx, a))
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (c writeCheck) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	err := c.policy.Allow(ctx, writeOf(ctx, a))
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return err
	}
	return admission.NewForbidden(a, err)
}

func writeOf(ctx context.Context, a admission.Attributes) access.Write {
	w := access.Write{
		User: a.GetUserInfo(), Kind: a.GetKind().GroupKind(), Subresource: a.GetSubresource(), From: peerOf(ctx),
		DryRun: a.IsDryRun(), Command: commandOf(ctx), Warn: func(text string) { warning.AddWarning(ctx, "", text) },
	}
	w.Object, _ = a.GetObject().(resource.Object)
	w.Old, _ = a.GetOldObject().(resource.Object)
	return w
}

type (
	peerKey    struct{}
	commandKey struct{}
)

// rememberOrigins keeps the address of each request's peer, and kubectl's command, in its
// context.
func rememberOrigins(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		next := build(handler, c)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if peer, ok := directPeer(r); ok {
				r = r.WithContext(context.WithValue(r.Context(), peerKey{}, peer))
			}
			if command := r.Header.Get(access.CommandHeader); command != "" {
				r = r.WithContext(context.WithValue(r.Context(), commandKey{}, command))
			}
			next.ServeHTTP(w, r)
		})
	}
}

// peerOf is the address of the peer; the zero Addr if it is not known.
func peerOf(ctx context.Context) netip.Addr {
	peer, _ := ctx.Value(peerKey{}).(netip.Addr)
	return peer
}

// commandOf kubectl; empty: none is known.
func commandOf(ctx context.Context) string {
	command, _ := ctx.Value(commandKey{}).(string)
	return command
}

// forwarded are the headers by which a proxy shows that the peer is not the client
// (RFC 7239, and the headers in use before it).
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"}

// directPeer is the address at the other end of the connection, unless a proxy is
// there.
func directPeer(r *http.Request) (netip.Addr, bool) {
	for _, name := range forwarded {
		if len(r.Header.Values(name)) > 0 {
			return netip.Addr{}, false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap().WithZone(""), err == nil
}
