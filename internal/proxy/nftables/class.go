//go:build linux

package nftables

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/kernel/nfnl"
)

// marking says whose connections are masqueraded.
type marking uint8

const (
	markNever   marking = iota
	markOutside         // those from outside the workload CIDRs
	markAlways
)

var markNames = [...]string{markNever: "keep", markOutside: "outside", markAlways: "masq"}

// classKey is all in which pick chains differ.
type classKey struct {
	mark            marking
	local           bool
	slots           int
	affinitySeconds int
	// hash: a client's address decides about the slot, not chance.
	hash bool
	// balanced: Options.Balancer chooses the endpoint; there are no slots.
	balanced bool
}

// chain is the chain's name, which says everything of the class, so that a
// restarted agent knows what it finds.
func (k classKey) chain() string {
	list := "cluster"
	if k.local {
		list = "local"
	}
	if k.balanced {
		return fmt.Sprintf("pick-%s-%s-marked", markNames[k.mark], list)
	}
	name := fmt.Sprintf("pick-%s-%s-%d", markNames[k.mark], list, k.slots)
	if k.affinitySeconds != 0 {
		name += "-" + strconv.Itoa(k.affinitySeconds) + "s"
	}
	if k.hash {
		name += "-hash"
	}
	return name
}

// class is a pick chain in use, or kept for its next use.
type class struct {
	key    classKey
	number uint16
	refs   int
}

// maxIdle is how many pick chains without a user are kept: making one walks the
// endpoint map, which at 10,000 services takes as long as a hundred changes.
const maxIdle = 32

// acquire finds or makes the class and takes a reference.
func (f *family) acquire(k classKey) (*class, error) {
	c := f.classes[k]
	if c == nil {
		number, err := f.classNumber(k.chain())
		if err != nil {
			return nil, err
		}
		c = &class{key: k, number: number}
		f.classes[k] = c
		f.classOf[number] = c
		name := k.chain()
		f.wantChain(nfnl.Chain{Name: name}, f.rules.pick(k))
		verdict := nfnl.Goto(name).Value()
		f.entry.put(mix(0, number), verdict, "")
		f.lists.put(mix(0, number), verdict, "")
	} else if c.refs == 0 {
		f.idle = remove(f.idle, c)
	}
	c.refs++
	return c, nil
}

// release gives a reference back.
func (f *family) release(c *class) {
	if c == nil {
		return
	}
	if c.refs--; c.refs > 0 {
		return
	}
	f.idle = append(f.idle, c)
	if len(f.idle) > maxIdle {
		oldest := f.idle[0]
		f.idle = f.idle[1:]
		delete(f.classes, oldest.key)
		delete(f.classOf, oldest.number)
		f.entry.remove(mix(0, oldest.number))
		f.lists.remove(mix(0, oldest.number))
		f.unwantChain(oldest.key.chain())
	}
}

func remove(list []*class, c *class) []*class {
	for i := range list {
		if list[i] == c {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

// classNumber is the number that the chain has in the kernel already, or a free
// one.
func (f *family) classNumber(chain string) (uint16, error) {
	if n, ok := f.adopted.classes[chain]; ok && f.classOf[n] == nil {
		return n, nil
	}
	for range int(idBit) {
		n := f.nextClass
		if f.nextClass++; f.nextClass >= idBit {
			f.nextClass = firstPick
		}
		if f.classOf[n] == nil && !f.adopted.taken[n] {
			return n, nil
		}
	}
	return 0, fmt.Errorf("no class is free for %s: there are %d", chain, idBit-firstPick)
}

// isPick reports whether a chain is that of a list.
func isPick(chain string) bool { return strings.HasPrefix(chain, "pick-") }
