package app

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// clusterPods says from when on a control plane in a cluster follows Pods. They are most of what
// a cluster has, and change most often; plans and views need them only where a Service warms its
// endpoints up (when did a pod become ready?), or where meshes are kept apart (whose address is
// it?). Make it with newClusterPods.
type clusterPods struct {
	wanted chan struct{}
}

func newClusterPods() *clusterPods { return &clusterPods{wanted: make(chan struct{})} }

// later is catalog.Config.Later. A control plane whose meshes have certificates always has Pods: they
// are workloads that other zones call, and that have sidecars.
func (p *clusterPods) later(always bool) map[schema.GroupKind]<-chan struct{} {
	if always {
		return nil
	}
	return map[schema.GroupKind]<-chan struct{}{kind.Pod.GVK.GroupKind(): p.wanted}
}

// await until Pods are needed, or ctx ends, and return nil then. What is followed once is followed
// until the process ends.
func (p *clusterPods) await(ctx context.Context, c *catalog.Catalog) error {
	sub := c.Subscribe(catalog.Services, catalog.Meshes)
	defer sub.Close()
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			return nil // ctx has ended
		}
		if needsPods(&d) {
			close(p.wanted)
			<-ctx.Done()
			return nil
		}
	}
}

// needsPods reports whether a delta has something that Pods are needed for.
func needsPods(d *catalog.Delta) bool {
	if d.After.Meshes.Len() > 1 {
		return true
	}
	for _, c := range d.Meshes {
		if c.New != nil && !kind.MeshPassthrough(c.New) {
			return true
		}
	}
	for _, c := range d.Services {
		if kind.WarmUpOf(c.New) > 0 {
			return true
		}
	}
	return false
}
