package secret_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/secret"
	"github.com/proxima-mesh/proxima/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var name = resource.Key{Namespace: "proxima-system", Name: "proxima-records"}

func TestContract(t *testing.T) {
	clock := testclock.NewFakeClock(time.Date(2025, 1, 2, 3, 4, 5, 6, time.UTC))
	storetest.Run(t, func(t *testing.T) store.Store {
		s, err := secret.Open(t.Context(), secret.Config{Client: resourcetest.New(kind.Secret), Key: name, Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}, storetest.Options{Clock: clock})
}

func open(t *testing.T, client resource.Client) *secret.Store {
	t.Helper()
	s, err := secret.Open(t.Context(), secret.Config{Client: client, Key: name})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s store.Store, key, value string, ttl time.Duration, modified store.Revision) error {
	t.Helper()
	_, err := s.Commit(t.Context(), store.Txn{
		Conditions: []store.Condition{{Key: key, Modified: modified}},
		Ops:        []store.Op{{Kind: store.Put, Key: key, Value: []byte(value), TTL: ttl}},
	})
	return err
}

func get(t *testing.T, s store.Store, key string) (string, store.Revision) {
	t.Helper()
	r, _, _, err := s.Get(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Value), r.Modified
}

// TestReplicas: replicas have the same records, of which a condition on what another replica has
// changed meanwhile does not hold, and a new one reads them all.
func TestReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := resourcetest.New(kind.Secret)
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		one, two := open(t, client), open(t, client)
		defer one.Close()
		defer two.Close()
		if err := errors.Join(put(t, one, "a", "1", 0, 0), put(t, one, "end", "x", time.Minute, 0)); err != nil {
			t.Fatal(err)
		}
		// The other one does not know of it yet.
		var conflict *store.ConflictError
		if err := put(t, two, "a", "2", 0, 0); !errors.As(err, &conflict) {
			t.Fatalf("a condition that does not hold: %v", err)
		}
		for _, s := range []*secret.Store{one, two} {
			running.Go(func() { _ = s.Run(ctx) })
		}
		_, at := get(t, two, "a")
		if err := put(t, two, "a", "2", 0, at); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, _ := get(t, one, "a"); got != "2" {
			t.Errorf("the other replica has %q", got)
		}
		if err := client.Delete(ctx, kind.Secret, name, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, _ := get(t, one, "a"); got != "" {
			t.Errorf("after the Secret was deleted there is %q", got)
		}
		if err := errors.Join(put(t, one, "a", "3", 0, 0), put(t, two, "end", "x", time.Minute, 0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		three := open(t, client)
		defer three.Close()
		a, _ := get(t, three, "a")
		end, _ := get(t, three, "end")
		if a != "3" || end != "" {
			t.Errorf("a later replica has %q and %q", a, end)
		}
	})
}

// TestWritesMeet: of writers at the same time none overwrites another's records.
func TestWritesMeet(t *testing.T) {
	client := resourcetest.New(kind.Secret)
	const writers, each = 4, 10
	var running sync.WaitGroup
	for w := range writers {
		s := open(t, client)
		defer s.Close()
		running.Go(func() {
			for i := range each {
				if err := put(t, s, fmt.Sprintf("%d/%d", w, i), "x", 0, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	all := open(t, client)
	defer all.Close()
	if n, err := all.Count(t.Context(), ""); err != nil || n != writers*each {
		t.Errorf("%d records of %d, %v", n, writers*each, err)
	}
}

// TestCommitIsDurable: a write that the cluster refuses changes nothing.
func TestCommitIsDurable(t *testing.T) {
	client := resourcetest.New(kind.Secret)
	s := open(t, client)
	defer s.Close()
	broken := errors.New("no API server")
	client.Intercept(func(c resourcetest.Call) error {
		if c.Verb == resourcetest.Create || c.Verb == resourcetest.Update {
			return broken
		}
		return nil
	})
	if err := put(t, s, "a", "1", 0, 0); !errors.Is(err, broken) {
		t.Fatalf("a write without a cluster: %v", err)
	}
	if got, _ := get(t, s, "a"); got != "" {
		t.Errorf("there is %q", got)
	}
}

// TestDamaged records are told, and not taken for none.
func TestDamaged(t *testing.T) {
	client := resourcetest.New(kind.Secret)
	_, err := client.Create(t.Context(), kind.Secret, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: map[string][]byte{"records": []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := secret.Open(t.Context(), secret.Config{Client: client, Key: name}); err == nil {
		t.Error("damaged records were read")
	}
}
