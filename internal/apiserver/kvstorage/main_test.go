package kvstorage_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Upstream's checks wait more than they compute, but in fixed windows: more of
	// them at a time fail on a busy machine.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	// The watch cache leaves a timer of 3 s behind after each wait for freshness.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(
		"k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"))
}
