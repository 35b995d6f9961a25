package dns

import (
	"container/list"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Bounds of how long answers of upstreams are kept (RFC 8767, 4; RFC 2308, 5).
const (
	maxTTL         = time.Hour
	maxNegativeTTL = 5 * time.Minute
)

// cacheKey distinguishes questions that can have different answers.
type cacheKey struct {
	name   string // in lower case
	qtype  uint16
	qclass uint16
	do, cd bool
}

func keyOf(q *dns.Msg) cacheKey {
	question := q.Question[0]
	opt := q.IsEdns0()
	return cacheKey{
		name: strings.ToLower(question.Name), qtype: question.Qtype, qclass: question.Qclass,
		do: opt != nil && opt.Do(), cd: q.CheckingDisabled,
	}
}

// answerCache keeps the latest answers of upstreams. Safe for concurrent use.
type answerCache struct {
	size int

	mu      sync.Mutex
	entries map[cacheKey]*list.Element
	recent  *list.List // of *cached, the latest first
}

type cached struct {
	key     cacheKey
	msg     *dns.Msg
	since   time.Time
	expires time.Time
}

func newAnswerCache(size int) *answerCache {
	return &answerCache{size: size, entries: make(map[cacheKey]*list.Element), recent: list.New()}
}

// get returns an answer with what is left of its time to live. Its records are
// the caller's.
func (c *answerCache) get(key cacheKey, now time.Time) (*dns.Msg, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.entries[key]
	if el == nil {
		return nil, false
	}
	e := el.Value.(*cached)
	if !now.Before(e.expires) {
		c.recent.Remove(el)
		delete(c.entries, key)
		return nil, false
	}
	c.recent.MoveToFront(el)
	out := e.msg.Copy()
	age := uint32(now.Sub(e.since) / time.Second)
	for _, section := range [][]dns.RR{out.Answer, out.Ns, out.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(age, h.Ttl)
			}
		}
	}
	return out, true
}

// put keeps an answer for as long as it says; the message stays as it is.
func (c *answerCache) put(key cacheKey, msg *dns.Msg, now time.Time) {
	keep := lifetime(msg)
	if c.size <= 0 || keep <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.entries[key]; el != nil {
		c.recent.Remove(el)
	}
	c.entries[key] = c.recent.PushFront(&cached{key: key, msg: msg.Copy(), since: now, expires: now.Add(keep)})
	for len(c.entries) > c.size {
		last := c.recent.Back()
		c.recent.Remove(last)
		delete(c.entries, last.Value.(*cached).key)
	}
}

// lifetime of an answer: the least of its records; of a negative one, what the
// SOA record says; of a failure none.
func lifetime(m *dns.Msg) time.Duration {
	if m.Truncated || m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return 0
	}
	if m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0 {
		least := maxTTL
		for _, section := range [][]dns.RR{m.Answer, m.Ns} {
			for _, rr := range section {
				least = min(least, seconds(rr.Header().Ttl))
			}
		}
		return least
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(seconds(soa.Hdr.Ttl), seconds(soa.Minttl), maxNegativeTTL)
		}
	}
	return 0
}

func seconds(n uint32) time.Duration { return time.Duration(n) * time.Second }
