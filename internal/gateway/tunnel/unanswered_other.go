//go:build !linux

package tunnel

import (
	"net"
	"time"
)

// limitUnanswered does nothing: only keep-alive and the timeouts of Config are here.
func limitUnanswered(net.Conn, time.Duration, time.Duration) {}
