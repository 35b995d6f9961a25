package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// hostBelowMesh is the name of a mesh without its domain; false: it is none.
func hostBelowMesh(name string) (host string, ok bool) {
	host, ok = strings.CutSuffix(strings.ToLower(strings.TrimSuffix(name, ".")), "."+meshname.Domain)
	return host, ok && host != "" && !strings.Contains(host, "/")
}

// explainMeshName explains the Service that answers by a name below "mesh", and of the name
// of a port that port alone.
func (s *settings) explainMeshName(ctx context.Context, cfg *rest.Config, host, mesh string, from choose.Node) (*diag.Service, error) {
	client, err := kubeclient.New(cfg, []*resource.Descriptor{kind.VirtualIP})
	if err != nil {
		return nil, err
	}
	objects, _, err := client.List(ctx, kind.VirtualIP, resource.ListOptions{})
	if err != nil {
		return nil, explainAPI(cfg, err)
	}
	vip, err := findMeshName(objects, host, mesh)
	if err != nil {
		return nil, err
	}
	e, err := s.explainNamed(ctx, cfg, vip.Spec.Namespace, vip.Spec.Service, from)
	if err != nil {
		return nil, err
	}
	e.MeshName = &diag.MeshName{Name: vip.Spec.Hostname + "." + meshname.Domain, Mesh: vip.Spec.Mesh, Addresses: vip.Spec.Addresses}
	if vip.Spec.UnusedSince != nil {
		e.MeshName.UnusedSince = &vip.Spec.UnusedSince.Time
	}
	if vip.Spec.Port != 0 {
		e.Ports = slices.DeleteFunc(e.Ports, func(p diag.Port) bool { return int32(p.Port) != vip.Spec.Port })
	}
	return e, nil
}

// findMeshName finds a name in one mesh, or in the only one that has it.
func findMeshName(objects []resource.Object, host, mesh string) (*meshv1alpha1.VirtualIP, error) {
	hosts := meshname.Forms(strings.Split(host, "."))
	if tag, err := meshname.OfTag(host); err == nil {
		hosts = append(hosts, tag) // a long tag ends in a hash
	}
	for _, h := range hosts {
		var found []*meshv1alpha1.VirtualIP
		var meshes []string
		for _, obj := range objects {
			vip := obj.(*meshv1alpha1.VirtualIP)
			if vip.Spec.Hostname == h && (mesh == "" || vip.Spec.Mesh == mesh) {
				found, meshes = append(found, vip), append(meshes, vip.Spec.Mesh)
			}
		}
		switch {
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			slices.Sort(meshes)
			return nil, usagef("%s.%s is a name of the meshes %s: choose one with --mesh", h, meshname.Domain, strings.Join(meshes, ", "))
		}
	}
	of := ""
	if mesh != "" {
		of = " in mesh " + mesh
	}
	return nil, &problem.Error{
		Code: problem.ObjectNotFound,
		Err:  fmt.Errorf("there is no name %s.%s%s", host, meshname.Domain, of),
		Hint: "\"proxima get virtualips\" lists the names; those of Services have the form web_shop_svc_8080.mesh, those of service tags are the tag",
	}
}
