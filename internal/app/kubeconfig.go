package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity"
)

// kubeconfigMargin is how long the certificate of a kubeconfig must still be valid for the file
// to be of use where it cannot be written anew.
const kubeconfigMargin = 24 * time.Hour

// publisher writes the administrator's kubeconfig.
type publisher struct {
	cfg    ControlPlaneConfig
	tables *catalog.Catalog
	// unreadable resources, for which the tables wait; what is of use without them runs.
	unreadable func() map[string]error
	ca         *identity.Authority
	url        string
	complete   chan<- struct{}
	log        *slog.Logger
}

// Run writes the kubeconfig once the tables are filled, or wait for what is damaged, and closes
// complete then.
func (p publisher) Run(ctx context.Context) error {
	if !p.wait(ctx) {
		return nil // ctx has ended
	}
	path := filepath.Join(p.cfg.DataDir, "kubeconfig")
	if err := writeKubeconfig(path, p.url, p.ca); err != nil {
		if reason := whyUseless(path, p.url, p.ca, time.Now()); reason != nil {
			return fmt.Errorf("%w (and the one that is there is of no use: %w)", err, reason)
		}
		p.log.Warn("the kubeconfig cannot be written anew; the one that is there stays in use", "path", path, "error", err)
	}
	close(p.complete)
	<-ctx.Done()
	return nil
}

// damagePoll is how often the publisher looks whether the tables wait for damaged data.
const damagePoll = time.Second

func (p publisher) wait(ctx context.Context) bool {
	for {
		bounded, cancel := context.WithTimeout(ctx, damagePoll)
		err := p.tables.WaitSynced(bounded)
		cancel()
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case len(p.unreadable()) > 0:
			return true
		}
	}
}

// whyUseless is why a kubeconfig does not lead an administrator to a server; nil: it does.
func whyUseless(path, server string, ca *identity.Authority, now time.Time) error {
	cfg, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return err
	}
	current := cfg.Contexts[cfg.CurrentContext]
	if current == nil || cfg.Clusters[current.Cluster] == nil || cfg.AuthInfos[current.AuthInfo] == nil {
		return errors.New("it has no current context")
	}
	if at := cfg.Clusters[current.Cluster].Server; at != server {
		return fmt.Errorf("it leads to %s", at)
	}
	user := cfg.AuthInfos[current.AuthInfo]
	pair, err := tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData)
	if err != nil {
		return err
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: ca.Pool(), CurrentTime: now.Add(kubeconfigMargin), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
