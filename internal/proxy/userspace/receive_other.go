//go:build !unix

package userspace

import (
	"io"
	"net"
)

// receive passes what arrives on c to use, until use returns false or an error.
// Empty data is the end of a stream or an empty datagram.
func receive(c net.Conn, pool *bufferPool, use func([]byte) (bool, error)) error {
	b := pool.get()
	defer pool.put(b)
	for {
		n, err := c.Read(*b)
		if err != nil && err != io.EOF {
			return err
		}
		more, err := use((*b)[:n])
		if err != nil || !more {
			return err
		}
	}
}
