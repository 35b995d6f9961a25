package nameserver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// askTimeout of one resolver by UDP; a client waits 5 s for two of them by default (resolv.conf(5)).
	askTimeout = 2 * time.Second
	// rounds through all resolvers.
	rounds = 2
	// dnsPort of resolvers.
	dnsPort = 53
	// reread is how often the files of resolvers are looked at.
	reread = 5 * time.Second
)

var errNoResolver = errors.New("resolv.conf names no resolver")

// encodeQuestion that is not a client's.
func (q *question) encodeQuestion() ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, q.header)
	if err := errors.Join(b.StartQuestions(), b.Question(q.asked)); err != nil {
		return nil, err
	}
	return b.Finish()
}

// exchange a message with the first resolver that answers. Its answer has the ID of the message.
func (s *Server) exchange(ctx context.Context, message []byte, network string) ([]byte, error) {
	id := binary.BigEndian.Uint16(message)
	var to []netip.AddrPort
	if s.config.Upstreams != nil {
		to = s.config.Upstreams()
	}
	err := errNoResolver
	for range rounds {
		for _, server := range to {
			var answer []byte
			if answer, err = s.exchangeWith(ctx, server, slices.Clone(message), network); err == nil {
				binary.BigEndian.PutUint16(answer, id)
				return answer, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	return nil, err
}

func (s *Server) exchangeWith(ctx context.Context, server netip.AddrPort, message []byte, network string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// Another ID: an answer that is made up has to guess it, and the port.
	if _, err := rand.Read(message[:2]); err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Control: s.config.Control}).DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if network == "tcp" {
		if err := writeMessage(conn, message); err != nil {
			return nil, err
		}
		answer, err := readMessage(conn)
		if err == nil && !answers(answer, message) {
			err = fmt.Errorf("%s answers another question", server)
		}
		return answer, err
	}
	if _, err := conn.Write(message); err != nil {
		return nil, err
	}
	buffer := make([]byte, maxTCP)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil, err
		}
		if answers(buffer[:n], message) {
			return buffer[:n], nil
		}
	}
}

// answers reports whether a message is the answer to another one: by its ID and its question.
func answers(answer, message []byte) bool {
	var a, m dnsmessage.Parser
	is, err := a.Start(answer)
	asked, askedErr := m.Start(message)
	if err != nil || askedErr != nil || is.ID != asked.ID || !is.Response {
		return false
	}
	got, err := a.Question()
	if errors.Is(err, dnsmessage.ErrSectionDone) {
		return is.RCode != dnsmessage.RCodeSuccess // such as of a server that cannot read the question
	}
	want, wantErr := m.Question()
	return err == nil && wantErr == nil && got.Type == want.Type && got.Class == want.Class && strings.EqualFold(got.Name.String(), want.Name.String())
}

// Resolvers are those that files (resolv.conf(5)) name, in order. A file that is not there names none.
// Files are read again after they change.
type Resolvers struct {
	Files []string
	Now   func() time.Time // nil: time.Now

	mu     sync.Mutex
	looked time.Time
	times  []time.Time
	all    []netip.AddrPort
}

// Get the resolvers.
func (r *Resolvers) Get() []netip.AddrPort {
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := now(); r.looked.IsZero() || at.Sub(r.looked) >= reread {
		r.looked = at
		r.look()
	}
	return r.all
}

func (r *Resolvers) look() {
	times := make([]time.Time, len(r.Files))
	for i, f := range r.Files {
		if info, err := os.Stat(f); err == nil {
			times[i] = info.ModTime()
		}
	}
	if r.times != nil && slices.Equal(times, r.times) {
		return
	}
	r.times, r.all = times, nil
	for _, f := range r.Files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "nameserver" {
				continue
			}
			if a, err := netip.ParseAddr(fields[1]); err == nil && !slices.Contains(r.all, netip.AddrPortFrom(a, dnsPort)) {
				r.all = append(r.all, netip.AddrPortFrom(a, dnsPort))
			}
		}
	}
}
