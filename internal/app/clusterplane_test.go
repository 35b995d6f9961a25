package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	demandv1 "github.com/proxima-mesh/proxima/api/demand/v1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubeclient/lease"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// fakeCluster is an API without controllers: that of a control plane that never leads.
type fakeCluster struct {
	*planeOf
	rest *rest.Config
}

func startCluster(t *testing.T, objects ...resource.Object) *fakeCluster {
	t.Helper()
	c := &fakeCluster{planeOf: startInstance(t, memory.New(memory.Options{}))}
	var err error
	if c.rest, err = clientcmd.BuildConfigFromFlags("", filepath.Join(c.cp.cfg.DataDir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	c.rest.WrapTransport = c.writePlans
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: access.SystemNamespace}}
	for _, obj := range append([]resource.Object{ns}, objects...) {
		d := map[string]*resource.Descriptor{
			"*v1.Node": kind.Node, "*v1.Service": kind.Service, "*v1.EndpointSlice": kind.EndpointSlice, "*v1.Namespace": kind.Namespace,
		}[fmt.Sprintf("%T", obj)]
		made, err := c.client.Create(t.Context(), d, obj)
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := obj.(*corev1.Node); ok {
			n.ResourceVersion, n.UID = made.GetResourceVersion(), made.GetUID()
			if _, err := c.client.UpdateStatus(t.Context(), d, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return c
}

// writePlans in process, and what is written of zones: over HTTP our API refuses them, as control
// planes alone write them, and this one is not global; in a cluster they are custom resources, and
// RBAC decides.
func (c *fakeCluster) writePlans(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		var of *resource.Descriptor
		path := strings.Split(r.URL.Path, "/") // /apis/GROUP/VERSION/RESOURCE…
		if r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") && path[len(path)-1] == "status" {
			return c.patchLabels(r, path[4])
		}
		for _, d := range []*resource.Descriptor{kind.TrafficPlan, kind.Zone, kind.ZoneInsight, kind.DataplaneInsight} {
			if len(path) > 4 && path[2] == d.GVK.Group && slices.Contains(path[4:], d.Resource) {
				of = d
			}
		}
		if r.Method == http.MethodGet || of == nil {
			return next.RoundTrip(r)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		obj := of.New()
		var out resource.Object
		switch err = json.Unmarshal(body, obj); {
		case r.Method == http.MethodDelete:
			out, err = obj, c.client.Delete(r.Context(), of, resource.Key{Name: path[len(path)-1]}, resource.Preconditions{})
		case err != nil:
			return nil, err
		case r.Method == http.MethodPost:
			out, err = c.client.Create(r.Context(), of, obj)
		case r.Method == http.MethodPut:
			out, err = c.client.Update(r.Context(), of, obj)
		default:
			return nil, fmt.Errorf("%s of a %s", r.Method, of.Singular)
		}
		code, value := http.StatusOK, any(out)
		var refused apierrors.APIStatus
		if errors.As(err, &refused) {
			code, value = int(refused.Status().Code), refused.Status()
		} else if err != nil {
			return nil, err
		} else {
			out.GetObjectKind().SetGroupVersionKind(of.GVK)
		}
		text, err := json.Marshal(value)
		return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
	})
}

// patchLabels of a Node as the API server of a cluster does: our own keeps what is not of a status.
func (c *fakeCluster) patchLabels(r *http.Request, node string) (*http.Response, error) {
	var patch corev1.Node
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		return nil, err
	}
	obj, err := c.client.Get(r.Context(), kind.Node, resource.Key{Name: node})
	if err != nil {
		return nil, err
	}
	labels := maps.Clone(obj.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, patch.Labels)
	obj.SetLabels(labels)
	if obj, err = c.client.Update(r.Context(), kind.Node, obj); err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(kind.Node.GVK)
	text, err := json.Marshal(obj)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
}

// reviews is the TokenReview of a cluster whose tokens are "NODE.of.agents", and of Pods
// "NAMESPACE/NAME/UID.of.pods".
type reviews struct{}

func (reviews) ReviewToken(_ context.Context, token string, _ []string) (s authenticationv1.TokenReviewStatus, err error) {
	if of := strings.Split(strings.TrimSuffix(token, ".of.pods"), "/"); len(of) == 3 && strings.HasSuffix(token, ".of.pods") {
		s.Authenticated, s.Audiences = true, []string{access.AgentAudience}
		s.User.Username = "system:serviceaccount:" + of[0] + ":seller"
		s.User.Extra = map[string]authenticationv1.ExtraValue{
			"authentication.kubernetes.io/pod-name": {of[1]}, "authentication.kubernetes.io/pod-uid": {of[2]},
		}
		return s, nil
	}
	name, _, _ := strings.Cut(token, ".of.agents")
	switch name {
	case token:
		return s, nil
	case "down":
		return s, errors.New("no way to the API")
	}
	s.Authenticated, s.Audiences = true, []string{access.AgentAudience}
	s.User.Username = "system:serviceaccount:" + access.SystemNamespace + ":proxima-agent"
	s.User.Extra = map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {name}}
	return s, nil
}

// replica of a control plane in a cluster.
type replica struct {
	t    *testing.T
	dir  string
	p    *clusterPlane
	stop func() // as SIGTERM does
}

// startReplica with an election whose periods are short.
func (c *fakeCluster) startReplica(name string) *replica {
	c.t.Helper()
	return c.startReplicaOf(name, ControlPlaneConfig{Preset: PresetKubeProxyReplacement})
}

// startReplicaOf a role and preset.
func (c *fakeCluster) startReplicaOf(name string, cfg ControlPlaneConfig) *replica {
	c.t.Helper()
	port, apiPort := testkit.FreePort(c.t), testkit.FreePort(c.t)
	ballot, err := lease.New(lease.Config{
		REST: c.rest, Lease: resource.Key{Namespace: access.SystemNamespace, Name: leaseName},
		Identity:      holderIdentity(name, fmt.Sprintf("127.0.0.1:%d", apiPort), fmt.Sprintf("127.0.0.1:%d", port)),
		LeaseDuration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 200 * time.Millisecond,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if cfg.DataDir == "" {
		cfg.DataDir = c.t.TempDir()
	}
	cfg.Feed.Off = cfg.Feed.Copies == 0
	r := &replica{t: c.t, dir: cfg.DataDir}
	ctx, cancel := context.WithCancel(context.Background())
	cfg.Store, cfg.Cluster, cfg.Namespace, cfg.AgentServiceAccount = StoreKubernetes, c.rest, access.SystemNamespace, "proxima-agent"
	cfg.APIAddress, cfg.GRPCPort = fmt.Sprintf("127.0.0.1:%d", apiPort), port
	cfg.DefaultTopologyMode, cfg.reviewer, cfg.ballot = topology.Adaptive, reviews{}, ballot
	r.p, err = newClusterPlane(ctx, cfg)
	if err != nil {
		cancel()
		c.t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- run(ctx, r.p.election, append(r.p.components(), announce(func(Serving) { close(ready) }, r.p.serving())))
	}()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				c.t.Error(err)
			}
			r.p.close()
		})
	}
	c.t.Cleanup(r.stop)
	select {
	case <-ready:
	case <-time.After(testkit.Timeout):
		c.t.Fatalf("replica %s does not become ready: %v", name, r.p.reads.problem())
	}
	return r
}

func (r *replica) leads() bool { return r.p.leader.planner.Load() != nil }

// join as an agent does, with the token of its service account.
func (r *replica) join(token string) (cert tls.Certificate, roots *x509.CertPool, grpcAddress string, err error) {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		r.t.Fatal(err)
	}
	roots = r.p.storage.ca.Pool()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	body := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.p.serving().API+identity.CertificatesPath, bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		return cert, nil, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return cert, nil, "", err
	}
	if res.StatusCode != http.StatusOK {
		return cert, nil, "", fmt.Errorf("%d: %s", res.StatusCode, text)
	}
	var answer identity.CertificateAnswer
	if err := json.Unmarshal(text, &answer); err != nil {
		return cert, nil, "", err
	}
	keyPEM, err := certpem.EncodeKey(key)
	if err != nil {
		r.t.Fatal(err)
	}
	cert, err = tls.X509KeyPair([]byte(answer.Certificate), keyPEM)
	return cert, roots, "127.0.0.1" + answer.GRPCAddress, err
}

// plan of a Service in the cluster; nil: none.
func (c *fakeCluster) planOf(name string) *plannerv1alpha1.TrafficPlan {
	obj, err := c.client.Get(c.t.Context(), kind.TrafficPlan, resource.Key{Namespace: "default", Name: name})
	if err != nil {
		return nil
	}
	return obj.(*plannerv1alpha1.TrafficPlan)
}

// TestPlansInACluster: one replica leads, writes plans and conditions through the API of the
// cluster, and hands over; both serve agents that join by their service account.
func TestPlansInACluster(t *testing.T) {
	objects := append(zonedNodes(1), serviceOf(1, "aabbc", false)...)
	objects[3].SetAnnotations(map[string]string{"kept": "yes", corev1.LastAppliedConfigAnnotation: "{}"})
	c := startCluster(t, objects...)
	a := c.startReplica("a")
	eventually(t, "a plan", func() bool { return c.planOf("s001") != nil })
	b := c.startReplica("b")

	// What is written is what is written outside: a plan that the Service owns, and its condition.
	plan := c.planOf("s001")
	service := c.get(kind.Service, "s001").(*corev1.Service)
	if len(plan.OwnerReferences) != 1 || plan.OwnerReferences[0].UID != service.UID || len(plan.Spec.Groups) != 1 || plan.Spec.Groups[0].Outcome != plannerv1alpha1.OutcomePlanned {
		t.Errorf("%+v", plan)
	}
	eventually(t, "the condition", func() bool {
		service = c.get(kind.Service, "s001").(*corev1.Service)
		return meta.IsStatusConditionTrue(service.Status.Conditions, topology.ConditionPlan)
	})
	if service.Annotations["kept"] != "yes" || service.Annotations[corev1.LastAppliedConfigAnnotation] == "" || len(service.Spec.Ports) != 1 {
		t.Errorf("a write of the status changed more: %+v", service)
	}

	// Both replicas have one authority, and agents of either get the plan.
	if a.p.storage.ca.Pin() != b.p.storage.ca.Pin() {
		t.Error("the replicas have authorities of their own")
	}
	published := c.getIn(kind.ConfigMap, access.SystemNamespace, authorityObject).(*corev1.ConfigMap)
	if published.Data[authorityFile] != string(a.p.storage.ca.PEM()) {
		t.Error("agents get another authority")
	}
	for _, r := range []*replica{a, b} {
		r.follow("zone-a-00", "zone-a")
	}
	if a.leads() == b.leads() {
		t.Fatalf("a leads: %v, b leads: %v", a.leads(), b.leads())
	}

	// The leader ends: the other one goes on with the plans.
	leader, other := a, b
	if b.leads() {
		leader, other = b, a
	}
	// Sums are the leader's: the other one asks it.
	for _, r := range []*replica{leader, other} {
		eventually(t, "sums", func() bool {
			var zones summary.Zones
			return ask(t, r.dir, http.MethodGet, admin.SummaryZonesPath, nil, &zones) == http.StatusOK && zones.Total.Planned == 1 && len(zones.Flows) > 0
		})
	}
	leader.stop()
	eventually(t, "another leader", other.leads)
	version := c.planOf("s001").Spec.Version
	slice := c.get(kind.EndpointSlice, "s001-x").(*discoveryv1.EndpointSlice)
	slice.Endpoints = slice.Endpoints[:3]
	if _, err := c.client.Update(t.Context(), kind.EndpointSlice, slice); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another plan", func() bool { return c.planOf("s001").Spec.Version > version })

	var survey topology.Survey
	if code := ask(t, other.dir, http.MethodPost, admin.SurveyPath, admin.SurveyRequest{}, &survey); code != http.StatusOK || len(survey.Services) != 1 || !survey.Services[0].Planned {
		t.Errorf("survey: %d, %+v", code, survey)
	}
	var status admin.Status
	if code := ask(t, other.dir, http.MethodGet, admin.StatusPath, nil, &status); code != http.StatusOK || status.Preset != string(PresetKubeProxyReplacement) || status.Store.Problem != "" {
		t.Errorf("status: %d, %+v", code, status)
	}
}

// TestDemandInACluster: what an agent reports to a replica that does not lead comes to the one
// that does, and makes its plan.
func TestDemandInACluster(t *testing.T) {
	c := startCluster(t, append(zonedNodes(1), serviceOf(1, "aabbc", false)...)...)
	leader, other := c.startReplica("a"), c.startReplica("b")
	eventually(t, "a leader", func() bool { return leader.leads() || other.leads() })
	if other.leads() {
		leader, other = other, leader
	}
	eventually(t, "the leader is known", func() bool { return other.p.election.(*lease.Election).Other() != "" })
	conn := other.dial("zone-a-00")
	defer conn.Close()
	report := &demandv1.ReportRequest{
		Node: "zone-a-00", Run: []byte("r"), Sequence: 1, ElapsedMilliseconds: 10_000,
		Traffic: []*demandv1.Traffic{{Namespace: "default", Service: "s001", Port: "http", Connections: 1000}},
	}
	eventually(t, "the report is taken", func() bool {
		_, err := demandv1.NewDemandClient(conn).Report(t.Context(), report)
		return err == nil
	})
	for _, r := range []*replica{leader, other} {
		if n := r.p.instance.demand.Stats().Total.Connections; n != 1000 {
			t.Errorf("%d connections", n)
		}
	}
	// Nobody but another instance reports for other nodes.
	report.Node = "zone-b-00"
	if _, err := demandv1.NewDemandClient(conn).Report(t.Context(), report); status.Code(err) != codes.PermissionDenied {
		t.Errorf("for another node: %v", err)
	}
}

// TestPodsInACluster: Pods are not even asked for until a Service warms its endpoints up.
func TestPodsInACluster(t *testing.T) {
	c := startCluster(t, append(zonedNodes(1), serviceOf(1, "aabbc", false)...)...)
	_, err := c.client.Create(t.Context(), kind.Pod, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec:       corev1.PodSpec{NodeName: "zone-a-00", Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	plans := c.rest.WrapTransport
	c.rest.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/pods") {
				asked.Add(1)
			}
			return plans(next).RoundTrip(r)
		})
	}
	r := c.startReplica("a")
	eventually(t, "a plan", func() bool { return c.planOf("s001") != nil })
	tables := r.p.instance.catalog
	if n, pods := asked.Load(), tables.Snapshot().Pods.Len(); n != 0 || pods != 0 {
		t.Errorf("%d requests for pods, %d are there", n, pods)
	}
	service := c.get(kind.Service, "s001")
	annotations := map[string]string{kind.AnnotationWarmUp: "30s"}
	maps.Copy(annotations, service.GetAnnotations())
	service.SetAnnotations(annotations)
	if _, err := c.client.Update(t.Context(), kind.Service, service); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pods are followed", func() bool { return tables.Snapshot().Pods.Len() == 1 })
}

// dial the gRPC port as a node that has joined.
func (r *replica) dial(node string) *grpc.ClientConn {
	r.t.Helper()
	cert, roots, address, err := r.join(node + ".of.agents")
	if err != nil {
		r.t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{cert},
	})))
	if err != nil {
		r.t.Fatal(err)
	}
	return conn
}

func (c *fakeCluster) get(d *resource.Descriptor, name string) resource.Object {
	return c.getIn(d, "default", name)
}

func (c *fakeCluster) getIn(d *resource.Descriptor, namespace, name string) resource.Object {
	c.t.Helper()
	obj, err := c.client.Get(c.t.Context(), d, resource.Key{Namespace: namespace, Name: name})
	if err != nil {
		c.t.Fatal(err)
	}
	return obj
}

// follow the view of a zone as a node's agent, until it has the weights of a plan.
func (r *replica) follow(name, zone string) {
	r.t.Helper()
	conn := r.dial(name)
	defer conn.Close()
	var weighted atomic.Bool
	feed := fromview.NewFeed(fromview.FeedConfig{
		Conn: conn, Node: name, Zone: "zone-a", StateFile: filepath.Join(r.t.TempDir(), "view"),
		Update: func(u node.Update) {
			for _, s := range u.Slices {
				if s != nil && slices.ContainsFunc(s.Endpoints, func(e proxy.SliceEndpoint) bool { return e.Weight > 0 && string(e.Zone) == zone }) {
					weighted.Store(true)
				}
			}
		},
	})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- feed.Run(ctx) }()
	eventually(r.t, "a view with a plan", weighted.Load)
	cancel()
	<-done
}

// TestJoinInACluster: only agents' tokens, and only for nodes that there are.
func TestJoinInACluster(t *testing.T) {
	c := startCluster(t, zonedNodes(1)...)
	r := c.startReplica("a")
	cert, _, _, err := r.join("zone-b-00.of.agents")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if s := identity.SubjectOf(leaf); s.User != "system:node:zone-b-00" || !slices.Equal(s.Groups, []string{identity.GroupNodes}) {
		t.Errorf("a certificate of %+v", s)
	}
	for token, want := range map[string]string{
		"gone.of.agents":     `403: `,
		"a.foreign.token":    "the cluster refuses the token",
		"down.of.agents":     "503",
		"zone-a-00.of":       "401",
		"proxima_1_whatever": "401",
	} {
		if _, _, _, err := r.join(token); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", token, err, want)
		}
	}
}

// TestAuthorityIsShared: what the Secret has is used; a Secret that is damaged stops the start.
func TestAuthorityIsShared(t *testing.T) {
	c := startCluster(t)
	cfg := ControlPlaneConfig{Cluster: c.rest, Namespace: access.SystemNamespace}
	var pins []identity.Pin
	for range 2 {
		cfg.DataDir = t.TempDir()
		if err := shareAuthority(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		ca, err := identity.Open(filepath.Join(cfg.DataDir, "pki"))
		if err != nil {
			t.Fatal(err)
		}
		pins = append(pins, ca.Pin())
	}
	if pins[0] != pins[1] {
		t.Error("two authorities")
	}
	if info, err := os.Stat(filepath.Join(cfg.DataDir, "pki", "ca", "ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	// A new authority in the Secret replaces that of the data directory, and is published.
	secret := c.getIn(kind.Secret, access.SystemNamespace, authorityObject).(*corev1.Secret)
	dir := t.TempDir()
	other, err := identity.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for file, name := range map[string]string{"ca.crt": corev1.TLSCertKey, "ca.key": corev1.TLSPrivateKeyKey} {
		if secret.Data[name], err = os.ReadFile(filepath.Join(dir, "ca", file)); err != nil {
			t.Fatal(err)
		}
	}
	updated, err := c.client.Update(t.Context(), kind.Secret, secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := shareAuthority(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if ca, err := identity.Open(filepath.Join(cfg.DataDir, "pki")); err != nil || ca.Pin() != other.Pin() {
		t.Errorf("the authority of the Secret is not used: %v", err)
	}
	if m := c.getIn(kind.ConfigMap, access.SystemNamespace, authorityObject).(*corev1.ConfigMap); m.Data[authorityFile] != string(other.PEM()) {
		t.Error("the authority of the Secret is not published")
	}
	secret = updated.(*corev1.Secret)
	secret.Data[corev1.TLSPrivateKeyKey] = nil
	if _, err := c.client.Update(t.Context(), kind.Secret, secret); err == nil {
		if err := shareAuthority(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "has no tls.crt or no tls.key") {
			t.Errorf("a damaged Secret: %v", err)
		}
	}
}

// TestLeaseElection: nobody leads beside another one; who hands over is followed at once, and who
// cannot renew leads no more.
func TestLeaseElection(t *testing.T) {
	c := startCluster(t)
	var leading, most atomic.Int32
	type candidate struct {
		won, lost chan struct{}
		release   chan struct{} // lead returns once it is closed and the term is over
		cut       atomic.Bool   // requests fail
		stop      func()
		election  *lease.Election
	}
	begin := func(name string) *candidate {
		k := &candidate{won: make(chan struct{}, 10), lost: make(chan struct{}, 10), release: make(chan struct{})}
		cfg := rest.CopyConfig(c.rest)
		cfg.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if k.cut.Load() {
					return nil, errors.New("the wire is cut")
				}
				return next.RoundTrip(r)
			})
		}
		e, err := lease.New(lease.Config{
			REST: cfg, Lease: resource.Key{Namespace: access.SystemNamespace, Name: "test"}, Identity: name,
			LeaseDuration: 5 * time.Second, RenewDeadline: time.Second, RetryPeriod: 100 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		k.election = e
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- e.Run(ctx, func(term context.Context) error {
				most.Store(max(most.Load(), leading.Add(1)))
				k.won <- struct{}{}
				<-term.Done()
				k.lost <- struct{}{}
				<-k.release
				leading.Add(-1)
				return nil
			})
		}()
		var once sync.Once
		k.stop = func() {
			once.Do(func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		}
		t.Cleanup(k.stop)
		return k
	}
	soon := func(what string, from <-chan struct{}) {
		t.Helper()
		select {
		case <-from:
		case <-time.After(testkit.Timeout):
			t.Fatalf("%s does not happen", what)
		}
	}
	a := begin("a")
	soon("the first term", a.won)
	b := begin("b")
	said := func(what string, k *candidate, leads, vacant bool) {
		t.Helper()
		testkit.Eventually(t, what, func() bool { return k.election.Leads() == leads && k.election.Vacant() == vacant })
	}
	said("a says that it leads", a, true, false)
	said("b says that another one leads", b, false, false)
	stopped := make(chan struct{})
	go func() { defer close(stopped); a.stop() }()
	soon("the end of the first term", a.lost)
	select {
	case <-b.won:
		t.Fatal("b leads while a has not ended")
	case <-time.After(500 * time.Millisecond): // several retries of b
	}
	handed := time.Now()
	close(a.release)
	soon("the second term", b.won)
	if took := time.Since(handed); took > 3*time.Second {
		t.Errorf("the hand-over took %s: the Lease was not given back", took)
	}
	<-stopped

	close(b.release)
	b.cut.Store(true)
	d := begin("d")
	close(d.release)
	soon("the end of the second term", b.lost)
	soon("the third term", d.won)
	said("d says that it leads", d, true, false)
	said("b, which is cut off, sees nobody", b, false, true)
	b.cut.Store(false)
	said("b sees d", b, false, false)
	if most.Load() != 1 {
		t.Errorf("%d led at a time", most.Load())
	}
	failing, err := lease.New(lease.Config{REST: c.rest, Lease: resource.Key{Namespace: access.SystemNamespace, Name: "other"}, Identity: "f"})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := failing.Run(t.Context(), func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a term that fails: %v", err)
	}
}
