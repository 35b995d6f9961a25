package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
// durable; an event that was there before counts as 0.
func (b *bench) watch(ctx context.Context) error {
	for _, store := range []string{"memory", "sqlite:"} {
		if err := b.watchOn(ctx, store); err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
	}
	return nil
}

func (b *bench) watchOn(ctx context.Context, store string) error {
	p, err := b.startPlane(ctx, store)
	if err != nil {
		return err
	}
	defer p.end()
	clients, err := p.clients(ctx, 2)
	if err != nil {
		return err
	}
	seen, stop, err := events(ctx, clients[0])
	if err != nil {
		return err
	}
	defer stop()
	if _, err := clients[1].CoreV1().ConfigMaps("default").Create(ctx, configMap("watched", 0), metav1.CreateOptions{}); err != nil {
		return err
	}
	<-seen
	var fromRequest, fromAnswer durations
	for i := range b.changes {
		obj := configMap("watched", 100)
		obj.Data["count"] = strconv.Itoa(i)
		sent := time.Now()
		if _, err := clients[1].CoreV1().ConfigMaps("default").Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
			return err
		}
		answered := time.Now()
		select {
		case at, ok := <-seen:
			if !ok {
				return errors.New("the watch ended")
			}
			fromRequest = append(fromRequest, at.Sub(sent))
			fromAnswer = append(fromAnswer, max(0, at.Sub(answered)))
		case <-time.After(timeout):
			return fmt.Errorf("no event of change %d", i)
		}
	}
	b.atMost(store+" write sent → event at another client, p50", fromRequest.quantile(0.5), goalWatch, "%.2f ms")
	b.atMost(store+" write sent → event at another client, p99", fromRequest.quantile(0.99), 0, "%.2f ms")
	b.atMost(store+" write answered → event, p50", fromAnswer.quantile(0.5), 0, "%.2f ms")
	b.atMost(store+" write answered → event, p99", fromAnswer.quantile(0.99), 0, "%.2f ms")
	return nil
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
