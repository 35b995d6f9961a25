package userspace_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newMode(t *testing.T, opts userspace.Options) *userspace.Mode {
	t.Helper()
	m, err := userspace.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestContractIPv4(t *testing.T) {
	testContractIPv4(t, userspace.Options{})
}

// TestContractPortable: where there are no event loops, TCP is carried otherwise.
func TestContractPortable(t *testing.T) {
	testContractIPv4(t, userspace.Portable(userspace.Options{}))
}

func testContractIPv4(t *testing.T, opts userspace.Options) {
	proxytest.Run(t, proxytest.Env{
		Results:  "userspace",
		New:      func(t *testing.T) proxy.Mode { return newMode(t, opts) },
		VIP:      func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 96, byte(200 + i>>8), byte(i)}) },
		Endpoint: func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}) },
		Node:     netip.MustParseAddr("127.0.0.1"),
	})
}
