package crd_test

import (
	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// clearListKeys empties what the schema fills in as it is a key of a list: protocols, whose
// default is what empty means to us.
func clearListKeys(obj resource.Object) {
	switch o := obj.(type) {
	case *mesh.Dataplane:
		for i := range o.Spec.Ports {
			if p := &o.Spec.Ports[i]; p.Protocol == mesh.ProtocolTCP {
				p.Protocol = ""
			}
		}
	case *mesh.ExternalService:
		for i := range o.Spec.Ports {
			if p := &o.Spec.Ports[i]; p.Protocol == mesh.ProtocolTCP {
				p.Protocol = ""
			}
		}
	}
}
