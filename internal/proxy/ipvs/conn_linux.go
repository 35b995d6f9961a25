package ipvs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn is a socket to IPVS of a network namespace.
type Conn struct {
	family uint16
	socket *nl.SocketHandle
}

var _ Kernel = (*Conn)(nil)

// Open connects to IPVS of the network namespace of the calling thread. Close it.
func Open() (*Conn, error) {
	f, err := netlink.GenlFamilyGet(familyName)
	if err != nil {
		return nil, fmt.Errorf("looking up the netlink family %s: %w", familyName, err)
	}
	s, err := nl.Subscribe(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket to IPVS: %w", err)
	}
	timeout := unix.Timeval{Sec: 10}
	if err := errors.Join(s.SetSendTimeout(&timeout), s.SetReceiveTimeout(&timeout)); err != nil {
		s.Close()
		return nil, err
	}
	return &Conn{f.ID, &nl.SocketHandle{Socket: s}}, nil
}

// Close the socket.
func (c *Conn) Close() error {
	c.socket.Close()
	return nil
}

func (c *Conn) do(cmd uint8, flags int, data ...nl.NetlinkRequestData) ([][]byte, error) {
	req := nl.NewNetlinkRequest(int(c.family), flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_GENERIC: c.socket}
	req.AddData(&nl.Genlmsg{Command: cmd, Version: familyVersion})
	for _, d := range data {
		req.AddData(d)
	}
	return req.Execute(unix.NETLINK_GENERIC, 0)
}

// dump repeats a question while services change under it.
func (c *Conn) dump(cmd uint8, data ...nl.NetlinkRequestData) (out [][]byte, err error) {
	for range 20 {
		if out, err = c.do(cmd, unix.NLM_F_DUMP, data...); !errors.Is(err, nl.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return out, err
		}
	}
	return out, err
}

// Services implements Kernel.
func (c *Conn) Services() ([]Service, error) {
	msgs, err := c.dump(cmdGetService)
	if err != nil {
		return nil, fmt.Errorf("listing services of IPVS: %w", err)
	}
	out := make([]Service, 0, len(msgs))
	for _, m := range msgs {
		s, marked, err := decodeService(m)
		if err != nil {
			return nil, err
		}
		if marked {
			out = append(out, s)
		}
	}
	return out, nil
}

// Destinations implements Kernel.
func (c *Conn) Destinations(k Key) ([]Destination, error) {
	msgs, err := c.dump(cmdGetDest, encodeService(Service{Key: k}))
	if err != nil {
		return nil, fmt.Errorf("listing destinations of IPVS: %w", err)
	}
	out := make([]Destination, 0, len(msgs))
	for _, m := range msgs {
		d, err := decodeDestination(m, k.Family)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func (c *Conn) change(what string, cmd uint8, data ...nl.NetlinkRequestData) error {
	if _, err := c.do(cmd, unix.NLM_F_ACK, data...); err != nil {
		return fmt.Errorf("%s of IPVS: %w", what, err)
	}
	return nil
}

// AddService implements Kernel.
func (c *Conn) AddService(s Service) error {
	return c.change("adding a service", cmdNewService, encodeService(s))
}

// SetService implements Kernel.
func (c *Conn) SetService(s Service) error {
	return c.change("changing a service", cmdSetService, encodeService(s))
}

// DeleteService implements Kernel.
func (c *Conn) DeleteService(k Key) error {
	return c.change("deleting a service", cmdDelService, encodeService(Service{Key: k}))
}

// AddDestination implements Kernel.
func (c *Conn) AddDestination(k Key, d Destination) error {
	return c.change("adding a destination", cmdNewDest, encodeService(Service{Key: k}), encodeDestination(d, true))
}

// SetDestination implements Kernel.
func (c *Conn) SetDestination(k Key, d Destination) error {
	return c.change("changing a destination", cmdSetDest, encodeService(Service{Key: k}), encodeDestination(d, true))
}

// DeleteDestination implements Kernel.
func (c *Conn) DeleteDestination(k Key, a netip.AddrPort) error {
	return c.change("deleting a destination", cmdDelDest, encodeService(Service{Key: k}), encodeDestination(Destination{Addr: a}, false))
}

// SetTimeouts implements Kernel. The kernel wants all three in a request; 0 leaves one as it is.
func (c *Conn) SetTimeouts(t Timeouts) error {
	return c.change("setting timeouts", cmdSetConfig,
		nl.NewRtAttr(attrTimeoutTCP, u32(t.TCP)), nl.NewRtAttr(attrTimeoutTCPFin, u32(t.TCPFin)), nl.NewRtAttr(attrTimeoutUDP, u32(t.UDP)))
}
