//go:build linux

package nfnl

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// step is a random operation: what it does as text, and how it is added to a batch.
type step struct {
	text string
	add  func(*Batch)
}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// randomStep draws from few names, so that operations meet what is there, what is
// not, what is used, and what is defined otherwise.
func randomStep(r *rand.Rand) step {
	t := Table{Family: pick[uint8](r, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6), Name: "t"}
	chain := pick(r, "a", "b", "c", "base")
	say := func(add func(*Batch), format string, args ...any) step {
		return step{fmt.Sprintf("%d ", t.Family) + fmt.Sprintf(format, args...), add}
	}
	switch n := r.IntN(40); {
	case n < 2:
		return say(func(b *Batch) { b.AddTable(t) }, "add table")
	case n < 3 && r.IntN(8) == 0:
		return say(func(b *Batch) { b.DeleteTable(t) }, "delete table")
	case n < 10:
		c := Chain{Name: chain}
		if chain == "base" || r.IntN(10) == 0 {
			c.Type, c.Hook = "nat", pick[uint32](r, unix.NF_INET_PRE_ROUTING, unix.NF_INET_PRE_ROUTING, unix.NF_INET_POST_ROUTING)
			c.Priority = pick[int32](r, -100, -100, -100, 100, -300)
		}
		return say(func(b *Batch) { b.AddChain(t, c) }, "add chain %+v", c)
	case n < 11:
		return say(func(b *Batch) { b.DeleteChain(t, chain) }, "delete chain %s", chain)
	case n < 13:
		return say(func(b *Batch) { b.FlushChain(t, chain) }, "flush chain %s", chain)
	case n < 20:
		name, rule := randomRule(r)
		return say(func(b *Batch) { b.AddRule(t, chain, rule()) }, "add rule %s to %s", name, chain)
	case n < 25:
		s := randomSet(r)
		return say(func(b *Batch) { b.AddSet(t, &s) }, "add set %+v", s)
	case n < 26:
		s := randomSet(r)
		return say(func(b *Batch) { b.DeleteSet(t, s.Name) }, "delete set %s", s.Name)
	case n < 36:
		s := randomSet(r)
		e := Elem{Key: Host(uint32(r.IntN(3)))}
		if r.IntN(20) == 0 {
			e.Key += e.Key
		}
		switch {
		case s.ValueType == VerdictType:
			e.Value = pick(r, Drop(), Goto("a"), Goto("b"), Goto("c"), Goto("base"), Jump("a")).Value()
		case s.IsMap():
			e.Value = Host(uint32(r.IntN(2)))
		}
		if r.IntN(4) == 0 {
			e.Comment = pick(r, "one", "two")
		}
		return say(func(b *Batch) { b.AddElem(t, &s, e) }, "add element %x : %x %q to %s", e.Key, e.Value, e.Comment, s.Name)
	}
	s := randomSet(r)
	key := Host(uint32(r.IntN(3)))
	return say(func(b *Batch) { b.DeleteElem(t, &s, key) }, "delete element %x of %s", key, s.Name)
}

// start makes tables with most of what the steps name.
func start(b *Batch) {
	for _, family := range []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		t := Table{Family: family, Name: "t"}
		b.AddTable(t)
		b.AddChain(t, Chain{Name: "base", Type: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: -100})
		for _, name := range []string{"a", "b", "c"} {
			b.AddChain(t, Chain{Name: name})
		}
		for _, s := range theSets() {
			b.AddSet(t, &s)
		}
	}
}

func randomRule(r *rand.Rand) (string, func() *Rule) {
	load := func() *Rule { return (&Rule{}).Meta(unix.NFT_META_PRIORITY, 0) }
	chain, set := pick(r, "a", "b", "c", "base"), pick(r, "set", "map", "verdicts", "dynamic", "none")
	switch r.IntN(8) {
	case 0:
		return "drop", func() *Rule { return load().Do(Drop()) }
	case 1, 2:
		return "goto " + chain, func() *Rule { return load().Do(Goto(chain)) }
	case 3:
		return "jump " + chain, func() *Rule { return (&Rule{}).Do(Jump(chain)) }
	case 4:
		set = pick(r, "set", "none") // newer kernels take maps here
		return "in " + set, func() *Rule { return load().In(set, 0) }
	case 5:
		return "lookup " + set, func() *Rule {
			if set == "verdicts" {
				return load().VerdictOf(set, 0)
			}
			return load().Lookup(set, 0, 4)
		}
	case 6:
		return "verdict of verdicts", func() *Rule { return load().VerdictOf("verdicts", 0) }
	}
	set = pick(r, "dynamic", "dynamic", "none")
	timeout := pick[uint64](r, 0, 5000)
	return fmt.Sprintf("update %s for %d", set, timeout), func() *Rule {
		return load().Meta(unix.NFT_META_MARK, 1).Update(set, 0, 1, timeout)
	}
}

func randomSet(r *rand.Rand) Set {
	s := pick(r, theSets()...)
	if r.IntN(8) == 0 { // another definition
		switch r.IntN(3) {
		case 0:
			s.Counter = !s.Counter
		case 1:
			s.UserData = SetUserData(NetworkOrder, "", NoOrder, "")
		case 2:
			s.KeyType = TypeInteger
		}
	}
	return s
}

func theSets() []Set {
	return []Set{
		{Name: "set", KeyType: TypeClass, KeyLen: 4, Counter: true},
		{Name: "map", KeyType: TypeClass, KeyLen: 4, ValueType: TypeClass, ValueLen: 4},
		{Name: "verdicts", KeyType: TypeClass, KeyLen: 4, ValueType: VerdictType, UserData: SetUserData(HostOrder, "", NoOrder, "")},
		{Name: "dynamic", KeyType: TypeClass, KeyLen: 4, ValueType: TypeClass, ValueLen: 4, Flags: unix.NFT_SET_EVAL, Timeout: true, Size: 2},
	}
}

// TestFakeIsLikeTheKernel sends the same random transactions to the kernel and to
// a Fake. Both take or refuse them, at the same operation with the same error, and
// have the same tables after.
func TestFakeIsLikeTheKernel(t *testing.T) {
	seeds := uint64(5)
	if os.Getenv("PROXIMA_SOAK") != "" {
		seeds = 1000
	}
	ns := netns.New(t, "nfnl-fake")
	taken, refused := 0, map[string]int{}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0))
		conn := openIn(t, ns)
		var fake Fake
		fakeConn := fake.Open()
		var history []string
		var mine, theirs Batch
		start(&mine)
		start(&theirs)
		if err := errors.Join(conn.Commit(&theirs), fakeConn.Commit(&mine)); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			steps := make([]step, 1+max(0, r.IntN(8)-4))
			mine, theirs = Batch{}, Batch{}
			line := ""
			for i := range steps {
				steps[i] = randomStep(r)
				steps[i].add(&mine)
				steps[i].add(&theirs)
				line += steps[i].text + "; "
			}
			kernelDoes, fakeDoes := conn.Commit, fakeConn.Commit
			if r.IntN(10) == 0 {
				line += "checked only"
				kernelDoes, fakeDoes = conn.Check, fakeConn.Check
			}
			history = append(history, line)
			want, got := kernelDoes(&theirs), fakeDoes(&mine)
			if sameInAllVersions(want) != sameInAllVersions(got) {
				t.Fatalf("seed %d:\n%s\nkernel: %v\nfake:   %v", seed, strings.Join(history, "\n"), want, got)
			}
			var e *Error
			if errors.As(want, &e) {
				refused[fmt.Sprint(e.Err)]++
			} else {
				taken++
			}
			compareWithKernel(t, conn, fakeConn, history)
		}
		for _, family := range []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
			var b Batch
			b.DeleteTable(Table{Family: family, Name: "t"})
			_ = conn.Commit(&b) // it may not be there
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d transactions taken, refused: %v", taken, refused)
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EBUSY, unix.EEXIST, unix.EOPNOTSUPP, unix.EINVAL, unix.EMLINK, unix.ENFILE} {
		if refused[errno.Error()] == 0 {
			t.Errorf("no transaction was refused with %q", errno)
		}
	}
}

// sameInAllVersions is an error without what differs between versions of the
// kernel: older ones say EEXIST of a base chain with another hook.
func sameInAllVersions(err error) string {
	var e *Error
	if errors.As(err, &e) && strings.HasPrefix(e.Op, "adding chain") && errors.Is(e.Err, unix.EEXIST) {
		err = &Error{Op: e.Op, Err: unix.EOPNOTSUPP}
	}
	return fmt.Sprint(err)
}

func compareWithKernel(t *testing.T, conn *Conn, fake *FakeConn, history []string) {
	t.Helper()
	for _, family := range []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		table := Table{Family: family, Name: "t"}
		want, err := Dump(conn, table)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Dump(fake, table)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s\n(-kernel +fake):\n%s", strings.Join(history, "\n"), diff)
		}
	}
}
