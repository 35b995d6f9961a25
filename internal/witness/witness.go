// Package witness lets a control plane notice within seconds that a machine is gone.
//
// It owns both ends of a stream and the probes between agents. Client, in an agent, says
// every second that the agent is there and carries out probes that the control plane
// orders; Responder, in an agent, answers those of others; Server, in a control plane,
// takes the streams. A probe is a UDP packet to the agent itself, so that an agent that is
// stopped does not answer though its kernel would. Who is to be probed, and what follows,
// is decided by package controller/health. By the same stream a control plane asks an agent
// for what the agent has (Server.Call, ClientConfig.Answer): nothing is open for that while
// nobody asks. Enter at NewClient, Listen and NewServer. It
// dials no control plane and serves no port of its own but the Responder's: servers and
// connections come from the caller.
package witness

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// A packet is magic, kind, nonce and the first bytes of the SHA-256 of the node's name: a
// machine that has taken over an address does not answer for another. An answer is as long
// as its question and is never answered.
const (
	magic     = "PXW1"
	nonceSize = 16
	nameSize  = 8

	packetSize = len(magic) + 1 + nonceSize + nameSize
)

const (
	question byte = iota + 1
	answer
)

// packet of a probe.
type packet struct {
	kind  byte
	nonce [nonceSize]byte
	name  [nameSize]byte
}

func nameOf(node string) (out [nameSize]byte) {
	sum := sha256.Sum256([]byte(node))
	copy(out[:], sum[:])
	return out
}

func newQuestion(node string) packet {
	p := packet{kind: question, name: nameOf(node)}
	_, _ = rand.Read(p.nonce[:]) // never fails
	return p
}

func (p packet) encode() []byte {
	out := make([]byte, 0, packetSize)
	out = append(out, magic...)
	out = append(out, p.kind)
	out = append(out, p.nonce[:]...)
	return append(out, p.name[:]...)
}

var errPacket = errors.New("not a packet of a probe")

func decodePacket(b []byte) (p packet, err error) {
	if len(b) != packetSize || !bytes.HasPrefix(b, []byte(magic)) {
		return p, errPacket
	}
	p.kind = b[len(magic)]
	if p.kind != question && p.kind != answer {
		return p, fmt.Errorf("%w: kind %d", errPacket, p.kind)
	}
	b = b[len(magic)+1:]
	copy(p.nonce[:], b)
	copy(p.name[:], b[nonceSize:])
	return p, nil
}
