package nameserver

import (
	"errors"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// minUDP is what each client takes by UDP, in bytes (RFC 1035, 4.2.1), and maxUDP what is sent at most: more
	// may be fragmented (DNS flag day 2020).
	minUDP, maxUDP = 512, 1232
	maxTCP         = 1<<16 - 1
	headerSize     = 12
)

// errNoQuestion: the message is not one question that can be answered.
var errNoQuestion = errors.New("no question")

// question of a client.
type question struct {
	header dnsmessage.Header
	asked  dnsmessage.Question
	// name in lower case, without a dot at its end.
	name string
	// size of an answer by UDP, and whether the client knows EDNS.
	size int
	edns bool
}

// parse a message with one question.
func parse(message []byte) (question, error) {
	var p dnsmessage.Parser
	q := question{size: minUDP}
	var err error
	if q.header, err = p.Start(message); err != nil || q.header.Response {
		return q, errNoQuestion
	}
	if q.asked, err = p.Question(); err != nil {
		return q, errNoQuestion
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return q, errNoQuestion
	}
	q.name = strings.ToLower(strings.TrimSuffix(q.asked.Name.String(), "."))
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, errNoQuestion
	}
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return q, nil // the end, or what is not of interest
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns, q.size = true, min(max(minUDP, int(h.Class)), maxUDP)
			return q, nil
		}
		if p.SkipAdditional() != nil {
			return q, nil
		}
	}
}

// encode a reply of at most limit bytes: where it is more the client has to come by TCP.
func (q *question) encode(r *reply, limit int) []byte {
	out, err := q.build(r)
	if err != nil {
		out, err = q.build(&reply{code: dnsmessage.RCodeServerFailure})
	}
	if err == nil && len(out) > limit && len(r.extra) > 0 {
		short := *r
		short.extra = nil
		out, err = q.build(&short)
	}
	if err == nil && len(out) > limit {
		out, err = q.build(&reply{code: r.code})
		if len(out) >= headerSize {
			const truncated = 0x02 // of the third byte (RFC 1035, 4.1.1)
			out[2] |= truncated
		}
	}
	if err != nil {
		return nil
	}
	return out
}

func (q *question) build(r *reply) ([]byte, error) {
	b := dnsmessage.NewBuilder(make([]byte, 0, minUDP), dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, Authoritative: r.zone != "" && r.alias == "", RecursionDesired: q.header.RecursionDesired,
		RecursionAvailable: true, RCode: r.code,
	})
	b.EnableCompression()
	errs := []error{b.StartQuestions(), b.Question(q.asked), b.StartAnswers()}
	for _, a := range r.answers {
		name := q.asked.Name
		if a.name != q.name {
			name = fqdn(a.name)
		}
		errs = append(errs, add(&b, name, a.body))
	}
	errs = append(errs, b.StartAuthorities())
	if len(r.answers) == 0 && r.zone != "" { // how long a no may be kept (RFC 2308)
		errs = append(errs, b.SOAResource(head(fqdn(r.zone)), dnsmessage.SOAResource{
			NS: fqdn("ns.dns." + r.zone), MBox: fqdn("hostmaster." + r.zone), Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, MinTTL: ttl,
		}))
	}
	errs = append(errs, b.StartAdditionals())
	for _, a := range r.extra {
		errs = append(errs, add(&b, fqdn(a.name), a.body))
	}
	if q.edns {
		var h dnsmessage.ResourceHeader
		errs = append(errs, h.SetEDNS0(maxUDP, r.code, false), b.OPTResource(h, dnsmessage.OPTResource{}))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return b.Finish()
}

func head(name dnsmessage.Name) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttl}
}

func add(b *dnsmessage.Builder, name dnsmessage.Name, body dnsmessage.ResourceBody) error {
	switch r := body.(type) {
	case *dnsmessage.AResource:
		return b.AResource(head(name), *r)
	case *dnsmessage.AAAAResource:
		return b.AAAAResource(head(name), *r)
	case *dnsmessage.CNAMEResource:
		return b.CNAMEResource(head(name), *r)
	case *dnsmessage.PTRResource:
		return b.PTRResource(head(name), *r)
	case *dnsmessage.SRVResource:
		return b.SRVResource(head(name), *r)
	}
	return errors.New("a record of another type")
}

// aliased adds to a reply what others answer for the name that it ends at. Their own records of aliases
// stay among them.
func (r *reply) aliased(message []byte) {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil || h.RCode != dnsmessage.RCodeSuccess && h.RCode != dnsmessage.RCodeNameError || p.SkipAllQuestions() != nil {
		r.code, r.answers = dnsmessage.RCodeServerFailure, nil
		return
	}
	all, err := p.AllAnswers()
	if err != nil {
		r.code, r.answers = dnsmessage.RCodeServerFailure, nil
		return
	}
	for i := range all {
		name := strings.ToLower(strings.TrimSuffix(all[i].Header.Name.String(), "."))
		switch all[i].Body.(type) {
		case *dnsmessage.AResource, *dnsmessage.AAAAResource, *dnsmessage.CNAMEResource, *dnsmessage.SRVResource, *dnsmessage.PTRResource:
			r.answers = append(r.answers, record{name, all[i].Body})
		}
	}
}
