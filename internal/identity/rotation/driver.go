package rotation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Keeper keeps the state of one mesh durably and sealed.
type Keeper interface {
	// Load returns nil and version 0 if there is nothing.
	Load(ctx context.Context) (record []byte, version int64, err error)
	// Save replaces the record if it still has that version, and returns the new one.
	// ErrConflict: it has another.
	Save(ctx context.Context, record []byte, version int64) (int64, error)
}

// ErrConflict: another instance has changed the record meanwhile.
var ErrConflict = errors.New("the record was changed meanwhile")

// DriverConfig configures a Driver. All fields but Gate, Logger and Now are required.
type DriverConfig struct {
	Mesh   string
	Keeper Keeper
	// Peers of the mesh, of now.
	Peers func() []Peer
	// CanSign checks an authority; Probe of package authority does. It may block.
	CanSign func(ctx context.Context, a Authority) error
	// Gate returns why the step after a state has to wait, whatever the peers have
	// acknowledged; nil: no step has to. See the function Gate.
	Gate func(State) error
	// Publish takes every state that was stored, before peers may act on it. It is
	// called again after a restart and has to be idempotent.
	Publish func(State)
	Logger  *slog.Logger     // nil: silence
	Now     func() time.Time // nil: time.Now
}

// Driver takes the steps of one mesh: it stores each state before it publishes it, so
// that peers never see a state that a crash could take back. Only the leader runs one;
// a deposed leader fails with ErrConflict. Safe for concurrent use.
type Driver struct {
	config DriverConfig

	mu      sync.Mutex
	state   State
	version int64
	loaded  bool
}

// NewDriver makes a driver. It does no I/O.
func NewDriver(c DriverConfig) *Driver {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Driver{config: c}
}

// Ensure loads the state, or makes the first one with an authority, and publishes it.
// What is stored wins over first.
func (d *Driver) Ensure(ctx context.Context, first Authority) (State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, err := d.load(ctx)
	if err == nil && !found {
		s := New(d.config.Mesh, first, d.config.Now())
		if first.ID != None {
			err = d.config.CanSign(ctx, first)
		}
		if err == nil {
			err = d.save(ctx, s)
		}
	}
	if err != nil {
		return State{}, fmt.Errorf("authorities of mesh %s: %w", d.config.Mesh, err)
	}
	d.config.Publish(d.state)
	return d.state, nil
}

// Start begins a change of authority. Errors: those of Start, ErrConflict, and those of
// the Keeper.
func (d *Driver) Start(ctx context.Context, next Authority) (State, error) {
	return d.change(ctx, func(s State) (State, error) {
		var canSign error
		if next.ID != None {
			canSign = d.config.CanSign(ctx, next)
		}
		return Start(s, next, canSign, d.config.Now())
	})
}

// Adopt takes over the state that this one follows: Adopt of the package, or the first
// state. Errors: ErrConflict, and those of the Keeper.
func (d *Driver) Adopt(ctx context.Context, leading State) (State, error) {
	d.mu.Lock()
	found := d.loaded
	var err error
	if !found {
		found, err = d.load(ctx)
	}
	if err == nil && !found {
		first := Adopt(leading, New(d.config.Mesh, leading.Target(), d.config.Now()), d.config.Now())
		if err = d.save(ctx, first); err == nil {
			d.config.Publish(first)
		}
	}
	s := d.state
	d.mu.Unlock()
	if err != nil {
		return State{}, fmt.Errorf("authorities of mesh %s: %w", d.config.Mesh, err)
	}
	if !found {
		return s, nil
	}
	return d.change(ctx, func(s State) (State, error) { return Adopt(leading, s, d.config.Now()), nil })
}

// Abort ends a change of authority. Errors: those of Abort and of the Keeper.
func (d *Driver) Abort(ctx context.Context) (State, error) {
	return d.change(ctx, func(s State) (State, error) { return Abort(s, d.config.Now()) })
}

// Force takes the next step without acknowledgements. Errors: those of Force and of the
// Keeper.
func (d *Driver) Force(ctx context.Context) (State, error) {
	return d.change(ctx, func(s State) (State, error) { return Force(s, d.config.Now()) })
}

// Reconcile takes the next step if it is due. To be called when an acknowledgement
// came, a peer went, and from time to time, as certificates run out.
func (d *Driver) Reconcile(ctx context.Context) (State, Progress, error) {
	var progress Progress
	s, err := d.change(ctx, func(s State) (State, error) {
		var canSign error
		if next, ok := s.Next(); ok && s.Phase == Trusting && next.ID != None {
			canSign = d.config.CanSign(ctx, next)
		}
		if s.Phase == Stable {
			progress.Settled = true
			return s, nil
		}
		next, p := Step(s, d.config.Peers(), canSign, d.config.Now())
		if progress = p; next.Phase == s.Phase || d.config.Gate == nil {
			return next, nil
		}
		if progress.Behind = d.config.Gate(s); progress.Behind == nil {
			return next, nil
		}
		progress.Settled = true
		return s, nil
	})
	return s, progress, err
}

func (d *Driver) change(ctx context.Context, f func(State) (State, error)) (State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.loaded {
		found, err := d.load(ctx)
		if err == nil && !found {
			err = errors.New("there is no state yet")
		}
		if err != nil {
			return State{}, fmt.Errorf("authorities of mesh %s: %w", d.config.Mesh, err)
		}
		d.config.Publish(d.state)
	}
	next, err := f(d.state)
	if err != nil || next.Generation == d.state.Generation && next.Phase == d.state.Phase {
		return d.state, err
	}
	if err := d.save(ctx, next); err != nil {
		// Whether it was stored is unknown: the next call reads it again.
		d.loaded = false
		return d.state, fmt.Errorf("authorities of mesh %s: %w", d.config.Mesh, err)
	}
	d.config.Logger.Info("authorities of a mesh changed", "mesh", d.config.Mesh, "phase", next.Phase,
		"generation", next.Generation, "issuer", name(next.Issuer))
	d.config.Publish(d.state)
	return d.state, nil
}

func (d *Driver) load(ctx context.Context) (found bool, err error) {
	data, v, err := d.config.Keeper.Load(ctx)
	if err != nil || data == nil {
		return false, err
	}
	s, err := Decode(data)
	if err != nil {
		return false, err
	}
	if s.Mesh != d.config.Mesh {
		return false, fmt.Errorf("the record is of mesh %q", s.Mesh)
	}
	d.state, d.version, d.loaded = s, v, true
	return true, nil
}

func (d *Driver) save(ctx context.Context, s State) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	v, err := d.config.Keeper.Save(ctx, data, d.version)
	if err != nil {
		return err
	}
	d.state, d.version, d.loaded = s, v, true
	return nil
}

// Decode reads a state as it is stored, and checks it.
func Decode(data []byte) (State, error) {
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("state of a rotation: %w", err)
	}
	return s, s.Check()
}
