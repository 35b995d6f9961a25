package spiffe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc/credentials"
)

// socketMode lets every user of the machine connect: the kernel identifies the process,
// and one without a workload gets nothing.
const socketMode = 0o666

// Listen opens the socket of the Workload API. A socket that is left from before is
// replaced; something else of that name is an error. The folder has to be there, and
// writable for the agent alone. Closing the listener removes the socket.
func Listen(path string) (net.Listener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("socket of the Workload API: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("socket of the Workload API: %s is there, and is no socket", path)
	default:
		if conn, err := net.Dial("unix", path); err == nil {
			return nil, errors.Join(fmt.Errorf("socket of the Workload API: another process serves %s", path), conn.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("socket of the Workload API: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket of the Workload API: %w", err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(fmt.Errorf("socket of the Workload API: %w", err), l.Close())
	}
	return l, nil
}

// maxPerUser bounds the connections of one user of the machine: a workload has one, and
// no user can keep others out.
const maxPerUser = 256

// peerCredentials are transport credentials by which handlers see the caller's process.
type peerCredentials struct {
	mu    sync.Mutex
	users map[uint32]int // connections
}

// processInfo is the AuthInfo of a connection.
type processInfo struct {
	credentials.CommonAuthInfo
	process Process
}

// AuthType implements credentials.AuthInfo.
func (processInfo) AuthType() string { return "peercred" }

// ServerHandshake implements credentials.TransportCredentials.
func (c *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, fmt.Errorf("a connection of type %T has no process at its end", conn)
	}
	p, err := processOf(unixConn)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[p.UID] >= maxPerUser {
		return nil, nil, fmt.Errorf("user %d has %d connections to the Workload API already", p.UID, maxPerUser)
	}
	c.users[p.UID]++
	counted := &countedConn{Conn: conn, release: sync.OnceFunc(func() { c.release(p.UID) })}
	return counted, processInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, p}, nil
}

func (c *peerCredentials) release(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users[uid]--; c.users[uid] <= 0 {
		delete(c.users, uid)
	}
}

// countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn
	release func()
}

func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// ClientHandshake implements credentials.TransportCredentials; there are no clients.
func (*peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// Info implements credentials.TransportCredentials.
func (*peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}

// Clone implements credentials.TransportCredentials.
func (c *peerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials.
func (*peerCredentials) OverrideServerName(string) error { return nil }
