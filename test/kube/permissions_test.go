package kube_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
)

// kubeconfigOf is that of a service account of Proxima's, with a token as a pod has it.
func (b *bench) kubeconfigOf(account string) string {
	b.t.Helper()
	token := strings.TrimSpace(b.kubectl("", "--namespace", manifests.Namespace, "create", "token", account, "--duration=1h"))
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["cluster"] = &clientcmdapi.Cluster{Server: b.URL(), CertificateAuthority: b.CAFile()}
	cfg.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts["cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: account}
	cfg.CurrentContext = "cluster"
	path := filepath.Join(b.t.TempDir(), account+".kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// lists are used by API servers without WatchList alone: here a watch begins with a list.
func lists(resources ...string) []permission {
	var out []permission
	for _, r := range resources {
		resource, group, _ := strings.Cut(r, ".")
		out = append(out, permission{group, resource, "list"})
	}
	return out
}

// permission is a verb on a resource.
type permission struct{ group, resource, verb string }

func (p permission) String() string {
	return p.verb + " " + strings.TrimSuffix(p.resource+"."+p.group, ".")
}

// request of the audit log, as far as it matters here.
type request struct {
	AuditID string    `json:"auditID"`
	Arrived time.Time `json:"requestReceivedTimestamp"`
	Verb    string    `json:"verb"`
	User    struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	RequestURI  string            `json:"requestURI"`
	Annotations map[string]string `json:"annotations"`
}

// asked are the permissions that requests of a service account needed, with how many there were.
// Requests that were refused fail the test, but for those while the API server started: it knows
// no roles yet.
func (b *bench) asked(account string) map[permission]int {
	b.t.Helper()
	user := "system:serviceaccount:" + manifests.Namespace + ":" + account
	out := map[permission]int{}
	b.audited(func(r *request) {
		if r.User.Username != user {
			return
		}
		if decision := r.Annotations["authorization.k8s.io/decision"]; decision != "allow" {
			if r.Arrived.After(b.starting) && r.Arrived.Before(b.started) {
				return
			}
			b.t.Errorf("%s %s: %s", r.Verb, r.RequestURI, decision)
		}
		if r.ObjectRef == nil {
			return // discovery, which every user may read
		}
		out[r.permission()]++
	})
	return out
}

// permission that a request needs; it has an ObjectRef.
func (r *request) permission() permission {
	name := r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		name += "/" + r.ObjectRef.Subresource
	}
	return permission{r.ObjectRef.APIGroup, name, r.Verb}
}

// audited calls f for each line of the audit log: a watch has one when it begins, and one when
// it ends.
func (b *bench) audited(f func(*request)) {
	b.t.Helper()
	log, err := os.Open(b.AuditLog())
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			continue // the last line is being written
		}
		f(&r)
	}
	if err := lines.Err(); err != nil {
		b.t.Fatal(err)
	}
}

// granted are the permissions of a service account by the chart, with parts of its values on.
func granted(t *testing.T, preset, account string, parts ...string) map[permission]bool {
	t.Helper()
	roles, err := manifests.Roles()
	if err != nil {
		t.Fatal(err)
	}
	out := map[permission]bool{}
	for _, r := range roles {
		if r.Account != account || !slices.Contains(r.Presets, preset) || r.When != "" && !slices.Contains(parts, r.When) {
			continue
		}
		for _, rule := range r.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						out[permission{group, resource, verb}] = true
					}
				}
			}
		}
	}
	return out
}

// wantPartUsed compares what was asked with what is granted, with a part of the chart's values and others:
// nothing is missing, and of what is granted for that part nothing is unused but for what is listed.
func (b *bench) wantPartUsed(preset, account, part string, unused []permission, others ...string) {
	b.t.Helper()
	asked, without, all := b.asked(account), granted(b.t, preset, account, others...), granted(b.t, preset, account, append(others, part)...)
	for p := range asked {
		if !all[p] {
			b.t.Errorf("%s was asked, and the chart does not grant it", p)
		}
	}
	for p := range all {
		if used := asked[p] > 0; !without[p] && used == slices.Contains(unused, p) {
			b.t.Errorf("%s is granted for %s; used: %t", p, part, used)
		}
	}
}

// wantAllUsed compares what was asked with what is granted: nothing is missing, and nothing
// is unused but for what is listed.
func (b *bench) wantAllUsed(preset, account string, unused []permission, parts ...string) {
	b.t.Helper()
	asked, allowed := b.asked(account), granted(b.t, preset, account, parts...)
	for p := range asked {
		if !allowed[p] {
			b.t.Errorf("%s was asked, and the chart does not grant it", p)
		}
	}
	for p := range allowed {
		if used := asked[p] > 0; used == slices.Contains(unused, p) {
			b.t.Errorf("%s is granted; used: %t", p, used)
		}
	}
	var texts []string
	for p, n := range asked {
		texts = append(texts, fmt.Sprintf("%s %d", p, n))
	}
	b.t.Logf("requests of %s: %s", account, strings.Join(slices.Sorted(slices.Values(texts)), ", "))
}
