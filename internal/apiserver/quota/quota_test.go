package quota

import (
	"fmt"
	"testing"
)

func TestPool(t *testing.T) {
	p := Quarter(8)
	take := func(user string, n int64, beyond bool, want Result) {
		t.Helper()
		if got := p.Take(user, n, beyond); got != want {
			t.Errorf("take %d for %s: %d, want %d", n, user, got, want)
		}
	}
	take("a", 3, false, ShareUsed)
	take("a", 2, false, Taken)
	take("a", 1, false, ShareUsed)
	take("a", 1, true, ShareUsed)
	for i := range 3 {
		take(fmt.Sprint("b", i), 2, false, Taken)
	}
	take("c", 1, false, TotalUsed)
	take("c", 2, true, Taken)
	if p.Used() != 10 {
		t.Errorf("%d used, want 10", p.Used())
	}
	p.Give("c", 2)
	p.Give("a", 2)
	take("c", 1, false, Taken)
	if len(p.users) != 4 {
		t.Errorf("users that hold nothing are kept: %v", p.users)
	}
}

func TestSmallPool(t *testing.T) {
	if p := Quarter(2); p.Share() != 1 || p.Take("a", 1, false) != Taken || p.Take("a", 1, false) != ShareUsed ||
		p.Take("b", 1, false) != Taken {
		t.Error("a quarter of 2 is not 1")
	}
}
