package app

import (
	"fmt"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/cached"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/metered"
)

// managers are the clients that controllers read and write through.
type managers struct {
	// direct is the API itself.
	direct *apiserver.Client
	// all kinds, measured. Reads are as new as the store.
	all resource.Client
	// remembered is all, but for the kinds that it reads from memory. It is for
	// controllers that write on condition of what they read; see package cached.
	remembered resource.Client
}

// newManagers puts together what each kind is read and written through. This is
// the place to give a kind another client, or to wrap them all.
func (cp *controlPlane) newManagers(parts *parts) (*managers, error) {
	m := &managers{direct: cp.api.Client("system:proxima:controllers")}
	meter := metered.New()
	m.all = resource.Wrap(m.direct, meter.Wrap)
	if cp.cfg.Wrap != nil {
		m.all = resource.Wrap(m.all, cp.cfg.Wrap)
	}
	// Few objects, and looked at for each heartbeat or deletion.
	kinds := []*resource.Descriptor{kind.Namespace, kind.Node, kind.Dataplane}
	memory := cached.New(cached.Config{Client: m.all, Kinds: kinds, Logger: cp.log.With("part", "cached reads")})
	var overrides []resource.Override
	for _, k := range kinds {
		overrides = append(overrides, resource.Override{Kind: k, Client: memory})
	}
	remembered, err := resource.NewRouter(m.all, overrides...)
	if err != nil {
		return nil, fmt.Errorf("managers: %w", err)
	}
	m.remembered = remembered
	cp.metrics.MustRegister(meter, memory)
	parts.run("cached reads", memory.Run)
	return m, nil
}
