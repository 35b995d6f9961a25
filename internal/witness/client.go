package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/controller/health"
)

const (
	// firstRetry and maxRetry bound the pause before a new stream.
	firstRetry = 100 * time.Millisecond
	maxRetry   = 5 * time.Second
	// probesPerSecond that this agent makes at most; more are reported as failed.
	probesPerSecond = 100
	// goodbyeWithin bounds the wait for the control plane when the agent ends.
	goodbyeWithin = time.Second
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// Conn reaches the control plane, and stays the caller's.
	Conn grpc.ClientConnInterface
	// Node is this node's name, ProbePort the UDP port of its Responder; 0: it has none.
	Node      string
	ProbePort int
	// Answer answers a call of the control plane; ctx ends when nobody waits any longer. It
	// is called concurrently. Its errors should be gRPC statuses. Nil: there are no calls.
	Answer func(ctx context.Context, call *witnessv1.Call) ([]byte, error)
	Logger *slog.Logger // nil: silence
	// Registerer of metrics; nil: none. Registering twice panics.
	Registerer prometheus.Registerer
}

// Client says that this agent is there, and probes others when it is asked to.
type Client struct {
	config   ClientConfig
	ask      func(ctx context.Context, node string, addr netip.AddrPort) health.Outcome
	slots    chan struct{} // of probes in hand
	calls    chan struct{} // slots of calls in hand
	outcomes [health.Answered + 1]atomic.Uint64
	answered [callRefused + 1]atomic.Uint64

	mu     sync.Mutex
	second time.Time // of probes counts
	probes int
}

// NewClient makes a client.
func NewClient(c ClientConfig) *Client {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	client := &Client{config: c, ask: Ask, slots: make(chan struct{}, health.MaxProbes), calls: make(chan struct{}, maxCalls)}
	if c.Registerer != nil {
		c.Registerer.MustRegister(client)
	}
	return client
}

// Run keeps a stream to the control plane until ctx ends, and returns nil then: the
// control plane has received by that time that the agent leaves, if it can be reached
// within a second. Call it once.
func (c *Client) Run(ctx context.Context) error {
	retry := backoff.Backoff{Policy: backoff.Policy{First: firstRetry, Last: maxRetry, Jitter: 0.5}}
	var last error
	for {
		attended, err := c.attend(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if attended {
			retry.Reset()
		}
		if last == nil || attended || status.Code(err) != status.Code(last) {
			level := slog.LevelInfo
			if status.Code(err) == codes.Unimplemented {
				level = slog.LevelDebug // a control plane that is older
			}
			c.config.Logger.Log(ctx, level, "heartbeat stream ended, connecting again", "error", err)
		}
		last = err
		if !backoff.Sleep(ctx, retry.Next()) {
			return nil
		}
	}
}

// attend runs one stream. It reports whether the control plane took it.
func (c *Client) attend(ctx context.Context) (attended bool, err error) {
	// Not ctx: the goodbye is sent when that has ended.
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(goodbyeWithin, cancel) })
	defer stop()
	stream, err := witnessv1.NewWitnessClient(c.config.Conn).Attend(streaming)
	if err != nil {
		return false, fmt.Errorf("open heartbeat stream: %w", err)
	}
	results := make(chan *witnessv1.Result, health.MaxProbes)
	ended := make(chan error, 1)
	var probing sync.WaitGroup // and answering
	defer probing.Wait()
	defer cancel()
	go func() { ended <- c.receive(streaming, stream, results, &probing) }()
	err = c.send(stream, &witnessv1.AgentMessage{Message: &witnessv1.AgentMessage_Hello{
		Hello: &witnessv1.Hello{Node: c.config.Node, ProbePort: uint32(c.config.ProbePort), Answers: c.config.Answer != nil},
	}})
	beat := time.NewTicker(health.HeartbeatInterval)
	defer beat.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			_ = stream.CloseSend()
			return attended, <-ended
		case err := <-ended:
			return attended, err
		case r := <-results:
			err = c.send(stream, &witnessv1.AgentMessage{Message: &witnessv1.AgentMessage_Result{Result: r}})
		case <-beat.C:
			err = c.send(stream, &witnessv1.AgentMessage{Message: &witnessv1.AgentMessage_Heartbeat{Heartbeat: &witnessv1.Heartbeat{}}})
			attended = true
		}
	}
	return attended, <-ended // why it could not be sent
}

func (c *Client) send(stream grpc.ClientStream, m *witnessv1.AgentMessage) error {
	return stream.SendMsg(m)
}

// receive orders until the stream ends.
func (c *Client) receive(
	ctx context.Context, stream grpc.ServerStreamingClient[witnessv1.PlaneMessage], results chan<- *witnessv1.Result, probing *sync.WaitGroup,
) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("heartbeat stream: %w", err)
		}
		if call := m.GetCall(); call != nil {
			probing.Go(func() { c.answer(ctx, call) })
			continue
		}
		p := m.GetProbe()
		if p == nil {
			continue // of a newer control plane
		}
		probing.Go(func() {
			r := &witnessv1.Result{Id: p.GetId(), Outcome: outcomes[c.probe(ctx, p)]}
			select {
			case results <- r:
			case <-ctx.Done():
			}
		})
	}
}

var errProbe = errors.New("not an address")

func addrOf(p *witnessv1.Probe) (netip.AddrPort, error) {
	a, ok := netip.AddrFromSlice(p.GetAddress())
	if !ok || p.GetPort() == 0 || p.GetPort() > 65535 || a.IsMulticast() || a.IsUnspecified() || p.GetNode() == "" {
		return netip.AddrPort{}, errProbe
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(p.GetPort())), nil
}

// probe carries out an order within the limits of this agent.
func (c *Client) probe(ctx context.Context, p *witnessv1.Probe) (o health.Outcome) {
	defer func() { c.outcomes[o].Add(1) }()
	addr, err := addrOf(p)
	if err != nil || !c.allow(time.Now()) {
		return health.Failed
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
		return c.ask(ctx, p.GetNode(), addr)
	default:
		return health.Failed
	}
}

func (c *Client) allow(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.second) >= time.Second {
		c.second, c.probes = now, 0
	}
	c.probes++
	return c.probes <= probesPerSecond
}

var outcomes = [...]witnessv1.Outcome{
	health.Failed: witnessv1.Outcome_OUTCOME_FAILED, health.Silent: witnessv1.Outcome_OUTCOME_SILENT,
	health.Refused: witnessv1.Outcome_OUTCOME_REFUSED, health.Answered: witnessv1.Outcome_OUTCOME_ANSWERED,
}

func outcomeIn(o witnessv1.Outcome) health.Outcome {
	for i, out := range outcomes {
		if out == o {
			return health.Outcome(i)
		}
	}
	return health.Failed
}

var (
	descProbes = prometheus.NewDesc("proxima_witness_probes_total",
		"Probes of other agents that the control plane asked for, by outcome.", []string{"outcome"}, nil)
	descCalls = prometheus.NewDesc("proxima_witness_calls_total",
		"Calls of the control plane for what this agent has, by outcome.", []string{"outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Client) Describe(to chan<- *prometheus.Desc) {
	to <- descProbes
	to <- descCalls
}

// Collect implements prometheus.Collector.
func (c *Client) Collect(to chan<- prometheus.Metric) {
	for o := range c.outcomes {
		to <- prometheus.MustNewConstMetric(descProbes, prometheus.CounterValue, float64(c.outcomes[o].Load()), health.Outcome(o).String())
	}
	for o := range c.answered {
		to <- prometheus.MustNewConstMetric(descCalls, prometheus.CounterValue, float64(c.answered[o].Load()), callOutcome(o).String())
	}
}
