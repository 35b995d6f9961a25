package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	secretstore "github.com/proxima-mesh/proxima/internal/store/secret"
)

// A control plane in a cluster that is one of several keeps in two Secrets what has no object
// (ADR 14): recordsObject has the keys of authorities, tokens and revocations, certificatesObject
// which nodes hold certificates. They are apart, as the second is written often. Global has the
// first alone: it serves no nodes.
const (
	recordsObject      = "proxima-records"
	certificatesObject = "proxima-certificates"
)

// clusterRecords are the Secrets, open; certificates is nil at global.
type clusterRecords struct{ records, certificates *secretstore.Store }

func openClusterRecords(ctx context.Context, cfg ControlPlaneConfig, s *storage) (*clusterRecords, error) {
	client, err := kubeclient.New(clusterREST(cfg.Cluster), []*resource.Descriptor{kind.Secret})
	if err != nil {
		return nil, err
	}
	r := &clusterRecords{}
	all := map[string]**secretstore.Store{recordsObject: &r.records}
	if cfg.role() != RoleGlobal {
		all[certificatesObject] = &r.certificates
	}
	for name, to := range all {
		*to, err = secretstore.Open(ctx, secretstore.Config{
			Client: client, Key: resource.Key{Namespace: cfg.Namespace, Name: name}, Logger: s.log.With("component", "records"),
		})
		if err != nil {
			r.close()
			return nil, explainCluster(cfg.Cluster, err)
		}
	}
	return r, nil
}

// use makes them the store of a control plane.
func (r *clusterRecords) use(ctx context.Context, cfg ControlPlaneConfig, s *storage) error {
	_ = s.store.Close()
	s.store = r.records
	s.tokens = identity.NewTokens(s.store, s.ca.Pin())
	s.renewExpired = cfg.RenewExpired
	var err error
	s.revocations, err = identity.NewRevocations(ctx, s.store, cfg.RenewExpired, s.log.With("component", "revocations"))
	return err
}

func (r *clusterRecords) components(s *storage) []component {
	if r == nil {
		return nil
	}
	out := []component{
		{Name: "records", Run: r.records.Run},
		{Name: "revocations", Run: s.revocations.Run},
	}
	if r.certificates != nil {
		out = append(out, component{Name: "records of certificates in the cluster", Run: r.certificates.Run})
	}
	return out
}

func (r *clusterRecords) close() {
	if r == nil {
		return
	}
	for _, s := range []*secretstore.Store{r.records, r.certificates} {
		if s != nil {
			_ = s.Close()
		}
	}
}

// unsealed is a sealed.Sealer where the cluster protects what is kept: a Secret is encrypted at
// rest as the cluster is configured, and read by those who may.
type unsealed struct{}

// Seal implements sealed.Sealer.
func (unsealed) Seal(_, plain []byte) ([]byte, error) { return plain, nil }

// Unseal implements sealed.Sealer.
func (unsealed) Unseal(_, text []byte) ([]byte, bool, error) { return text, false, nil }

// holdersPeriod is what the ends of certificates are rounded up to: a change of authorities waits
// so much longer for a node that is gone, and a certificate that ends in the same period as the
// node's last one is no write.
const holdersPeriod = 6 * time.Hour

// holders is a ledger of nodes: all that changes of authorities need to know of a certificate is
// which node has it, and until when.
type holders struct {
	*issue.Ledger

	mu    sync.Mutex
	known map[holder]time.Time
}

type holder struct{ mesh, node string }

func newHolders(s store.Store) *holders {
	return &holders{Ledger: issue.NewLedger(s, nil), known: map[holder]time.Time{}}
}

// Record implements ledger.
func (h *holders) Record(ctx context.Context, i issue.Issued) error {
	if i.Node == "" || i.Mesh == "" {
		return errors.New("a certificate of no node, or of no mesh, is not recorded")
	}
	until := i.NotAfter.Truncate(holdersPeriod).Add(holdersPeriod)
	of := holder{i.Mesh, i.Node}
	h.mu.Lock()
	known := h.known[of]
	h.mu.Unlock()
	if !until.After(known) {
		return nil
	}
	kept := issue.Issued{Mesh: i.Mesh, Node: i.Node, ID: i.ID, Issuer: i.Issuer, NotBefore: i.NotBefore, NotAfter: until}
	if err := h.Ledger.Record(ctx, kept); err != nil {
		return fmt.Errorf("record the holder of a certificate: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(h.known[of]) {
		h.known[of] = until
	}
	return nil
}
