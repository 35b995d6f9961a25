package dns

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// MeshDomain is the domain of names of meshes, without a dot at its end.
const MeshDomain = meshname.Domain

// meshName answers for a name below "mesh": with the addresses that it has in the mesh of the
// client. Names of other meshes do not exist for it.
func (d domain) meshName(q dns.Question, labels []string) answer {
	a := answer{rcode: dns.RcodeNameError}
	if !d.client.IsValid() { // nobody asks: what is answered to all is looked for
		a.varies = true
		return a
	}
	switch h := d.meshHost(labels); {
	case h != nil:
		a = addresses(q, h)
	case slices.Equal(labels, []string{"ns", "dns"}):
		a = d.nameserver(q, labels[:1])
	case aboveName(labels):
		a = answer{}
	}
	a.varies = true
	return a
}

func (d domain) meshHost(labels []string) *records.Host {
	mesh := d.config.Mesh(d.client)
	for _, form := range meshname.Forms(labels) {
		if h := d.config.Zone.Virtual(proxy.ServiceName{Namespace: mesh, Name: form + "." + MeshDomain}); h != nil {
			return h
		}
	}
	return nil
}

// aboveName reports whether there may be names below: those of Services written with dots.
// A resolver that asks label by label (RFC 9156) would end at a no.
func aboveName(labels []string) bool {
	n := len(labels)
	if n == 0 || n > 3 {
		return false
	}
	if _, err := strconv.ParseUint(labels[n-1], 10, 16); err != nil {
		return false
	}
	return n == 1 || labels[n-2] == "svc"
}

// reverseMesh answers for the address of a name of a mesh.
func (s *Server) reverseMesh(q dns.Question, name proxy.ServiceName, client netip.Addr) answer {
	a := answer{varies: true}
	switch {
	case !client.IsValid(), s.config.Mesh(client) != name.Namespace:
		a.rcode = dns.RcodeNameError
	case q.Qtype == dns.TypePTR:
		a.answer = []dns.RR{&dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: strings.TrimSuffix(name.Name, ".") + "."}}
	}
	return a
}
