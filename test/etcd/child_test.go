package etcd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/etcd"
)

// childEnv makes this test binary a member of a cluster or a writer, which are
// processes of their own so that they can be killed.
const childEnv = "PROXIMA_ETCD_TEST_CHILD"

// child is what such a process does: exactly one of Member and Writer is set.
type child struct {
	Member *childMember
	Writer *childWriter
}

type childMember struct{ Name, Dir, Client, Peer, Cluster string }

type childWriter struct{ URL, Key string }

// runChild does not return.
func runChild(text string) {
	var c child
	err := json.Unmarshal([]byte(text), &c)
	switch {
	case err != nil:
	case c.Member != nil:
		err = c.Member.run()
	default:
		err = c.Writer.run()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (m *childMember) run() error {
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster = m.Name, m.Dir, m.Cluster
	c.Logger, c.ZapLoggerBuilder = "zap", embed.NewZapLoggerBuilder(zap.NewNop())
	c.ListenClientUrls, c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: m.Client}}, []url.URL{{Scheme: "http", Host: m.Peer}}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = c.ListenClientUrls, c.ListenPeerUrls
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	select {
	case <-server.Server.ReadyNotify():
		fmt.Println("ready")
	case err := <-server.Err():
		return err
	}
	// The parent's end of standard input is gone when the parent is.
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
	os.Exit(0)
	return nil
}

// run commits pairs of keys and prints each number that is acknowledged.
func (w *childWriter) run() error {
	s, err := etcd.Open(context.Background(), w.URL, etcd.Options{})
	if err != nil {
		return err
	}
	for i := 1; ; i++ {
		if _, err := s.Commit(context.Background(), store.Txn{Ops: []store.Op{
			put(fmt.Sprintf("%s/%06d/a", w.Key, i), "v"), put(fmt.Sprintf("%s/%06d/b", w.Key, i), "v"),
		}}); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// process is a child that runs.
type process struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(t testing.TB, c child) *process {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // closed with this process
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

// kill ends the process as a power cut would, without a word. Idempotent.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// cluster is three members.
type cluster struct {
	members   []childMember
	processes []*process
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{processes: make([]*process, 3)}
	var all []string
	for i := range 3 {
		m := childMember{
			Name: fmt.Sprintf("m%d", i), Dir: t.TempDir(), Client: freeURL(t).Host, Peer: freeURL(t).Host,
		}
		all = append(all, m.Name+"=http://"+m.Peer)
		c.members = append(c.members, m)
	}
	for i := range c.members {
		c.members[i].Cluster = strings.Join(all, ",")
		c.processes[i] = startChild(t, child{Member: &c.members[i]})
	}
	for i := range c.members {
		c.await(t, i)
	}
	return c
}

// await waits until a member serves.
func (c *cluster) await(t testing.TB, i int) {
	t.Helper()
	if !c.processes[i].lines.Scan() {
		t.Fatalf("member %d did not start", i)
	}
}

func (c *cluster) restart(t testing.TB, i int) {
	t.Helper()
	c.processes[i] = startChild(t, child{Member: &c.members[i]})
	c.await(t, i)
}

func (c *cluster) url() string {
	var hosts []string
	for _, m := range c.members {
		hosts = append(hosts, m.Client)
	}
	return "etcd://" + strings.Join(hosts, ",")
}
