package resource_test

import (
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// TestMapWatch: events are changed and left out; a watch ends with its source, and when it
// is stopped while an event waits. A goroutine that stays fails the bubble.
func TestMapWatch(t *testing.T) {
	mapWatch := func(source watch.Interface) watch.Interface {
		return resource.MapWatch(source, func(e watch.Event) (watch.Event, bool) {
			if e.Type == watch.Added {
				e.Type = watch.Modified
			}
			return e, e.Type != watch.Bookmark
		})
	}
	t.Run("the source ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			source := watch.NewFakeWithChanSize(3, false)
			w := mapWatch(source)
			source.Action(watch.Bookmark, nil)
			source.Add(nil)
			source.Delete(nil)
			source.Stop()
			var got []watch.EventType
			for e := range w.ResultChan() {
				got = append(got, e.Type)
			}
			if len(got) != 2 || got[0] != watch.Modified || got[1] != watch.Deleted {
				t.Errorf("events: %v", got)
			}
			w.Stop()
		})
	})
	t.Run("stopped while an event waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			source := watch.NewFakeWithChanSize(1, false)
			w := mapWatch(source)
			source.Add(nil)
			synctest.Wait()
			w.Stop()
			w.Stop()
			synctest.Wait()
			if _, open := <-w.ResultChan(); open {
				t.Error("an event after the stop")
			}
			if !source.IsStopped() {
				t.Error("the source goes on")
			}
		})
	})
}
