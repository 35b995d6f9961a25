package etcd_test

import (
	"testing"

	"github.com/proxima-mesh/proxima/internal/cluster/clustertest"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
)

// TestInstances runs the contract of elections, fences and lists of instances on etcd.
func TestInstances(t *testing.T) {
	clustertest.Run(t, func(t *testing.T) func(*testing.T) store.Store {
		url := stateURL(shareMember(t))
		return func(t *testing.T) store.Store { return open(t, url, etcd.Options{Shared: true}) }
	})
}

// TestSharedWaitsForTheOwner: one of several instances does not open a state that a process
// has exclusively.
func TestSharedWaitsForTheOwner(t *testing.T) {
	url := stateURL(shareMember(t))
	owner := open(t, url, etcd.Options{Exclusive: true})
	opened := make(chan error, 1)
	go func() {
		s, err := etcd.Open(t.Context(), url, etcd.Options{Shared: true})
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("opened beside its owner: %v", err)
	default:
	}
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
}
