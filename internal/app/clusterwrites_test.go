package app

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// reviewed is what the webhook of a control plane answers about a write.
func reviewed(t *testing.T, rules *clusterWrites, d *resource.Descriptor, obj, old resource.Object) *admissionv1.AdmissionResponse {
	t.Helper()
	req := &admissionv1.AdmissionRequest{
		UID: "u", Kind: metav1.GroupVersionKind(d.GVK), Operation: admissionv1.Update, UserInfo: authenticationv1.UserInfo{Username: "admin"},
	}
	switch {
	case obj == nil:
		req.Operation = admissionv1.Delete
	case old == nil:
		req.Operation = admissionv1.Create
	}
	var err error
	for of, raw := range map[resource.Object]*[]byte{obj: &req.Object.Raw, old: &req.OldObject.Raw} {
		if of == nil {
			continue
		}
		if *raw, err = json.Marshal(of); err != nil {
			t.Fatal(err)
		}
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: req,
	})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := extension.NewAdmission(kind.All(), rules.allow, slog.New(slog.DiscardHandler)).Review(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Response
}

// TestWritesInACluster: what control planes outside of clusters refuse is refused in the same words.
func TestWritesInACluster(t *testing.T) {
	zone := ControlPlaneConfig{Role: RoleZone, Zone: "east", Global: "global.example:6443"}
	global := ControlPlaneConfig{Role: RoleGlobal}
	alone := ControlPlaneConfig{}
	ofGlobal := labelledMesh("red", meshv1alpha1.OriginGlobal, "")
	ofZone := labelledMesh("own", meshv1alpha1.OriginZone, "")
	for _, d := range []*meshv1alpha1.Mesh{ofGlobal, ofZone} {
		d.UID, d.ResourceVersion = "u", "1"
	}
	changed := ofGlobal.DeepCopy()
	changed.Annotations = map[string]string{"a": "b"}
	workload := workloadAt("web", "10.0.0.1")
	shift := func(spec meshv1alpha1.ZoneShiftSpec) *meshv1alpha1.ZoneShift {
		spec.Until = metav1.NewTime(time.Now().Add(time.Hour))
		return &meshv1alpha1.ZoneShift{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Spec: spec}
	}
	for _, test := range []struct {
		name     string
		at       ControlPlaneConfig
		kind     *resource.Descriptor
		obj, old resource.Object
		want     string // empty: it is allowed
	}{
		{"a change of a copy", zone, kind.Mesh, changed, ofGlobal, "it is a copy of an object of global (global.example:6443), which alone changes it: change it there"},
		{"the end of a copy", zone, kind.Mesh, nil, ofGlobal, "it is a copy of an object of global (global.example:6443)"},
		{"a policy in a zone", zone, kind.Mesh, namedMesh("blue"), nil, "a Mesh is written at the global control plane (global.example:6443): write it there; or label it"},
		{"a policy of the zone", zone, kind.Mesh, labelledMesh("own", meshv1alpha1.OriginZone, ""), nil, ""},
		{"its end", zone, kind.Mesh, nil, ofZone, ""},
		{"an export", zone, kind.ServiceExport, export("web", ""), nil, ""},
		{"a forged copy", zone, kind.Mesh, labelledMesh("blue", meshv1alpha1.OriginGlobal, ""), nil, "are set by control planes: leave them out"},
		{"a zone in a zone", zone, kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "w"}}, nil, "zones are made at the global control plane"},
		{"a zone where there is no global", alone, kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "w"}}, nil, "this one stands alone"},
		{"a policy where there is no global", alone, kind.Mesh, namedMesh("blue"), nil, ""},
		{"a zone at global", global, kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "w"}}, nil, ""},
		{"a policy at global", global, kind.Mesh, namedMesh("blue"), nil, ""},
		{"a workload at global", global, kind.Dataplane, workload, nil, "a Dataplane is written at the control plane of its zone"},
		{"a zone shift", alone, kind.ZoneShift, shift(meshv1alpha1.ZoneShiftSpec{Zone: "zone-a", Reason: "t"}), nil, "kubectl drain --selector topology.kubernetes.io/zone=zone-a"},
		{"a node shift", zone, kind.ZoneShift, shift(meshv1alpha1.ZoneShiftSpec{Node: "n1", Reason: "t"}), nil, "kubectl uncordon n1"},
		{"a shift at global", global, kind.ZoneShift, shift(meshv1alpha1.ZoneShiftSpec{Zone: "zone-a", Reason: "t"}), nil, "proxima zone disable SITE"},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer := reviewed(t, &clusterWrites{site: test.at.accessSite(), meshes: &meshUpdates{}}, test.kind, test.obj, test.old)
			switch {
			case test.want == "" && !answer.Allowed:
				t.Errorf("refused: %s", answer.Result.Message)
			case test.want != "" && (answer.Allowed || answer.Result.Reason != metav1.StatusReasonForbidden || !strings.Contains(answer.Result.Message, test.want)):
				t.Errorf("%+v, want Forbidden with %q", answer.Result, test.want)
			}
		})
	}
	if answer := reviewed(t, &clusterWrites{meshes: &meshUpdates{}}, kind.Dataplane, workload, nil); !answer.Allowed || len(answer.Warnings) != 1 {
		t.Errorf("a workload in a cluster: %+v", answer)
	}
}
