package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// notMore fails if some bounds allow what others do not.
func notMore(t *testing.T, way string, got, want Bounds) {
	t.Helper()
	both := []Bounds{got, want}
	namespaces := []string{"", "default", "other", EveryNamespace}
	labels := []map[string]string{nil, {}, {"": ""}}
	every := map[string]string{} // the first value of each key
	var addresses []netip.Addr
	for _, b := range both {
		namespaces = append(namespaces, b.Namespaces...)
		for key, values := range b.Labels {
			for _, value := range append(slices.Clone(values), "", "other") {
				labels = append(labels, map[string]string{key: value})
				if _, ok := every[key]; !ok {
					every[key] = value
				}
			}
		}
		for _, p := range b.Addresses {
			first := p.Masked().Addr()
			addresses = append(addresses, p.Addr(), first, first.Prev(), first.Next(), first.Unmap())
		}
	}
	for _, n := range namespaces {
		if got.AllowsNamespace(n) && !want.AllowsNamespace(n) {
			t.Errorf("%s: namespace %q is allowed by %+v, not by %+v", way, n, got, want)
		}
	}
	for _, l := range append(labels, every) {
		if got.CheckLabels(l) == nil && want.CheckLabels(l) != nil {
			t.Errorf("%s: labels %q are allowed by %+v, not by %+v", way, l, got, want)
		}
	}
	// No ranges at all mean the machine's own addresses: that is another right.
	if (len(got.Addresses) == 0) != (len(want.Addresses) == 0) {
		t.Errorf("%s: %d ranges, there were %d", way, len(got.Addresses), len(want.Addresses))
	}
	for _, a := range addresses {
		if a.IsValid() && got.AllowsAddress(a) && !want.AllowsAddress(a) {
			t.Errorf("%s: address %s is allowed by %+v, not by %+v", way, a, got, want)
		}
	}
}

// Whatever names a certificate has, and whatever extra a user has: they are read
// without a panic, and what was read is the same after it was written once more.
func FuzzReadBounds(f *testing.F) {
	f.Add("proxima:token:abc\nproxima:namespace:a\nproxima:label:app=web\nproxima:addresses:10.0.3.0/24\nspiffe://x/y")
	f.Add("proxima:label:app\nproxima:label:=\nproxima:label:\nproxima:addresses:x\nproxima:namespace:\nproxima:\nproxima")
	f.Add("PROXIMA:namespace:*?a=b#c\nproxima:label:app=a=b\nproxima:addresses:::ffff:10.0.0.0/104\nproxima://namespace:a")
	f.Fuzz(func(t *testing.T, text string) {
		var names []*url.URL
		extra := map[string][]string{}
		for line := range strings.SplitSeq(text, "\n") {
			if u, err := url.Parse(line); err == nil {
				names = append(names, u)
			}
			for _, key := range []string{ExtraNamespaces, ExtraLabels, ExtraAddresses} {
				extra[key] = append(extra[key], line)
			}
		}
		var first, second Subject
		first.readURIs(names)
		second.readURIs(first.uris())
		if diff := cmp.Diff(first, second, comparePrefixes); diff != "" {
			t.Errorf("names of a certificate (-first +second):\n%s", diff)
		}
		notMore(t, "names of a certificate", second.Bounds, first.Bounds)
		read := BoundsOf(extra)
		again := BoundsOf(read.Extra())
		if diff := cmp.Diff(read, again, comparePrefixes); diff != "" {
			t.Errorf("extra of a user (-first +second):\n%s", diff)
		}
		notMore(t, "extra of a user", again, read)
	})
}

// certified is what is left of bounds in a certificate.
func certified(t *testing.T, authority *Authority, key *ecdsa.PrivateKey, b Bounds) Bounds {
	t.Helper()
	subject, err := SubjectFor(Node, "n1")
	if err != nil {
		t.Fatal(err)
	}
	subject.Bounds = b
	der, err := authority.signClient(subject, time.Hour, key.Public())
	if err != nil {
		t.Fatalf("bounds %+v cannot be in a certificate: %v", b, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("bounds %+v make a certificate that can't be read: %v", b, err)
	}
	return SubjectOf(cert).Bounds
}

// Bounds that a user may give to a token, by the flags or by the API, are the same
// in the certificate and in the user of a request: never wider.
func FuzzBounds(f *testing.F) {
	f.Add("a,b", "app=web,app=api,topology.kubernetes.io/zone=z", "10.0.3.0/24,fd00::/64", []byte(`{"namespaces":["*"]}`))
	f.Add("*", "app=", "10.0.0.1,::ffff:10.0.0.1", []byte(`{"labels":{"app":["web","web"],"b":[""]},"addresses":["10.0.3.0/24"]}`))
	f.Add("", "app", "::ffff:10.0.0.0/104", []byte(`{"labels":{"app":[]},"addresses":[""]}`))
	f.Add("default", "", "0.0.0.0/0,::/0", []byte(`{"labels":{"":[]},"addresses":["fe80::1%eth0/64"]}`))
	f.Add("", "", "", []byte(`{"labels":{"app":[]}}`))
	authority, err := Open(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	list := func(text string) []string {
		if text == "" {
			return nil
		}
		return strings.Split(text, ",")
	}
	f.Fuzz(func(t *testing.T, namespaces, labels, addresses string, body []byte) {
		all := map[string]Bounds{}
		byFlags := Bounds{Namespaces: list(namespaces)}
		var errLabels, errAddresses error
		byFlags.Labels, errLabels = ParseLabels(list(labels))
		byFlags.Addresses, errAddresses = ParseAddresses(list(addresses))
		if errLabels == nil && errAddresses == nil {
			all["flags"] = byFlags
		}
		var byBody Bounds
		if json.Unmarshal(body, &byBody) == nil {
			all["body"] = byBody
		}
		for from, b := range all {
			if CheckBounds(Node, b) != nil {
				continue
			}
			text, err := json.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			var record Bounds
			if err := json.Unmarshal(text, &record); err != nil {
				t.Fatal(err)
			}
			for way, got := range map[string]Bounds{
				"the record": record, "the extra": BoundsOf(b.Extra()), "the certificate": certified(t, authority, key, b),
			} {
				way = way + " of bounds from the " + from
				notMore(t, way, got, b)
				notMore(t, way+", the other way round", b, got)
			}
		}
	})
}
