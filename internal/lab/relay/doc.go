// Package relay delays and loses packets on the way between two places: a TUN device to
// which a router sends what is to be delayed, and a process that writes each packet back
// after a while.
//
// Enter at [Run]. It sets up no addresses, routes or rules: package lab does. It needs root
// and Linux.
package relay

import (
	"fmt"
	"time"
)

// Config of a relay.
type Config struct {
	// Device is the name of the TUN device that Run makes, at most 15 bytes.
	Device string
	// Delay of every packet, in each direction, up to MaxDelay.
	Delay time.Duration
	// Loss is the share of packets that are dropped, each by itself, 0 to 1.
	Loss float64
	// Seed of the random numbers by which packets are lost.
	Seed uint64
	// Ready is called when the device is there; may be nil.
	Ready func()
}

// MaxDelay of a relay. At 1 Gbit/s it holds 512 ms of traffic, and drops what is more.
const MaxDelay = 5 * time.Second

// Check reports what of a configuration can't be.
func (c *Config) Check() error {
	switch {
	case c.Device == "" || len(c.Device) > 15:
		return fmt.Errorf("device %q: want a name of 1 to 15 bytes", c.Device)
	case c.Delay < 0 || c.Delay > MaxDelay:
		return fmt.Errorf("a delay of %s: want 0 to %s", c.Delay, MaxDelay)
	case !(c.Loss >= 0 && c.Loss <= 1):
		return fmt.Errorf("a loss of %g %%: want 0 to 100", c.Loss*100)
	}
	return nil
}
