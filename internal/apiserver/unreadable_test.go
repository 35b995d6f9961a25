package apiserver_test

import (
	"context"
	"errors"
	"net/http"

	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// TestUnreadableObject: one object that cannot be read makes its own kind unavailable, and
// nothing else; the server starts, also where it would make that object.
func TestUnreadableObject(t *testing.T) {
	for key, resource := range map[string]string{
		"/registry/configmaps/default/x":                               "configmaps",
		"/registry/namespaces/default":                                 "namespaces",
		"/registry/mesh.proxima.dev/meshes/default":                    "meshes.mesh.proxima.dev",
		"/registry/services/default/kubernetes":                        "services",
		"/registry/discovery.k8s.io/endpointslices/default/kubernetes": "endpointslices.discovery.k8s.io",
		"/registry/networking.k8s.io/servicecidrs/kubernetes":          "servicecidrs.networking.k8s.io",
		"/registry/networking.k8s.io/ipaddresses/10.96.0.1":            "ipaddresses.networking.k8s.io",
	} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			s := &privateStore{Store: memory.New(memory.Options{})}
			defer s.Close()
			damage := store.Txn{Ops: []store.Op{{Kind: store.Put, Key: key, Value: []byte("not an object")}}}
			if _, err := s.Commit(t.Context(), damage); err != nil {
				t.Fatal(err)
			}
			srv, err := start(s)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := srv.stop(); err != nil {
					t.Error(err)
				}
			}()
			bad := srv.Unreadable()
			if err := bad[resource]; len(bad) != 1 || err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("unreadable: %v, want %s because of %s", bad, resource, key)
			}
			cs := srv.clientset(t, "")
			if _, err := cs.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Errorf("another kind: %v", err)
			}
			if resource == "configmaps" {
				code, body := srv.do(t, http.MethodGet, "/api/v1/namespaces/default/configmaps/x", "admin", nil, "")
				if code != http.StatusInternalServerError || !strings.Contains(body, key) {
					t.Errorf("the object: %d %s", code, body)
				}
			}
		})
	}
}

// privateStore fails to read some keys, as a database on another machine does.
type privateStore struct{ store.Store }

const privateKey = "/registry/configmaps/default/away"

func (s *privateStore) Get(ctx context.Context, key string, at store.Revision) (store.Record, bool, store.Revision, error) {
	if key == privateKey {
		return store.Record{}, false, 0, &store.MediumError{
			Op: "get", At: "db.internal:5432", Private: true, Err: errors.New("dial db.internal:5432: refused"),
		}
	}
	return s.Store.Get(ctx, key, at)
}

// TestStoreErrorsNameNoHosts: where the store is, clients are not told.
func TestStoreErrorsNameNoHosts(t *testing.T) {
	s := &privateStore{Store: memory.New(memory.Options{})}
	defer s.Close()
	srv, err := start(s)
	if err != nil {
		t.Fatal(err)
	}
	code, body := srv.do(t, http.MethodGet, "/api/v1/namespaces/default/configmaps/away", "admin", nil, "")
	if code != http.StatusInternalServerError || strings.Contains(body, "5432") {
		t.Errorf("%d %s", code, body)
	}
	if err := srv.stop(); err != nil {
		t.Error(err)
	}
}
