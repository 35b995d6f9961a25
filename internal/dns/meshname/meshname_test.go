package meshname

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		OfService("shop", "web", 80):            "web_shop_svc_80",
		OfService("default", "api-server", 443): "api-server_default_svc_443",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	long := OfService(strings.Repeat("n", 63), strings.Repeat("s", 63), 65535)
	if len(long) > maxLabel || !Valid(long) || !strings.HasPrefix(long, "ssss") {
		t.Errorf("long names: %q", long)
	}
	if _, _, _, ok := Parse(long); ok {
		t.Errorf("%q is read, though it is a hash", long)
	}
	for _, tag := range []string{"backend", "web_shop_svc_80", "a.b", "x-1"} {
		if got, err := OfTag(tag); err != nil || got != tag {
			t.Errorf("tag %q: %q, %v", tag, got, err)
		}
	}
	if got, err := OfTag(strings.Repeat("t", 64)); err != nil || len(got) > maxLabel {
		t.Errorf("a long tag: %q, %v", got, err)
	}
	for _, tag := range []string{"", "Web", "a..b", ".a", "a.", "-a", "a_", "ü", "a b", "a/b", "*", "аpi", strings.Repeat("a.", 130) + "a"} {
		if got, err := OfTag(tag); err == nil {
			t.Errorf("tag %q has the name %q", tag, got)
		}
	}
}

func TestForms(t *testing.T) {
	for in, want := range map[string][]string{
		"web_shop_svc_80": {"web_shop_svc_80"},
		"web.shop.svc.80": {"web.shop.svc.80", "web_shop_svc_80"},
		"backend":         {"backend"},
		"a.b.c.d":         {"a.b.c.d"},
	} {
		if got := Forms(strings.Split(in, ".")); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", in, got, want)
		}
	}
}

// TestNamesDiffer: different ports of Services and different tags have different names,
// however long, and so have their objects. Names are built so that parts run into each
// other: dashes, digits, the word svc, and lengths about the limit.
func TestNamesDiffer(t *testing.T) {
	n := 30_000
	if os.Getenv("PROXIMA_SOAK") != "" {
		n = 1_000_000
	}
	random := rand.New(rand.NewPCG(1, 2))
	label := func() string {
		const letters = "ab1-"
		length := 1 + random.IntN(6)
		if random.IntN(3) == 0 {
			length = 20 + random.IntN(44)
		}
		b := make([]byte, length)
		for i := range b {
			b[i] = letters[random.IntN(len(letters))]
		}
		b[0], b[len(b)-1] = 's', 'v'
		if random.IntN(8) == 0 {
			return "svc"
		}
		return string(b)
	}
	tuples, hosts, objects := map[string]bool{}, map[string]string{}, map[string]string{}
	for len(tuples) < n {
		service, namespace, port, mesh := label(), label(), uint16(1+random.IntN(90)), []string{"default", "m"}[random.IntN(2)]
		tuple := fmt.Sprintf("%s|%s|%s|%d", mesh, namespace, service, port)
		if tuples[tuple] {
			continue
		}
		tuples[tuple] = true
		host := OfService(namespace, service, port)
		if !Valid(host) || strings.Contains(host, ".") {
			t.Fatalf("%s: hostname %q", tuple, host)
		}
		within := mesh + "|" + host
		if other, taken := hosts[within]; taken {
			t.Fatalf("%s and %s share the name %s", tuple, other, host)
		}
		hosts[within] = tuple
		object := ObjectName(mesh, host)
		if other, taken := objects[object]; taken || len(object) > maxLabel {
			t.Fatalf("%s and %s share the object %s", tuple, other, object)
		}
		objects[object] = tuple
		if ns, svc, p, ok := Parse(host); ok && (ns != namespace || svc != service || p != port) {
			t.Fatalf("%s: %q is read as %s/%s:%d", tuple, host, ns, svc, p)
		} else if !ok && len(service)+len(namespace)+len(fmt.Sprint(port))+6 <= maxLabel {
			t.Fatalf("%s: %q is not read", tuple, host)
		}
	}
}

// FuzzParse: what is read is what is written, and a tag's name is valid.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"web_shop_svc_80", "web.shop.svc.80", "a_b_svc_0", "a_b_svc_080", "backend", "_", "..", strings.Repeat("x", 80)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		if ns, svc, port, ok := Parse(in); ok {
			whole := svc + "_" + ns + "_svc_" + fmt.Sprint(port)
			if whole != in && strings.ReplaceAll(whole, "_", ".") != in {
				t.Errorf("%q is read as %q", in, whole)
			}
			if got := OfService(ns, svc, port); len(whole) <= maxLabel && got != whole {
				t.Errorf("%q is written as %q", in, got)
			}
		}
		if host, err := OfTag(in); err == nil && !Valid(host) {
			t.Errorf("tag %q has the name %q", in, host)
		}
		if Valid(in) {
			for _, form := range Forms(strings.Split(in, ".")) {
				if form == "" {
					t.Errorf("%q has an empty form", in)
				}
			}
		}
	})
}
