package app

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
)

// openRevocations reads which credentials were withdrawn, before anybody is
// admitted.
func (cp *controlPlane) openRevocations(ctx context.Context) error {
	var err error
	cp.revocations, err = identity.NewRevocations(ctx, cp.store, cp.cfg.RenewExpired, cp.log.With("part", "revocations"))
	if err != nil {
		return err
	}
	cp.sessions = access.NewSessions(cp.revocations, cp.log.With("part", "sessions"))
	cp.holders = access.NewHolders()
	return nil
}

func (cp *controlPlane) policy() access.Policy {
	return access.Policy{Revocations: cp.revocations, RenewExpired: cp.cfg.RenewExpired}
}

// nodeDeletion is what remains of a Node: its credentials are refused.
func nodeDeletion(n *corev1.Node, who user.Info) (key string, value []byte, err error) {
	record := identity.DeletedNode{Deleted: time.Now().UTC()}
	if who != nil {
		record.By = who.GetName()
	}
	return identity.DeletedNodeRecord(n.Name, record)
}
