package changes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func next(t *testing.T, s *Subscription[string]) []string {
	t.Helper()
	keys, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

func TestChangesCoalesce(t *testing.T) {
	var f Feed[string]
	f.Publish("before anyone subscribed")
	s := f.Subscribe()
	defer s.Close()
	slow := f.Subscribe()
	defer slow.Close()
	f.Publish("a")
	f.Publish("b", "a")
	f.Publish()
	if got := next(t, s); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %v", got)
	}
	f.Publish("c")
	if got := next(t, s); !slices.Equal(got, []string{"c"}) {
		t.Errorf("after the first batch: %v", got)
	}
	if got := next(t, slow); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("the slow one got %v", got)
	}
}

func TestNextBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Feed[int]
		s := f.Subscribe()
		taken := make(chan []int, 1)
		go func() {
			keys, _ := s.Next(t.Context())
			taken <- keys
		}()
		synctest.Wait()
		select {
		case keys := <-taken:
			t.Fatalf("nothing was published, and Next returned %v", keys)
		default:
		}
		f.Publish(7)
		if keys := <-taken; !slices.Equal(keys, []int{7}) {
			t.Errorf("got %v", keys)
		}
	})
}

func TestNextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Feed[int]
		s := f.Subscribe()
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		failed := make(chan error, 1)
		go func() { _, err := s.Next(ctx); failed <- err }()
		synctest.Wait()
		cancel(stop)
		if err := <-failed; !errors.Is(err, stop) {
			t.Errorf("context ended: %v", err)
		}
		go func() { _, err := s.Next(t.Context()); failed <- err }()
		synctest.Wait()
		s.Close()
		s.Close()
		if err := <-failed; !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		f.Publish(1)
		if len(f.subs) != 0 {
			t.Error("a closed subscription is kept")
		}
	})
}

// TestNothingIsLost between a producer and a consumer that run at the same time.
func TestNothingIsLost(t *testing.T) {
	var f Feed[int]
	s := f.Subscribe()
	defer s.Close()
	const producers, each = 4, 500
	var producing sync.WaitGroup
	for p := range producers {
		producing.Go(func() {
			for i := range each {
				f.Publish(p*each + i)
			}
		})
	}
	seen := map[int]bool{}
	for len(seen) < producers*each {
		keys, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			seen[key] = true
		}
	}
	producing.Wait()
}
