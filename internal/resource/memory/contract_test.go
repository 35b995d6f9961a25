package memory_test

import (
	"testing"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/memory"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestContract(t *testing.T) {
	open := func(*testing.T) resource.Client { return memory.New(kind.ConfigMap, kind.Node) }
	resourcetest.Contract(t, open, resourcetest.ContractOptions{Plain: kind.ConfigMap, WithStatus: kind.Node, Namespace: "default"})
}
