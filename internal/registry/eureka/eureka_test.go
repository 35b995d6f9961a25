package eureka

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type client struct {
	t    *testing.T
	base string
	p    *registrytest.Plane
	s    *Server
	http *http.Client
}

func newClient(t *testing.T) *client {
	p := registrytest.New(t)
	s := New(p.Core)
	c := &client{t: t, p: p, s: s, http: &http.Client{}}
	t.Cleanup(c.http.CloseIdleConnections)
	c.base = "http://" + p.Serve(s.Serve) + "/eureka/"
	return c
}

// call returns the status and the body of an answer.
func (c *client) call(method, path, body string, headers ...string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	from := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if from, err = gzip.NewReader(resp.Body); err != nil {
			c.t.Fatal(err)
		}
	}
	b, err := io.ReadAll(from)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (c *client) want(status int, method, path, body string, headers ...string) string {
	c.t.Helper()
	got, answer := c.call(method, path, body, headers...)
	if got != status {
		c.t.Fatalf("%s %s: status %d, want %d: %s", method, path, got, status, answer)
	}
	return answer
}

// instanceJSON is what Spring Cloud's client registers.
func instanceJSON(id, status string) string {
	return fmt.Sprintf(`{"instance":{"instanceId":%q,"app":"ORDERS","appGroupName":null,"ipAddr":"10.1.0.7","sid":"na","homePageUrl":"http://h:8080/",
"statusPageUrl":"http://h:8080/actuator/info","healthCheckUrl":"http://h:8080/actuator/health","secureHealthCheckUrl":null,"vipAddress":"orders",
"secureVipAddress":"orders","countryId":1,"dataCenterInfo":{"@class":"com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo","name":"MyOwn"},
"hostName":"h","status":%q,"overriddenStatus":"UNKNOWN","leaseInfo":{"renewalIntervalInSecs":30,"durationInSecs":90,"registrationTimestamp":0,
"lastRenewalTimestamp":0,"evictionTimestamp":0,"serviceUpTimestamp":0},"isCoordinatingDiscoveryServer":"false","lastUpdatedTimestamp":"1700000000000",
"lastDirtyTimestamp":"1700000000001","actionType":null,"asgName":null,"port":{"$":8080,"@enabled":"true"},"securePort":{"$":443,"@enabled":"false"},
"metadata":{"management.port":"8081","zone":"a"}}}`, id, status)
}

type applications struct {
	Applications struct {
		Version string `json:"versions__delta"`
		Hash    string `json:"apps__hashcode"`
		List    []struct {
			Name     string `json:"name"`
			Instance []info `json:"instance"`
		} `json:"application"`
	} `json:"applications"`
}

func (c *client) apps(path string) applications {
	c.t.Helper()
	var out applications
	if err := json.Unmarshal([]byte(c.want(http.StatusOK, http.MethodGet, path, "")), &out); err != nil {
		c.t.Fatal(err)
	}
	return out
}

// hash waits until clients see this one.
func (c *client) hash(want string) {
	c.t.Helper()
	c.p.Eventually("hash "+want, func() bool { return c.apps("apps").Applications.Hash == want })
}

func TestLife(t *testing.T) {
	c := newClient(t)
	c.want(http.StatusNotFound, http.MethodPut, "apps/ORDERS/h:orders:8080?status=UP&lastDirtyTimestamp=1700000000001", "")
	c.want(http.StatusNoContent, http.MethodPost, "apps/ORDERS", instanceJSON("h:orders:8080", "UP"))
	c.hash("UP_1_")
	d := c.p.Dataplanes()
	if len(d) != 1 || d[0].Spec.Ports[0].Port != 8080 || d[0].Labels[registry.LabelService] != "orders" || d[0].Labels["topology.kubernetes.io/zone"] != "a" {
		t.Fatalf("dataplanes %+v", d)
	}
	in := c.apps("apps").Applications.List[0].Instance[0]
	if in.InstanceID != "h:orders:8080" || in.HostName != "h" || in.VIP != "orders" || !in.Port.Enabled || in.SecurePort.Enabled || in.Metadata["management.port"] != "8081" {
		t.Errorf("instance %+v", in)
	}
	c.want(http.StatusOK, http.MethodPut, "apps/ORDERS/h:orders:8080?status=UP&lastDirtyTimestamp=1700000000001", "")
	c.want(http.StatusNotFound, http.MethodPut, "apps/ORDERS/h:orders:8080?status=UP&lastDirtyTimestamp=1700000000002", "")

	c.want(http.StatusOK, http.MethodPut, "apps/ORDERS/h:orders:8080/status?value=OUT_OF_SERVICE", "")
	c.hash("OUT_OF_SERVICE_1_")
	if d := c.p.Dataplanes()[0]; *d.Spec.Enabled {
		t.Error("the dataplane is enabled, though its instance is out of service")
	}
	c.want(http.StatusOK, http.MethodDelete, "apps/ORDERS/h:orders:8080/status?value=UP", "")
	c.hash("UP_1_")
	c.want(http.StatusOK, http.MethodPut, "apps/ORDERS/h:orders:8080/metadata?color=blue", "")
	c.p.Eventually("metadata", func() bool {
		m := c.apps("apps/delta").Applications.List[0].Instance
		last := m[len(m)-1]
		return last.Metadata["color"] == "blue" && last.Action == "MODIFIED"
	})

	for _, path := range []string{"apps/orders", "apps/ORDERS/h:orders:8080", "instances/h:orders:8080", "vips/orders", "svips/orders"} {
		if body := c.want(http.StatusOK, http.MethodGet, path, ""); !strings.Contains(body, "h:orders:8080") {
			t.Errorf("%s: %s", path, body)
		}
	}
	for _, path := range []string{"apps/NONE", "apps/ORDERS/x", "instances/x", "vips/x", "nothing"} {
		c.want(http.StatusNotFound, http.MethodGet, path, "")
	}

	c.want(http.StatusOK, http.MethodDelete, "apps/ORDERS/h:orders:8080", "")
	c.hash("")
	c.want(http.StatusNotFound, http.MethodDelete, "apps/ORDERS/h:orders:8080", "")
	delta := c.apps("apps/delta").Applications.List[0].Instance
	if last := delta[len(delta)-1]; last.Action != "DELETED" {
		t.Errorf("the last change of the delta is %s", last.Action)
	}
	if len(c.p.Dataplanes()) != 0 {
		t.Error("the dataplane is there")
	}
}

// What a client registers by XML is what others read by JSON, and the other way around.
func TestXML(t *testing.T) {
	c := newClient(t)
	c.want(http.StatusNoContent, http.MethodPost, "v2/apps/ORDERS", `<instance><instanceId>i-1</instanceId><hostName>h</hostName><app>orders</app>
<ipAddr>10.1.0.8</ipAddr><status>UP</status><port enabled="true">9090</port><securePort enabled="true">9443</securePort><countryId>1</countryId>
<dataCenterInfo class="c"><name>Amazon</name><metadata><availability-zone>b</availability-zone></metadata></dataCenterInfo>
<leaseInfo><durationInSecs>30</durationInSecs></leaseInfo><metadata><a>1 &lt; 2</a></metadata><vipAddress>orders</vipAddress></instance>`,
		"Content-Type", "application/xml")
	c.hash("UP_1_")
	in := c.apps("v2/apps").Applications.List[0].Instance[0]
	if in.Port.Number != 9090 || in.SecurePort.Number != 9443 || in.Metadata["a"] != "1 < 2" || in.Metadata["zone"] != "b" || in.Lease.Duration != 30 {
		t.Errorf("instance %+v", in)
	}
	body := c.want(http.StatusOK, http.MethodGet, "apps", "", "Accept", "application/xml", "Accept-Encoding", "gzip")
	var doc struct {
		Hash string `xml:"apps__hashcode"`
		Apps []struct {
			Name     string `xml:"name"`
			Instance []struct {
				ID   string `xml:"instanceId"`
				Port string `xml:"port"`
			} `xml:"instance"`
		} `xml:"application"`
	}
	if err := xml.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Hash != "UP_1_" || doc.Apps[0].Name != "ORDERS" || doc.Apps[0].Instance[0].ID != "i-1" || doc.Apps[0].Instance[0].Port != "9090" {
		t.Errorf("document %+v", doc)
	}
	again, err := decodeXML([]byte(body[strings.Index(body, "<instance>") : strings.Index(body, "</instance>")+len("</instance>")]))
	if err != nil || again.InstanceID != "i-1" || again.Metadata["a"] != "1 < 2" {
		t.Errorf("an instance that was written is read as %+v: %v", again, err)
	}
}

func TestRefused(t *testing.T) {
	c := newClient(t)
	for body, what := range map[string]string{
		`{`:               "unexpected end",
		`{}`:              `no "instance"`,
		`{"instance":{}}`: "missing instanceId",
		strings.Replace(instanceJSON("a", "UP"), `"ORDERS"`, `"OTHER"`, 1):      "mismatched appName",
		strings.Replace(instanceJSON("a", "UP"), `"10.1.0.7"`, `"here"`, 1):     "is no IP address",
		strings.Replace(instanceJSON("a", "UP"), `{"$":8080`, `{"$":"many"`, 1): "whole number",
		instanceJSON("a", "SLEEPING"):                                           "is none of UP",
		`<instance>`:                                                            "unexpected EOF",
		`<application/>`:                                                        "not an <instance>",
	} {
		if answer := c.want(http.StatusBadRequest, http.MethodPost, "apps/ORDERS", body); !strings.Contains(answer, what) {
			t.Errorf("%.60s: %s, want it to say %q", body, answer, what)
		}
	}
	if len(c.p.Dataplanes()) != 0 {
		t.Error("something is registered")
	}
	c.p.Gate.Anonymous = nil
	if status, _ := c.call(http.MethodGet, "apps", ""); status != http.StatusUnauthorized {
		t.Errorf("without credentials: %d", status)
	}
	c.want(http.StatusUnauthorized, http.MethodGet, "apps", "", "Authorization", "Basic eDp5")
}

// A user's client registers in the namespace of its token, and cannot change what others registered.
func TestUsers(t *testing.T) {
	c := newClient(t)
	shop := []string{"Authorization", "Basic OnNob3A="}
	c.want(http.StatusNoContent, http.MethodPost, "apps/ORDERS", instanceJSON("a", "UP"), shop...)
	c.p.Eventually("instance", func() bool { d := c.p.Dataplanes(); return len(d) == 1 && d[0].Namespace == "shop" })
	c.hash("") // of namespace default
	c.base = strings.Replace(c.base, "/eureka/", "/namespaces/shop/eureka/", 1)
	c.hash("UP_1_")
	c.want(http.StatusForbidden, http.MethodPut, "apps/ORDERS/a/status?value=DOWN", "")
	c.want(http.StatusOK, http.MethodPut, "apps/ORDERS/a/status?value=DOWN", "", shop...)
	c.hash("DOWN_1_")
}

// After a restart of the control plane a client's renewal is enough; nobody is told that its instance
// is gone meanwhile.
func TestRestart(t *testing.T) {
	c := newClient(t)
	c.want(http.StatusNoContent, http.MethodPost, "apps/ORDERS", instanceJSON("a", "UP"))
	c.hash("UP_1_")
	c.p.Restart()
	c.s = New(c.p.Core)
	c.base = "http://" + c.p.Serve(c.s.Serve) + "/eureka/"
	if hash := c.apps("apps").Applications.Hash; hash != "UP_1_" {
		t.Errorf("the first answer has %q", hash)
	}
	c.want(http.StatusOK, http.MethodPut, "apps/ORDERS/a?lastDirtyTimestamp=1700000000001", "")
	if n := c.s.leases.len(); n != 1 {
		t.Errorf("%d leases", n)
	}
}

func TestReplication(t *testing.T) {
	c := newClient(t)
	one := strings.TrimSuffix(strings.TrimPrefix(instanceJSON("a", "UP"), `{"instance":`), "}")
	answer := c.want(http.StatusOK, http.MethodPost, "peerreplication/batch/", `{"replicationList":[
{"appName":"ORDERS","id":"a","action":"Register","instanceInfo":`+one+`},{"appName":"NONE","id":"b","action":"Heartbeat"},{"appName":"X","id":"b","action":"Dance"}]}`)
	if answer != `{"responseList":[{"statusCode":204},{"statusCode":404},{"statusCode":400}]}` {
		t.Error(answer)
	}
	c.hash("UP_1_")
	c.want(http.StatusOK, http.MethodPost, "peerreplication/batch/", `{"replicationList":[{"appName":"ORDERS","id":"a","action":"Cancel"}]}`)
	c.hash("")
}

// A few leases that run out are removed when they do; a wave of them is kept for a while.
func TestSelfPreservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := registrytest.New(t)
		l := newLeases(p.Logger)
		ctx, cancel := context.WithCancel(t.Context())
		var ended atomic.Int32
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.run(ctx, func(*leased) { ended.Add(1) })
		}()
		defer func() { cancel(); <-done }()
		add := func(n int, duration time.Duration) {
			for i := range n {
				in := registry.Instance{Service: registry.Service{Namespace: "default", Name: fmt.Sprint(duration, i)}}
				l.put(&leased{key: in.Key(), session: p.Registrar.Open(registry.Eureka, 0), duration: duration})
			}
		}
		add(2, 10*time.Second)
		add(18, time.Hour)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if ended.Load() != 2 {
			t.Errorf("%d of 20 ended, want the 2 that ran out", ended.Load())
		}
		ended.Store(0)
		add(10, 20*time.Second)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if ended.Load() != 0 {
			t.Errorf("%d of a wave of 10 ended at once", ended.Load())
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if ended.Load() != 10 {
			t.Errorf("%d of a wave of 10 ended after twice their duration", ended.Load())
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(instanceJSON("a", "UP")))
	f.Add([]byte(`<instance><app>a</app><port enabled="true">1</port><metadata><b>c</b></metadata></instance>`))
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, decode := range []func([]byte) (*info, error){decodeJSON, decodeXML} {
			in, err := decode(b)
			if err != nil || in.check(in.App) != nil {
				continue
			}
			if out, err := in.instance("default"); err == nil {
				hold(infoOf(out, 1), "")
			}
		}
	})
}
