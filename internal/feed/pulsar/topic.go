package pulsar

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/wire"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// clusterNamespace is the namespace of topics of kinds without namespaces. It is not the name of one of Kubernetes, as
// those have no underscore.
const clusterNamespace = "_cluster"

// topic is the objects of a kind in a namespace; in none for kinds without.
type topic struct {
	mesh, namespace string
	kind            *resource.Descriptor
}

// String is the name without its scheme.
func (t topic) String() string {
	namespace := t.namespace
	if !t.kind.Namespaced {
		namespace = clusterNamespace
	}
	return t.mesh + "/" + namespace + "/" + t.kind.GroupResource().String()
}

// problem is a refusal as a client is told.
type problem struct {
	code wire.ServerError
	text string
}

func (p *problem) Error() string { return p.text }

func refuse(code wire.ServerError, format string, args ...any) error {
	return &problem{code, fmt.Sprintf(format, args...)}
}

var partition = regexp.MustCompile(`-partition-\d+$`)

// topicOf a name, which the rights of a client are for.
func (s *Server) topicOf(ctx context.Context, name string, rights Rights) (topic, error) {
	rest, ok := strings.CutPrefix(name, "persistent://")
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 || partition.MatchString(name) {
		return topic{}, refuse(wire.ServerError_INVALID_TOPIC_NAME,
			"topic %q: want persistent://MESH/NAMESPACE/KIND, as persistent://default/default/services; topics have no partitions", name)
	}
	t := topic{mesh: parts[0], namespace: parts[1], kind: s.kinds[parts[2]]}
	if t.kind == nil {
		return topic{}, refuse(wire.ServerError_TOPIC_NOT_FOUND,
			"topic %q: there is no kind %q; want the plural name and the group, as services or dataplanes.mesh.proxima.dev", name, parts[2])
	}
	if (t.namespace == clusterNamespace) == t.kind.Namespaced {
		want := "kinds without namespaces are in persistent://default/" + clusterNamespace + "/" + parts[2]
		if t.kind.Namespaced {
			want = "objects of this kind are in namespaces"
		}
		return topic{}, refuse(wire.ServerError_TOPIC_NOT_FOUND, "topic %q: %s", name, want)
	}
	if t.namespace == clusterNamespace {
		t.namespace = ""
	}
	// Rights come first: who may not read does not learn which namespaces there are.
	if err := rights.MayRead(ctx, t.kind, t.namespace); err != nil {
		return topic{}, refuse(wire.ServerError_AUTHORIZATION_ERROR, "topic %q: %v", name, err)
	}
	mesh, ok := meshv1alpha1.DefaultMesh, true
	if t.kind.Namespaced {
		mesh, ok = s.cfg.Mesh(t.namespace)
	}
	switch {
	case !ok:
		return topic{}, refuse(wire.ServerError_TOPIC_NOT_FOUND, "topic %q: there is no namespace %q", name, t.namespace)
	case mesh != t.mesh:
		return topic{}, refuse(wire.ServerError_TOPIC_NOT_FOUND, "topic %q: it is of mesh %s: persistent://%[2]s/%s/%s", name, mesh, parts[1], parts[2])
	}
	return t, nil
}

// topicsOf a namespace of Pulsar, MESH/NAMESPACE, that a client may read.
func (s *Server) topicsOf(ctx context.Context, name string, rights Rights) ([]string, error) {
	mesh, namespace, ok := strings.Cut(name, "/")
	if !ok {
		return nil, refuse(wire.ServerError_INVALID_TOPIC_NAME, "namespace %q: want MESH/NAMESPACE", name)
	}
	var out []string
	for _, kind := range s.cfg.Kinds {
		full := "persistent://" + mesh + "/" + namespace + "/" + kind.GroupResource().String()
		if _, err := s.topicOf(ctx, full, rights); err == nil {
			out = append(out, full)
		}
	}
	return out, nil
}
