//go:build linux

package spiffe_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/spiffe"
)

// helperSocket makes this program a workload: it waits for a line, fetches its
// certificate from the socket, and prints its ID or why it got none.
const helperSocket = "PROXIMA_TEST_WORKLOAD_API"

func TestMain(m *testing.M) {
	if socket := os.Getenv(helperSocket); socket != "" {
		helper(socket)
		return
	}
	goleak.VerifyTestMain(m)
}

func helper(socket string) {
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	svid, err := workloadapi.FetchX509SVID(ctx, workloadapi.WithAddr("unix://"+socket))
	if err != nil {
		fmt.Println(status.Code(err))
		return
	}
	fmt.Println(svid.ID)
}

// identities of tests: changed by set.
type identities struct {
	mu      sync.Mutex
	svids   map[spiffe.Workload]*mesh.SVID
	trust   *mesh.Trust
	changed chan struct{}
}

func (i *identities) Current(w spiffe.Workload) (*mesh.SVID, <-chan struct{}, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	svid, kept := i.svids[w]
	switch {
	case !kept:
		return nil, nil, errors.New("not kept")
	case svid == nil:
		return nil, i.changed, errors.New("none yet")
	}
	return svid, i.changed, nil
}

func (i *identities) Trust() (*mesh.Trust, <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.trust, i.changed
}

func (i *identities) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
	close(i.changed)
	i.changed = make(chan struct{})
}

type noKeeper struct{}

func (noKeeper) Load(context.Context) ([]byte, error) { return nil, nil }
func (noKeeper) Save(context.Context, []byte) error   { return nil }

// pki of one mesh.
type pki struct {
	name string
	root *authority.Root
	zone *authority.ZoneSigner
}

func newPKI(t *testing.T, name string) *pki {
	t.Helper()
	domain, err := mesh.DomainOf(name, "")
	if err != nil {
		t.Fatal(err)
	}
	root, err := authority.NewRoot(name, domain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	z, err := authority.NewZoneSigner(t.Context(), authority.ZoneConfig{
		Mesh: name, Domain: domain, Zone: "east", Issuer: root.ForZone("east", time.Now), Keeper: noKeeper{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = z.Run(ctx) }()
	for deadline := time.Now().Add(20 * time.Second); z.NotAfter().IsZero() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	return &pki{name, root, z}
}

func (p *pki) bundle(exportedTo ...string) mesh.Bundle {
	return mesh.Bundle{Mesh: p.name, Domain: p.root.Domain(), Roots: []*x509.Certificate{p.root.Certificate()}, ExportedTo: exportedTo}
}

func (p *pki) issue(t *testing.T, account string) *mesh.SVID {
	t.Helper()
	id, err := mesh.Workload(p.root.Domain(), "web", account)
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := authority.NewCSR(id, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := p.zone.Sign(t.Context(), authority.Request{ID: id, CSR: csr})
	if err != nil {
		t.Fatal(err)
	}
	svid, err := mesh.NewSVID(p.name, chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return svid
}

func newTrust(t *testing.T, bundles ...mesh.Bundle) *mesh.Trust {
	t.Helper()
	trust, err := mesh.NewTrust(bundles...)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// serve returns the path of the socket.
func serve(t *testing.T, i *identities, a spiffe.Attestor) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "api.sock")
	l, err := spiffe.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- spiffe.NewServer(spiffe.Config{Identities: i, Attestor: a}).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	return path
}

var front = spiffe.Workload{Namespace: "web", Name: "front-1"}

// self is a table in which this test's process is a workload.
func self(t *testing.T) *spiffe.Table {
	t.Helper()
	started, err := spiffe.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	table := &spiffe.Table{}
	if err := table.AddProcess(os.Getpid(), started, front); err != nil {
		t.Fatal(err)
	}
	return table
}

// TestSource: the client that workloads use, from its first certificate to renewals and
// a change of roots, and a TLS connection with what it got.
func TestSource(t *testing.T) {
	a, b, c := newPKI(t, "a"), newPKI(t, "b"), newPKI(t, "c")
	i := &identities{
		svids: map[spiffe.Workload]*mesh.SVID{front: nil}, changed: make(chan struct{}),
		trust: newTrust(t, a.bundle("b"), b.bundle(), c.bundle()),
	}
	socket := serve(t, i, self(t))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	first := a.issue(t, "front")
	// The certificate comes while the client waits for it.
	timer := time.AfterFunc(20*time.Millisecond, func() { i.set(func() { i.svids[front] = first }) })
	defer timer.Stop()
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr("unix://"+socket)))
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	svid, err := source.GetX509SVID()
	if err != nil || svid.ID.String() != first.ID.String() || len(svid.Certificates) != 2 ||
		mesh.SerialOf(svid.Certificates[0]) != first.Serial() {
		t.Fatalf("%+v %v", svid, err)
	}
	// Bundles of the own mesh and of the one that it is exported to, and no others.
	for name, want := range map[string]bool{"a.mesh": true, "b.mesh": true, "c.mesh": false} {
		bundle, err := source.GetX509BundleForTrustDomain(spiffeid.RequireTrustDomainFromString(name))
		if (err == nil) != want {
			t.Errorf("bundle of %s: %v", name, err)
		}
		if err == nil && len(bundle.X509Authorities()) != 1 {
			t.Errorf("bundle of %s has %d authorities", name, len(bundle.X509Authorities()))
		}
	}
	if err := connect(t, tlsconfig.MTLSServerConfig(source, source, tlsconfig.AuthorizeMemberOf(svid.ID.TrustDomain())),
		tlsconfig.MTLSClientConfig(source, source, tlsconfig.AuthorizeID(svid.ID))); err != nil {
		t.Error(err)
	}
	// Renewal, and another root.
	next, other := newPKI(t, "a"), newPKI(t, "b")
	i.set(func() {
		i.svids[front] = next.issue(t, "front")
		both := a.bundle("b")
		both.Roots = append(both.Roots, next.root.Certificate())
		i.trust = newTrust(t, both, other.bundle(), c.bundle())
	})
	for {
		if err := source.WaitUntilUpdated(ctx); err != nil {
			t.Fatal("no update: ", err)
		}
		svid, err := source.GetX509SVID()
		if err == nil && mesh.SerialOf(svid.Certificates[0]) != first.Serial() {
			break
		}
	}
	bundle, err := source.GetX509BundleForTrustDomain(spiffeid.RequireTrustDomainFromString("a.mesh"))
	if err != nil || len(bundle.X509Authorities()) != 2 {
		t.Errorf("%+v %v", bundle, err)
	}
	// Bundles alone.
	set, err := workloadapi.FetchX509Bundles(ctx, workloadapi.WithAddr("unix://"+socket))
	if err != nil || set.Len() != 2 {
		t.Errorf("%d bundles: %v", set.Len(), err)
	}
}

func connect(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = conn.Write([]byte{1})
			err = errors.Join(err, conn.Close())
		}
		served <- err
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), client)
	if err != nil {
		return errors.Join(err, <-served)
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return errors.Join(err, conn.Close(), <-served)
}

// start a process that is to fetch its certificate; ask lets it.
func start(t *testing.T, socket string, command ...string) (pid int, ask func() string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	if len(command) > 0 {
		cmd = exec.CommandContext(t.Context(), command[0], append(command[1:], self)...)
	}
	cmd.Env = append(os.Environ(), helperSocket+"="+socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, func() string {
		t.Helper()
		if _, err := io.WriteString(in, "go\n"); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(out.String())
	}
}

// TestProcesses: real processes get their own identity: a command of `run` and its
// children; a process of no workload gets none.
func TestProcesses(t *testing.T) {
	a := newPKI(t, "a")
	back := spiffe.Workload{Namespace: "web", Name: "back-1"}
	i := &identities{
		svids: map[spiffe.Workload]*mesh.SVID{front: a.issue(t, "front"), back: a.issue(t, "back")}, changed: make(chan struct{}),
		trust: newTrust(t, a.bundle()),
	}
	table := &spiffe.Table{}
	socket := serve(t, i, table)
	add := func(pid int, w spiffe.Workload) {
		t.Helper()
		started, err := spiffe.StartTime(pid)
		if err == nil {
			err = table.AddProcess(pid, started, w)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pid, ask := start(t, socket)
	add(pid, front)
	if got := ask(); got != "spiffe://a.mesh/ns/web/sa/front" {
		t.Errorf("the command: %s", got)
	}
	// A shell that starts the program as a child: `run -- sh -c …`.
	pid, ask = start(t, socket, "/bin/sh", "-c", `"$0"; :`)
	add(pid, back)
	if got := ask(); got != "spiffe://a.mesh/ns/web/sa/back" {
		t.Errorf("a child of the command: %s", got)
	}
	_, ask = start(t, socket)
	if got := ask(); got != codes.PermissionDenied.String() {
		t.Errorf("a process of no workload: %s", got)
	}
	// A process with a reused ID: the start time differs.
	pid, ask = start(t, socket)
	if err := table.AddProcess(pid, 1, front); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != codes.PermissionDenied.String() {
		t.Errorf("a process with the ID of one that has ended: %s", got)
	}
	// A workload that nothing is kept for, and one that was removed.
	pid, ask = start(t, socket)
	add(pid, spiffe.Workload{Namespace: "web", Name: "none"})
	if got := ask(); got != codes.PermissionDenied.String() {
		t.Errorf("a workload without certificate: %s", got)
	}
	pid, ask = start(t, socket)
	add(pid, front)
	table.Remove(front)
	if got := ask(); got != codes.PermissionDenied.String() {
		t.Errorf("a workload that was removed: %s", got)
	}
}

// TestProtocol: what the specification demands of a server, by plain gRPC.
func TestProtocol(t *testing.T) {
	a := newPKI(t, "a")
	i := &identities{svids: map[spiffe.Workload]*mesh.SVID{front: a.issue(t, "front")}, changed: make(chan struct{}),
		trust: newTrust(t, a.bundle())}
	table := self(t)
	socket := serve(t, i, table)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := workload.NewSpiffeWorkloadAPIClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	fetch := func(ctx context.Context) (workload.SpiffeWorkloadAPI_FetchX509SVIDClient, error) {
		stream, err := client.FetchX509SVID(ctx, &workload.X509SVIDRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return stream, err
	}
	for _, header := range [][]string{nil, {"workload.spiffe.io", "false"}, {"workload.spiffe.io", "true", "workload.spiffe.io", "true"}} {
		if _, err := fetch(metadata.AppendToOutgoingContext(ctx, header...)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("with metadata %q: %v", header, err)
		}
	}
	if _, err := client.FetchJWTSVID(ctx, &workload.JWTSVIDRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a token, without metadata: %v", err)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", "true")
	if _, err := client.FetchJWTSVID(ctx, &workload.JWTSVIDRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a token: %v", err)
	}
	// A workload that ends while its stream is open gets nothing more.
	stream, err := fetch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i.set(func() { table.Remove(front) })
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("after the workload's end: %v", err)
	}
}

// TestConnectionsPerUser: a user with too many connections gets no further one, and is
// served again once one of them is closed.
func TestConnectionsPerUser(t *testing.T) {
	a := newPKI(t, "a")
	i := &identities{svids: map[spiffe.Workload]*mesh.SVID{front: a.issue(t, "front")}, changed: make(chan struct{}),
		trust: newTrust(t, a.bundle())}
	socket := serve(t, i, self(t))
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	// A connection is counted when the server's first frame has come.
	dial := func() error {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err == nil {
			_, err = io.ReadFull(c, make([]byte, 9))
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		open = append(open, c)
		return nil
	}
	for range 256 {
		if err := dial(); err != nil {
			t.Fatalf("connection %d: %v", len(open), err)
		}
	}
	if err := dial(); err == nil {
		t.Fatal("257 connections of one user")
	}
	open[0].Close()
	for deadline := time.Now().Add(20 * time.Second); dial() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no connection after another one was closed")
		}
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "api.sock")
	l, err := spiffe.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, err := spiffe.Listen(path); err == nil {
		t.Error("a socket that is served is taken over")
	}
	// What a crash leaves behind is replaced.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = spiffe.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := spiffe.Listen(path); err == nil {
		t.Error("a file is replaced by the socket")
	}
}

func TestTable(t *testing.T) {
	var table spiffe.Table
	back := spiffe.Workload{Namespace: "web", Name: "back-1"}
	for path, ok := range map[string]bool{"/proxima/front": true, "/proxima/front/": true, "": false, "/": false, "front": false,
		"/a/../b": false, "/a/..": false} {
		if err := table.AddCgroup(path, front); (err == nil) != ok {
			t.Errorf("cgroup %q: %v", path, err)
		}
	}
	if err := table.AddCgroup("/proxima/front", back); err == nil {
		t.Error("one cgroup of two workloads")
	}
	if err := table.AddCgroup("/proxima/front/nested", back); err != nil {
		t.Error(err)
	}
	if err := table.AddProcess(1, 1, front); err == nil {
		t.Error("the first process is a workload's")
	}
	if err := errors.Join(table.AddProcess(10, 100, front), table.AddProcess(20, 200, back)); err != nil {
		t.Error(err)
	}
	if err := table.AddProcess(10, 100, back); err == nil {
		t.Error("one process of two workloads")
	}
	for _, tc := range []struct {
		what string
		p    spiffe.Process
		want spiffe.Workload
	}{
		{"its cgroup", spiffe.Process{PID: 5, Cgroup: "/proxima/front"}, front},
		{"below it", spiffe.Process{PID: 5, Cgroup: "/proxima/front/x/y"}, front},
		{"the nearest", spiffe.Process{PID: 5, Cgroup: "/proxima/front/nested/x"}, back},
		{"another name that begins alike", spiffe.Process{PID: 5, Cgroup: "/proxima/front-2"}, spiffe.Workload{}},
		{"the root", spiffe.Process{PID: 5, Cgroup: "/"}, spiffe.Workload{}},
		{"none", spiffe.Process{PID: 5}, spiffe.Workload{}},
		{"the process", spiffe.Process{PID: 10, Started: 100}, front},
		{"another of that ID", spiffe.Process{PID: 10, Started: 101}, spiffe.Workload{}},
		{"a child", spiffe.Process{PID: 30, Ancestors: []spiffe.Ancestor{{PID: 20, Started: 200}, {PID: 10, Started: 100}}}, back},
		{"both agree", spiffe.Process{PID: 10, Started: 100, Cgroup: "/proxima/front"}, front},
		{"they disagree", spiffe.Process{PID: 20, Started: 200, Cgroup: "/proxima/front"}, spiffe.Workload{}},
	} {
		got, err := table.Attest(t.Context(), tc.p)
		if got != tc.want || (err != nil) != (tc.want == spiffe.Workload{}) || err != nil && !errors.Is(err, spiffe.ErrNoWorkload) {
			t.Errorf("%s: %v %v", tc.what, got, err)
		}
	}
	table.Remove(front)
	if _, err := table.Attest(t.Context(), spiffe.Process{PID: 10, Started: 100, Cgroup: "/proxima/front"}); err == nil {
		t.Error("a workload that was removed")
	}
}
