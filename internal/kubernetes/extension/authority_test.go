package extension

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"
)

const name = "proxima-extension.proxima-system.svc"

func pool(t *testing.T, bundle []byte) *x509.CertPool {
	t.Helper()
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(bundle) {
		t.Fatalf("no certificate in the bundle %q", bundle)
	}
	return p
}

func trusts(t *testing.T, bundle []byte, leaf *tls.Certificate, now time.Time) bool {
	t.Helper()
	cert, err := x509.ParseCertificate(leaf.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: pool(t, bundle), DNSName: name, CurrentTime: now})
	return err == nil
}

// TestRotation follows a year with an API server that learns of a change only after almost
// Settle, and a replica that learns of one only after almost Retire: at no time is a certificate
// refused, and no authority is older than its life.
func TestRotation(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var all, late Authorities
	var bundle []byte // of the late API server
	var lateAt, bundleAt time.Time
	signers := map[string]bool{}
	const step = time.Minute
	for range int(365 * 24 * time.Hour / step / 10) {
		next, _, err := all.Next(now, false)
		if err != nil {
			t.Fatal(err)
		}
		if len(next) != len(all) {
			if all = next; len(all) == 1 {
				late, bundle = all, all.Bundle()
			}
		}
		if last := len(all) - 1; all[last].Published.IsZero() {
			all[last].Published = now
		}
		if !bundleAt.IsZero() && now.Sub(bundleAt) >= Settle-step {
			bundle, bundleAt = all.Bundle(), time.Time{}
		} else if bundleAt.IsZero() && string(bundle) != string(all.Bundle()) {
			bundleAt = now
		}
		if !lateAt.IsZero() && now.Sub(lateAt) >= Retire-step {
			late, lateAt = append(Authorities(nil), all...), time.Time{}
		} else if lateAt.IsZero() && string(late.Bundle()) != string(all.Bundle()) {
			lateAt = now
		}
		for who, of := range map[string]Authorities{"a replica": all, "a late replica": late} {
			i, _ := of.signer(now)
			if now.After(of[i].cert.NotAfter) {
				t.Fatalf("%s signs with an authority that has ended", who)
			}
			signers[of[i].cert.Subject.CommonName] = true
			for where, b := range map[string][]byte{"the API server": all.Bundle(), "a late API server": bundle} {
				if !bytes.Contains(b, of[i].Cert) {
					t.Fatalf("%s: %s has a certificate that %s does not trust", now, who, where)
				}
			}
		}
		step := step
		if len(all) == 1 && bundleAt.IsZero() && lateAt.IsZero() {
			step *= 30
		}
		now = now.Add(step)
	}
	if len(signers) < 5 {
		t.Errorf("%d authorities in a year", len(signers))
	}
}

// TestAuthorities: what signs when, what is asked for, and what is dropped.
func TestAuthorities(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all, _, err := Authorities(nil).Next(now, false)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d authorities, %v", len(all), err)
	}
	all[0].Published = now
	if next, due, err := all.Next(now, false); err != nil || len(next) != 1 || due != all[0].cert.NotAfter.Add(-(Life+backdate)/3) {
		t.Errorf("after a moment: %d authorities, again at %s, %v", len(next), due, err)
	}
	old, _, err := all.Leaf(name, now)
	if err != nil {
		t.Fatal(err)
	}
	all, _, err = all.Next(now, true)
	if err != nil || len(all) != 2 {
		t.Fatalf("asked for: %d authorities, %v", len(all), err)
	}
	if next, _, _ := all.Next(now, true); len(next) != 2 {
		t.Errorf("asked for again, under way: %d authorities", len(next))
	}
	all[1].Published = now
	for _, c := range []struct {
		after  time.Duration
		signer int
		number int
	}{{0, 0, 2}, {Settle - 1, 0, 2}, {Settle, 1, 2}, {Settle + Retire - 1, 1, 2}, {Settle + Retire, 1, 1}} {
		at := now.Add(c.after)
		if got, _ := all.signer(at); got != c.signer {
			t.Errorf("after %s: authority %d signs, want %d", c.after, got, c.signer)
		}
		next, _, err := all.Next(at, false)
		if err != nil || len(next) != c.number {
			t.Errorf("after %s: %d authorities, want %d, %v", c.after, len(next), c.number, err)
		}
		fresh, _, err := all.Leaf(name, at)
		if err != nil || !trusts(t, next.Bundle(), fresh, at) {
			t.Errorf("after %s: the certificate is not trusted, %v", c.after, err)
		}
		if got := trusts(t, next.Bundle(), old, at); got != (c.number == 2) {
			t.Errorf("after %s: the certificate of before is trusted: %t", c.after, got)
		}
	}
}

// TestRecord comes back as it was, and nothing else is taken.
func TestRecord(t *testing.T) {
	now := time.Now()
	all, _, err := Authorities(nil).Next(now, false)
	if err != nil {
		t.Fatal(err)
	}
	all[0].Published = now.UTC().Truncate(time.Second)
	text, err := all.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil || len(got) != 1 || string(got[0].Cert) != string(all[0].Cert) || !got[0].Published.Equal(all[0].Published) {
		t.Errorf("%v, %v", got, err)
	}
	other, _, err := Authorities(nil).Next(now, false)
	if err != nil {
		t.Fatal(err)
	}
	mixed, err := Authorities{{Cert: all[0].Cert, Key: other[0].Key}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	four, err := Authorities{all[0], all[0], all[0], all[0]}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "{}", `[{}]`, string(mixed), string(four)} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("taken: %.40s", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	all, _, err := Authorities(nil).Next(time.Now(), false)
	if err != nil {
		f.Fatal(err)
	}
	text, err := all.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`[{"cert":"","key":""}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Parse(data)
		if err != nil {
			return
		}
		if _, _, err := all.Next(time.Now(), false); err != nil {
			t.Error(err)
		}
		if len(all) > 0 {
			if _, _, err := all.Leaf(name, time.Now()); err != nil {
				t.Error(err)
			}
		}
	})
}
