package app

import (
	"context"
	"path/filepath"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity"
)

// publishKubeconfig returns a component that writes the administrator's kubeconfig once the
// tables are filled, and closes complete then.
func publishKubeconfig(
	cfg ControlPlaneConfig, tables *catalog.Catalog, ca *identity.Authority, url string, complete chan<- struct{},
) func(context.Context) error {
	return func(ctx context.Context) error {
		if tables.WaitSynced(ctx) != nil {
			return nil // ctx has ended
		}
		if err := writeKubeconfig(filepath.Join(cfg.DataDir, "kubeconfig"), url, ca); err != nil {
			return err
		}
		close(complete)
		<-ctx.Done()
		return nil
	}
}
