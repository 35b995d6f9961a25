package membership

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// addresses of the Node: its own in place of the internal ones, and what others
// set of other types.
func (m *Member) addresses(have []corev1.NodeAddress) []corev1.NodeAddress {
	if m.cfg.Addresses == nil {
		return have
	}
	var own []corev1.NodeAddress
	for _, a := range m.cfg.Addresses() {
		own = append(own, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	if len(own) == 0 || slices.Equal(own, m.refused) {
		return have // not known now, or not to be
	}
	for _, a := range have {
		if a.Type != corev1.NodeInternalIP {
			own = append(own, a)
		}
	}
	return own
}

// writeStatus writes what differs. Addresses that are refused, as another Node
// has them, are left out from then on: the node is ready without them.
func (m *Member) writeStatus(ctx context.Context, want, have *corev1.Node) (*corev1.Node, error) {
	if apiequality.Semantic.DeepEqual(want.Status, have.Status) {
		return have, nil
	}
	obj, err := m.cfg.Client.UpdateStatus(ctx, kind.Node, want)
	if apierrors.IsForbidden(err) && !slices.Equal(want.Status.Addresses, have.Status.Addresses) {
		m.refused = slices.DeleteFunc(slices.Clone(want.Status.Addresses), func(a corev1.NodeAddress) bool { return a.Type != corev1.NodeInternalIP })
		m.cfg.Logger.Warn("the addresses of this machine are not taken; its Node keeps those that it has", "node", m.cfg.Name, "error", err)
		want = want.DeepCopy()
		want.Status.Addresses = have.Status.Addresses
		obj, err = m.cfg.Client.UpdateStatus(ctx, kind.Node, want)
	}
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Node), nil
}
