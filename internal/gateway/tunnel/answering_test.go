package tunnel

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestSilentPeers: where no peer answered lately, a client is told within a second that none does, however many there are; one that
// answers is tried first.
func TestSilentPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers netip.AddrPort
		c := NewClient(Config{Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			if to == answers {
				one, _ := net.Pipe()
				return one, nil
			}
			<-ctx.Done() // packets are lost
			return nil, ctx.Err()
		}})
		defer c.Close()
		var peers []Peer
		for i := range 6 {
			peers = append(peers, Peer{Name: "gate", Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 10001)})
		}
		if got, err := c.answering(t.Context(), peers); err != nil || !slices.EqualFunc(got, peers, samePeer) {
			t.Errorf("peers of which nothing is known: %v, %v", got, err)
		}
		for _, p := range peers {
			c.suspectNow(p.Address)
		}
		began := time.Now()
		if got, err := c.answering(t.Context(), peers); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("silent peers: %v, %v, after %s", got, err, time.Since(began))
		}
		answers = peers[4].Address
		began = time.Now()
		got, err := c.answering(t.Context(), peers)
		if err != nil || len(got) != len(peers) || got[0].Address != answers || time.Since(began) != 0 {
			t.Errorf("one answers: %v, %v, after %s", got, err, time.Since(began))
		}
	})
}

func samePeer(a, b Peer) bool { return a.Address == b.Address }
