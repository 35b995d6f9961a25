package zones

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// recordPeriod is how often counts of objects in insights are brought up to date.
	// What matters more is written at once.
	recordPeriod = time.Second
	// maxSubscriptions of an insight.
	maxSubscriptions = 10
	// maxRefused are named in an insight, of each type.
	maxRefused = 20
	// endTimeout bounds the write of a connection's end.
	endTimeout = 5 * time.Second
)

// record keeps the insights of the zones that are connected here.
func (z *Zones) record(ctx context.Context) {
	ticker := time.NewTicker(recordPeriod)
	defer ticker.Stop()
	for {
		for _, s := range z.global.Status() {
			z.recordZone(ctx, s)
		}
		select {
		case <-ctx.Done():
			return
		case <-z.kicks:
		case <-ticker.C:
		}
	}
}

// recordZone writes what changed of a zone. A zone that has left for another instance, or
// that is disabled, is not this one's to record.
func (z *Zones) recordZone(ctx context.Context, s stream.PeerStatus) {
	z.mu.Lock()
	p, zone := z.peers[s.Zone], z.known[s.Zone]
	var subscription *meshv1alpha1.Subscription
	if p != nil && p.subscription != nil {
		copied := *p.subscription
		subscription = &copied
	}
	z.mu.Unlock()
	if zone == nil || zone.DeletionTimestamp != nil {
		return
	}
	if subscription == nil && s.Online && p != nil {
		return // between two streams
	}
	z.change(ctx, s.Zone, func(i *meshv1alpha1.ZoneInsightStatus) {
		if subscription != nil {
			subscription.Client = s.Instance
			subscribe(i, *subscription)
			i.Online = s.Online
			i.Types = z.types(p, s)
			return
		}
		if n := len(i.Subscriptions); n == 0 || i.Subscriptions[n-1].Instance == z.config.Instance {
			i.Online = false
		}
	})
}

// subscribe records a connection. Those before it have ended: a zone has one.
func subscribe(i *meshv1alpha1.ZoneInsightStatus, s meshv1alpha1.Subscription) {
	at := slices.IndexFunc(i.Subscriptions, func(o meshv1alpha1.Subscription) bool { return o.ID == s.ID })
	if at >= 0 {
		i.Subscriptions[at] = s
		return
	}
	for n := range i.Subscriptions {
		if o := &i.Subscriptions[n]; o.DisconnectTime == nil {
			o.DisconnectTime = &s.ConnectTime
		}
	}
	i.Subscriptions = append(i.Subscriptions, s)
	i.Subscriptions = i.Subscriptions[max(0, len(i.Subscriptions)-maxSubscriptions):]
}

// recordEnd records the end of a connection.
func (z *Zones) recordEnd(zone string, s *meshv1alpha1.Subscription) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	if s.DisconnectTime == nil {
		now := metav1.NowMicro()
		s.DisconnectTime = &now
	}
	z.mu.Lock()
	known := z.known[zone]
	z.mu.Unlock()
	if known == nil || known.DeletionTimestamp != nil {
		return // the insight goes, too
	}
	z.change(ctx, zone, func(i *meshv1alpha1.ZoneInsightStatus) {
		newest := len(i.Subscriptions) == 0 || i.Subscriptions[len(i.Subscriptions)-1].ID == s.ID
		subscribe(i, *s)
		if newest && mayConnect(zone, known) != nil {
			i.Online = false // for good, not for a moment
		}
	})
}

// change writes an insight, unless nothing changes. What cannot be written is logged, and
// written with the next change.
func (z *Zones) change(ctx context.Context, zone string, change func(*meshv1alpha1.ZoneInsightStatus)) {
	var err error
	for range 3 {
		if err = z.changeOnce(ctx, zone, change); err == nil || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	if err != nil && ctx.Err() == nil {
		z.log.Warn("insight not written", "zone", zone, "error", err)
	}
}

func (z *Zones) changeOnce(ctx context.Context, zone string, change func(*meshv1alpha1.ZoneInsightStatus)) error {
	obj, err := z.config.Client.Get(ctx, kind.ZoneInsight, resource.Key{Name: zone})
	if apierrors.IsNotFound(err) {
		insight := &meshv1alpha1.ZoneInsight{ObjectMeta: metav1.ObjectMeta{Name: zone}}
		change(&insight.Status)
		_, err = z.config.Client.Create(ctx, kind.ZoneInsight, insight)
		return err
	}
	if err != nil {
		return err
	}
	insight := obj.DeepCopyObject().(*meshv1alpha1.ZoneInsight)
	change(&insight.Status)
	if equality.Semantic.DeepEqual(insight.Status, obj.(*meshv1alpha1.ZoneInsight).Status) {
		return nil
	}
	_, err = z.config.Client.Update(ctx, kind.ZoneInsight, insight)
	return err
}

// Links are what this instance measures of the zones that are connected to it, by zone.
func (z *Zones) Links() map[string]stream.Link {
	out := map[string]stream.Link{}
	for _, s := range z.global.Status() {
		if s.Online && len(s.Streams) > 0 {
			out[s.Zone] = s.Link
		}
	}
	return out
}

// types describes the synchronisation in both directions.
func (z *Zones) types(p *peer, s stream.PeerStatus) []meshv1alpha1.TypeSync {
	out := Received(meshv1alpha1.SyncToGlobal, p.inlet.Status())
	for _, st := range s.Streams {
		out = append(out, Sent(meshv1alpha1.SyncToZone, st.Sender)...)
	}
	slices.SortStableFunc(out, func(a, b meshv1alpha1.TypeSync) int {
		if a.Direction != b.Direction {
			return strings.Compare(a.Direction, b.Direction)
		}
		return strings.Compare(a.Type, b.Type)
	})
	return slices.CompactFunc(out, func(a, b meshv1alpha1.TypeSync) bool { return a.Direction == b.Direction && a.Type == b.Type })
}

// Received describes what a receiver has.
func Received(direction string, types []federation.ReceivedType) []meshv1alpha1.TypeSync {
	var out []meshv1alpha1.TypeSync
	for _, t := range types {
		one := meshv1alpha1.TypeSync{Type: t.Type, Direction: direction, Objects: int32(t.Copies)}
		for _, h := range t.Held {
			one.Held += int32(h.Count)
			one.HeldNames = append(one.HeldNames, h.Names...)
			one.HeldToken = h.Token
		}
		if len(t.Held) > 1 { // of several zones: they are confirmed together, whatever they are
			one.HeldToken = ""
		}
		one.HeldNames = one.HeldNames[:min(len(one.HeldNames), 10)]
		one.Refused = append(refusals(t.Refused), refusals(t.Waiting)...)
		one.Refused = one.Refused[:min(len(one.Refused), maxRefused)]
		out = append(out, one)
	}
	return out
}

// Sent describes what the peer of a sender refuses.
func Sent(direction string, s federation.SenderStatus) []meshv1alpha1.TypeSync {
	var out []meshv1alpha1.TypeSync
	for _, t := range s.Types {
		if !t.Subscribed {
			continue
		}
		refused := refusals(t.Refused)
		out = append(out, meshv1alpha1.TypeSync{Type: t.Type, Direction: direction, Refused: refused[:min(len(refused), maxRefused)]})
	}
	return out
}

func refusals(all []federation.Refusal) []meshv1alpha1.SyncRefusal {
	var out []meshv1alpha1.SyncRefusal
	for _, r := range all {
		out = append(out, meshv1alpha1.SyncRefusal{Name: r.Resource, Reason: r.Reason, Waiting: r.Waiting})
	}
	return out
}
