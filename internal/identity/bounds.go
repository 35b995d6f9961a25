package identity

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// EveryNamespace in Bounds.Namespaces stands for all of them.
const EveryNamespace = "*"

// defaultNamespace is where a credential registers workloads that names no
// namespace.
const defaultNamespace = "default"

// maxBounds is the most entries of one kind in Bounds: they travel in every TLS
// handshake of the certificate.
const maxBounds = 32

// Bounds limit which workloads a credential of a node or a workload registers.
// The zero value allows namespace "default", any labels, and the addresses of
// the node. Never changed once a credential has it.
type Bounds struct {
	// Namespaces that workloads may be in; EveryNamespace alone: all. Empty:
	// namespace "default". Of a workload's credential it is empty: its name
	// decides.
	Namespaces []string `json:"namespaces,omitempty"`
	// Labels that a workload must have: each key with one of its values. Keys
	// that are not named are not restricted.
	Labels map[string][]string `json:"labels,omitempty"`
	// Addresses are the ranges that addresses of workloads must lie in. Empty:
	// the addresses of the machine.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// Everywhere reports whether workloads may be registered in every namespace.
func (b Bounds) Everywhere() bool { return slices.Contains(b.Namespaces, EveryNamespace) }

// AllowsNamespace reports whether a node's credential registers workloads there.
func (b Bounds) AllowsNamespace(namespace string) bool {
	if len(b.Namespaces) == 0 {
		return namespace == defaultNamespace
	}
	return b.Everywhere() || slices.Contains(b.Namespaces, namespace)
}

// CheckLabels returns what is wrong with a workload's labels; nil: nothing.
func (b Bounds) CheckLabels(labels map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(b.Labels)) {
		if value, ok := labels[key]; ok && slices.Contains(b.Labels[key], value) {
			continue
		}
		if len(b.Labels[key]) == 0 {
			return fmt.Errorf("label %s is bound to no value: make a new token", key)
		}
		return fmt.Errorf("label %s must be %s", key, strings.Join(b.Labels[key], " or "))
	}
	return nil
}

// AllowsAddress reports whether an address is in the ranges; false without any.
func (b Bounds) AllowsAddress(a netip.Addr) bool {
	return slices.ContainsFunc(b.Addresses, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// ParseLabels reads a list of KEY=VALUE; several values of one key are
// alternatives.
func ParseLabels(texts []string) (map[string][]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	out := map[string][]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(strings.TrimSpace(text), "=")
		if !ok {
			return nil, fmt.Errorf("label %q: want KEY=VALUE", text)
		}
		if !slices.Contains(out[key], value) {
			out[key] = append(out[key], value)
		}
	}
	for _, values := range out {
		slices.Sort(values)
	}
	return out, nil
}

// ParseAddresses reads ranges, and single addresses, which are ranges of one.
func ParseAddresses(texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if a, one := netip.ParseAddr(text); one == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() && p.Bits() < mappedBits {
			return nil, fmt.Errorf("%q is not a range such as 10.0.3.0/24", text)
		}
		if p.Addr().Is4In6() {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// mappedBits is the length of ::ffff:0:0/96, where IPv6 has IPv4 addresses (RFC
// 4291 section 2.5.5.2).
const mappedBits = 96

// LabelTexts is the inverse of ParseLabels, sorted by key. A key without a
// value, which allows no workload, stands alone.
func (b Bounds) LabelTexts() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(b.Labels)) {
		if len(b.Labels[key]) == 0 {
			out = append(out, key)
		}
		for _, value := range b.Labels[key] {
			out = append(out, key+"="+value)
		}
	}
	return out
}

// CheckBounds returns what is wrong with the bounds of a token of a kind; nil:
// nothing.
func CheckBounds(kind Kind, b Bounds) error {
	switch {
	case kind != Node && kind != Workload:
		if len(b.Namespaces)+len(b.Labels)+len(b.Addresses) > 0 {
			return fmt.Errorf("namespaces, labels and addresses bound tokens of kind node and workload, not %s", kind)
		}
		return nil
	case kind == Workload && len(b.Namespaces) > 0:
		return errors.New("the namespace of a workload token is that of its name, NAMESPACE/SERVICEACCOUNT: leave namespaces out")
	case b.Everywhere() && len(b.Namespaces) > 1:
		return fmt.Errorf("namespaces: %s stands for all of them, name no other", EveryNamespace)
	case len(b.Namespaces) > maxBounds || len(b.LabelTexts()) > maxBounds || len(b.Addresses) > maxBounds:
		return fmt.Errorf("at most %d namespaces, %d labels and %d address ranges", maxBounds, maxBounds, maxBounds)
	}
	for _, n := range b.Namespaces {
		if errs := validation.IsDNS1123Label(n); len(errs) > 0 && n != EveryNamespace {
			return fmt.Errorf("namespace %q: %s", n, strings.Join(errs, "; "))
		}
	}
	for key, values := range b.Labels {
		if len(values) == 0 {
			return fmt.Errorf("label %q: no value is named", key)
		}
		for _, value := range values {
			if errs := metav1validation.ValidateLabels(map[string]string{key: value}, field.NewPath("labels")); len(errs) > 0 {
				return errs.ToAggregate()
			}
		}
	}
	for _, p := range b.Addresses {
		if !p.IsValid() || p.Masked() != p || p.Addr().Is4In6() {
			return fmt.Errorf("addresses: %q is not a range such as 10.0.3.0/24", p)
		}
	}
	return nil
}

// The URI names in a certificate that carry bounds, after the scheme.
const (
	uriScheme    = "proxima"
	uriToken     = "token:"
	uriNamespace = "namespace:"
	uriLabel     = "label:"
	uriAddresses = "addresses:"
)

// uris are the names of a certificate that encode the token it was issued for, and
// its bounds.
func (s Subject) uris() []*url.URL {
	var out []*url.URL
	add := func(prefix, value string) {
		out = append(out, &url.URL{Scheme: uriScheme, Opaque: prefix + value})
	}
	if s.TokenID != "" {
		add(uriToken, s.TokenID)
	}
	for _, n := range s.Bounds.Namespaces {
		add(uriNamespace, n)
	}
	for _, l := range s.Bounds.LabelTexts() {
		add(uriLabel, l)
	}
	for _, p := range s.Bounds.Addresses {
		add(uriAddresses, p.String())
	}
	return out
}

// readURIs is the inverse of uris. Names with other prefixes are ignored. A bound that
// cannot be parsed allows nothing.
func (s *Subject) readURIs(uris []*url.URL) {
	for _, u := range uris {
		text, ours := strings.CutPrefix(u.String(), uriScheme+":")
		if !ours {
			continue
		}
		kind, value, _ := strings.Cut(text, ":")
		switch kind + ":" {
		case uriToken:
			s.TokenID = value
		case uriNamespace:
			s.Bounds.Namespaces = append(s.Bounds.Namespaces, value)
		case uriLabel:
			s.Bounds.addLabel(value)
		case uriAddresses:
			s.Bounds.addAddresses(value)
		}
	}
}

// addLabel adds a value to its key; the key alone, which allows no workload, if
// there is no value.
func (b *Bounds) addLabel(text string) {
	key, value, ok := strings.Cut(text, "=")
	if b.Labels == nil {
		b.Labels = map[string][]string{}
	}
	values := b.Labels[key]
	if ok {
		values = append(values, value)
	}
	b.Labels[key] = values
}

// addAddresses adds a range; the zero prefix, which contains nothing, if it can't
// be read.
func (b *Bounds) addAddresses(text string) {
	p, _ := netip.ParsePrefix(text)
	b.Addresses = append(b.Addresses, p)
}

// The extra keys of an authenticated user that carry bounds (user.Info).
const (
	ExtraNamespaces = "mesh.proxima.dev/namespaces"
	ExtraLabels     = "mesh.proxima.dev/labels"
	ExtraAddresses  = "mesh.proxima.dev/addresses"
)

// Extra is how bounds travel with an authenticated user; the caller owns it.
func (b Bounds) Extra() map[string][]string {
	out := map[string][]string{}
	if len(b.Namespaces) > 0 {
		out[ExtraNamespaces] = slices.Clone(b.Namespaces)
	}
	if len(b.Labels) > 0 {
		out[ExtraLabels] = b.LabelTexts()
	}
	for _, p := range b.Addresses {
		out[ExtraAddresses] = append(out[ExtraAddresses], p.String())
	}
	return out
}

// BoundsOf is the inverse of Extra. A value that cannot be parsed allows nothing.
func BoundsOf(extra map[string][]string) Bounds {
	b := Bounds{Namespaces: slices.Clone(extra[ExtraNamespaces])}
	for _, text := range extra[ExtraLabels] {
		b.addLabel(text)
	}
	for _, text := range extra[ExtraAddresses] {
		b.addAddresses(text)
	}
	return b
}
