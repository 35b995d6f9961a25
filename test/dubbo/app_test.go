package dubbo

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dubbo.apache.org/dubbo-go/v3"
	"dubbo.apache.org/dubbo-go/v3/client"
	"dubbo.apache.org/dubbo-go/v3/common"
	"dubbo.apache.org/dubbo-go/v3/common/constant"
	"dubbo.apache.org/dubbo-go/v3/config_center"
	_ "dubbo.apache.org/dubbo-go/v3/imports"
	"dubbo.apache.org/dubbo-go/v3/protocol"
	"dubbo.apache.org/dubbo-go/v3/protocol/triple/triple_protocol"
	"dubbo.apache.org/dubbo-go/v3/registry"
	"dubbo.apache.org/dubbo-go/v3/server"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The interfaces that providers export: by Triple, whose messages are those of Protocol Buffers, and by the
// protocol dubbo, whose types are those of Hessian.
const (
	greeter      = "shop.Greeter"
	plainGreeter = "shop.PlainGreeter"
)

// application is what a process of dubbo-go runs, as JSON in its argument.
type application struct {
	Role string // provider or consumer
	Name string
	// Registry is the address of Nacos, or, with zookeeper:// before it, of ZooKeeper; Mode how it is used:
	// service, interface or all.
	Registry, Mode string
	// Address and Port of a provider, and what it answers. An empty address is 127.0.0.1.
	Address string
	Port    int
	Reply   string
	// Remote: the provider publishes its metadata.
	Remote bool
	// MetadataProtocol of the provider: dubbo or tri; MetadataPort 0: a random one.
	MetadataProtocol string
	MetadataPort     int
	Protocol         string // dubbo; empty: Triple
	// Rules: the consumer reads rules, from the registry.
	Rules bool
	// Interfaces is how many more interfaces a provider of the protocol dubbo exports.
	Interfaces int
}

// zookeeper is what a registry's address begins with that is one of ZooKeeper.
const zookeeper = "zookeeper://"

const argument = "-application="

func TestMain(m *testing.M) {
	for _, arg := range os.Args[1:] {
		if text, ok := strings.CutPrefix(arg, argument); ok {
			var a application
			if err := json.Unmarshal([]byte(text), &a); err != nil {
				fatal(err)
			}
			a.run()
			return
		}
	}
	os.Exit(m.Run())
}

func fatal(v ...any) {
	fmt.Fprintln(os.Stderr, v...)
	os.Exit(1)
}

func (a *application) registry() []registry.Option {
	mode := registry.WithRegisterServiceAndInterface()
	switch a.Mode {
	case "service":
		mode = registry.WithRegisterService()
	case "interface":
		mode = registry.WithRegisterInterface()
	}
	if at, ok := strings.CutPrefix(a.Registry, zookeeper); ok {
		return []registry.Option{registry.WithZookeeper(), registry.WithAddress(at), mode}
	}
	return []registry.Option{registry.WithNacos(), registry.WithAddress(a.Registry), mode}
}

func (a *application) run() {
	options := []dubbo.InstanceOption{dubbo.WithName(a.Name), dubbo.WithRegistry(a.registry()...)}
	if a.Rules {
		center, at := config_center.WithNacos(), a.Registry
		if address, ok := strings.CutPrefix(at, zookeeper); ok {
			center, at = config_center.WithZookeeper(), address
		}
		options = append(options, dubbo.WithConfigCenter(center, config_center.WithAddress(at), config_center.WithGroup("dubbo")))
	}
	if a.Remote {
		options = append(options, dubbo.WithRemoteMetadata())
	}
	if a.MetadataProtocol != "" {
		options = append(options, dubbo.WithMetadataServiceProtocol(a.MetadataProtocol))
	}
	if a.MetadataPort != 0 {
		options = append(options, dubbo.WithMetadataServicePort(a.MetadataPort))
	}
	instance, err := dubbo.NewInstance(options...)
	if err != nil {
		fatal(err)
	}
	if a.Role == "provider" {
		a.provide(instance)
		return
	}
	a.consume(instance)
}

// Provider answers greetings: dubbo-go exports no type of a lower-case name.
type Provider struct{ reply string }

func (p *Provider) Greet(_ context.Context, name *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	return wrapperspb.String(p.reply + " greets " + name.GetValue()), nil
}

// PlainProvider is for the protocol dubbo, whose types are those of Hessian.
type PlainProvider struct{ reply, name string }

func (p *PlainProvider) Greet(_ context.Context, name string) (string, error) {
	return p.reply + " greets " + name, nil
}

// Reference names the interface.
func (p *PlainProvider) Reference() string { return p.name }

type greeting interface {
	Greet(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

func (a *application) provide(instance *dubbo.Instance) {
	name := protocol.WithTriple()
	if a.Protocol == "dubbo" {
		name = protocol.WithDubbo()
	}
	s, err := instance.NewServer(server.WithServerProtocol(name, protocol.WithID("only"), protocol.WithPort(a.Port), protocol.WithIp(cmp.Or(a.Address, "127.0.0.1"))),
		server.WithServerProtocolIDs([]string{"only"}))
	if err != nil {
		fatal(err)
	}
	if a.Protocol == "dubbo" {
		names := []string{plainGreeter}
		for i := range a.Interfaces {
			names = append(names, fmt.Sprintf("shop.Service%d", i))
		}
		for _, name := range names {
			err = cmp.Or(err, s.RegisterService(&PlainProvider{a.Reply, name}, server.WithInterface(name)))
		}
	} else {
		err = s.Register(&Provider{a.Reply}, &common.ServiceInfo{
			InterfaceName: greeter, ServiceType: (*greeting)(nil),
			Methods: []common.MethodInfo{{
				Name: "Greet", Type: constant.CallUnary, ReqInitFunc: func() any { return new(wrapperspb.StringValue) },
				MethodFunc: func(ctx context.Context, args []any, handler any) (any, error) {
					out, err := handler.(greeting).Greet(ctx, args[0].(*wrapperspb.StringValue))
					return triple_protocol.NewResponse(out), err
				},
			}},
		})
	}
	if err != nil {
		fatal(err)
	}
	if err := s.Serve(); err != nil {
		fatal(err)
	}
}

// consume calls the provider again and again, and writes a line for each call.
func (a *application) consume(instance *dubbo.Instance) {
	options := []client.ClientOption{client.WithClientNoCheck(), client.WithClientProtocolTriple()}
	if a.Protocol == "dubbo" {
		options[1] = client.WithClientProtocolDubbo()
	}
	c, err := instance.NewClient(options...)
	if err != nil {
		fatal(err)
	}
	call := a.call(c)
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		reply, err := call(ctx, strconv.Itoa(n))
		cancel()
		if err != nil {
			fmt.Printf("%sfailed: %.300q\n", mark, err.Error())
		} else {
			fmt.Printf("%s%s\n", mark, reply)
		}
		time.Sleep(20 * time.Millisecond) // the pace of the load
	}
}

func (a *application) call(c *client.Client) func(context.Context, string) (string, error) {
	if a.Protocol == "dubbo" {
		connection, err := c.Dial(plainGreeter)
		if err != nil {
			fatal(err)
		}
		return func(ctx context.Context, name string) (string, error) {
			var out string
			err := connection.CallUnary(ctx, []any{name}, &out, "Greet")
			return out, err
		}
	}
	connection, err := c.DialWithInfo(greeter, &client.ClientInfo{InterfaceName: greeter, MethodNames: []string{"Greet"}})
	if err != nil {
		fatal(err)
	}
	return func(ctx context.Context, name string) (string, error) {
		out := new(wrapperspb.StringValue)
		err := connection.CallUnary(ctx, []any{wrapperspb.String(name)}, out, "Greet")
		return out.GetValue(), err
	}
}

// mark begins the lines of calls, among those of the log.
const mark = "call: "

// process is an application that runs.
type process struct {
	t       *testing.T
	command *exec.Cmd
	log     string
	what    string // for messages

	mu    sync.Mutex
	calls []string
	more  chan struct{}
	ended chan struct{}
}

// start runs an application until the test ends. It has a folder of its own: the client of Nacos keeps
// what it knew beside the program, and reads it again.
func start(t *testing.T, a application) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return launch(t, a.Role+" "+a.Name, func(dir string) *exec.Cmd {
		program := filepath.Join(dir, "application")
		if err := os.Link(self, program); err != nil {
			if err := copyFile(program, self); err != nil {
				t.Fatal(err)
			}
		}
		return exec.Command(program, argument+string(text))
	})
}

// launch a program in a folder of its own until the test ends.
func launch(t *testing.T, what string, command func(dir string) *exec.Cmd) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "dubbo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &process{t: t, what: what, log: filepath.Join(dir, "output"), more: make(chan struct{}), ended: make(chan struct{})}
	p.command = command(dir)
	p.command.Dir = dir
	p.command.Env = append(os.Environ(), "HOME="+dir)
	out, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	p.command.Stderr = log
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		defer func() { _ = log.Close() }()
		p.read(out, log)
		_ = p.command.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.showLog()
		}
	})
	return p
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o700)
}

func (p *process) read(out io.Reader, log io.Writer) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), mark); ok {
			p.mu.Lock()
			p.calls = append(p.calls, text)
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		_, _ = fmt.Fprintln(log, lines.Text())
	}
}

// showLog prints the end of an application's log. The whole logs are written to the folder DUBBO_LOGS, if
// it is set.
func (p *process) showLog() {
	b, _ := os.ReadFile(p.log)
	const most = 3000
	p.t.Logf("%s:\n%s", p.what, b[max(0, len(b)-most):])
	if dir := os.Getenv("DUBBO_LOGS"); dir != "" {
		sdk, _ := os.ReadFile(filepath.Join(filepath.Dir(p.log), "log", "nacos-sdk.log"))
		b = append(b, sdk...)
		_ = os.WriteFile(filepath.Join(dir, filepath.Base(filepath.Dir(p.log))+"-"+strings.ReplaceAll(p.what, " ", "-")), b, 0o600)
	}
}

// stop ends it as an operator would, and waits until it has withdrawn its instances.
func (p *process) stop() {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(60 * time.Second):
		p.t.Error("the application did not end")
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// position of the next call.
func (p *process) position() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.calls)
}

// until waits for a call, from a position on, whose result has a prefix; what are those before.
func (p *process) until(from int, prefix string) (before []string) {
	p.t.Helper()
	end := time.After(30 * time.Second)
	for at := from; ; at++ {
		for {
			p.mu.Lock()
			calls, more := p.calls, p.more
			p.mu.Unlock()
			if at < len(calls) {
				if strings.HasPrefix(calls[at], prefix) {
					return calls[from:at]
				}
				break
			}
			select {
			case <-more:
			case <-end:
				last := "none"
				if len(calls) > from {
					last = calls[len(calls)-1]
				}
				p.t.Fatalf("no call was answered with %q; the last one of %d: %s", prefix, len(calls)-from, last)
			}
		}
	}
}

// failures since a position.
func (p *process) failures(from int) (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls[from:] {
		if strings.HasPrefix(c, "failed") {
			out = append(out, c)
		}
	}
	return out
}

// after waits until n more calls have ended.
func (p *process) after(n int) {
	p.t.Helper()
	for from := p.position(); p.position() < from+n; {
		p.mu.Lock()
		more := p.more
		p.mu.Unlock()
		select {
		case <-more:
		case <-time.After(30 * time.Second):
			p.t.Fatal("the consumer makes no calls")
		}
	}
}

// count the lines of the log with a text.
func (p *process) count(text string) (n int) {
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.Count(string(b), text)
}

// replies are the names that answered since a position.
func (p *process) replies(from int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := map[string]bool{}
	for _, call := range p.calls[from:] {
		name, _, _ := strings.Cut(call, " ")
		seen[name] = true
	}
	return slices.Sorted(maps.Keys(seen))
}
