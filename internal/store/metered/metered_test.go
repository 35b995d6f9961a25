package metered_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/faulty"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/store/metered"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestContract: a measured store is a store like any other.
func TestContract(t *testing.T) {
	clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
	storetest.Run(t, func(t *testing.T) store.Store {
		s := metered.New(memory.New(memory.Options{Clock: clock}), metered.Config{})
		t.Cleanup(func() { _ = s.Close() })
		return s
	}, storetest.Options{Clock: clock})
}

// gather reads all values; histograms by their number of observations.
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "proxima_store_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch {
			case m.GetHistogram() != nil:
				values[name] = float64(m.GetHistogram().GetSampleCount())
			case m.GetCounter() != nil:
				values[name] = m.GetCounter().GetValue()
			default:
				values[name] = m.GetGauge().GetValue()
			}
		}
	}
	for name, v := range values {
		if v == 0 {
			delete(values, name)
		}
	}
	return values
}

func TestMetrics(t *testing.T) {
	inner := faulty.New(memory.New(memory.Options{}), 1, faulty.Probabilities{})
	registry := prometheus.NewPedanticRegistry()
	s := metered.New(inner, metered.Config{Registerer: registry})
	defer s.Close()
	ctx := t.Context()
	put := store.Txn{Conditions: []store.Condition{{Key: "a"}}, Ops: []store.Op{{Kind: store.Put, Key: "a", Value: []byte("abc")}}}
	if _, err := s.Commit(ctx, put); err != nil {
		t.Fatal(err)
	}
	_, conflict := s.Commit(ctx, put)
	_, invalid := s.Commit(ctx, store.Txn{Ops: []store.Op{{}}})
	_, _, _, future := s.Get(ctx, "a", 9)
	inner.Set(faulty.Probabilities{Calls: 1})
	_, medium := s.List(ctx, store.ListOptions{})
	inner.Set(faulty.Probabilities{})
	gone, cancel := context.WithCancel(ctx)
	w, err := s.Watch(gone, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Watch(ctx, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Compact(ctx, 1)); err != nil {
		t.Error(err)
	}
	_, compacted := s.Watch(ctx, "", 0)
	for i, err := range []error{conflict, invalid, future, medium, compacted} {
		if err == nil {
			t.Error(i, "no error")
		}
	}
	want := map[string]float64{
		"operation_seconds commit": 3, "operation_seconds get": 1, "operation_seconds list": 1, "operation_seconds watch": 3,
		"operation_seconds compact":              1,
		"operation_errors_total commit conflict": 1, "operation_errors_total commit invalid": 1, "operation_errors_total get future": 1,
		"operation_errors_total list medium": 1, "operation_errors_total watch compacted": 1,
		"watches": 2, "revision": 1, "compacted_revision": 1, "bytes": 3,
	}
	if diff := cmp.Diff(want, gather(t, registry)); diff != "" {
		t.Error(diff)
	}
	second.Close()
	second.Close()
	cancel()
	w.Close()
	if got := gather(t, registry)["watches"]; got != 0 {
		t.Errorf("%v watches are open", got)
	}
}

// TestInFlight: a call that hangs shows, and does not keep metrics from being read.
func TestInFlight(t *testing.T) {
	stuck := &stuck{Store: memory.New(memory.Options{}), entered: make(chan struct{}), leave: make(chan struct{})}
	registry := prometheus.NewPedanticRegistry()
	s := metered.New(stuck, metered.Config{Registerer: registry})
	defer s.Close()
	done := make(chan error)
	go func() {
		_, err := s.Commit(context.Background(), store.Txn{})
		done <- err
	}()
	<-stuck.entered
	if got := gather(t, registry)["operations_in_flight commit"]; got != 1 {
		t.Errorf("%v in flight", got)
	}
	close(stuck.leave)
	if err := <-done; err == nil {
		t.Error("no error")
	}
	got := gather(t, registry)
	if got["operations_in_flight commit"] != 0 || got["operation_errors_total commit medium"] != 1 {
		t.Errorf("afterwards %v", got)
	}
}

type stuck struct {
	store.Store
	entered, leave chan struct{}
}

func (s *stuck) Commit(context.Context, store.Txn) (store.Revision, error) {
	close(s.entered)
	<-s.leave
	return 0, fmt.Errorf("disk on fire")
}
