package xds

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// TestReady: a client that is early waits for the tables, and not for ever.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := build.NewBuilder(build.Config{})
		s := New(Config{Builder: b})
		select {
		case <-s.Wanted():
			t.Error("wanted by nobody")
		default:
		}
		if err := s.ready(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("without tables: %v", err)
		}
		<-s.Wanted()
		begin := time.Now()
		go func() {
			time.Sleep(time.Second)
			b.Apply(&catalog.Delta{Before: &catalog.Snapshot{}, After: &catalog.Snapshot{}}, nil)
		}()
		if err := s.ready(t.Context()); err != nil || time.Since(begin) != time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}
