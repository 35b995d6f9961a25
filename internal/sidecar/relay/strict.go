package relay

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// inboundPrefix is what names of inbound listeners begin with; the port follows.
const inboundPrefix = "in|"

// Accepted delivers after changes of what Envoy has accepted, several as one.
func (r *Relay) Accepted() <-chan struct{} { return r.accepted }

// Strict are the ports, sorted, at which Envoy takes TLS alone, by the listeners that it has accepted.
func (r *Relay) Strict() []uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.core.types[wire.Listener]
	if t == nil {
		return nil
	}
	var out []uint16
	for name, e := range t.accepted {
		text, inbound := strings.CutPrefix(name, inboundPrefix)
		if !inbound {
			continue
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if body, bodyErr := e.Body(); err == nil && bodyErr == nil && tlsAlone(body) {
			out = append(out, uint16(port))
		}
	}
	slices.Sort(out)
	return out
}

// Fields of envoy.config.listener.v3.Listener and FilterChain.
const (
	listenerChains  = 3
	listenerDefault = 25
	chainSocket     = 6
)

// tlsAlone reports whether each filter chain of a listener, of which there is one, has a transport
// socket: ours have none but TLS.
func tlsAlone(listener []byte) bool {
	chains, sockets := 0, 0
	err := wire.Fields(listener, func(num protowire.Number, chain []byte) error {
		if num != listenerChains && num != listenerDefault {
			return nil
		}
		chains++
		has := false
		err := wire.Fields(chain, func(num protowire.Number, _ []byte) error {
			has = has || num == chainSocket
			return nil
		})
		if has {
			sockets++
		}
		return err
	})
	return err == nil && chains > 0 && chains == sockets
}
