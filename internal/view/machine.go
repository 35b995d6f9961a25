package view

import (
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
)

// MachinesOf looks up the machines of a snapshot's Dataplanes.
func MachinesOf(s *catalog.Snapshot) kube.MachineOf {
	return func(namespace, name string) string {
		d, _ := s.Dataplanes.Get(catalog.Key{Namespace: namespace, Name: name})
		return machineOf(d)
	}
}

func machineOf(d *meshv1alpha1.Dataplane) string {
	if d == nil {
		return ""
	}
	return d.Annotations[meshv1alpha1.AnnotationMachineID]
}

// storeMachines stores the machines of Dataplanes, and returns the slices that have to
// be sent again. Few slices have loopback addresses, so all of them are.
func (b *Builder) storeMachines(dataplanes []catalog.Change[*meshv1alpha1.Dataplane]) []string {
	different := false
	for _, c := range dataplanes {
		machine := machineOf(c.New)
		different = different || b.machines[c.Key] != machine
		if machine == "" {
			delete(b.machines, c.Key)
		} else {
			b.machines[c.Key] = machine
		}
	}
	if !different {
		return nil
	}
	var out []string
	for key := range b.loopback {
		b.encodeEntry(key, b.slices[key])
		out = append(out, key)
	}
	return out
}

func (b *Builder) machineOf(namespace, name string) string {
	return b.machines[catalog.Key{Namespace: namespace, Name: name}]
}
