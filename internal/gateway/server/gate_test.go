package server

import (
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGateBoundsWorkAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		g := newGate(2, 1, closed)
		turns := [5]turn{}
		for i := range turns {
			turns[i].gate = g
		}
		if turns[0].Enter() != nil || turns[1].Enter() != nil {
			t.Fatal("a free slot was not given")
		}
		waiting := make(chan error, 1)
		go func() { waiting <- turns[2].Enter() }()
		synctest.Wait()
		if err := turns[3].Enter(); !errors.Is(err, errOverloaded) {
			t.Errorf("beyond the queue: %v", err)
		}
		turns[3].Leave() // has nothing to give
		select {
		case <-waiting:
			t.Fatal("three are in")
		default:
		}
		turns[0].Leave()
		turns[0].Leave() // once only
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		go func() { waiting <- turns[4].Enter() }()
		synctest.Wait()
		close(closed)
		if err := <-waiting; !errors.Is(err, net.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestIdentity(t *testing.T) {
	parse := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	good := parse("spiffe://mesh.example/ns/a/sa/b")
	if id, err := Identity(&x509.Certificate{URIs: []*url.URL{good}}); err != nil || id != good.String() {
		t.Errorf("%q, %v", id, err)
	}
	for name, uris := range map[string][]*url.URL{
		"none": nil, "two": {good, good}, "another scheme": {parse("https://mesh.example/a")}, "no trust domain": {parse("spiffe:///a")},
	} {
		if id, err := Identity(&x509.Certificate{URIs: uris}); err == nil {
			t.Errorf("%s: %q", name, id)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{}, {Role: "ingress"}} {
		if s, err := New(c); err == nil {
			t.Errorf("%+v became %v", c, s)
		}
	}
}
