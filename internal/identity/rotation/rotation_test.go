package rotation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

var (
	start = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	a     = rotation.Authority{ID: "a", Backend: "ca-1", Roots: []byte("A")}
	b     = rotation.Authority{ID: "b", Backend: "ca-2", Roots: []byte("B")}
	none  = rotation.Authority{}
)

func peers(acked ...uint64) []rotation.Peer {
	var out []rotation.Peer
	for i, g := range acked {
		out = append(out, rotation.Peer{Name: fmt.Sprintf("n%d", i), Acked: g, Connected: true})
	}
	return out
}

func TestRotation(t *testing.T) {
	s := rotation.New("shop", a, start)
	if _, err := rotation.Start(s, a, nil, start); !errors.Is(err, rotation.ErrSame) {
		t.Error(err)
	}
	cannot := errors.New("no key")
	if got, err := rotation.Start(s, b, cannot, start); !errors.Is(err, cannot) || got.Generation != 1 {
		t.Errorf("to an authority that cannot sign: %v", err)
	}
	s, err := rotation.Start(s, b, nil, start)
	if err != nil || s.Phase != rotation.Trusting || s.Issuer != "a" || string(s.Roots()) != "AB" || s.Generation != 2 {
		t.Fatalf("%+v %v", s, err)
	}
	if _, err := rotation.Start(s, none, nil, start); !errors.Is(err, rotation.ErrRunning) {
		t.Error(err)
	}
	step := func(ps []rotation.Peer, canSign error, phase rotation.Phase, issuer, roots string, generation uint64, waiting ...string) {
		t.Helper()
		var p rotation.Progress
		s, p = rotation.Step(s, ps, canSign, start.Add(time.Hour))
		if s.Phase != phase || s.Issuer != issuer || string(s.Roots()) != roots || s.Generation != generation ||
			!slices.Equal(p.Waiting, waiting) {
			t.Fatalf("%+v, waiting for %q", s, p.Waiting)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		if (p.Blocked != nil) != (canSign != nil && len(waiting) == 0 && phase == rotation.Trusting) {
			t.Fatalf("blocked: %v", p.Blocked)
		}
	}
	step(peers(1, 2, 1), nil, rotation.Trusting, "a", "AB", 2, "n0", "n2")
	step(peers(2, 2, 2), cannot, rotation.Trusting, "a", "AB", 2)
	step(peers(2, 2, 2), nil, rotation.Issuing, "b", "AB", 3)
	step(peers(2, 3, 3), nil, rotation.Issuing, "b", "AB", 3, "n0")
	// A peer that is gone counts for as long as it holds a certificate.
	gone := append(peers(3), rotation.Peer{Name: "gone", Acked: 2, HoldsUntil: start.Add(2 * time.Hour)})
	step(gone, nil, rotation.Issuing, "b", "AB", 3, "gone")
	gone[1].HoldsUntil = start.Add(time.Hour)
	step(gone, cannot, rotation.Distrusting, "b", "B", 4)
	step(peers(3, 4), nil, rotation.Distrusting, "b", "B", 4, "n0")
	step(peers(4, 4), nil, rotation.Stable, "b", "B", 4)
	step(peers(0), nil, rotation.Stable, "b", "B", 4)
	// mTLS off, and on again.
	if s, err = rotation.Start(s, none, cannot, start); err != nil || !s.AcceptsPlain() || s.Issuer != "b" {
		t.Fatalf("%+v %v", s, err)
	}
	step(peers(5), nil, rotation.Issuing, "", "B", 6)
	step(peers(6), nil, rotation.Distrusting, "", "", 7)
	step(peers(7), nil, rotation.Stable, "", "", 7)
	if s, err = rotation.Start(s, a, nil, start); err != nil || !s.AcceptsPlain() || s.Issuer != "" {
		t.Fatalf("%+v %v", s, err)
	}
	step(nil, nil, rotation.Issuing, "a", "A", 9)
	step(nil, nil, rotation.Distrusting, "a", "A", 10)
	if s.AcceptsPlain() {
		t.Error("plain text is accepted after mTLS is on")
	}
}

func TestAbortAndForce(t *testing.T) {
	stable := rotation.New("shop", a, start)
	if _, err := rotation.Abort(stable, start); !errors.Is(err, rotation.ErrIdle) {
		t.Error(err)
	}
	if _, err := rotation.Force(stable, start); !errors.Is(err, rotation.ErrIdle) {
		t.Error(err)
	}
	trusting, _ := rotation.Start(stable, b, nil, start)
	s, err := rotation.Abort(trusting, start)
	if err != nil || s.Phase != rotation.Distrusting || s.Issuer != "a" || string(s.Roots()) != "A" || s.Check() != nil {
		t.Errorf("%+v %v", s, err)
	}
	issuing, err := rotation.Force(trusting, start)
	if err != nil || issuing.Phase != rotation.Issuing || issuing.Issuer != "b" {
		t.Errorf("%+v %v", issuing, err)
	}
	s, err = rotation.Abort(issuing, start)
	if err != nil || s.Phase != rotation.Issuing || s.Issuer != "a" || !s.Trusts("b") || s.Generation != issuing.Generation+1 ||
		s.Check() != nil {
		t.Errorf("%+v %v", s, err)
	}
	distrusting, _ := rotation.Force(issuing, start)
	if _, err := rotation.Abort(distrusting, start); !errors.Is(err, rotation.ErrTooLate) {
		t.Error(err)
	}
}

// peer of the model: what is on its disk, and when it acknowledged what.
type modelPeer struct {
	acked uint64
	trust []string
	// cert is the authority of its certificate, which holds until end.
	cert string
	end  time.Time
	on   bool
}

func (p *modelPeer) live(now time.Time) bool { return p.on || now.Before(p.end) }

// TestNoConnectionFails: whatever peers do, and in whatever order, two live peers trust
// each other's certificates. Nothing but Force may break that.
func TestNoConnectionFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, ids := start, 0
		fresh := func() rotation.Authority {
			ids++
			if rapid.IntRange(0, 3).Draw(t, "none") == 0 {
				return none
			}
			id := fmt.Sprintf("ca-%d", ids)
			return rotation.Authority{ID: id, Roots: []byte(id)}
		}
		s := rotation.New("shop", fresh(), now)
		var all []*modelPeer
		trusted := func() (out []string) {
			for _, x := range s.Trusted {
				out = append(out, x.ID)
			}
			return out
		}
		issue := func(p *modelPeer) { p.cert, p.end = s.Issuer, now.Add(24*time.Hour) }
		pick := func() *modelPeer {
			if len(all) == 0 {
				t.Skip("no peers")
			}
			return all[rapid.IntRange(0, len(all)-1).Draw(t, "peer")]
		}
		// A state goes through its stored form now and then: a crash.
		reload := func() {
			data, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			if s, err = rotation.Decode(data); err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"join": func(*rapid.T) {
				p := &modelPeer{on: true, trust: trusted(), acked: s.Generation}
				issue(p)
				all = append(all, p)
			},
			"connect": func(*rapid.T) {
				// The certificate ran out: the roots come first, then another certificate.
				p := pick()
				if p.on = true; !now.Before(p.end) {
					p.trust = trusted()
					issue(p)
				}
			},
			"disconnect": func(*rapid.T) { pick().on = false },
			"trust": func(*rapid.T) {
				if p := pick(); p.on {
					p.trust = trusted()
				}
			},
			"renew": func(*rapid.T) {
				if p := pick(); p.on {
					issue(p)
				}
			},
			"acknowledge": func(*rapid.T) {
				if p := pick(); p.on {
					p.trust = trusted()
					if p.cert != s.Issuer {
						issue(p)
					}
					p.acked = s.Generation
				}
			},
			"time": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "hours")) * time.Hour) },
			"begin": func(*rapid.T) {
				if next, err := rotation.Start(s, fresh(), nil, now); err == nil {
					s = next
				}
			},
			"abort": func(*rapid.T) {
				if next, err := rotation.Abort(s, now); err == nil {
					s = next
				}
			},
			"step": func(*rapid.T) {
				var ps []rotation.Peer
				for i, p := range all {
					ps = append(ps, rotation.Peer{Name: fmt.Sprint(i), Acked: p.acked, Connected: p.on, HoldsUntil: p.end})
				}
				s, _ = rotation.Step(s, ps, nil, now)
				reload()
			},
			"": func(t *rapid.T) {
				if err := s.Check(); err != nil {
					t.Fatal(err)
				}
				for _, client := range all {
					for _, server := range all {
						// A certificate that ran out is no certificate, and is renewed first.
						if client.live(now) && server.live(now) && now.Before(client.end) && !slices.Contains(server.trust, client.cert) {
							t.Fatalf("a server that trusts %q refuses a live client with a certificate of %q; %+v", server.trust, client.cert, s)
						}
					}
				}
			},
		})
	})
}

func TestDecodeRefuses(t *testing.T) {
	good := func() rotation.State {
		s, _ := rotation.Start(rotation.New("shop", a, start), b, nil, start)
		return s
	}
	for what, edit := range map[string]func(*rotation.State){
		"a newer version":        func(s *rotation.State) { s.Version = 2 },
		"no mesh":                func(s *rotation.State) { s.Mesh = "" },
		"no generation":          func(s *rotation.State) { s.Generation = 0 },
		"an unknown phase":       func(s *rotation.State) { s.Phase = "Waiting" },
		"one authority":          func(s *rotation.State) { s.Trusted = s.Trusted[:1] },
		"one authority twice":    func(s *rotation.State) { s.Trusted[1].ID = "a" },
		"an authority, no roots": func(s *rotation.State) { s.Trusted[1].Roots = nil },
		"an issuer out of trust": func(s *rotation.State) { s.Issuer = "c" },
		"next issues":            func(s *rotation.State) { s.Issuer = "b" },
		"old issues":             func(s *rotation.State) { s.Phase = rotation.Issuing },
	} {
		s := good()
		edit(&s)
		data, _ := json.Marshal(s)
		if _, err := rotation.Decode(data); err == nil {
			t.Errorf("%s: decoded", what)
		}
	}
}

func FuzzDecode(f *testing.F) {
	data, _ := json.Marshal(rotation.New("shop", a, start))
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := rotation.Decode(data)
		if err != nil {
			return
		}
		if next, _ := rotation.Step(s, nil, nil, start); next.Check() != nil {
			t.Fatalf("%+v leads to %+v", s, next)
		}
	})
}

// keeper is a store that fails, or stores and fails.
type keeper struct {
	record  []byte
	version int64
	fail    func() (stored bool, err error)
}

func (k *keeper) Load(context.Context) ([]byte, int64, error) { return k.record, k.version, nil }

func (k *keeper) Save(_ context.Context, record []byte, version int64) (int64, error) {
	if version != k.version {
		return 0, rotation.ErrConflict
	}
	stored, err := true, error(nil)
	if k.fail != nil {
		stored, err = k.fail()
	}
	if stored {
		k.record, k.version = record, k.version+1
	}
	return k.version, err
}

// TestDriverCrashes: with a store that fails in any way, and an instance that is
// replaced at any moment, states are published in order and each is stored before.
func TestDriverCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := &keeper{}
		k.fail = func() (bool, error) {
			switch rapid.IntRange(0, 3).Draw(t, "medium") {
			case 0:
				return false, errors.New("not stored")
			case 1:
				return true, errors.New("stored, and the answer is lost")
			}
			return true, nil
		}
		var last uint64
		ps := peers(0)
		newDriver := func() *rotation.Driver {
			return rotation.NewDriver(rotation.DriverConfig{
				Mesh: "shop", Keeper: k, Peers: func() []rotation.Peer { return ps },
				CanSign: func(context.Context, rotation.Authority) error { return nil },
				Publish: func(s rotation.State) {
					stored, err := rotation.Decode(k.record)
					if err != nil || stored.Generation < s.Generation {
						t.Fatalf("published before it was stored: %+v, %+v", s, stored)
					}
					if s.Generation < last {
						t.Fatalf("generation %d after %d", s.Generation, last)
					}
					last = s.Generation
					ps[0].Acked = s.Generation
				},
				Now: func() time.Time { return start },
			})
		}
		ctx, d, ensured := context.Background(), newDriver(), false
		for range 200 {
			if rapid.IntRange(0, 4).Draw(t, "crash") == 0 {
				d = newDriver()
			}
			if !ensured {
				_, err := d.Ensure(ctx, a)
				ensured = err == nil
				continue
			}
			s, _, err := d.Reconcile(ctx)
			if err == nil && s.Phase == rotation.Stable {
				if s.Issuer == "b" {
					return
				}
				_, _ = d.Start(ctx, b)
			}
		}
		t.Fatal("the rotation does not end")
	})
}

func TestDriverConflict(t *testing.T) {
	k := &keeper{}
	published := 0
	newDriver := func() *rotation.Driver {
		return rotation.NewDriver(rotation.DriverConfig{
			Mesh: "shop", Keeper: k, Peers: func() []rotation.Peer { return nil }, Publish: func(rotation.State) { published++ },
			CanSign: func(_ context.Context, x rotation.Authority) error {
				if x.ID == "broken" {
					return errors.New("no key")
				}
				return nil
			},
		})
	}
	ctx, old, leader := t.Context(), newDriver(), newDriver()
	if _, _, err := old.Reconcile(ctx); err == nil {
		t.Error("steps without a state")
	}
	if _, err := old.Ensure(ctx, rotation.Authority{ID: "broken", Roots: []byte("x")}); err == nil || k.record != nil {
		t.Error("the first authority cannot sign")
	}
	if _, err := old.Ensure(ctx, a); err != nil {
		t.Fatal(err)
	}
	if s, err := leader.Ensure(ctx, b); err != nil || s.Issuer != "a" {
		t.Errorf("what is stored does not win: %+v %v", s, err)
	}
	if _, err := leader.Start(ctx, rotation.Authority{ID: "broken", Roots: []byte("x")}); err == nil {
		t.Error("a change to an authority that cannot sign")
	}
	if _, err := leader.Start(ctx, b); err != nil {
		t.Fatal(err)
	}
	before := published
	if _, err := old.Start(ctx, b); !errors.Is(err, rotation.ErrConflict) || published != before {
		t.Errorf("a deposed leader: %v", err)
	}
	if s, _, err := old.Reconcile(ctx); err != nil || s.Phase != rotation.Issuing {
		t.Errorf("after the conflict: %+v %v", s, err)
	}
	if s, err := old.Abort(ctx); err != nil || s.Issuer != "a" {
		t.Errorf("%+v %v", s, err)
	}
	if s, err := old.Force(ctx); err != nil || s.Phase != rotation.Distrusting || s.Trusts("b") {
		t.Errorf("%+v %v", s, err)
	}
}
