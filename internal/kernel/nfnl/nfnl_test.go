//go:build linux

package nfnl

import (
	"errors"
	"hash/maphash"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// everyExpression is a rule's worth of each expression that the package writes.
func everyExpression() map[string]*Rule {
	load := func() *Rule { return (&Rule{}).Meta(unix.NFT_META_PRIORITY, 0) }
	return map[string]*Rule{
		"meta, mask, compare": load().Mask(0, Host(0xffff0000), Host(0)).Equal(0, Host(0x10000)).SetMeta(unix.NFT_META_MARK, 0).Do(Drop()),
		"payload, lookup":     (&Rule{}).Network(16, 4, 5).In("addrs", 5).Do(Goto("other")),
		"not equal":           (&Rule{Comment: "with a comment"}).Transport(2, 2, 3).NotEqual(3, "\x00\x50").Do(Jump("other")),
		"hash":                (&Rule{}).Network(12, 4, 8).Hash(8, 4, 7, 65536, 99, 2).Equal(2, Host(65536)).Do(Drop()),
		"map, nat": load().Meta(unix.NFT_META_L4PROTO, 1).Random(7, 65536, 2).Lookup("ep", 0, 4).
			Load(9, Host(0)).SetMeta(unix.NFT_META_PRIORITY, 9).DNAT(unix.NFPROTO_IPV4, 4, 5),
		"verdict map": load().VerdictOf("verdicts", 0),
		"dynamic":     load().Network(12, 4, 1).Meta(unix.NFT_META_PRIORITY, 2).Update("dyn", 0, 2, 10_800_000),
		"delete":      load().Network(12, 4, 1).Meta(unix.NFT_META_PRIORITY, 2).Delete("dyn", 0, 2),
		"fib, ct":     (&Rule{}).SourceType(0).Equal(0, Host(2)).DestinationType(0).NotEqual(0, Host(1)).Conntrack(unix.NFT_CT_STATUS, 4).NotEqual(4, Host(0)),
		"reject":      (&Rule{}).Unreachable(3),
		"reset":       (&Rule{}).Meta(unix.NFT_META_L4PROTO, 0).Equal(0, "\x06").ResetTCP(),
	}
}

func testSets() []Set {
	return []Set{
		{Name: "addrs", KeyType: TypeIPAddr, KeyLen: 4, UserData: SetUserData(NetworkOrder, "", NoOrder, "")},
		{
			Name: "ep", KeyType: TypeOf(TypeClass, TypeProto, TypeInteger), KeyLen: 12, ValueType: TypeOf(TypeIPAddr, TypePort), ValueLen: 8,
			UserData: SetUserData(NoOrder, TypeofConcat(TypeofMeta(unix.NFT_META_PRIORITY), TypeofMeta(unix.NFT_META_L4PROTO), TypeofRandom(65536)),
				NoOrder, TypeofConcat(TypeofDaddr(unix.NFPROTO_IPV4), TypeofPort())),
		},
		{Name: "verdicts", KeyType: TypeClass, KeyLen: 4, ValueType: VerdictType, UserData: SetUserData(HostOrder, "", NoOrder, "")},
		{Name: "counted", KeyType: TypeClass, KeyLen: 4, Counter: true},
		{
			Name: "dyn", KeyType: TypeOf(TypeClass, TypeIPAddr), KeyLen: 8, ValueType: TypeClass, ValueLen: 4,
			Flags: unix.NFT_SET_EVAL, Timeout: true, Size: 1000,
		},
	}
}

var testTable = Table{Family: unix.NFPROTO_IPV4, Name: "test"}

func openIn(t *testing.T, ns *netns.NS) *Conn {
	t.Helper()
	c, err := Open(ns.Fd())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestKernelGivesBackWhatWasWritten: everything reads back as it was written,
// which is what drift detection and restarts rest on.
func TestKernelGivesBackWhatWasWritten(t *testing.T) {
	ns := netns.New(t, "pnft-nfnl")
	c := openIn(t, ns)
	rules := everyExpression()
	var b Batch
	b.AddTable(testTable)
	b.AddChain(testTable, Chain{Name: "other"})
	base := Chain{Name: "base", Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: -100}
	b.AddChain(testTable, base)
	sets := testSets()
	for i := range sets {
		b.AddSet(testTable, &sets[i])
	}
	elems := map[string][]Elem{
		"addrs":    {{Key: "\x0a\x00\x00\x01"}},
		"ep":       {{Key: Host(0x10000) + "\x06\x00\x00\x00" + Host(1), Value: "\x0a\x00\x00\x01\x00\x50\x00\x00"}},
		"verdicts": {{Key: Host(1), Value: Drop().Value()}, {Key: Host(2), Value: Goto("other").Value()}},
		"counted":  {{Key: Host(0x10000), Comment: "default/web:http"}},
	}
	for i := range sets {
		for _, e := range elems[sets[i].Name] {
			b.AddElem(testTable, &sets[i], e)
		}
	}
	var names []string
	for name := range rules {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b.AddRule(testTable, "base", rules[name])
	}
	if err := c.Commit(&b); err != nil {
		t.Fatal(err)
	}

	got, err := c.Rules(testTable)
	if err != nil || len(got) != len(names) {
		t.Fatalf("%d rules, %v", len(got), err)
	}
	for i, name := range names {
		if got[i].Rule != rules[name].Canonical() || got[i].Chain != "base" {
			t.Errorf("%s:\nwrote %q\nread  %q", name, rules[name].Canonical(), got[i].Rule)
		}
	}
	gotSets, err := c.Sets(testTable)
	if err != nil {
		t.Fatal(err)
	}
	byName := func(a, b Set) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(gotSets, byName)
	slices.SortFunc(sets, byName)
	if diff := cmp.Diff(sets, gotSets); diff != "" {
		t.Errorf("sets (-wrote +read):\n%s", diff)
	}
	chains, err := c.Chains(testTable)
	if err != nil || !slices.Contains(chains, base) {
		t.Errorf("chains %+v, %v", chains, err)
	}
	for name, want := range elems {
		var got []Elem
		if err := c.Elems(testTable, name, func(e Elem) { got = append(got, e) }); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, func(a, b Elem) int { return strings.Compare(a.Key, b.Key) })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("elements of %s (-wrote +read):\n%s", name, diff)
		}
	}
	counted := 0
	if err := c.Counts(testTable, "counted", func([]byte, uint64) { counted++ }); err != nil || counted != 1 {
		t.Errorf("%d counters, %v", counted, err)
	}
}

// TestEachRule: rules of any program, distinguished by what they do and not by what
// they counted.
func TestEachRule(t *testing.T) {
	ns := netns.New(t, "pnft-nfnl")
	ns.Run("nft", `add table ip test; add chain ip test one; add chain ip test other;
		add rule ip test one counter packets 7 bytes 700 jump other; add rule ip test one counter packets 8 bytes 800 jump other;
		add rule ip test one tcp dport 80 counter drop; add rule ip test other accept;
		add table ip another; add chain ip another one; add rule ip another one accept`)
	c := openIn(t, ns)
	look := func(chain string) (chains []string, leads []bool, sums []uint64) {
		seed := maphash.MakeSeed()
		err := c.EachRule(testTable, chain, func(r RawRule) {
			var h maphash.Hash
			h.SetSeed(seed)
			r.Hash(&h)
			chains, leads, sums = append(chains, string(r.Chain)), append(leads, r.LeadsTo("oth")), append(sums, h.Sum64())
		})
		if err != nil {
			t.Fatal(err)
		}
		return chains, leads, sums
	}
	chains, leads, sums := look("one")
	if !slices.Equal(chains, []string{"one", "one", "one"}) || !slices.Equal(leads, []bool{true, true, false}) {
		t.Errorf("rules of %v lead to other: %v", chains, leads)
	}
	if len(sums) == 3 && (sums[0] != sums[1] || sums[0] == sums[2]) {
		t.Errorf("sums %x: want the first two alike, as they differ by their counters alone", sums)
	}
	if chains, _, _ := look(""); len(chains) != 4 {
		t.Errorf("the table has rules in %v", chains)
	}
	if chains, _, _ := look("nowhere"); len(chains) != 0 {
		t.Errorf("a chain that is not there has rules in %v", chains)
	}
}

// TestBlockingForward: who drops forwarded packets, as Docker and ufw (policy), and
// distributions (a last rule) do, and who lets translated connections through all the same.
func TestBlockingForward(t *testing.T) {
	ns := netns.New(t, "pnft-forward")
	c := openIn(t, ns)
	look := func() (out []string) {
		chains, err := c.BlockingForward()
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range chains {
			out = append(out, ch.String())
		}
		return out
	}
	for _, step := range []struct {
		command string
		want    []string
	}{
		{"nft add table inet fw; add chain inet fw between { type filter hook forward priority 0; policy accept; }; add chain inet fw in { type filter hook input priority 0; policy drop; }", nil},
		{"nft add rule inet fw between tcp dport 1 drop", nil},
		{"nft add rule inet fw between counter reject", []string{"inet fw between (last rule)"}},
		{"nft insert rule inet fw between ct status dnat accept", nil},
		{"nft flush table inet fw", nil},
		{"iptables-nft -P FORWARD DROP", []string{"ip filter FORWARD (policy)"}},
		{"iptables-nft -A FORWARD -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", []string{"ip filter FORWARD (policy)"}},
		{"iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", []string{"ip filter FORWARD (policy)"}},
		{"iptables-nft -A FORWARD -m conntrack ! --ctstate DNAT -j ACCEPT", []string{"ip filter FORWARD (policy)"}},
		{"iptables-nft -A FORWARD -m conntrack --ctstate DNAT -j ACCEPT", nil},
		{"ip6tables-nft -A FORWARD -j REJECT", []string{"ip6 filter FORWARD (last rule)"}},
	} {
		command, rest, _ := strings.Cut(step.command, " ")
		args := []string{rest}
		if command != "nft" {
			args = strings.Fields(rest)
		}
		ns.Run(command, args...)
		if got := look(); !slices.Equal(got, step.want) {
			t.Errorf("after %s: %q, want %q", step.command, got, step.want)
		}
	}
}

// TestUserDataIsNfts compares our user data of types with that of nft.
func TestUserDataIsNfts(t *testing.T) {
	ns := netns.New(t, "pnft-nfnl")
	ns.Run("nft", `add table ip test; add map ip test ep { typeof meta priority . meta l4proto . numgen inc mod 65536 : ip daddr . th dport; };
		add set ip test addrs { type ipv4_addr; };
		add table ip6 test; add map ip6 test ep { typeof meta priority . meta l4proto : ip6 daddr . th dport; }`)
	c := openIn(t, ns)
	sets, err := c.Sets(testTable)
	if err != nil {
		t.Fatal(err)
	}
	ours := testSets()
	for _, theirs := range sets {
		i := slices.IndexFunc(ours, func(s Set) bool { return s.Name == theirs.Name })
		if !sameUserData(theirs.UserData, ours[i].UserData) {
			t.Errorf("user data of %s:\nnft  %x\nours %x", theirs.Name, theirs.UserData, ours[i].UserData)
		}
	}
	six, err := c.Sets(Table{Family: unix.NFPROTO_IPV6, Name: "test"})
	if err != nil || len(six) != 1 {
		t.Fatal(err)
	}
	want := SetUserData(NoOrder, TypeofConcat(TypeofMeta(unix.NFT_META_PRIORITY), TypeofMeta(unix.NFT_META_L4PROTO)),
		NoOrder, TypeofConcat(TypeofDaddr(unix.NFPROTO_IPV6), TypeofPort()))
	if !sameUserData(six[0].UserData, want) {
		t.Errorf("IPv6 user data:\nnft  %x\nours %x", six[0].UserData, want)
	}
}

// sameUserData compares what both have; defaults that only nft writes do not count.
func sameUserData(theirs, ours string) bool {
	parse := func(s string) map[byte]string {
		out := map[byte]string{}
		for len(s) >= 2 && len(s) >= 2+int(s[1]) {
			out[s[0]] = s[2 : 2+int(s[1])]
			s = s[2+int(s[1]):]
		}
		return out
	}
	a, b := parse(theirs), parse(ours)
	for k, v := range b {
		if k == setValueOrder && a[k] == "" {
			continue
		}
		if a[k] != v {
			return false
		}
	}
	return len(b) > 0
}

func TestBatchIsAllOrNothing(t *testing.T) {
	ns := netns.New(t, "pnft-nfnl")
	c := openIn(t, ns)
	var b Batch
	b.AddTable(testTable)
	b.AddChain(testTable, Chain{Name: "a"})
	b.DeleteChain(testTable, "b")
	err := c.Commit(&b)
	var failed *Error
	if !errors.As(err, &failed) || !errors.Is(err, unix.ENOENT) || failed.Op != "deleting chain b of table test" {
		t.Errorf("error %v", err)
	}
	if there, _, err := c.HasTable(testTable); there || err != nil {
		t.Errorf("a failed transaction left its table: %v, %v", there, err)
	}
	b.Reset()
	b.AddTable(testTable)
	if err := c.Check(&b); err != nil {
		t.Error(err)
	}
	if there, _, _ := c.HasTable(testTable); there {
		t.Error("a check left its table")
	}
	if err := c.Commit(&b); err != nil {
		t.Error(err)
	}
	if there, _, _ := c.HasTable(testTable); !there {
		t.Error("no table after its transaction")
	}
}

// TestListenerHearsOthersOnly: own transactions never fill the buffer.
func TestListenerHearsOthersOnly(t *testing.T) {
	ns := netns.New(t, "pnft-nfnl")
	c, other := openIn(t, ns), openIn(t, ns)
	l, err := ListenTables(ns.Fd(), c.Port())
	if err != nil {
		t.Fatal(err)
	}
	add := func(c *Conn, name string) {
		t.Helper()
		var b Batch
		b.AddTable(Table{Family: unix.NFPROTO_IPV4, Name: name})
		if err := c.Commit(&b); err != nil {
			t.Fatal(err)
		}
	}
	add(c, "ours")
	add(other, "theirs")
	var heard []string
	for len(heard) == 0 {
		if err := l.Receive(func(m Message) {
			if t, ok := m.Table(); ok {
				heard = append(heard, t.Name)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"theirs"}, heard); diff != "" {
		t.Error(diff)
	}
	done := make(chan error)
	go func() {
		var err error
		for err == nil {
			err = l.Receive(func(Message) {})
		}
		done <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
}

// FuzzDecode: whatever comes from a socket, decoding ends and stays in bounds.
func FuzzDecode(f *testing.F) {
	for _, r := range everyExpression() {
		var b Batch
		b.AddRule(testTable, "c", r)
		f.Add(b.a.b)
	}
	sets := testSets()
	for i := range sets {
		var b Batch
		b.AddSet(testTable, &sets[i])
		b.AddElem(testTable, &sets[i], Elem{Key: "\x01\x02\x03\x04", Value: Goto("x").Value(), Comment: "c"})
		b.finish()
		f.Add(b.a.b)
	}
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(_ *testing.T, data []byte) {
		for m := range messages(data) {
			m.Table()
			if len(m.Body) < familyHeader {
				continue
			}
			body := m.Body[familyHeader:]
			decodeChain(body)
			decodeRule(body)
			if r, ok := rawRule(body, "test"); ok {
				r.LeadsTo("o")
				r.Hash(&maphash.Hash{})
			}
			decodeSet(body)
			decodeElem(body)
			decodeCount(body)
			for _, v := range ParseAttrs(body) {
				canonical(v)
				decodeComment(v)
			}
		}
	})
}

func TestVerdictValue(t *testing.T) {
	for _, v := range []Verdict{Drop(), Goto("a"), Jump("b-c"), {Code: 1}} {
		if got := ParseVerdict(v.Value()); got != v {
			t.Errorf("%+v became %+v", v, got)
		}
	}
	if got := ParseVerdict(""); got != (Verdict{}) {
		t.Errorf("%+v", got)
	}
}
