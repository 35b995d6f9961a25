package zones

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/version"
)

// TestAdmit: the Zone of the credential decides, and the version that is announced.
func TestAdmit(t *testing.T) {
	client := resourcetest.New(kind.Zone, kind.ZoneInsight, kind.ConfigMap, kind.Namespace)
	for name, enabled := range map[string]bool{"a": true, "off": false} {
		zone := &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: meshv1alpha1.ZoneSpec{Enabled: &enabled}}
		if _, err := client.Create(t.Context(), kind.Zone, zone); err != nil {
			t.Fatal(err)
		}
	}
	caller := ""
	z, err := New(Config{
		Client: client, Namespace: "system", StoreEpoch: "e", Instance: "g",
		Caller:       func(context.Context) (string, error) { return caller, nil },
		CheckVersion: func(zone, theirs string) error { return version.CheckSkew("v1.5.0", "zone "+zone, theirs) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	z.ctx = ctx // as Run does
	defer func() { cancel(); z.running.Wait() }()
	for _, test := range []struct{ zone, version, want string }{
		{"a", "v1.5.0", ""},
		{"a", "v1.3.9", ""},
		{"a", "v1.6.0", ""},
		{"a", "v1.2.0", "upgrade zone a"},
		{"a", "v1.7.0", "upgrade that control plane first"},
		{"off", "v1.5.0", `zone off was disabled at global: "proxima zone enable off" there admits it again`},
		{"b", "v1.5.0", `global has no zone b: it was deleted there`},
	} {
		caller = test.zone
		got, err := z.admit(metadata.NewIncomingContext(ctx, metadata.Pairs("proxima-version", test.version)))
		switch {
		case test.want == "" && (err != nil || got.Zone != test.zone):
			t.Errorf("zone %s of %s: %q, %v", test.zone, test.version, got.Zone, err)
		case test.want != "" && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), test.want)):
			t.Errorf("zone %s of %s: %v, want %q", test.zone, test.version, err, test.want)
		}
	}
}

// TestConfirmTypes: what a user calls a type.
func TestConfirmTypes(t *testing.T) {
	for written, want := range map[string]bool{
		"mesh.proxima.dev/Mesh": true, "Mesh": true, "mesh": true, "meshes": false, "other.dev/Mesh": false, "": false,
	} {
		if got := sameType("mesh.proxima.dev/Mesh", written); got != want {
			t.Errorf("%q: %t", written, got)
		}
	}
}
