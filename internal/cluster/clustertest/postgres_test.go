//go:build unix

package clustertest_test

import (
	"context"
	"testing"

	"github.com/proxima-mesh/proxima/internal/cluster/clustertest"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/postgres"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

func TestPostgres(t *testing.T) {
	clustertest.Run(t, func(t *testing.T) func(*testing.T) store.Store {
		url := testkit.Postgres(t)
		return func(t *testing.T) store.Store {
			t.Helper()
			s, err := postgres.Open(context.Background(), url, postgres.Options{Shared: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
	})
}
