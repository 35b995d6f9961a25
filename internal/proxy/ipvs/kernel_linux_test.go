package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

func TestKernelHasSchedulers(t *testing.T) {
	needIPVS(t, Default)
	for _, s := range Schedulers() {
		if err := Check(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	missing := new(MissingError)
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := check(c, []string{"nosuch"}); !errors.As(err, &missing) || !slices.Equal(missing.Modules, []string{"ip_vs_nosuch"}) {
		t.Errorf("a scheduler that the kernel lacks: %v", err)
	}
}

// TestKernelIsLikeFake: the same operations have the same outcome in the kernel and in memory.
func TestKernelIsLikeFake(t *testing.T) {
	needIPVS(t, Default)
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := cleanServices(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		k, err := Open()
		if err == nil {
			err = errors.Join(cleanServices(k), k.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	keys := []Key{{proxy.IPv4, nftables.ListMark(5, false)}, {proxy.IPv6, nftables.ListMark(5, true)}}
	for _, key := range keys {
		a, b := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:8080")
		if key.Family == proxy.IPv6 {
			a, b = netip.MustParseAddrPort("[2001:db8::1]:80"), netip.MustParseAddrPort("[2001:db8::2]:8080")
		}
		fake := &Fake{}
		for i, op := range []func(Kernel) error{
			func(k Kernel) error { return k.AddDestination(key, Destination{Addr: a, Weight: 1}) },
			func(k Kernel) error { return k.SetService(Service{key, "rr"}) },
			func(k Kernel) error { return k.DeleteService(key) },
			func(k Kernel) error { return k.AddService(Service{key, "nosuch"}) },
			func(k Kernel) error { return k.AddService(Service{key, "rr"}) },
			func(k Kernel) error { return k.AddService(Service{key, "rr"}) },
			func(k Kernel) error { return k.AddDestination(key, Destination{Addr: a, Weight: 1}) },
			func(k Kernel) error { return k.AddDestination(key, Destination{Addr: a, Weight: 1}) },
			func(k Kernel) error { return k.SetDestination(key, Destination{Addr: b, Weight: 7}) },
			func(k Kernel) error { return k.DeleteDestination(key, b) },
			func(k Kernel) error { return k.AddDestination(key, Destination{Addr: b, Weight: 0}) },
			func(k Kernel) error { return k.SetDestination(key, Destination{Addr: b, Weight: 1024}) },
			func(k Kernel) error { return k.SetService(Service{key, "wrr"}) },
			func(k Kernel) error { return k.DeleteDestination(key, a) },
			func(k Kernel) error { return k.SetTimeouts(Timeouts{TCP: 900, UDP: 300}) },
		} {
			real, memory := op(c), op(fake)
			var one, other unix.Errno
			if (real == nil) != (memory == nil) || errors.As(real, &one) != errors.As(memory, &other) || one != other {
				t.Errorf("%s, operation %d: the kernel says %v, the fake %v", key.Family, i, real, memory)
			}
			if have, want := stateOf(c, key), stateOf(fake, key); have != want {
				t.Errorf("%s, after operation %d the kernel has %s, the fake %s", key.Family, i, have, want)
			}
		}
	}
}

// stateOf a service, and the answer to a question about its destinations.
func stateOf(k Kernel, key Key) string {
	services, err := k.Services()
	services = slices.DeleteFunc(services, func(s Service) bool { return s.Key != key })
	dests, _ := k.Destinations(key)
	slices.SortFunc(dests, func(a, b Destination) int { return a.Addr.Compare(b.Addr) })
	return fmt.Sprint(services, dests, err)
}
