package eureka

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/mirror"
	"github.com/proxima-mesh/proxima/internal/registry/mirror/mirrortest"
)

func TestMirror(t *testing.T) { mirrortest.Run(t, newTown) }

func newTown(t *testing.T) *mirrortest.Town {
	t.Helper()
	c := newClient(t)
	server := strings.TrimSuffix(strings.TrimPrefix(c.base, "http://"), "/eureka/")
	return &mirrortest.Town{
		Plane: c.p, Protocol: registry.Eureka, SharedLeases: true,
		Client: func(here bool) mirror.Client {
			return NewClient(ClientConfig{Servers: []string{server}, Namespace: "default", Proxima: here, Poll: 20 * time.Millisecond, Renew: 300 * time.Millisecond})
		},
		Provide: func(_ *testing.T, service string, ports ...int) (stop func()) {
			app := strings.ToUpper(service)
			for _, port := range ports {
				text := strings.NewReplacer("ORDERS", app, `"port":{"$":8080`, fmt.Sprintf(`"port":{"$":%d`, port)).Replace(instanceJSON(fmt.Sprintf("h:%s:%d", service, port), statusUp))
				c.want(http.StatusNoContent, http.MethodPost, "apps/"+app, text)
			}
			return func() {
				for _, port := range ports {
					c.want(http.StatusOK, http.MethodDelete, fmt.Sprintf("apps/%s/h:%s:%d", app, service, port), "")
				}
			}
		},
	}
}

// A document of a server that writes lists of one as that one, and what is no instance of ours.
func TestParseApplications(t *testing.T) {
	c := NewClient(ClientConfig{Servers: []string{"h:1"}, Namespace: "default"})
	one := strings.TrimSuffix(strings.TrimPrefix(instanceJSON("a", statusUp), `{"instance":`), "}")
	got, err := c.parse([]byte(`{"applications":{"application":{"name":"ORDERS","instance":` + one + `}}}`))
	if err != nil || len(got[registry.Service{Namespace: "default", Name: "orders"}]) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	got, err = c.parse([]byte(`{"applications":{"application":[{"instance":[null,{"instanceId":"x","ipAddr":"no address"},` + one + `]}]}}`))
	if err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "<applications/>", `{"timestamp":1,"status":404}`, `{"applications":{"application":3}}`} {
		if _, err := c.parse([]byte(text)); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

func FuzzParseApplications(f *testing.F) {
	f.Add([]byte(`{"applications":{"application":[{"instance":[{"app":"A","ipAddr":"10.0.0.1","port":{"$":80,"@enabled":"true"}}]}]}}`))
	c := NewClient(ClientConfig{Servers: []string{"h:1"}, Namespace: "default"})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := c.parse(b)
		if err != nil {
			return
		}
		for s, list := range got {
			for _, in := range list {
				if in.Service != s || !in.Address.IsValid() {
					t.Errorf("%+v", in)
				}
				if _, err := c.prepare(in); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
