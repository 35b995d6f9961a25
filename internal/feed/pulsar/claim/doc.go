// Package claim decides which instance of a control plane serves a topic to clients of Pulsar.
//
// It owns the rows of the store that say so: a claim for each topic that is in use, and a lease for each instance that has claims. Enter at
// New, Claims.Run and Claims.Take. It never reads topics, and compares no clocks of two machines.
//
// An instance that is gone loses its claims when its lease has run out: others count from when they saw the lease change last, by their own
// clock; the owner counts from before it began to write it, and stops a fifth of the lease earlier. What an owner writes is fenced: the
// store refuses it once the claim is another one's.
package claim

import (
	"fmt"
	"time"
)

// Prefix of the keys of claims and leases.
const (
	Prefix = "/proxima/feed/claims/"

	topicPrefix = Prefix + "topic/"
	leasePrefix = Prefix + "instance/"
)

const (
	// DefaultDuration of a lease.
	DefaultDuration = 10 * time.Second
	// minDuration and maxDuration bound what an instance of another version may ask for.
	minDuration = time.Second
	maxDuration = time.Minute
	// idleFor is how long a claim is kept that nobody uses: a client looks a topic up before it subscribes.
	idleFor = time.Minute
	// sweepEvery is how often rows of instances that are gone are looked for.
	sweepEvery = time.Minute
	// attempts of a take-over that another instance gets ahead of.
	attempts = 3
	// commitTimeout bounds the time for a store that does not answer.
	commitTimeout = 5 * time.Second
)

// Owner is an instance that serves a topic.
type Owner struct {
	// Name of the instance, Address (host:port) where clients of Pulsar reach it.
	Name    string `json:"name"`
	Address string `json:"address"`
}

// row is a claim in the store. It changes only when the topic is claimed anew, so its revision is a fence.
type row struct {
	Owner
	// Run is the process of the instance.
	Run string `json:"run"`
	// Since is the time at the owner, for people.
	Since time.Time `json:"since"`
}

// lease of an instance in the store. What counts is that its revision changes.
type lease struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Renewal uint64  `json:"renewal"`
}

// duration of the lease, within bounds.
func (l *lease) duration() time.Duration {
	return min(max(time.Duration(l.Seconds*float64(time.Second)), minDuration), maxDuration)
}

// ElsewhereError reports that another instance serves a topic.
type ElsewhereError struct {
	Owner
	// Wait is how long its claim holds at least, unless it ends before.
	Wait time.Duration
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("instance %s of the control plane serves the topic, at %s", e.Name, e.Address)
}
