package sink

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// Webhook is the name of the kind of sink that gets CloudEvents by POST.
const Webhook = "webhook"

const (
	secretPrefix = "whsec_"
	// maxEvents and maxBytes of a delivery; one event may be larger.
	maxEvents = 100
	maxBytes  = 1 << 20
	// answerTimeout is how long the receiver of a delivery may take to answer.
	answerTimeout = 30 * time.Second
)

// webhooks is the Kind.
type webhooks struct {
	history *history.Reader
	source  string
	now     func() time.Time
}

// Check implements Kind.
func (*webhooks) Check(s *Spec) error {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil:
		return Invalid("url: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return Invalid("url %q: want http://HOST/PATH or https://HOST/PATH", u.Redacted())
	case s.Token != "":
		return Invalid("token: a webhook has none; it checks signatures by the secret")
	}
	if s.Secret == "" {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
		s.Secret = secretPrefix + base64.StdEncoding.EncodeToString(key)
	}
	if _, err := s.key(); err != nil {
		return err
	}
	if s.Authorities != "" {
		if _, err := Roots(s.Authorities); err != nil {
			return err
		}
	}
	return nil
}

// key of the signature.
func (s *Spec) key() ([]byte, error) {
	text, ok := strings.CutPrefix(s.Secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, Invalid("secret: want \"whsec_\" and base64 of 24 to 64 bytes")
	}
	return key, nil
}

// Roots are the authorities of a Spec. Errors: *InvalidError.
func Roots(pem string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(pem)) {
		return nil, Invalid("authorities: there is no certificate in it (PEM)")
	}
	return pool, nil
}

// Pace implements Kind.
func (*webhooks) Pace() Pace {
	return Pace{Entries: maxEvents, Retry: backoff.Policy{First: time.Second, Last: 5 * time.Minute, Jitter: 0.2}}
}

// Open implements Kind.
func (k *webhooks) Open(spec *Spec, _ *slog.Logger) (Target, error) {
	key, err := spec.key()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if spec.Authorities != "" {
		if transport.TLSClientConfig.RootCAs, err = Roots(spec.Authorities); err != nil {
			return nil, err
		}
	}
	return &webhook{
		webhooks: k, spec: spec, key: key,
		client: &http.Client{
			Transport: transport, Timeout: answerTimeout,
			// Who is sent elsewhere would not know that what was signed for one receiver went to another.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// webhook is the Target.
type webhook struct {
	*webhooks
	spec   *Spec
	key    []byte
	client *http.Client
}

// Close implements Target.
func (w *webhook) Close() { w.client.CloseIdleConnections() }

// Deliver implements Target.
func (w *webhook) Deliver(ctx context.Context, b *Batch) (seglog.Position, error) {
	var events []json.RawMessage
	size, next := 0, b.Next
	if b.Expired {
		e, err := w.expired(b)
		if err != nil {
			return 0, err
		}
		events = append(events, e)
	}
	for _, entry := range b.Entries {
		c := w.history.Change(ctx, entry, true)
		e, err := w.event(&c)
		if err != nil {
			return 0, err
		}
		if size += len(e); size > maxBytes && len(events) > 0 {
			next = entry.Position - 1
			break
		}
		events = append(events, e)
	}
	if len(events) > 0 {
		if err := w.post(ctx, events); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// envelope is a CloudEvent (CloudEvents 1.0, JSON format).
type envelope struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject,omitempty"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	// Sequence orders the events of a source (extension "sequence").
	Sequence string `json:"sequence"`
	Data     any    `json:"data"`
}

// Types of events: of a change, with what it did at the end; and that changes are missing.
const (
	typePrefix  = "dev.proxima.object."
	typeExpired = "dev.proxima.feed.expired"
)

func (w *webhook) event(c *history.Change) (json.RawMessage, error) {
	subject := c.Resource + "/" + c.Name
	if c.Namespace != "" {
		subject = c.Resource + "/" + c.Namespace + "/" + c.Name
	}
	return json.Marshal(envelope{
		SpecVersion: "1.0", ID: w.history.Feed.Epoch() + "-" + strconv.FormatInt(int64(c.Position), 10), Source: w.source,
		Type: typePrefix + string(c.Operation) + "d", Subject: subject, Time: c.Time, DataContentType: "application/json",
		Sequence: positionText(c.Position), Data: c,
	})
}

// expired says that changes are missing: the feed has them no more.
func (w *webhook) expired(b *Batch) (json.RawMessage, error) {
	return json.Marshal(envelope{
		SpecVersion: "1.0", ID: w.history.Feed.Epoch() + "-" + strconv.FormatInt(int64(b.Next), 10) + "-expired", Source: w.source,
		Type: typeExpired, Time: w.now().UTC(), DataContentType: "application/json", Sequence: positionText(b.Next), Data: b.Gap(),
	})
}

// post a delivery. It is accepted by an answer of 2xx.
func (w *webhook) post(ctx context.Context, events []json.RawMessage) error {
	body := []byte{'['}
	for i, e := range events {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, e...)
	}
	body = append(body, ']')
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.spec.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	id, now := "msg_"+base64.RawURLEncoding.EncodeToString(sum[:16]), strconv.FormatInt(w.now().Unix(), 10)
	req.Header.Set("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	req.Header.Set("User-Agent", "proxima")
	req.Header.Set("webhook-id", id)
	req.Header.Set("webhook-timestamp", now)
	req.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(sign(w.key, id, now, body)))
	answer, err := w.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s", strings.ReplaceAll(err.Error(), w.spec.URL, w.spec.Shown()))
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s: %s", w.spec.Shown(), answer.Status, strings.TrimSpace(string(text)))
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<20))
	return nil
}

// sign as Standard Webhooks says.
func sign(key []byte, id, timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	return mac.Sum(nil)
}

func positionText(at seglog.Position) string { return fmt.Sprintf("%020d", at) }
