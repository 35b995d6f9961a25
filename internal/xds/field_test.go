package xds_test

import (
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// fieldCase is an effect that traffic has while objects are there, and neither before nor after.
type fieldCase struct {
	name string
	// given are objects that are there all the time; objects are what the case is of.
	given, objects string
	// effect returns what it saw in place of the effect; empty: it is there.
	effect func(*stage) string
	// quick: a part of "make test".
	quick bool
	// without is what holds without the objects; nil: the effect is not there.
	without func(*stage) string
}

// interop reports that all cases are wanted, on each version of Envoy ("make interop-envoy").
func interop() bool { return os.Getenv("PROXIMA_ENVOY") != "" }

// TestPolicyFields: each field of policies and routes has its effect on the traffic of a real
// Envoy, and it goes with the object.
func TestPolicyFields(t *testing.T) {
	versions := []string{envoytest.Newest}
	if interop() {
		versions = append(versions, envoytest.Oldest)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			s := newStage(t, envoytest.BinaryOf(t, version))
			for _, c := range fieldCases() {
				if !c.quick && !interop() {
					continue
				}
				t.Run(c.name, func(t *testing.T) { s.run(t, &c) })
			}
			if t.Failed() {
				t.Logf("Envoy:\n%s", s.proxy.Stderr)
			}
		})
	}
}

func fieldCases() []fieldCase {
	return slices.Concat(backendCases(), balanceCases(), workloadCases(), observeCases(), permissionCases(), routeCases(), patchCases())
}

func (s *stage) run(t *testing.T, c *fieldCase) {
	t.Helper()
	without := c.without
	if without == nil {
		without = func(s *stage) string {
			if c.effect(s) == "" {
				return "the effect is there"
			}
			return ""
		}
	}
	remove := s.apply(t, c.given)
	defer remove()
	s.holds(t, "without the objects", without)
	undo := s.apply(t, c.objects)
	ok := s.holds(t, "with the objects", c.effect)
	undo()
	if ok {
		s.holds(t, "after the objects", without)
	}
	s.seen.mu.Lock()
	refused := s.seen.refused
	s.seen.refused = nil
	s.seen.mu.Unlock()
	for _, r := range refused {
		t.Errorf("the proxy refuses %s", r)
	}
}

// holds waits for a condition.
func (s *stage) holds(t *testing.T, when string, what func(*stage) string) bool {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		saw := what(s)
		if saw == "" {
			return true
		}
		if s.proxy != nil && s.proxy.Ended() {
			t.Fatalf("Envoy ended:\n%s", s.proxy.Stderr)
		}
		if time.Now().After(end) {
			t.Errorf("%s: %s", when, saw)
			if file := os.Getenv("PROXIMA_ENVOY_DUMP"); file != "" && s.proxy != nil {
				_, dump, _ := s.proxy.Admin(http.MethodGet, "/config_dump?include_eds")
				_, stats, _ := s.proxy.Admin(http.MethodGet, "/stats?usedonly")
				_ = os.WriteFile(file, []byte(dump), 0o600)
				_ = os.WriteFile(file+".stats", []byte(stats), 0o600)
			}
			return false
		}
	}
}

// apply objects of a file, all in namespace shop unless they say otherwise; undo deletes them, or
// puts back what they replaced.
func (s *stage) apply(t *testing.T, text string) (undo func()) {
	t.Helper()
	var steps []func()
	text = s.words().Replace(text)
	for _, obj := range objectsOf(t, text) {
		d := descriptorOf(t, obj)
		key := resource.KeyOf(obj)
		before, err := s.client.Get(t.Context(), d, key)
		if err != nil {
			before = nil
		}
		s.seed(obj)
		steps = append(steps, func() {
			if before != nil {
				s.seed(before)
			} else if err := s.client.Delete(t.Context(), d, key, resource.Preconditions{}); err != nil {
				t.Error(err)
			}
		})
	}
	return func() {
		for _, step := range slices.Backward(steps) {
			step()
		}
	}
}

// words that stand in objects for what a stage has.
func (s *stage) words() *strings.Replacer {
	return strings.NewReplacer("$OTLP", s.collector.otlp, "$HTTP", s.collector.http, "$DIR", s.dir, "$WEB", fmt.Sprint(s.ports["web"]),
		"$BYTES", fmt.Sprint(s.ports["bytes"]), "$CANARY", fmt.Sprint(s.ports["canary"]), "$SPARE", fmt.Sprint(s.ports["spare"]))
}

func descriptorOf(t testing.TB, obj resource.Object) *resource.Descriptor {
	t.Helper()
	for _, d := range kind.All() {
		if reflect.TypeOf(d.New()) == reflect.TypeOf(obj) {
			return d
		}
	}
	t.Fatalf("no kind is of type %T", obj)
	return nil
}

// objectsOf a file, which must be valid.
func objectsOf(t testing.TB, text string) []resource.Object {
	t.Helper()
	var out []resource.Object
	for doc := range strings.SplitSeq(text, "---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if meta.Kind == "" {
			continue
		}
		i := slices.IndexFunc(kind.All(), func(d *resource.Descriptor) bool { return d.GVK.Kind == meta.Kind })
		if i < 0 {
			t.Fatalf("kind %q in\n%s", meta.Kind, doc)
		}
		d := kind.All()[i]
		obj := d.New()
		if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if d.Namespaced && obj.GetNamespace() == "" {
			obj.SetNamespace("shop")
		}
		obj.SetGeneration(1)
		check := obj.DeepCopyObject().(resource.Object)
		if d.Default != nil {
			d.Default(check)
		}
		if d.Validate != nil {
			if errs := d.Validate(check, nil); len(errs) > 0 {
				t.Fatalf("%v in\n%s", errs.ToAggregate(), doc)
			}
		}
		out = append(out, obj)
	}
	return out
}

// Objects of cases.

func bp(service, spec string) string {
	return fmt.Sprintf("kind: BackendPolicy\nmetadata: {name: p}\nspec:\n  targetRefs: [{kind: Service, name: %s}]\n%s---\n", service, indented(spec))
}

// given is a BackendPolicy of the namespace: one of a Service wins.
func given(spec string) string {
	return "kind: BackendPolicy\nmetadata: {name: z}\nspec:\n" + indented(spec) + "---\n"
}

func wp(spec string) string {
	return "kind: WorkloadPolicy\nmetadata: {name: w}\nspec:\n  selector: {matchLabels: {app: client}}\n" + indented(spec) + "---\n"
}

func tp(spec string) string {
	return "kind: TrafficPermission\nmetadata: {name: t}\nspec:\n  selector: {matchLabels: {app: client}}\n" + indented(spec) + "---\n"
}

func patches(items string) string {
	return "kind: ProxyPatch\nmetadata: {name: x}\nspec:\n  selector: {matchLabels: {app: client}}\n  patches:\n" + indented(items) + "---\n"
}

func indented(text string) string {
	var out strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		out.WriteString("  " + line)
	}
	return out.String()
}

// Effects.

// status of the answer to a request.
func answers(service, path string, want int, headers ...string) func(*stage) string {
	return func(s *stage) string {
		if r := s.to(service, path, headers...); r.Status != want {
			return "it answers " + r.String()
		}
		return ""
	}
}

// entering is the status of a request to a port of the workload, without a certificate.
func entering(port, path string, want int, headers ...string) func(*stage) string {
	return func(s *stage) string {
		if r := s.get(s.in[port], path, headers...); r.Status != want {
			return "it answers " + r.String()
		}
		return ""
	}
}

// within is how long a request takes at most, whatever comes of it.
func within(service, path string, most time.Duration) func(*stage) string {
	return func(s *stage) string {
		if r := s.to(service, path); r.Took > most {
			return "it answers " + r.String()
		}
		return ""
	}
}

// all of several effects.
func all(effects ...func(*stage) string) func(*stage) string {
	return func(s *stage) string {
		for i, e := range effects {
			if saw := e(s); saw != "" {
				return fmt.Sprintf("%d: %s", i, saw)
			}
		}
		return ""
	}
}

// TestFieldsHaveCases: there is a case for each field of the kinds whose effect is traffic.
func TestFieldsHaveCases(t *testing.T) {
	named := map[string]struct{}{}
	for _, c := range fieldCases() {
		for _, obj := range objectsOf(t, (&stage{collector: &collector{otlp: "a:1", http: "a:1"}, dir: "/d"}).words().Replace(c.given+"---\n"+c.objects)) {
			text, err := yaml.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			var fields map[string]any
			if err := yaml.Unmarshal(text, &fields); err != nil {
				t.Fatal(err)
			}
			leaves(named, descriptorOf(t, obj).GVK.Kind, fields["spec"])
		}
	}
	for name, spec := range map[string]any{
		"BackendPolicy": meshv1alpha1.BackendPolicySpec{}, "WorkloadPolicy": meshv1alpha1.WorkloadPolicySpec{},
		"TrafficPermission": meshv1alpha1.TrafficPermissionSpec{}, "ProxyPatch": meshv1alpha1.ProxyPatchSpec{},
	} {
		for _, field := range fieldsOf(name, reflect.TypeOf(spec)) {
			_, ok := named[field]
			why := elsewhere()[field]
			switch {
			case !ok && why == "":
				t.Errorf("no case has %s", field)
			case ok && why != "":
				t.Errorf("%s has a case, and is said to be tested elsewhere", field)
			}
		}
	}
}

// leaves of a value, by their paths without positions in lists.
func leaves(into map[string]struct{}, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, item := range v {
			leaves(into, path+"."+name, item)
		}
		if len(v) == 0 {
			into[path] = struct{}{}
		}
	case []any:
		for _, item := range v {
			leaves(into, path, item)
		}
	default:
		into[path] = struct{}{}
	}
}

// fieldsOf a type, as leaves has them. Labels and selectors are as Kubernetes has them.
func fieldsOf(path string, t reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[metav1.LabelSelector]() || t.NumField() == 0 {
		return []string{path}
	}
	var out []string
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		switch {
		case options == "inline":
			out = append(out, fieldsOf(path, t.Field(i).Type)...)
		case reflect.Indirect(reflect.New(t.Field(i).Type)).Type() == reflect.TypeFor[*metav1.LabelSelector]():
		default:
			out = append(out, fieldsOf(path+"."+name, t.Field(i).Type)...)
		}
	}
	return out
}

// elsewhere are fields without a case here, and why.
func elsewhere() map[string]string {
	const (
		target    = "what a policy is for is tested in package policy"
		forbidden = "validation refuses it here"
		idle      = "it has no effect yet, and each write says so"
		redirect  = "it is about redirected connections, which this Envoy does not have: TestPassthrough"
	)
	out := map[string]string{
		"BackendPolicy.locality.threshold": "a share of healthy endpoints is too coarse for a few: TestOverprovisioning",
		"WorkloadPolicy.timeout.perTry":    forbidden, "WorkloadPolicy.limits.retries": "nothing is tried again to the workload",
		"WorkloadPolicy.passthrough.mode": redirect, "WorkloadPolicy.accessLog.tcp.address": idle,
		"WorkloadPolicy.faults.from.spiffe.type": "as of rateLimit", "TrafficPermission.allow.from.spiffe.type": "as of deny",
		"TrafficPermission.allow.to.hosts": "as of deny",
	}
	for name := range strings.FieldsSeq("type value port protocol") {
		out["WorkloadPolicy.passthrough.match."+name] = redirect
	}
	for prefix, fields := range map[string]string{
		"WorkloadPolicy.metrics":      "port path mtls include exclude",
		"WorkloadPolicy.metrics.apps": "name port path",
	} {
		for name := range strings.FieldsSeq(fields) {
			out[prefix+"."+name] = idle
		}
	}
	for _, prefix := range []string{"BackendPolicy.rateLimit.from", "BackendPolicy.faults.from"} {
		for _, name := range []string{"namespaces", "serviceAccounts", "spiffe.type", "spiffe.value", "addresses", "mesh"} {
			out[prefix+"."+name] = forbidden
		}
	}
	for name, fields := range map[string]string{
		"WorkloadPolicy": "namespace sectionName", "TrafficPermission": "namespace sectionName", "ProxyPatch": "group kind name namespace sectionName",
	} {
		for f := range strings.FieldsSeq(fields) {
			out[name+".targetRefs."+f] = target
		}
	}
	return out
}
