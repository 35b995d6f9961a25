package apiserver_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/proxima-mesh/proxima/internal/apiserver"
)

// bomb is a YAML body of 205 kB that decodes to gigabytes: a list, a list of nine
// of it, and 50,000 aliases of that.
func bomb(kind string) string {
	return "apiVersion: v1\nkind: " + kind + "\nmetadata:\n  name: bomb\n  annotations:\n" +
		"    a: &a [x,x,x,x,x,x,x,x,x]\n    b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n    c: [" + strings.Repeat("*b,", 68_000) + "]\n"
}

// TestBodiesThatGrow: what a body becomes is bounded in every verb that decodes it,
// for every user, in little memory.
func TestBodiesThatGrow(t *testing.T) {
	srv := limited(t, apiserver.Limits{}, nil)
	const maps = "/api/v1/namespaces/default/configmaps"
	const review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	for _, name := range []string{"there", "gone"} {
		code, out := srv.do(t, "POST", maps, "admin", jsonType, `{"metadata":{"name":"`+name+`"},"data":{"a":"b"}}`)
		if code != http.StatusCreated {
			t.Fatalf("create %s: %d %s", name, code, out)
		}
	}
	yamlBomb := bomb("ConfigMap")
	many := `{"metadata":{"name":"there"},"x":[` + strings.Repeat("{},", 200_000) + `{}]}`
	deep := `{"metadata":{"name":"there"},"x":` + strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5001)
	copies := `[{"op":"add","path":"/data/b","value":"` + strings.Repeat("x", 100_000) + `"}` +
		strings.Repeat(`,{"op":"copy","from":"/data/b","path":"/data/c"}`, 9000) + `]`
	for _, tc := range []struct {
		name, method, path, token, media, body string
		want                                   int
		message                                string
	}{
		{"create, aliases", "POST", maps, "admin", "application/yaml", yamlBomb, 400, "aliases (*name) are not accepted"},
		{"create dry, aliases", "POST", maps + "?dryRun=All", "admin", "application/yaml", yamlBomb, 400, "aliases"},
		{"update, aliases", "PUT", maps + "/there", "admin", "application/yaml", yamlBomb, 400, "aliases"},
		{"apply, aliases", "PATCH", maps + "/there?fieldManager=m", "admin", "application/apply-patch+yaml", yamlBomb, 400, "aliases"},
		{"delete, aliases", "DELETE", maps + "/there", "admin", "application/yaml", bomb("DeleteOptions"), 400, "aliases"},
		{"delete all, aliases", "DELETE", maps, "admin", "application/yaml", bomb("DeleteOptions"), 400, "aliases"},
		{"review, aliases, read-only", "POST", review, "reader", "application/yaml", bomb("SelfSubjectAccessReview"), 400, "aliases"},
		{"media type in capitals", "POST", maps, "admin", "Application/YAML; charset=utf-8", yamlBomb, 400, "aliases"},
		{"create, many", "POST", maps, "admin", "application/json", many, 413, "more than 100000 values"},
		{"create, no media type", "POST", maps, "admin", "", many, 413, "more than 100000 values"},
		{"update, many", "PUT", maps + "/there", "admin", "application/json", many, 413, "values"},
		{"merge patch, many", "PATCH", maps + "/there", "admin", "application/merge-patch+json", many, 413, "values"},
		{"strategic patch, many", "PATCH", maps + "/there", "admin", "application/strategic-merge-patch+json", many, 413, "values"},
		{"apply, many", "PATCH", maps + "/there?fieldManager=m", "admin", "application/apply-patch+yaml", many, 413, "values"},
		{"protobuf, many", "POST", maps, "admin", "application/vnd.kubernetes.protobuf", "k8s\x00" + strings.Repeat("\x0a\x00", 200_000), 413,
			"values"},
		{"create, wide", "POST", maps, "admin", "application/json", `{"data":{"a":""` + strings.Repeat(`,"b":""`, 20_000) + `}}`, 413,
			"more than 10000 members"},
		{"many mistakes", "POST", maps, "admin", "application/json", `{"metadata":{"name":"m","labels":` + invalidLabels(9000) + `}}`, 422,
			"more mistakes"},
		{"many mistakes in a patch", "PATCH", maps + "/there", "admin", "application/merge-patch+json",
			`{"metadata":{"labels":` + invalidLabels(9000) + `}}`, 422, "more mistakes"},
		{"many mistakes in the object", "POST", "/api/v1/namespaces/default/pods", "admin", "application/json",
			`{"metadata":{"name":"m"},"spec":{"containers":[{}` + strings.Repeat(",{}", 20_000) + `]}}`, 422, "more mistakes"},
		{"create, deep", "POST", maps, "admin", "application/json", deep, 413, "100 levels"},
		{"apply, deep", "PATCH", maps + "/there?fieldManager=m", "admin", "application/apply-patch+yaml", deep, 413, "100 levels"},
		{"JSON patch, copies", "PATCH", maps + "/there", "admin", "application/json-patch+json", copies, 422, ""},
		{"JSON patch, one copy", "PATCH", maps + "/there", "admin", "application/json-patch+json",
			`[{"op":"copy","from":"/data/a","path":"/data/c"}]`, 200, `"c":"b"`},
		{"our own path, many", "POST", "/extra", "admin", "text/plain", many, 413, "values"},
		{"aliases that are text", "POST", maps, "admin", "application/yaml",
			"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: text\ndata:\n  a: |\n    - *b\n    &c\n  d: \"*e\"\n", 201, ""},
		{"delete with options", "DELETE", maps + "/gone", "admin", "application/yaml",
			"apiVersion: v1\nkind: DeleteOptions\ngracePeriodSeconds: 0\n", 200, "Success"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			header := http.Header{"Content-Type": {tc.media}}
			if tc.media == "" {
				header = nil
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			code, out := srv.do(t, tc.method, tc.path, tc.token, header, tc.body)
			runtime.ReadMemStats(&after)
			if code != tc.want || !strings.Contains(out, tc.message) {
				t.Errorf("%d %.300s; want %d, %q", code, out, tc.want, tc.message)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 400<<20 { // garbage counts; unchecked it is gigabytes
				t.Errorf("%d MB were allocated for a body of %d kB", used>>20, len(tc.body)>>10)
			}
		})
	}
	if !srv.metric(t, `proxima_api_body_memory_bytes{lane="write"} 0`) {
		t.Error("memory is still reserved")
	}
}

// invalidLabels is a map of labels with names that are refused.
func invalidLabels(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"-%d":""`, i)
	}
	return "{" + b.String()[1:] + "}"
}

var jsonType = http.Header{"Content-Type": {"application/json"}}

// slowRequest opens a connection and sends the head of a request and a part of its
// body only.
func (s *server) slowRequest(t *testing.T, method, path, token string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ca)
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn,
		"%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", method,
		path, token)
	return conn, bufio.NewReader(conn)
}

// TestSlowBodies: slow bodies of one user, more than there are slots, block neither
// the writes of others nor a node's renewal of its Lease.
func TestSlowBodies(t *testing.T) {
	srv := limited(t, apiserver.Limits{RequestsInFlight: 8, MutatingInFlight: 8, BodyTime: 30 * time.Second}, nil)
	for range 20 {
		srv.slowRequest(t, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "slow")
	}
	for range 20 {
		srv.slowRequest(t, "GET", "/api/v1/namespaces/default/configmaps", "slow")
	}
	eventually(t, "the bodies are being read", func() bool {
		return srv.metric(t, fmt.Sprintf(`proxima_api_body_memory_bytes{lane="write"} %d`, 20*(32<<10+1001)))
	})
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	code, out := srv.do(t, "POST", leases, "node", jsonType, `{"metadata":{"name":"n1"},"spec":{"holderIdentity":"n1"}}`)
	if code != http.StatusCreated {
		t.Fatalf("lease: %d %s", code, out)
	}
	for i := range 10 {
		code, out := srv.do(t, "PATCH", leases+"/n1", "node", http.Header{"Content-Type": {"application/merge-patch+json"}},
			fmt.Sprintf(`{"spec":{"leaseTransitions":%d}}`, i))
		if code != http.StatusOK {
			t.Fatalf("renewal %d: %d %s", i, code, out)
		}
		code, out = srv.do(t, "POST", "/api/v1/namespaces/default/configmaps", "writer", jsonType, fmt.Sprintf(`{"metadata":{"name":"w%d"}}`, i))
		if code != http.StatusCreated {
			t.Fatalf("another user's write %d: %d %s", i, code, out)
		}
		code, out = srv.do(t, "GET", "/api/v1/namespaces/default/configmaps", "writer", nil, "")
		if code != http.StatusOK {
			t.Fatalf("another user's read %d: %d %s", i, code, out)
		}
	}
	if !srv.metric(t, `proxima_api_requests_in_flight{lane="write"} 0`) {
		t.Error("slow bodies hold slots")
	}
}

// TestNodesRenewWhileWritesAreFull: leases have slots of their own.
func TestNodesRenewWhileWritesAreFull(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	srv := limited(t, apiserver.Limits{MutatingInFlight: 4}, release)
	client := srv.client(t)
	for i := range 4 {
		req, err := http.NewRequestWithContext(t.Context(), "POST", srv.url+"/slow", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", fmt.Sprintf("Bearer writer%d", i))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("write %d: %s", i, resp.Status)
		}
	}
	code, out := srv.do(t, "POST", "/api/v1/namespaces/default/configmaps", "writer", jsonType, `{"metadata":{"name":"x"}}`)
	if code != http.StatusTooManyRequests || !strings.Contains(out, "--max-mutating-requests-inflight") {
		t.Errorf("a write beyond the total: %d %s", code, out)
	}
	code, out = srv.do(t, "POST", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "node", jsonType,
		`{"metadata":{"name":"n1"}}`)
	if code != http.StatusCreated {
		t.Errorf("lease: %d %s", code, out)
	}
	code, out = srv.do(t, "POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", "node", jsonType, `{"metadata":{"name":"n1"}}`)
	if code != http.StatusTooManyRequests {
		t.Errorf("another lease of a node: %d %s", code, out)
	}
}

// TestQuarter: one user has a quarter of the slots, also where others leave theirs.
func TestQuarter(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	srv := limited(t, apiserver.Limits{MutatingInFlight: 8}, release)
	client := srv.client(t)
	for i, want := range []int{200, 200, 429} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", srv.url+"/slow", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer writer")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("write %d: %s, want %d", i, resp.Status, want)
		}
		if want == 429 {
			text, _ := io.ReadAll(resp.Body)
			if !strings.Contains(string(text), "wes has 2 write requests in progress") || resp.Header.Get("Retry-After") == "" {
				t.Errorf("%s", text)
			}
		}
	}
}

// TestSlowBodyIsRefused in its time; what may not be written is refused before its
// body is read.
func TestSlowBodyIsRefused(t *testing.T) {
	srv := limited(t, apiserver.Limits{BodyTime: 200 * time.Millisecond, RequestsInFlight: 4}, nil)
	answer := func(in *bufio.Reader) (int, string) {
		t.Helper()
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	_, in := srv.slowRequest(t, "POST", "/api/v1/namespaces/default/configmaps", "writer")
	if code, text := answer(in); code != http.StatusRequestTimeout || !strings.Contains(text, "not complete after 200ms") {
		t.Errorf("slow: %d %s", code, text)
	}
	for _, tc := range []struct {
		method, path, token string
		want                int
	}{
		{"POST", "/api/v1/namespaces/default/configmaps", "reader", 403},
		{"POST", "/api/v1/namespaces/default/configmaps", "wrong", 401},
		{"GET", "/api/v1/namespaces/default/configmaps", "reader", 200},
		{"GET", "/openapi/v2", "reader", 200}, // a long answer
		{"GET", "/api/v1/namespaces/default/configmaps?watch=true", "reader", 400},
	} {
		start := time.Now()
		_, in := srv.slowRequest(t, tc.method, tc.path, tc.token)
		if code, text := answer(in); code != tc.want {
			t.Errorf("%s %s of %s: %d %.200s, want %d", tc.method, tc.path, tc.token, code, text, tc.want)
		}
		if d := time.Since(start); d > wait.ForeverTestTimeout {
			t.Errorf("%s %s of %s was answered after %s", tc.method, tc.path, tc.token, d)
		}
	}
	if !srv.metric(t, `proxima_api_requests_refused_total{limit="request_time"} 1`) {
		t.Error("not counted")
	}
}

// TestSlowBodyOverHTTP2 is refused too, and other streams of the connection go on.
func TestSlowBodyOverHTTP2(t *testing.T) {
	srv := limited(t, apiserver.Limits{BodyTime: 200 * time.Millisecond}, nil)
	client := srv.client(t)
	body, end := io.Pipe()
	defer end.Close()
	req, err := http.NewRequestWithContext(t.Context(), "POST", srv.url+"/api/v1/namespaces/default/configmaps", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer writer")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout || resp.ProtoMajor != 2 {
		t.Errorf("%s over %s", resp.Status, resp.Proto)
	}
}
