package choose_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// Few distinct values, so that duplicates, shared nodes and hints are common.
var (
	genAddr = rapid.Custom(func(t *rapid.T) netip.AddrPort {
		n := rapid.ByteRange(1, 8).Draw(t, "host")
		addr := netip.AddrFrom4([4]byte{10, 0, 0, n})
		if rapid.IntRange(0, 3).Draw(t, "family") == 0 {
			addr = netip.AddrFrom16([16]byte{0: 0xfd, 15: n})
		}
		return netip.AddrPortFrom(addr, 8080)
	})
	genHints    = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"here", "x", "y"}), 0, 2, rapid.ID[string])
	genZones    = rapid.SliceOfNDistinct(rapid.SampledFrom([]locality.Zone{"a", "b", "c"}), 0, 2, rapid.ID[locality.Zone])
	genEndpoint = rapid.Custom(func(t *rapid.T) choose.Endpoint {
		return choose.Endpoint{
			Addr:    genAddr.Draw(t, "addr"),
			Node:    rapid.SampledFrom([]string{"here", "x", ""}).Draw(t, "node"),
			Ready:   rapid.Bool().Draw(t, "ready"),
			Serving: rapid.Bool().Draw(t, "serving"), Terminating: rapid.Bool().Draw(t, "terminating"),
			HintNodes: genHints.Draw(t, "nodes"), HintZones: genZones.Draw(t, "zones"),
			Weight: rapid.Uint32Range(0, 3).Draw(t, "weight"),
		}
	})
	genService = rapid.Custom(func(t *rapid.T) *proxy.Service {
		return &proxy.Service{InternalLocal: rapid.Bool().Draw(t, "internalLocal"), ExternalLocal: rapid.Bool().Draw(t, "externalLocal")}
	})
)

func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		svc := genService.Draw(t, "service")
		port := web
		port.NodePort = rapid.SampledFrom([]uint16{0, 30080}).Draw(t, "nodePort")
		all := rapid.SliceOfN(genEndpoint, 0, 12).Draw(t, "endpoints")
		node := choose.Node{
			Name: rapid.SampledFrom([]string{"here", ""}).Draw(t, "name"),
			Zone: rapid.SampledFrom([]locality.Zone{"a", ""}).Draw(t, "zone"),
		}
		if rapid.Bool().Draw(t, "suspects") {
			node.Suspects = map[string]bool{"here": true, "x": true}
		}
		before := slices.Clone(all)
		got := choose.Endpoints(svc, port, all, node)
		if !reflect.DeepEqual(all, before) {
			t.Fatal("the argument was changed")
		}
		again := choose.Endpoints(svc, port, rapid.Permutation(all).Draw(t, "order"), node)
		if !got.Equal(again) {
			t.Fatalf("depends on the order: %+v, then %+v", got, again)
		}
		doubled := choose.Endpoints(svc, port, append(slices.Clone(all), all...), node)
		if !got.Equal(doubled) {
			t.Fatalf("duplicates matter: %+v, doubled %+v", got, doubled)
		}
		if msg := invalid(got, all, node); msg != "" {
			t.Fatalf("%s: %+v", msg, got)
		}
	})
}

// invalid says what is wrong with any choice among these endpoints.
func invalid(s *proxy.PortState, all []choose.Endpoint, node choose.Node) string {
	reachable := s.Port.NodePort != 0
	for _, is4 := range []bool{true, false} {
		c := &s.IPv6
		if is4 {
			c = &s.IPv4
		}
		// What is left of each address once non-terminating has won.
		winners := map[netip.AddrPort][]choose.Endpoint{}
		for _, e := range all {
			if e.Addr.Addr().Is4() == is4 {
				winners[e.Addr] = append(winners[e.Addr], e)
			}
		}
		ready, draining := 0, 0
		for _, same := range winners {
			if slices.ContainsFunc(same, func(e choose.Endpoint) bool { return !e.Terminating }) {
				same = slices.DeleteFunc(slices.Clone(same), func(e choose.Endpoint) bool { return e.Terminating })
			}
			switch {
			case slices.ContainsFunc(same, func(e choose.Endpoint) bool { return e.Ready }):
				ready++
			case slices.ContainsFunc(same, func(e choose.Endpoint) bool { return e.Serving && e.Terminating }):
				draining++
			}
		}
		exists := ready+draining > 0
		clusterUsed := !s.Service.InternalLocal || reachable
		switch {
		case clusterUsed && exists && len(c.Cluster) == 0:
			return "cluster list is empty though an endpoint exists"
		case clusterUsed && !exists && c.NoCluster != proxy.Reject:
			return "nothing exists, yet the cluster list is not rejected"
		case ready == 0 && clusterUsed && node.Suspects == nil && len(c.Cluster) != draining:
			return "the fallback is not all that are draining"
		case !clusterUsed && len(c.Cluster) > 0:
			return "a cluster list that no policy asks for"
		}
		localUsed := s.Service.InternalLocal || (s.Service.ExternalLocal && reachable)
		switch {
		case !localUsed && len(c.Local) > 0:
			return "a local list that no policy asks for"
		case localUsed && len(c.Local) == 0 && exists && c.NoLocal != proxy.Drop:
			return "endpoints exist elsewhere, yet the local list is not dropped"
		case localUsed && len(c.Local) == 0 && !exists && c.NoLocal != proxy.Reject:
			return "nothing exists, yet the local list is not rejected"
		}
		for _, list := range [][]proxy.Target{c.Cluster, c.Local} {
			if !slices.IsSortedFunc(list, func(a, b proxy.Target) int { return a.Addr.Compare(b.Addr) }) {
				return "list is not sorted"
			}
			for i, t := range list {
				if t.Weight == 0 || t.Addr.Addr().Is4() != is4 || winners[t.Addr] == nil || (i > 0 && list[i-1].Addr == t.Addr) {
					return fmt.Sprintf("bad target %v", t)
				}
			}
		}
		if slices.ContainsFunc(c.Local, func(t proxy.Target) bool { return !t.Local || node.Name == "" }) {
			return "the local list has a target of another node"
		}
		if (len(c.Cluster) > 0 && c.NoCluster != proxy.Accept) || (len(c.Local) > 0 && c.NoLocal != proxy.Accept) {
			return "a verdict for a list that is not empty"
		}
	}
	return ""
}

// FuzzEndpoints reads six bytes per endpoint.
func FuzzEndpoints(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, byte(3))
	f.Add([]byte{}, byte(0))
	f.Fuzz(func(t *testing.T, data []byte, flags byte) {
		names := []string{"here", "a", "", "x"}
		var all []choose.Endpoint
		for ; len(data) >= 6 && len(all) < 64; data = data[6:] {
			b := data[1]
			e := choose.Endpoint{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, data[0]}), 1+uint16(data[5]&1)),
				Node: names[b&3], Ready: b&4 != 0, Serving: b&8 != 0, Terminating: b&16 != 0,
				Weight: binary.BigEndian.Uint32([]byte{data[2], 0, 0, data[3]}),
			}
			if data[4]&1 != 0 {
				e.HintZones = locality.Zones(names[data[4]>>1&3:]...)
			}
			if data[4]&16 != 0 {
				e.HintNodes = names[data[4]>>5&3:]
			}
			if data[5]&128 != 0 {
				e.Addr = netip.AddrPortFrom(netip.AddrFrom16([16]byte{15: data[0]}), e.Addr.Port())
			}
			all = append(all, e)
		}
		svc := &proxy.Service{InternalLocal: flags&1 != 0, ExternalLocal: flags&2 != 0}
		port := web
		port.NodePort = uint16(flags & 4)
		node := choose.Node{Name: names[flags>>4&3], Zone: locality.Zone(names[flags>>6&3])}
		got := choose.Endpoints(svc, port, all, node)
		if msg := invalid(got, all, node); msg != "" {
			t.Errorf("%s: %+v", msg, got)
		}
		slices.Reverse(all)
		if !got.Equal(choose.Endpoints(svc, port, all, node)) {
			t.Error("depends on the order")
		}
	})
}
