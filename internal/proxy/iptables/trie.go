package iptables

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// leafMax is how many rules a chain may have before it is split by one more
// nibble. A split costs a packet up to 16 rules, so larger leaves are not dearer
// than deeper ones until about there; small leaves are what makes a change cheap.
const leafMax = 8

// A key is the way to a rule: one digit (0–15) per byte. Virtual addresses have
// their nibbles, lowest first (chosen addresses differ in the low ones), then the
// protocol, then the port's nibbles, highest first (iptables matches ports by
// range). Node ports have protocol and port only, local endpoints the address
// only. any, in the place of the protocol, is what is left of an address.
type key string

const anyProtocol = 0xff

// portDigits follow the protocol's digit.
const portDigits = 4

var protocolDigits = map[proxy.Protocol]byte{proxy.TCP: 0, proxy.UDP: 1, proxy.SCTP: 2}

// protocolNames by digit, as iptables spells them.
var protocolNames = [...]string{"tcp", "udp", "sctp"}

func addrKey(a netip.Addr) []byte {
	b := a.AsSlice()
	k := make([]byte, 0, 2*len(b)+1+portDigits)
	for i := len(b) - 1; i >= 0; i-- {
		k = append(k, b[i]&15, b[i]>>4)
	}
	return k
}

func portKey(k []byte, p proxy.Protocol, port uint16) key {
	return key(append(k, protocolDigits[p], byte(port>>12), byte(port>>8)&15, byte(port>>4)&15, byte(port)&15))
}

func restKey(a netip.Addr) key { return key(append(addrKey(a), anyProtocol)) }

// trie turns a set of rules into chains in which a packet meets few of them. The
// chains depend on the rules alone, never on the order in which they came, and
// each name says at which key its chain begins. It is a view: rules are given and
// asked for, and every change tells which chains are different now.
type trie struct {
	chain  string // prefix of the chains' names
	family family
	addrs  int    // digits of address in a key
	match  string // -d or -s

	keys  []key          // sorted
	rules map[key]string // without "-A chain"
	nodes map[string]*node
}

// node is what is known of a chain that exists.
type node struct {
	split    int      // the digit by which it splits; -1: a leaf
	children []string // what their keys begin with, sorted
	rest     string   // what applies to the rest of the address, here and below
}

func newTrie(chain string, f family, match string, addrs int) *trie {
	t := &trie{chain: chain, family: f, addrs: addrs, match: match, rules: map[key]string{}, nodes: map[string]*node{}}
	t.nodes[""] = &node{split: -1}
	return t
}

// root is the chain where packets enter. It always exists.
func (t *trie) root() string { return t.name("") }

// name of the chain for keys that begin so. Keys too long for a name are hashed.
func (t *trie) name(begin string) string {
	const room = 16
	digits := make([]byte, len(begin))
	for i := range begin {
		digits[i] = "0123456789abcdef"[begin[i]&15]
	}
	switch {
	case begin == "":
		return t.chain + "ROOT"
	case len(digits) <= room:
		return t.chain + string(digits)
	default:
		return t.chain + tag(t.chain, hex.EncodeToString([]byte(begin)))
	}
}

// set changes rules; empty ones are removed. Chains that are different are put
// into out, with nil for those that are gone.
func (t *trie) set(rules map[key]string, out map[string]*string) {
	var changed []key
	var added []key
	removed := map[key]struct{}{}
	for k, rule := range rules {
		old, had := t.rules[k]
		switch {
		case rule == "" && had:
			delete(t.rules, k)
			removed[k] = struct{}{}
		case rule == "" || old == rule:
			continue
		default:
			if !had {
				added = append(added, k)
			}
			t.rules[k] = rule
		}
		changed = append(changed, k)
	}
	if len(changed) == 0 {
		return
	}
	slices.Sort(changed)
	slices.Sort(added)
	t.keys = merge(t.keys, added, removed)
	t.render("", t.keys, changed, "", false, out)
}

// merge sorted keys; the result does not share memory with keys.
func merge(keys, added []key, removed map[key]struct{}) []key {
	if len(added) == 0 && len(removed) == 0 {
		return keys
	}
	out := make([]key, 0, len(keys)+len(added))
	for _, k := range keys {
		for len(added) > 0 && added[0] < k {
			out, added = append(out, added[0]), added[1:]
		}
		if _, gone := removed[k]; !gone {
			out = append(out, k)
		}
	}
	return append(out, added...)
}

// render brings the chain for keys that begin so, and those below it, up to
// date. changed are the keys to look at; with all, everything below is new. rest
// is the rule that applies to what no other rule of the address took.
func (t *trie) render(begin string, keys, changed []key, rest string, all bool, out map[string]*string) {
	n := t.nodes[begin]
	split := -1
	if len(keys) > leafMax {
		split = common(keys[0], keys[len(keys)-1])
	}
	if n == nil || n.split != split {
		if n != nil {
			t.remove(begin, out) // those below; the chain itself is put again
		}
		n, all = &node{split: split}, true
		t.nodes[begin] = n
	}
	name := t.name(begin)
	if split < 0 {
		var b strings.Builder
		for _, k := range keys {
			appendRule(&b, name, t.rules[k])
		}
		if rest != "" {
			appendRule(&b, name, rest)
		}
		t.put(name, b.String(), out)
		return
	}
	// The rest of the address goes along, as no packet comes back here from below.
	if split >= t.addrs && len(keys[len(keys)-1]) == t.addrs+1 {
		last := keys[len(keys)-1]
		if last[t.addrs] == anyProtocol {
			rest, keys = t.rules[last], keys[:len(keys)-1]
		}
	}
	if n.rest != rest {
		n.rest, all = rest, true
	}
	t.branch(begin, name, n, keys, changed, rest, all, out)
}

// branch writes a chain that splits, and goes on below.
func (t *trie) branch(begin, name string, n *node, keys, changed []key, rest string, all bool, out map[string]*string) {
	var b strings.Builder
	var children []string
	for len(keys) > 0 {
		digit := keys[0][n.split]
		upper := digitEnd(keys, n.split, digit)
		child := string(keys[0][:n.split+1])
		appendRule(&b, name, t.branchMatch(child)+" -g "+t.name(child))
		children = append(children, child)
		below := within(changed, child)
		if all || len(below) > 0 || !slices.Contains(n.children, child) {
			t.render(child, keys[:upper], below, rest, all, out)
		}
		keys = keys[upper:]
	}
	if rest != "" {
		appendRule(&b, name, rest)
	}
	for _, child := range n.children {
		if !slices.Contains(children, child) {
			t.remove(child, out)
		}
	}
	n.children = children
	t.put(name, b.String(), out)
}

// remove a chain and those below it.
func (t *trie) remove(begin string, out map[string]*string) {
	for _, child := range t.nodes[begin].children {
		t.remove(child, out)
	}
	delete(t.nodes, begin)
	out[t.name(begin)] = nil
}

func (t *trie) put(name, rules string, out map[string]*string) { out[name] = &rules }

// branchMatch is the condition for the last digit of what a child begins with.
// The digits before it have been looked at, or are the same in all keys here.
func (t *trie) branchMatch(child string) string {
	at := len(child) - 1
	digit := child[at]
	switch {
	case at < t.addrs:
		value, mask := make([]byte, t.addrs/2), make([]byte, t.addrs/2)
		i, shift := len(value)-1-at/2, 4*(at%2)
		value[i], mask[i] = digit<<shift, 15<<shift
		v, _ := netip.AddrFromSlice(value)
		m, _ := netip.AddrFromSlice(mask)
		return t.match + " " + v.String() + "/" + m.String()
	case at == t.addrs:
		return "-p " + protocolNames[digit]
	default:
		proto := protocolNames[child[t.addrs]]
		low := 0
		for i := t.addrs + 1; i <= at; i++ {
			low |= int(child[i]) << (4 * (t.addrs + portDigits - i))
		}
		high := low + 1<<(4*(t.addrs+portDigits-at)) - 1
		if low == high {
			return fmt.Sprintf("-p %s -m %s --dport %d", proto, proto, low)
		}
		return fmt.Sprintf("-p %s -m %s --dport %d:%d", proto, proto, low, high)
	}
}

// common is the number of digits that all keys between two have in common.
func common(first, last key) int {
	n := 0
	for n < len(first) && n < len(last) && first[n] == last[n] {
		n++
	}
	return n
}

// digitEnd tells how many of the sorted keys, which begin with this digit in this
// place, do.
func digitEnd(keys []key, at int, digit byte) int {
	n, _ := slices.BinarySearchFunc(keys, digit, func(k key, d byte) int {
		if k[at] <= d {
			return -1
		}
		return 1
	})
	return n
}

// within is the part of the sorted keys that begin so.
func within(keys []key, begin string) []key {
	from, _ := slices.BinarySearchFunc(keys, begin, func(k key, b string) int { return cmp.Compare(string(k), b) })
	to := from
	for to < len(keys) && strings.HasPrefix(string(keys[to]), begin) {
		to++
	}
	return keys[from:to]
}

// appendRule adds a rule, which may be several lines, to a chain's text.
func appendRule(b *strings.Builder, chain, rules string) {
	for rule := range strings.SplitSeq(rules, "\n") {
		b.WriteString("-A ")
		b.WriteString(chain)
		b.WriteByte(' ')
		b.WriteString(rule)
		b.WriteByte('\n')
	}
}
