package crd_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind/kindtest"
	"github.com/proxima-mesh/proxima/tools/crds/crd"
)

// TestValidIsAccepted, as it was written and as our clients write it.
func TestValidIsAccepted(t *testing.T) {
	examples := kindtest.Valid()
	for kind, s := range servers(t) {
		t.Run(kind, func(t *testing.T) {
			for _, err := range s.admit(decode(t, examples[kind]), nil) {
				t.Error(err)
			}
			obj := s.d.New()
			if err := yaml.UnmarshalStrict([]byte(examples[kind]), obj); err != nil {
				t.Fatal(err)
			}
			if s.d.Default != nil {
				s.d.Default(obj)
			}
			for _, err := range s.admit(copyOf(t, obj), nil) {
				t.Errorf("with defaults: %v", err)
			}
		})
	}
}

// TestMistakesAreRefused: what Validate refuses the definition refuses, but for what
// crd.Beyond lists, and of that nothing else.
func TestMistakesAreRefused(t *testing.T) {
	examples := kindtest.Valid()
	all := servers(t)
	for _, m := range kindtest.Mistakes() {
		s, ok := all[m.Kind]
		if !ok {
			continue // a kind of Kubernetes
		}
		name := m.Want
		if len(name) > 80 {
			name = name[:80]
		}
		t.Run(m.Kind+"/"+name, func(t *testing.T) {
			text, err := kindtest.Overlay(examples[m.Kind], m.With)
			if err != nil {
				t.Fatal(err)
			}
			errs := s.admit(decode(t, text), nil)
			gap := beyond(m)
			switch {
			case len(errs) == 0 && gap == nil:
				t.Errorf("accepted, and no gap is known: Validate says %s", m.Want)
			case len(errs) > 0 && gap != nil:
				t.Errorf("refused (%v), though it is listed as a gap: %+v", errs.ToAggregate(), *gap)
			case len(errs) > 0 && !about(errs, m):
				t.Errorf("refused for another reason: %v; Validate says %s", errs.ToAggregate(), m.Want)
			}
		})
	}
}

// about reports whether an error is of the field of a mistake, of what has it, or of its parts.
func about(errs field.ErrorList, m kindtest.Mistake) bool {
	want, _, _ := strings.Cut(m.Want, ": ")
	want = index.ReplaceAllString(want, "") + "."
	return slices.ContainsFunc(errs, func(e *field.Error) bool {
		got := index.ReplaceAllString(e.Field, "") + "."
		return strings.HasPrefix(want, got) || strings.HasPrefix(got, want) || e.Field == "<nil>" || e.Field == ""
	})
}

var index = regexp.MustCompile(`\[[^]]*\]`)

// beyond finds the gap that a mistake is in; nil: none.
func beyond(m kindtest.Mistake) *crd.Gap {
	path, _, _ := strings.Cut(m.Want, ": ")
	path = index.ReplaceAllString(path, "")
	for _, g := range crd.Beyond() {
		if g.Kind == m.Kind && (path == g.Field || strings.HasPrefix(path, g.Field+".")) && !said(m) {
			return &g
		}
	}
	return nil
}

// said reports mistakes in a field with a gap that the schema catches all the same.
func said(m kindtest.Mistake) bool {
	for _, want := range []string{
		"IPAddressPool spec.addresses: Required", "is not the address of a network", "must not be unspecified, loopback",
		"TopologyHeuristic spec.zones: Invalid value: is needed", "TopologyHeuristic spec.fallback",
		"ZoneShift spec.until: Required", "spec.exportedLabels: Invalid value: a valid label must be",
		"spec.pairs[0]", "spec.pairs[1].",
		"spec.targetRefs[0].kind: Unsupported", "spec.targetRefs[0].group: Unsupported", "spec.targetRefs[0].name: Invalid",
		"spec.targetRefs[0].sectionName: Forbidden: a Mesh", "value: Invalid value: must begin with /", "when `op` is 'Remove'",
		"spec.proxy.probes[0].path: Invalid", "spec.proxy.outbound[0].address",
	} {
		if strings.Contains(m.Kind+" "+m.Want, want) {
			return true
		}
	}
	return false
}

// TestDefaults: the defaults of the schema are those of the descriptors, but for what
// crd.Defaults lists: our own change nothing else.
func TestDefaults(t *testing.T) {
	examples := kindtest.Valid()
	for kind, s := range servers(t) {
		if s.d.Default == nil {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			obj := decode(t, examples[kind])
			if errs := s.admit(obj, nil); len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			stored, ours := s.typed(t, obj), s.typed(t, decode(t, examples[kind]))
			s.d.Default(stored)
			s.d.Default(ours)
			clearListKeys(stored)
			clearListKeys(ours)
			if diff := cmp.Diff(ours, stored); diff != "" {
				t.Errorf("stored by the API server and read by us (-ours +stored):\n%s", diff)
			}
		})
	}
}

func (s *server) typed(t *testing.T, obj map[string]any) resource.Object {
	t.Helper()
	text, err := yaml.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	out := s.d.New()
	if err := yaml.UnmarshalStrict(text, out); err != nil {
		t.Fatal(err)
	}
	out.GetObjectKind().SetGroupVersionKind(s.d.GVK)
	return out
}

// TestRoundTrip: an API server that stores a random object of ours loses nothing of it.
func TestRoundTrip(t *testing.T) {
	const rounds = 200
	for kind, s := range servers(t) {
		t.Run(kind, func(t *testing.T) {
			fill := randfill.NewWithSeed(1).NilChance(0.2).NumElements(1, 3).MaxDepth(12).Funcs(
				func(tm *metav1.Time, c randfill.Continue) { *tm = metav1.Unix(int64(c.Uint32()), 0) },
				func(tm *metav1.MicroTime, c randfill.Continue) {
					*tm = metav1.NewMicroTime(metav1.Unix(int64(c.Uint32()), 0).Time)
				},
				func(m *metav1.ObjectMeta, _ randfill.Continue) { m.Name, m.Namespace = "a", "b" },
				func(b *[]byte, c randfill.Continue) { *b = []byte("x" + c.String(0)) }, // the schema refuses null and ""
				func(m *metav1.TypeMeta, _ randfill.Continue) { *m = metav1.TypeMeta{} },
			)
			for round := range rounds {
				obj := s.d.New()
				fill.Fill(obj)
				obj.GetObjectKind().SetGroupVersionKind(s.d.GVK)
				kept := copyOf(t, obj)
				if what := s.misfit(kept, obj); what != "" {
					t.Fatalf("round %d: %s", round, what)
				}
				back := s.typed(t, kept)
				want := obj.DeepCopyObject().(resource.Object)
				// What the schema fills in, ours fills in as well.
				if s.d.Default != nil {
					s.d.Default(back)
					s.d.Default(want)
				}
				clearListKeys(back)
				clearListKeys(want)
				if !equality.Semantic.DeepEqual(want, back) {
					t.Fatalf("round %d loses something (-sent +read):\n%s", round, cmp.Diff(want, back))
				}
			}
		})
	}
}

// misfit admits a random object that Go wrote, and reports a value of another type than the
// schema's, and a field that is missed, where Validate misses nothing: an empty list is null
// in JSON. What it says of random texts and numbers does not matter here.
func (s *server) misfit(written map[string]any, obj resource.Object) string {
	missed := map[string]bool{}
	for _, err := range s.d.ValidateWhole(obj.DeepCopyObject().(resource.Object), nil) {
		missed[err.Field] = true
	}
	for _, err := range s.admit(written, nil) {
		if err.Type == field.ErrorTypeTypeInvalid || strings.Contains(err.Error(), "must be of type") ||
			err.Type == field.ErrorTypeRequired && !missed[err.Field] {
			return err.Error()
		}
	}
	return ""
}

// TestTransitions: what cannot change does not.
func TestTransitions(t *testing.T) {
	examples := kindtest.Valid()
	all := servers(t)
	for _, tt := range []struct{ kind, with, want string }{
		{"ZoneShift", `{spec: {zone: zone-b}}`, "is immutable"},
		{"ZoneShift", `{spec: {reason: other}}`, ""},
		{"Mesh", `{spec: {mtls: {trustDomain: other.example}}}`, "is immutable"},
		{"Mesh", `{spec: {mtls: {trustDomain: blue.mesh}}}`, ""},
		{"Mesh", `{spec: {mtls: null}}`, ""},
	} {
		t.Run(tt.kind+"/"+tt.with, func(t *testing.T) {
			s := all[tt.kind]
			old := decode(t, examples[tt.kind])
			if errs := s.admit(old, nil); len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			text, err := kindtest.Overlay(examples[tt.kind], tt.with)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(s.admit(decode(t, text), old).ToAggregate())
			if tt.want == "" && got != "<nil>" || !strings.Contains(got, tt.want) {
				t.Errorf("errors %s, want %q", got, tt.want)
			}
		})
	}
}
