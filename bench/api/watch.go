package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// goalWatch (ms) is from the moment at which a change is durable to the one at
// which another client has it.
const goalWatch = 2

// watch measures from the request of a write, and from its answer, until a client
// on another connection has the event. The answer comes when the write is
// durable; an event that was there before counts as 0. Several programs run at the
// same time and take turns change by change, so that noise of the machine meets all alike.
func (b *bench) watch(ctx context.Context) error {
	for _, store := range []string{"memory", "sqlite:"} {
		if err := b.watchOn(ctx, store); err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
	}
	return nil
}

func (b *bench) watchOn(ctx context.Context, store string) error {
	programs := strings.Split(b.binary, ",")
	all := make([]*watched, 0, len(programs))
	for _, program := range programs {
		w, err := b.startWatched(ctx, program, store)
		if err != nil {
			return err
		}
		defer w.p.end()
		defer w.stop()
		all = append(all, w)
	}
	for i := range b.changes {
		for turn := range all {
			if err := all[(i+turn)%len(all)].change(ctx, i); err != nil { // each is first as often as the others
				return fmt.Errorf("change %d: %w", i, err)
			}
		}
	}
	for i, w := range all {
		name := store
		if len(all) > 1 {
			name = fmt.Sprintf("program %d: %s", i+1, store)
		}
		if err := b.printWatched(name, w); err != nil {
			return err
		}
	}
	return nil
}

// watched is a control plane with a client that writes and one that watches.
type watched struct {
	p       *process
	writer  *kubernetes.Clientset
	seen    <-chan time.Time
	stop    func()
	started time.Duration // CPU time before the first change

	fromRequest, fromAnswer durations
}

func (b *bench) startWatched(ctx context.Context, program, store string) (w *watched, err error) {
	one := *b
	one.binary = program
	p, err := one.startPlane(ctx, store)
	if err != nil {
		return nil, err
	}
	w = &watched{p: p, stop: func() {}}
	defer func() {
		if err != nil {
			w.stop()
			p.end()
		}
	}()
	clients, err := p.clients(ctx, 2)
	if err != nil {
		return nil, err
	}
	w.writer = clients[1]
	if w.seen, w.stop, err = events(ctx, clients[0]); err != nil {
		return nil, err
	}
	if _, err = w.writer.CoreV1().ConfigMaps("default").Create(ctx, configMap("watched", 0), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	<-w.seen
	w.started, err = p.cpu()
	return w, err
}

// change the object, and wait for the event.
func (w *watched) change(ctx context.Context, i int) error {
	obj := configMap("watched", 100)
	obj.Data["count"] = strconv.Itoa(i)
	sent := time.Now()
	if _, err := w.writer.CoreV1().ConfigMaps("default").Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		return err
	}
	answered := time.Now()
	select {
	case at, ok := <-w.seen:
		if !ok {
			return errors.New("the watch ended")
		}
		w.fromRequest = append(w.fromRequest, at.Sub(sent))
		w.fromAnswer = append(w.fromAnswer, max(0, at.Sub(answered)))
		return nil
	case <-time.After(timeout):
		return errors.New("no event")
	}
}

func (b *bench) printWatched(name string, w *watched) error {
	now, err := w.p.cpu()
	if err != nil {
		return err
	}
	b.atMost(name+" write sent → event at another client, p50", w.fromRequest.quantile(0.5), goalWatch, "%.3f ms")
	b.atMost(name+" write sent → event at another client, p99", w.fromRequest.quantile(0.99), 0, "%.3f ms")
	b.atMost(name+" write answered → event, p50", w.fromAnswer.quantile(0.5), 0, "%.3f ms")
	b.atMost(name+" write answered → event, p99", w.fromAnswer.quantile(0.99), 0, "%.3f ms")
	b.atMost(name+" CPU of the control plane per write and event", perChange(w.started, now, b.changes), 0, "%.0f µs")
	return nil
}

// perChange is the CPU time of one of n changes, in µs.
func perChange(before, after time.Duration, n int) float64 {
	return float64(after-before) / float64(time.Microsecond) / float64(n)
}

// events are the moments at which a watch of ConfigMaps got one.
func events(ctx context.Context, c *kubernetes.Clientset) (<-chan time.Time, func(), error) {
	list, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	w, err := c.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, nil, err
	}
	seen := make(chan time.Time, 16)
	go func() {
		defer close(seen)
		for e := range w.ResultChan() {
			if _, ok := e.Object.(*corev1.ConfigMap); ok && e.Type != watch.Bookmark {
				seen <- time.Now()
			}
		}
	}()
	return seen, w.Stop, nil
}
