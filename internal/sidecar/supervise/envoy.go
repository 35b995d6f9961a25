package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/backoff"
)

const (
	// DrainTime of listeners that are removed or replaced, and of an Envoy that another
	// replaces, in seconds.
	DrainTime = 5
	// parentShutdown is when an Envoy that is replaced ends, in seconds: after its drain time.
	parentShutdown = 10
	// stopTimeout until an Envoy that was told to end is killed.
	stopTimeout = 5 * time.Second
	// binaryCheck is how often another binary is looked for.
	binaryCheck = 5 * time.Second
)

// restart spaces starts after crashes.
var restart = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.2}

// Config configures an Envoy. Path, Dir, StateDir and Bootstrap are required.
type Config struct {
	// Path of the binary. Another one there replaces the running Envoy.
	Path string
	// Dir has the bootstrap, and is where Envoy may write. StateDir keeps which process runs, and
	// is not for Envoy's user.
	Dir, StateDir string
	Bootstrap     []byte
	// Concurrency is the number of worker threads; 0: 2.
	Concurrency int
	// LogLevel of Envoy; "": warning.
	LogLevel string
	// User that Envoy runs as; nil: this process's.
	User *syscall.Credential
	// Output of Envoy. It outlives this process, so it has to be a file. nil: standard error.
	Output *os.File
	Logger *slog.Logger // nil: silence
}

// Envoy is a process that is kept running.
type Envoy struct {
	config Config

	mu       sync.Mutex
	current  *process
	restarts int
}

// process that runs, as it is on disk.
type process struct {
	PID int `json:"pid"`
	// Started is the start time of the process, which tells it from a later one of its number.
	Started uint64 `json:"started"`
	// Epoch counts replacements, and BaseID tells Envoys of one machine apart (Envoy's
	// --restart-epoch and --base-id).
	Epoch  int    `json:"epoch"`
	BaseID string `json:"baseID"`
	// Binary that it was started from, and a digest of its bootstrap.
	Binary    string `json:"binary"`
	Bootstrap string `json:"bootstrap,omitempty"`

	since  time.Time
	exited chan struct{}
	result string // why it ended, once exited is closed
}

const (
	processFile   = "envoy.json"
	bootstrapFile = "bootstrap.json"
	baseIDFile    = "base-id"
)

// New makes an Envoy that does not run yet.
func New(c Config) *Envoy {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Concurrency == 0 {
		c.Concurrency = 2
	}
	if c.LogLevel == "" {
		c.LogLevel = "warning"
	}
	if c.Output == nil {
		c.Output = os.Stderr
	}
	return &Envoy{config: c}
}

// Run keeps Envoy running until ctx ends. leave is asked then: if it returns true, Envoy goes on
// for the next supervisor, else it is ended, and its connections are cut. An error means that it
// could not be started at all.
func (e *Envoy) Run(ctx context.Context, leave func() bool) error {
	if err := os.WriteFile(filepath.Join(e.config.Dir, bootstrapFile), e.config.Bootstrap, 0o644); err != nil {
		return err
	}
	current := e.adopt()
	if current == nil {
		var err error
		if current, err = e.start(nil); err != nil {
			return err
		}
	}
	pause := backoff.Backoff{Policy: restart}
	check := time.NewTicker(binaryCheck)
	defer check.Stop()
	var replaced *process // drains, and ends by itself
	for {
		e.set(current)
		select {
		case <-ctx.Done():
			if !leave() {
				stop(replaced)
				stop(current)
				_ = os.Remove(filepath.Join(e.config.StateDir, processFile)) // it would be found not to run
			}
			return nil
		case <-check.C:
			if binary := identify(e.config.Path); binary == "" || binary == current.Binary {
				continue
			}
			next, err := e.replace(ctx, current)
			if err != nil {
				e.config.Logger.Error("the new Envoy is not used; the old one goes on", "path", e.config.Path, "error", err)
				continue
			}
			replaced, current = current, next
		case <-current.exited:
			if replaced.runs() { // the new one failed before it took over
				e.config.Logger.Error("the new Envoy ended; the old one goes on", "result", current.result)
				replaced.Binary = current.Binary // it is not tried again
				current, replaced = replaced, nil
				continue
			}
			if time.Since(current.since) > restart.Last {
				pause.Reset()
			}
			delay := pause.Next()
			e.config.Logger.Error("Envoy ended; it is started again", "result", current.result, "in", delay)
			if !backoff.Sleep(ctx, delay) {
				return nil
			}
			if current = e.again(ctx, &pause); current == nil {
				return nil
			}
		}
	}
}

// again starts Envoy until that works; nil: ctx ended.
func (e *Envoy) again(ctx context.Context, pause *backoff.Backoff) *process {
	e.mu.Lock()
	e.restarts++
	e.mu.Unlock()
	for {
		p, err := e.start(nil)
		if err == nil {
			return p
		}
		delay := pause.Next()
		e.config.Logger.Error("Envoy cannot be started", "error", err, "retryIn", delay)
		if !backoff.Sleep(ctx, delay) {
			return nil
		}
	}
}

// replace a running Envoy by the binary that is there now: the new one takes the listeners over.
func (e *Envoy) replace(ctx context.Context, old *process) (*process, error) {
	_, version, err := Check(ctx, e.config.Path)
	if err != nil {
		return nil, err
	}
	next, err := e.start(old)
	if err == nil {
		e.config.Logger.Info("another Envoy takes over", "version", version.String(), "pid", next.PID, "from", old.PID)
	}
	return next, err
}

// start a process. old is the one that it takes over from; nil: there is none.
func (e *Envoy) start(old *process) (*process, error) {
	p := &process{Binary: identify(e.config.Path), Bootstrap: digest(e.config.Bootstrap), since: time.Now(), exited: make(chan struct{})}
	args := []string{
		"-c", filepath.Join(e.config.Dir, bootstrapFile), "--concurrency", strconv.Itoa(e.config.Concurrency),
		"--log-level", e.config.LogLevel, "--drain-time-s", strconv.Itoa(DrainTime), "--drain-strategy", "immediate",
		"--parent-shutdown-time-s", strconv.Itoa(parentShutdown),
	}
	baseID := filepath.Join(e.config.Dir, baseIDFile)
	if old == nil {
		_ = os.Remove(baseID) // of one that has ended
		args = append(args, "--use-dynamic-base-id", "--base-id-path", baseID)
	} else {
		p.Epoch, p.BaseID = old.Epoch+1, e.baseID(old)
		if p.BaseID == "" {
			return nil, errors.New("the base ID of the running Envoy is not known")
		}
		args = append(args, "--base-id", p.BaseID, "--restart-epoch", strconv.Itoa(p.Epoch))
	}
	var err error
	if p.PID, err = e.launch(args); err != nil {
		return nil, fmt.Errorf("start Envoy: %w", err)
	}
	if p.Started, err = startTime(p.PID); err == nil {
		err = p.watch()
	}
	if err != nil {
		_ = syscall.Kill(p.PID, syscall.SIGKILL) // nobody would end it later
		return nil, fmt.Errorf("start Envoy: it ended at once: %w", err)
	}
	e.record(p)
	return p, nil
}

// baseID of a process: one that Envoy chose is in a file.
func (e *Envoy) baseID(p *process) string {
	if p.BaseID == "" {
		text, _ := os.ReadFile(filepath.Join(e.config.Dir, baseIDFile)) // "" says that it is not known
		p.BaseID = strings.TrimSpace(string(text))
	}
	return p.BaseID
}

func (e *Envoy) record(p *process) {
	data, err := json.Marshal(p)
	if err == nil {
		err = atomicfile.Write(filepath.Join(e.config.StateDir, processFile), data, 0o600)
	}
	if err != nil {
		e.config.Logger.Warn("another supervisor will not find the running Envoy", "error", err)
	}
}

// adopt the process that an earlier supervisor left; nil: there is none.
func (e *Envoy) adopt() *process {
	data, err := os.ReadFile(filepath.Join(e.config.StateDir, processFile))
	if err != nil {
		return nil
	}
	p := &process{since: time.Now(), exited: make(chan struct{})}
	if json.Unmarshal(data, p) != nil || p.PID <= 1 || p.Started == 0 {
		return nil
	}
	if started, err := startTime(p.PID); err != nil || started != p.Started {
		return nil
	}
	if err := p.watch(); err != nil {
		e.config.Logger.Warn("the running Envoy cannot be adopted", "pid", p.PID, "error", err)
		return nil
	}
	e.config.Logger.Info("the running Envoy is adopted", "pid", p.PID)
	if p.Bootstrap != "" && p.Bootstrap != digest(e.config.Bootstrap) {
		p.Binary = "" // it is replaced, as by another binary
	}
	return p
}

func digest(bootstrap []byte) string {
	sum := sha256.Sum256(bootstrap)
	return hex.EncodeToString(sum[:8])
}

func (e *Envoy) set(p *process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current = p
}

// Status of the process.
type Status struct {
	PID      int `json:"pid"`
	Epoch    int `json:"epoch"`
	Restarts int `json:"restarts"`
}

// Status of the process that runs.
func (e *Envoy) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := Status{Restarts: e.restarts}
	if e.current != nil {
		out.PID, out.Epoch = e.current.PID, e.current.Epoch
	}
	return out
}

func (p *process) runs() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// stop ends a process, after a while with force.
func stop(p *process) {
	if !p.runs() {
		return
	}
	_ = syscall.Kill(p.PID, syscall.SIGTERM) // it has ended if that fails
	select {
	case <-p.exited:
	case <-time.After(stopTimeout):
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
		<-p.exited
	}
}
