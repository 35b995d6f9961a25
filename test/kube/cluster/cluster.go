package cluster

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// startTimeout bounds the start of a part on a busy machine; nothing is measured by it.
const startTimeout = 3 * time.Minute

// Config of a cluster. The zero value is one on the loopback interface.
type Config struct {
	// Host is the address that the API server and the controller manager listen on; empty:
	// 127.0.0.1.
	Host string
	// DualStack: nodes and pods have an address of IPv6, too, and Services can have one of
	// ServiceCIDR6.
	DualStack bool
	// ServiceCIDR is the range of virtual IPs; empty: 10.96.0.0/16.
	ServiceCIDR string
	// NodeGrace is how long nodes are ready without a renewal of their Leases, in Kubernetes 50 s; 0: nodes renew none,
	// and are ready for as long as a test takes. After an outage of the API server that is as long they are not ready.
	NodeGrace time.Duration
}

// Cluster is a running control plane. Its methods are safe for concurrent use, but for
// those that stop and start parts.
type Cluster struct {
	// Programs of sidecars; set before there are pods with one.
	Programs Programs
	t        testing.TB
	dir      string
	host     string
	port     int
	cidr     string
	ca       *pki
	etcd     *part
	api      *part
	manager  *part
	outer    *kernelnetns.NS
	nodes    int
	images   map[string]*image
	dual     bool
	grace    time.Duration
	all      []*Node
}

// auditPolicy logs who asked for what, without bodies: tests compare it with what roles allow.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// Start starts a cluster, and waits until its API server is ready. All of it is gone when
// the test ends. It builds what it needs first.
func Start(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	c := &Cluster{t: t, images: map[string]*image{}, dir: t.TempDir(), host: cfg.Host, cidr: cfg.ServiceCIDR}
	if c.host == "" {
		c.host = "127.0.0.1"
	}
	if c.cidr == "" {
		c.cidr = "10.96.0.0/16"
	}
	c.dual, c.grace = cfg.DualStack, cfg.NodeGrace
	c.port = testkit.FreePort(t)
	if err := c.certificates(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.file("audit-policy.yaml"), []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	client, peer := testkit.FreePort(t), testkit.FreePort(t)
	etcd := fmt.Sprintf("http://127.0.0.1:%d", client)
	members := fmt.Sprintf("http://127.0.0.1:%d", peer)
	c.etcd = startPart(t, c.dir, "etcd",
		"--data-dir="+c.file("etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+members, "--initial-advertise-peer-urls="+members, "--initial-cluster=default="+members,
		"--log-level=warn", "--unsafe-no-fsync", // the machine does not fail during a test
	)
	c.api = startPart(t, c.dir, "kube-apiserver", c.apiArgs(etcd)...)
	c.waitReady()
	c.manager = startPart(t, c.dir, "kube-controller-manager", c.managerArgs(t)...)
	return c
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// users that the parts and tests are, by the names of their files.
var users = map[string]pkix.Name{
	"admin":              {CommonName: "test-admin", Organization: []string{"system:masters"}},
	"controller-manager": {CommonName: "system:kube-controller-manager"},
	"kube-proxy":         {CommonName: "system:kube-proxy"},
}

func (c *Cluster) certificates() error {
	ca, err := newPKI(c.dir, "ca")
	if err != nil {
		return err
	}
	c.ca = ca
	// The authority of those who speak for others, as the aggregation layer does.
	front, err := newPKI(c.dir, "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := front.issue("front-proxy", pkix.Name{CommonName: "front-proxy-client"}, nil, nil); err != nil {
		return err
	}
	first, err := firstServiceIP(c.cidr)
	if err != nil {
		return err
	}
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	ips := []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(c.host), first}
	if err := ca.issue("apiserver", pkix.Name{CommonName: "kube-apiserver"}, names, ips); err != nil {
		return err
	}
	for name, subject := range users {
		if err := ca.issue(name, subject, nil, nil); err != nil {
			return err
		}
	}
	return ca.keyPair("service-accounts")
}

// ServiceCIDR6 is the range of virtual IPs of IPv6 in a cluster of two families.
const ServiceCIDR6 = "fd00:10:96::/108"

func (c *Cluster) serviceRanges() string {
	if c.dual {
		return c.cidr + "," + ServiceCIDR6
	}
	return c.cidr
}

// PodCIDRs are the ranges of the pods' addresses, separated by commas.
func (c *Cluster) PodCIDRs() string {
	if c.dual {
		return PodCIDR + "," + PodCIDR6
	}
	return PodCIDR
}

// firstServiceIP is that of the Service default/kubernetes.
func firstServiceIP(cidr string) (net.IP, error) {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return nil, err
	}
	ip := append(net.IP(nil), network.IP...)
	ip[len(ip)-1]++
	return ip, nil
}

// Issuer of the tokens of service accounts.
const Issuer = "https://kubernetes.default.svc.cluster.local"

func (c *Cluster) apiArgs(etcd string) []string {
	endpoints := "lease"
	if net.ParseIP(c.host).IsLoopback() {
		endpoints = "none" // a loopback address is no endpoint of default/kubernetes
	}
	return []string{
		"--endpoint-reconciler-type=" + endpoints,
		"--etcd-servers=" + etcd, "--bind-address=" + c.host, "--advertise-address=" + c.host, "--secure-port=" + strconv.Itoa(c.port),
		"--tls-cert-file=" + c.file("apiserver.crt"), "--tls-private-key-file=" + c.file("apiserver.key"), "--client-ca-file=" + c.file("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-cluster-ip-range=" + c.serviceRanges(), "--service-account-issuer=" + Issuer,
		"--service-account-key-file=" + c.file("service-accounts.pub"), "--service-account-signing-key-file=" + c.file("service-accounts.key"),
		"--requestheader-client-ca-file=" + c.file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.file("front-proxy.crt"), "--proxy-client-key-file=" + c.file("front-proxy.key"),
		"--audit-policy-file=" + c.file("audit-policy.yaml"), "--audit-log-path=" + c.AuditLog(), "--profiling=false",
	}
}

func (c *Cluster) managerArgs(t testing.TB) []string {
	kubeconfig := c.Kubeconfig(t, "controller-manager")
	args := []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--use-service-account-credentials=true", "--service-account-private-key-file=" + c.file("service-accounts.key"),
		"--root-ca-file=" + c.file("ca.crt"), "--cluster-signing-cert-file=" + c.file("ca.crt"), "--cluster-signing-key-file=" + c.file("ca.key"),
		"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(testkit.FreePort(t)), "--profiling=false",
		"--service-cluster-ip-range=" + c.serviceRanges(),
	}
	if c.grace == 0 { // nodes do not renew their Leases
		return append(args, "--node-monitor-grace-period="+lifetime.String())
	}
	return append(args, "--node-monitor-grace-period="+c.grace.String(), "--node-monitor-period="+(c.grace/renewals).String())
}

// AuditLog is the file in which the API server writes all requests, a JSON object a line
// (audit.k8s.io/v1 Event).
func (c *Cluster) AuditLog() string { return c.file("audit.log") }

// URL of the API server.
func (c *Cluster) URL() string { return "https://" + net.JoinHostPort(c.host, strconv.Itoa(c.port)) }

// CAFile has the certificate authority of the API server.
func (c *Cluster) CAFile() string { return c.file("ca.crt") }

// User makes a certificate for a user and groups, for Kubeconfig and REST. The name is that
// of its files, and must not be in use.
func (c *Cluster) User(t testing.TB, name, user string, groups ...string) {
	t.Helper()
	if err := c.ca.issue(name, pkix.Name{CommonName: user, Organization: groups}, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// Admin is a client that may do everything. The caller may change it.
func (c *Cluster) Admin(t testing.TB) *rest.Config { return c.REST(t, "admin") }

// REST is a client with the certificate of a user.
func (c *Cluster) REST(t testing.TB, name string) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(t, name))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS, cfg.Burst = -1, -1 // a test waits for the server, not for its client
	return cfg
}

// Kubeconfig is the path of a kubeconfig with the certificate of a user: admin,
// controller-manager, kube-proxy, or one that User made.
func (c *Cluster) Kubeconfig(t testing.TB, name string) string {
	t.Helper()
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["test"] = &clientcmdapi.Cluster{Server: c.URL(), CertificateAuthority: c.file("ca.crt")}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: c.file(name + ".crt"), ClientKey: c.file(name + ".key")}
	cfg.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: name}
	cfg.CurrentContext = "test"
	path := c.file(name + ".kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// waitReady blocks until the API server says that it is.
func (c *Cluster) waitReady() {
	c.t.Helper()
	client, err := rest.HTTPClientFor(c.Admin(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), startTimeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if c.ready(ctx, client) {
			return
		}
		for _, p := range []*part{c.etcd, c.api} {
			if err := p.ended(); err != nil {
				c.t.Fatal(err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("the API server is not ready after %s", startTimeout)
		}
	}
}

func (c *Cluster) ready(ctx context.Context, client *http.Client) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/readyz", nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(req)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// KillAPI kills the API server, as a crash does; etcd and the controller manager go on.
func (c *Cluster) KillAPI(t testing.TB) { c.api.stop(t, syscall.SIGKILL) }

// StartAPI starts the API server that KillAPI ended, and waits until it is ready.
func (c *Cluster) StartAPI(t testing.TB) {
	t.Helper()
	c.api.again(t, c.dir)
	c.waitReady()
}
