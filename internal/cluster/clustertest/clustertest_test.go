package clustertest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/cluster/clustertest"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	clustertest.Run(t, func(t *testing.T) func(*testing.T) store.Store {
		s := memory.New(memory.Options{})
		t.Cleanup(func() { s.Close() })
		return func(*testing.T) store.Store { return s }
	})
}
