// Package ranges keeps an agent up to date with the ranges of virtual addresses.
//
// They are those of the control plane's ServiceCIDRs, which are fixed at its first start
// and need not be the ones of an agent's flags. The package owns the file that keeps them
// for a start without a control plane. Enter at New; Learn finds those to begin with, and
// Run follows the objects. It does not apply them: the caller does.
package ranges

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

const (
	// learnTimeout is how long the first start of an agent waits for an API that may be
	// away; then it goes by its flags.
	learnTimeout = 3 * time.Second
	// firstRetry and lastRetry bound the pause before a watch of the ranges is started
	// again.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// fileName in the agent's directory.
const fileName = "ranges.json"

// Config of a Keeper.
type Config struct {
	// Dir is the agent's directory.
	Dir string
	// Saved gets the result of each attempt to write the file. Required.
	Saved  func(file string, err error)
	Logger *slog.Logger
}

// Keeper keeps the ranges of one agent. Make it with New.
type Keeper struct {
	config Config
	// current ranges; unsaved: the file lacks them.
	current []netip.Prefix
	unsaved bool
}

// New makes a keeper that has no ranges yet.
func New(config Config) *Keeper { return &Keeper{config: config} }

// Read the ranges that are kept in an agent's directory; nil: none are.
func Read(dir string) (ranges []netip.Prefix, err error) {
	data, err := os.ReadFile(filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &ranges)
	}
	if err != nil || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return nil, cmp.Or(err, errors.New("an empty prefix"))
	}
	return ranges, nil
}

// Learn returns the ranges to begin with. Those of the last run hold at once; Run follows
// others. Without any it reads them from the control plane, and returns flags if that is
// away: it blocks for learnTimeout at most. client is called if the API is needed.
func (k *Keeper) Learn(ctx context.Context, client func() (resource.Client, error), flags []netip.Prefix) ([]netip.Prefix, error) {
	kept, damage := Read(k.config.Dir)
	if len(kept) > 0 {
		k.current = kept
		return kept, nil
	}
	fetched, err := fetch(ctx, client)
	if err == nil {
		k.current = fetched
		if err := k.save(); err != nil {
			k.config.Logger.Error("service ranges not saved; a start without the control plane would lack them",
				"file", k.file(), "error", err)
		}
		return fetched, nil
	}
	if damage != nil {
		return nil, fmt.Errorf("service ranges in %s: %w; and the control plane did not return them: %w", k.file(), damage, err)
	}
	k.config.Logger.Warn("the control plane did not return the service ranges, those of the flags hold", "error", err)
	k.current = flags
	return flags, nil
}

// Forget the ranges of another control plane.
func (k *Keeper) Forget() error {
	if err := os.Remove(k.file()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Run follows the ranges until ctx ends, and returns nil then. Ranges that differ go to
// apply, and are saved once that has returned nil; else they are tried again. A Service may
// have an address of a new range a moment later.
func (k *Keeper) Run(ctx context.Context, client resource.Client, apply func([]netip.Prefix) error) error {
	objects := map[string]resource.Object{}
	return reflector.Run(ctx, reflector.Config{
		Client:       client,
		Kind:         kind.ServiceCIDR,
		AlwaysRelist: true, // they are few, and the server may be another after a cut
		Backoff:      backoff.Policy{First: firstRetry, Last: lastRetry},
		Logger:       k.config.Logger,
		Level:        slog.LevelDebug,
	}, func(e reflector.Event) error {
		switch e.Type {
		case reflector.Replace:
			clear(objects)
			for _, obj := range e.Objects {
				objects[obj.GetName()] = obj
			}
		case reflector.Set:
			objects[e.Object().GetName()] = e.Object()
		case reflector.Delete:
			delete(objects, e.Object().GetName())
		default:
			return nil // while disconnected the last ones hold
		}
		now, err := of(slices.Collect(maps.Values(objects)))
		if err != nil {
			return err
		}
		return k.replace(now, apply)
	})
}

// replace the ranges. None at all is not taken for an answer: a control plane that serves
// has at least one.
func (k *Keeper) replace(now []netip.Prefix, apply func([]netip.Prefix) error) error {
	switch {
	case len(now) == 0:
		return nil
	case slices.Equal(now, k.current):
		if k.unsaved {
			return k.save()
		}
		return nil
	}
	if err := apply(now); err != nil {
		k.config.Logger.Error("service ranges not applied; will try again", "ranges", now, "error", err)
		return err
	}
	k.config.Logger.Info("service ranges changed", "ranges", now)
	k.current = now
	return k.save()
}

func (k *Keeper) file() string { return filepath.Join(k.config.Dir, fileName) }

func (k *Keeper) save() error {
	data, err := json.Marshal(k.current)
	if err != nil {
		return err
	}
	err = atomicfile.Write(k.file(), data, 0o600)
	k.unsaved = err != nil
	k.config.Saved(k.file(), err)
	return err
}

func fetch(ctx context.Context, connect func() (resource.Client, error)) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, learnTimeout)
	defer cancel()
	client, err := connect()
	if err != nil {
		return nil, err
	}
	list, _, err := client.List(ctx, kind.ServiceCIDR, resource.ListOptions{})
	if err != nil {
		return nil, err
	}
	return of(list)
}

// of ServiceCIDRs, each range once, in an order that does not depend on theirs.
func of(list []resource.Object) ([]netip.Prefix, error) {
	out := []netip.Prefix{}
	for _, obj := range list {
		for _, text := range obj.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("servicecidr %s: %w", obj.GetName(), err)
			}
			out = append(out, p)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out), nil
}
