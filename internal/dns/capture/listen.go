package capture

import (
	"errors"
	"net"
	"strconv"
	"syscall"
)

// Sockets that questions are led to, on all addresses of this machine, of each family that
// it has.
type Sockets struct {
	Port uint16
	UDP  []*net.UDPConn
	TCP  []net.Listener
}

// Listen opens the sockets at Port, or at any free one if that is taken.
func Listen() (*Sockets, error) {
	var errs []error
	// Another program may take a number that was free for one socket before it is opened
	// for the next one.
	for _, port := range []uint16{Port, 0, 0, 0} {
		s := &Sockets{Port: port}
		err := s.open()
		if err == nil {
			return s, nil
		}
		s.Close()
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (s *Sockets) open() error {
	var none error
	for _, family := range []struct{ suffix, any string }{{"4", "0.0.0.0"}, {"6", "::"}} {
		l, err := net.Listen("tcp"+family.suffix, net.JoinHostPort(family.any, strconv.Itoa(int(s.Port))))
		if errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL) { // the kernel lacks the family
			none = err
			continue
		}
		if err != nil {
			return err
		}
		s.TCP = append(s.TCP, l)
		s.Port = uint16(l.Addr().(*net.TCPAddr).Port)
		u, err := net.ListenPacket("udp"+family.suffix, net.JoinHostPort(family.any, strconv.Itoa(int(s.Port))))
		if err != nil {
			return err
		}
		s.UDP = append(s.UDP, u.(*net.UDPConn))
	}
	if len(s.TCP) == 0 {
		return none
	}
	return nil
}

// Close closes the sockets.
func (s *Sockets) Close() {
	for _, u := range s.UDP {
		_ = u.Close()
	}
	for _, l := range s.TCP {
		_ = l.Close()
	}
}
