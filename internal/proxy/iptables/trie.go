package iptables

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// leafMax is how many rules a chain may have before it is split by one more
// digit. A split costs a packet up to 4 rules; for the table it costs a chain and
// the rule that leads there, for each value of the digit, and iptables-legacy
// copies and checks all of them with every change.
const leafMax = 32

// picksMax is how many rules the chain of picks of a leaf may have before the leaf is
// split. A packet meets half of them.
const picksMax = 48

// A digit is two bits of an address or a port. Of more bits, a packet would meet
// more rules on its way (half of the values at each of the steps), and leaves
// would be split into pieces that are smaller than they need be; single bits only
// make more chains.
const (
	digitBits     = 2
	digitMax      = 1<<digitBits - 1
	digitsPerByte = 8 / digitBits
)

// A key is the way to a rule: one digit per byte. Virtual addresses have their
// digits, lowest first (chosen addresses differ in the low ones), then the
// protocol, then the port's digits, highest first (iptables matches ports by
// range). Node ports have protocol and port only, local endpoints the address
// only. any, in the place of the protocol, is what is left of an address.
type key string

const anyProtocol = 0xff

// portDigits follow the protocol's digit.
const portDigits = 2 * digitsPerByte

var protocolDigits = map[proxy.Protocol]byte{proxy.TCP: 0, proxy.UDP: 1, proxy.SCTP: 2}

// protocolNames by digit, as iptables spells them.
var protocolNames = [...]string{"tcp", "udp", "sctp"}

func addrKey(a netip.Addr) []byte {
	b := a.AsSlice()
	k := make([]byte, 0, digitsPerByte*len(b)+1+portDigits)
	for i := len(b) - 1; i >= 0; i-- {
		for shift := 0; shift < 8; shift += digitBits {
			k = append(k, b[i]>>shift&digitMax)
		}
	}
	return k
}

func portKey(k []byte, p proxy.Protocol, port uint16) key {
	k = append(k, protocolDigits[p])
	for i := range portDigits {
		k = append(k, byte(port>>(digitBits*(portDigits-1-i)))&digitMax)
	}
	return key(k)
}

func restKey(a netip.Addr) key { return key(append(addrKey(a), anyProtocol)) }

// trie turns a set of rules into chains in which a packet meets few of them. The
// chains depend on the rules alone, never on the order in which they came, and
// each name says at which key its chain begins. It is a view: rules are given and
// asked for, and every change reports which chains are different now.
type trie struct {
	chain  string // prefix of the chains' names
	family family
	addrs  int    // digits of address in a key
	match  string // -d or -s

	keys  []key          // sorted
	rules map[key]string // without "-A chain"
	// picks are rules for the leaf's chain of picks, to which the key's rule leads:
	// its text ends in the beginning of that chain's name, and the trie completes it.
	// One chain for the picks of a whole leaf keeps the rules that lead there, and
	// what they counted, as they are when endpoints change, and a table of many
	// services small.
	picks map[key]string
	pairs bool // whether leaves have such chains
	// of is the mesh that the trie is of; its chains' names are hashes then.
	of string
	// otherwise is the rule for what no other takes; empty: there is none.
	otherwise string
	nodes     map[string]*node
}

// node is what is known of a chain that exists.
type node struct {
	split    int      // the digit by which it splits; -1: a leaf
	children []string // what their keys begin with, sorted
	rest     string   // what applies to the rest of the address, here and below
}

func newTrie(chain string, f family, match string, addrs int) *trie {
	t := &trie{chain: chain, family: f, addrs: addrs, match: match, rules: map[key]string{}, picks: map[key]string{}, nodes: map[string]*node{}}
	t.nodes[""] = &node{split: -1}
	return t
}

// root is the chain where packets enter. It always exists.
func (t *trie) root() string { return t.name("") }

// name of the chain for keys that begin so. Keys too long for a name are hashed.
func (t *trie) name(begin string) string {
	const maxDigits = 16
	digits := make([]byte, len(begin))
	for i := range begin {
		digits[i] = "0123456789abcdef"[begin[i]&15]
	}
	switch {
	case t.of != "":
		return t.chain + tag(t.chain, t.of, hex.EncodeToString([]byte(begin)))
	case begin == "":
		return t.chain + "ROOT"
	case len(digits) <= maxDigits:
		return t.chain + string(digits)
	default:
		return t.chain + tag(t.chain, hex.EncodeToString([]byte(begin)))
	}
}

// set changes rules, and the picks of their keys; empty rules are removed. Chains
// that are different are put into out, with nil for those that are gone.
func (t *trie) set(rules, picks map[key]string, out map[string]*string) {
	var changed []key
	var added []key
	removed := map[key]struct{}{}
	for k, rule := range rules {
		old, had := t.rules[k]
		switch {
		case rule == "" && had:
			delete(t.rules, k)
			delete(t.picks, k)
			removed[k] = struct{}{}
		case rule == "" || old == rule && t.picks[k] == picks[k]:
			continue
		default:
			if !had {
				added = append(added, k)
			}
			t.rules[k] = rule
			if t.picks[k] = picks[k]; picks[k] == "" {
				delete(t.picks, k)
			}
		}
		changed = append(changed, k)
	}
	if len(changed) == 0 {
		return
	}
	slices.Sort(changed)
	slices.Sort(added)
	t.keys = merge(t.keys, added, removed)
	t.render("", t.keys, changed, t.otherwise, false, out)
}

// begin makes the root of a trie without rules.
func (t *trie) begin(out map[string]*string) { t.render("", nil, nil, t.otherwise, true, out) }

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
	if len(keys) > leafMax || len(keys) > 1 && t.pickRules(keys) > picksMax {
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
		t.leaf(begin, keys, rest, out)
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

// pickRules counts the rules that the keys would have in a chain of picks.
func (t *trie) pickRules(keys []key) int {
	n := 0
	for _, k := range keys {
		if picks := t.picks[k]; picks != "" {
			n += 1 + strings.Count(picks, "\n")
		}
	}
	return n
}

// leaf writes a chain that does not split, and its chain of picks.
func (t *trie) leaf(begin string, keys []key, rest string, out map[string]*string) {
	name, picksChain := t.name(begin), t.picksChain(begin)
	var b, picks strings.Builder
	for _, k := range keys {
		appendRule(&b, name, t.completed(k, picksChain))
		if t.picks[k] != "" {
			appendRule(&picks, picksChain, t.picksOf(k, keys))
		}
	}
	if rest != "" {
		appendRule(&b, name, rest)
	}
	t.put(name, b.String(), out)
	switch {
	case picks.Len() > 0:
		t.put(picksChain, picks.String(), out)
	case t.pairs:
		out[picksChain] = nil
	}
}

// picksOf a key are without its port, if among the keys of its leaf no other needs
// the port to be distinguished by it: the leaf has looked at that, and each match of each
// rule costs iptables-legacy as much as a rule.
func (t *trie) picksOf(k key, keys []key) string {
	upToPort := t.addrs + 1
	for _, other := range keys {
		if other != k && t.picks[other] != "" && other[:upToPort] == k[:upToPort] {
			return t.picks[k]
		}
	}
	port := 0
	for _, digit := range []byte(k[upToPort:]) {
		port = port<<digitBits | int(digit)
	}
	return strings.ReplaceAll(t.picks[k], fmt.Sprintf(" -m %s --dport %d", protocolNames[k[t.addrs]], port), "")
}

// completed is a key's rule as it is in its leaf.
func (t *trie) completed(k key, picksChain string) string {
	if t.picks[k] == "" {
		return t.rules[k]
	}
	return t.rules[k] + strings.TrimPrefix(picksChain, chainPicks)
}

// picksChain is the name of a leaf's chain of picks.
func (t *trie) picksChain(begin string) string {
	return chainPicks + strings.TrimPrefix(t.name(begin), t.chain)
}

// linesOf a key, as they are in its leaf and its chain of picks.
func (t *trie) linesOf(k key) (leaf, picks string) {
	if t.rules[k] == "" {
		return "", ""
	}
	begin := ""
	for n := t.nodes[begin]; n.split >= 0; n = t.nodes[begin] {
		begin = string(k[:n.split+1])
		if t.nodes[begin] == nil {
			return "", "" // the rest of an address is in many
		}
	}
	var b, p strings.Builder
	appendRule(&b, t.name(begin), t.completed(k, t.picksChain(begin)))
	if t.picks[k] != "" {
		appendRule(&p, t.picksChain(begin), t.picksOf(k, within(t.keys, begin)))
	}
	return b.String(), p.String()
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
	if t.pairs {
		out[t.picksChain(begin)] = nil
	}
}

func (t *trie) put(name, rules string, out map[string]*string) { out[name] = &rules }

// branchMatch is the condition for the last digit of what a child begins with.
// The digits before it have been looked at, or are the same in all keys here.
func (t *trie) branchMatch(child string) string {
	at := len(child) - 1
	digit := child[at]
	switch {
	case at < t.addrs:
		value, mask := make([]byte, t.addrs/digitsPerByte), make([]byte, t.addrs/digitsPerByte)
		i, shift := len(value)-1-at/digitsPerByte, digitBits*(at%digitsPerByte)
		value[i], mask[i] = digit<<shift, digitMax<<shift
		v, _ := netip.AddrFromSlice(value)
		if at == t.addrs-1 { // the highest: this mask is a prefix
			return t.match + " " + printed(v) + "/" + strconv.Itoa(digitBits)
		}
		m, _ := netip.AddrFromSlice(mask)
		return t.match + " " + printed(v) + "/" + printed(m)
	case at == t.addrs:
		return "-p " + protocolNames[digit]
	default:
		proto := protocolNames[child[t.addrs]]
		low := 0
		for i := t.addrs + 1; i <= at; i++ {
			low |= int(child[i]) << (digitBits * (t.addrs + portDigits - i))
		}
		high := low + 1<<(digitBits*(t.addrs+portDigits-at)) - 1
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

// digitEnd reports how many of the sorted keys, which begin with this digit in this
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
