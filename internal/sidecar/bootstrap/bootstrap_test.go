package bootstrap

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/identity/catest"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

var node = Node{ID: NodeID("default", "shop", "web-1"), Cluster: "shop/web", Zone: "zone-a", Site: "local"}

// TestEnvoyAccepts: a real Envoy takes both forms. The names of fields are its own: an unknown one is
// an error there, as "deferred_stats_options" is.
func TestEnvoyAccepts(t *testing.T) {
	dir := t.TempDir()
	ca := catest.New(t, "ca", nil, nil)
	files := Files{Certificate: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), Authorities: filepath.Join(dir, "ca.pem")}
	leaf := catest.New(t, "web", ca, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	text := func(c *x509.Certificate) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	for path, data := range map[string][]byte{
		files.Certificate: text(leaf.Cert), files.Authorities: text(ca.Cert), files.Key: leaf.KeyPEM(t),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]Config{
		"below a supervisor": {Node: node, Socket: "/run/x.sock", AdminSocket: filepath.Join(dir, "a.sock")},
		"a gateway": {
			Node: Node{ID: GatewayID("ingress", "i1"), Cluster: "gateway/ingress"}, Socket: "/run/x.sock", AdminSocket: filepath.Join(dir, "a.sock"),
			Gateway: &Gateway{Address: ":10001", Socket: "/run/engine.sock"},
		},
		"direct, by name":    {Node: node, Servers: []string{"cp.example:15010"}, Files: files, AdminSocket: filepath.Join(dir, "a.sock")},
		"direct, by address": {Node: node, Servers: []string{"127.0.0.1:15010", "[::1]:15010"}, Files: files, AdminSocket: filepath.Join(dir, "a.sock")},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := Envoy(c)
			if err != nil {
				t.Fatal(err)
			}
			if err := envoytest.Validate(t, string(text)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEnvoyDefaults: what matters for an outage and for memory is set (seventh trap: the name of
// the last).
func TestEnvoyDefaults(t *testing.T) {
	text, err := Envoy(Config{Node: node, Socket: "/run/x.sock", AdminSocket: "/run/a.sock"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Dynamic struct {
			ADS struct {
				Once bool `json:"set_node_on_first_message_only"`
			} `json:"ads_config"`
			CDS struct {
				Timeout string `json:"initial_fetch_timeout"`
			} `json:"cds_config"`
		} `json:"dynamic_resources"`
		Deferred struct {
			On bool `json:"enable_deferred_creation_stats"`
		} `json:"deferred_stat_options"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if !got.Dynamic.ADS.Once || got.Dynamic.CDS.Timeout != "0s" || !got.Deferred.On || !strings.Contains(string(text), `"max_interval": "1s"`) {
		t.Errorf("%+v", got)
	}
}

func TestGRPC(t *testing.T) {
	text, err := GRPC(Config{Node: node, Socket: "/run/x.sock", Files: Files{Certificate: "c", Key: "k", Authorities: "a"}, ServerTemplate: "in|%s"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"server_uri": "unix:///run/x.sock"`, `"plugin_name": "file_watcher"`, `"in|%s"`, `"sub_zone": "local"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"node":        {Config{Node: Node{ID: "web"}, Socket: "/s"}, "MESH/NAMESPACE/DATAPLANE"},
		"no server":   {Config{Node: node}, "neither"},
		"no files":    {Config{Node: node, Servers: []string{"a:1"}}, "files"},
		"no admin":    {Config{Node: node, Socket: "/s"}, "admin socket"},
		"server port": {Config{Node: node, Servers: []string{"a"}, Files: Files{Certificate: "c", Key: "k", Authorities: "a"}, AdminSocket: "/a"}, "HOST:PORT"},
	} {
		if _, err := Envoy(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", name, err, c.want)
		}
	}
}
