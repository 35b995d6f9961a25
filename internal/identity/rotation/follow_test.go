package rotation_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/identity/rotation"
)

// modelZone is a zone that follows a leading state.
type modelZone struct {
	state rotation.State
	// known is what it last read of the leading state.
	known rotation.State
	// acked is the newest generation of it that it has acknowledged.
	acked uint64
	// on: it reaches the leading control plane. signs is the end of what it signs by, per
	// authority.
	on    bool
	signs map[string]time.Time
	peers []*modelPeer
}

// until is what the leading control plane knows of how long the zone can sign.
func (z *modelZone) until() (end time.Time) {
	for _, t := range z.signs {
		if t.After(end) {
			end = t
		}
	}
	return end
}

// issue a certificate, if the zone can.
func (z *modelZone) issue(p *modelPeer, leading rotation.State, now time.Time) bool {
	if z.on && leading.Trusts(z.state.Issuer) {
		z.signs[z.state.Issuer] = now.Add(90 * time.Hour)
	}
	end := z.signs[z.state.Issuer]
	if !now.Before(end) {
		return false
	}
	if p.cert, p.end = z.state.Issuer, now.Add(24*time.Hour); end.Before(p.end) {
		p.end = end
	}
	return true
}

func trustedBy(s rotation.State) (out []string) {
	for _, x := range s.Trusted {
		out = append(out, x.ID)
	}
	return out
}

// step does what the leader of a zone does in one pass.
func (z *modelZone) step(t *rapid.T, leading rotation.State, now time.Time) {
	if z.on {
		z.known = leading
	}
	settled := z.state.Phase == rotation.Stable
	if !settled {
		var ps []rotation.Peer
		for i, p := range z.peers {
			ps = append(ps, rotation.Peer{Name: fmt.Sprint(i), Acked: p.acked, Connected: p.on, HoldsUntil: p.end})
		}
		next, progress := rotation.Step(z.state, ps, nil, now)
		switch {
		case len(progress.Waiting) > 0:
		case rotation.Gate(z.known, z.state) != nil:
			settled = true
		default:
			z.state = next
		}
	}
	if settled && z.on && rotation.Follows(z.known, z.state) {
		z.acked = max(z.acked, z.known.Generation)
	}
	var err error
	canSign := z.on && leading.Trusts(z.state.Issuer) || now.Before(z.signs[z.state.Issuer])
	switch move, to := rotation.NextFollowing(z.known, z.state, canSign); move {
	case rotation.Begin:
		z.state, err = rotation.Start(z.state, to, nil, now)
	case rotation.Return:
		z.state, err = rotation.Abort(z.state, now)
	case rotation.TakeOver:
		z.state = rotation.Adopt(z.known, z.state, now)
	case rotation.Stay:
	}
	if err == nil {
		err = z.state.Check()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoConnectionBetweenZonesFails: whatever zones and their peers do, two live peers of any
// zones trust each other's certificates.
func TestNoConnectionBetweenZonesFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, ids := start, 0
		fresh := func() rotation.Authority {
			ids++
			if rapid.IntRange(0, 5).Draw(t, "none") == 0 {
				return none
			}
			id := fmt.Sprintf("ca-%d", ids)
			return rotation.Authority{ID: id, Roots: []byte(id)}
		}
		leading := rotation.New("shop", fresh(), now)
		var zones []*modelZone
		pick := func() *modelZone {
			if len(zones) == 0 {
				t.Skip("no zones")
			}
			return zones[rapid.IntRange(0, len(zones)-1).Draw(t, "zone")]
		}
		pickPeer := func() (*modelZone, *modelPeer) {
			z := pick()
			if len(z.peers) == 0 {
				t.Skip("no peers")
			}
			return z, z.peers[rapid.IntRange(0, len(z.peers)-1).Draw(t, "peer")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"zone": func(*rapid.T) {
				if len(zones) == 4 {
					t.Skip("zones enough")
				}
				z := &modelZone{state: rotation.New("shop", leading.Target(), now), known: leading, on: true, signs: map[string]time.Time{}}
				if len(leading.Trusted) > 1 {
					z.state = rotation.Adopt(leading, z.state, now)
				}
				zones = append(zones, z)
			},
			"cut": func(*rapid.T) { pick().on = false },
			"heal": func(t *rapid.T) {
				// It reads the leading state before it signs by anything new.
				z := pick()
				z.on = true
				z.step(t, leading, now)
			},
			"join": func(*rapid.T) {
				z := pick()
				p := &modelPeer{on: true, trust: trustedBy(z.state), acked: z.state.Generation}
				if z.issue(p, leading, now) {
					z.peers = append(z.peers, p)
				}
			},
			"connect": func(*rapid.T) {
				z, p := pickPeer()
				if !now.Before(p.end) {
					p.trust = trustedBy(z.state)
					z.issue(p, leading, now)
				}
				p.on = true
			},
			"disconnect": func(*rapid.T) { _, p := pickPeer(); p.on = false },
			"renew": func(*rapid.T) {
				if z, p := pickPeer(); p.on {
					p.trust = trustedBy(z.state)
					z.issue(p, leading, now)
				}
			},
			"acknowledge": func(*rapid.T) {
				for _, p := range pick().peers {
					z := zones[slices.IndexFunc(zones, func(z *modelZone) bool { return slices.Contains(z.peers, p) })]
					if p.on {
						p.trust = trustedBy(z.state)
						if p.cert == z.state.Issuer || z.issue(p, leading, now) {
							p.acked = z.state.Generation
						}
					}
				}
			},
			"time": func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "hours")) * time.Hour) },
			"begin": func(*rapid.T) {
				if next, err := rotation.Start(leading, fresh(), nil, now); err == nil {
					leading = next
				}
			},
			"abort": func(*rapid.T) {
				if next, err := rotation.Abort(leading, now); err == nil {
					leading = next
				}
			},
			"zone steps": func(t *rapid.T) { pick().step(t, leading, now) },
			"leading steps": func(*rapid.T) {
				var ps []rotation.Peer
				for i, z := range zones {
					ps = append(ps, rotation.Peer{Name: fmt.Sprint(i), Acked: z.acked, Connected: z.on, HoldsUntil: z.until()})
				}
				leading, _ = rotation.Step(leading, ps, nil, now)
			},
			"": func(t *rapid.T) {
				for _, from := range zones {
					for _, to := range zones {
						for _, client := range from.peers {
							for _, server := range to.peers {
								if client.live(now) && server.live(now) && now.Before(client.end) && now.Before(server.end) &&
									!slices.Contains(server.trust, client.cert) {
									t.Fatalf("a server that trusts %q refuses a live client of another zone with a certificate of %q; leading %+v",
										server.trust, client.cert, leading)
								}
							}
						}
					}
				}
			},
		})
		// Nothing is stuck: when all are connected, all get to the authority of the leading state.
		for _, z := range zones {
			z.on = true
		}
		for range 40 {
			var ps []rotation.Peer
			for i, z := range zones {
				for _, p := range z.peers {
					p.on, p.trust = true, trustedBy(z.state)
					if p.cert != z.state.Issuer || !now.Before(p.end) {
						z.issue(p, leading, now)
					}
					if p.cert == z.state.Issuer {
						p.acked = z.state.Generation
					}
				}
				z.step(t, leading, now)
				ps = append(ps, rotation.Peer{Name: fmt.Sprint(i), Acked: z.acked, Connected: true})
			}
			leading, _ = rotation.Step(leading, ps, nil, now)
		}
		for i, z := range zones {
			if leading.Phase != rotation.Stable || z.state.Phase != rotation.Stable || z.state.Issuer != leading.Issuer {
				t.Fatalf("zone %d never gets there: %+v; leading %+v", i, z.state, leading)
			}
		}
	})
}
