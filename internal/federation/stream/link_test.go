package stream

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
)

// TestHistogram: quantiles are at most a bucket too large, and of the last generations alone.
func TestHistogram(t *testing.T) {
	var h histogram
	at := time.Unix(1_700_000_000, 0)
	if got := h.lag(at); got != (Lag{}) {
		t.Errorf("an empty one has %+v", got)
	}
	for i := range 1000 {
		h.add(time.Duration(i+1)*time.Millisecond, at)
	}
	near := func(got, want time.Duration) bool { return got >= want && float64(got) <= 1.091*float64(want) }
	if got := h.lag(at.Add(lagWindow)); got.Samples != 1000 || !near(got.P50, 500*time.Millisecond) || !near(got.P99, 990*time.Millisecond) {
		t.Errorf("1 to 1000 ms: %+v", got)
	}
	h.add(time.Hour, at.Add(lagWindow+time.Second))
	if got := h.lag(at.Add(lagWindow + time.Second)); got.Samples != 1001 || !near(got.P99, 990*time.Millisecond) {
		t.Errorf("with one of an hour: %+v", got)
	}
	if got := h.lag(at.Add(2*lagWindow + time.Second)); got.Samples != 1 || got.P50 != boundOf(lagBuckets-1) {
		t.Errorf("a generation later: %+v", got)
	}
	if got := h.lag(at.Add(5 * lagWindow)); got.Samples != 0 || h.count != 1001 || h.upTo[0] != 5 {
		t.Errorf("in the end: %+v, %d of all, %d up to 5 ms", got, h.count, h.upTo[0])
	}
}

// TestMeter: a change counts from when it is there until its answer, also where the window was full, and not what a stream begins with.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l link
		m := l.newMeter()
		ack := func(nonce string) { m.answered(&discovery.DeltaDiscoveryRequest{TypeUrl: "a", ResponseNonce: nonce}) }
		m.sent("1", "a", true)
		time.Sleep(time.Second)
		ack("1")
		if got := l.status().Lag; got != (Lag{}) {
			t.Errorf("the beginning counts: %+v", got)
		}
		m.changed()
		m.sent("2", "a", true)
		m.idle(true)
		time.Sleep(100 * time.Millisecond)
		m.changed() // what is there now waits for the window, since the first change
		ack("2")
		m.sent("3", "a", true)
		m.idle(false)
		time.Sleep(100 * time.Millisecond)
		if got := l.status().Lag; got.Samples != 1 || got.Waiting != 200*time.Millisecond {
			t.Errorf("one is confirmed, one waits: %+v", got)
		}
		ack("3")
		ack("3")
		if got := l.status(); got.Lag.Samples != 2 || got.Lag.Waiting != 0 || got.Sum < 0.299 || got.Sum > 0.301 || got.Buckets[0.1] != 1 || got.Buckets[0.25] != 2 {
			t.Errorf("both are confirmed: %+v", got)
		}
		m.sent("4", "a", true)
		m.end()
		if got := l.status().Lag.Waiting; got != 0 {
			t.Errorf("after the stream one waits for %v", got)
		}
	})
}

// TestLastRefused: the last NACK of a type is kept with its resource after it was taken.
func TestLastRefused(t *testing.T) {
	var l link
	detail, err := anypb.New(&federationv1.Refusals{Total: 1, Refusals: []*federationv1.Refusal{{Name: "shop/p", Reason: "no such port"}}})
	if err != nil {
		t.Fatal(err)
	}
	m := l.newMeter()
	m.answered(&discovery.DeltaDiscoveryRequest{TypeUrl: "a", ResponseNonce: "1", ErrorDetail: &status.Status{Message: "1 refused", Details: []*anypb.Any{detail}}})
	m.answered(&discovery.DeltaDiscoveryRequest{TypeUrl: "a", ResponseNonce: "2"})
	l.answering(&discovery.DiscoveryRequest{TypeUrl: "b", ResponseNonce: "1", ErrorDetail: &status.Status{Message: "all"}})
	got := l.status().Refused
	if len(got) != 2 || !got[0].ByPeer || got[0].Resource != "shop/p" || got[0].Reason != "no such port" || got[1].ByPeer || got[1].Reason != "all" {
		t.Errorf("%+v", got)
	}
}

// FuzzLagText: what a zone says of its lag is taken, or not.
func FuzzLagText(f *testing.F) {
	f.Add("3 1000 2000 0")
	f.Add("1 9223372036854775807 -1 0x")
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := parseLag(text)
		if ok && (got.P50 < 0 || got.P99 < 0 || got.Waiting < 0) {
			t.Fatalf("%q: %+v", text, got)
		}
		if again, _ := parseLag(got.text()); ok && again != got {
			t.Fatalf("%q: %+v, then %+v", text, got, again)
		}
	})
}

// TestLagOfLink: both ends of a link measure what they send, global learns what the zone measures, and each learns the other's epoch.
func TestLagOfLink(t *testing.T) {
	for _, protocol := range []int{1, 2} {
		g := newGlobalRig(t, newPKI(t))
		z := newZoneRig(t, g, "east", protocol, nil)
		g.store.addMesh("first")
		z.store.addDataplane("w0")
		z.await(t, g, 1, 1)
		n := 0
		eventually(t, "lags and epochs of both", func() bool {
			n++
			name := strconv.Itoa(n)
			g.store.addMesh("m-" + name)
			z.store.addDataplane("d-" + name)
			all, there := g.global.Status(), z.zone.Status().Link
			if len(all) != 1 {
				return false
			}
			here := all[0].Link
			return here.Lag.Samples > 0 && here.Lag.P99 >= here.Lag.P50 && here.Epoch == "east-1" && there.Lag.Samples > 0 && there.Epoch == "global-1"
		})
		z.stop()
	}
}
