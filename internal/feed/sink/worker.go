package sink

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/feed/cursor"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// redeliver is how long after a failure a delivery is repeated.
var redeliver = backoff.Policy{First: time.Second, Last: 5 * time.Minute, Jitter: 0.2}

// worker delivers for one sink.
type worker struct {
	sinks  *Sinks
	spec   *Spec
	key    []byte
	client *http.Client
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu     sync.Mutex
	status Status
}

func newWorker(s *Sinks, spec *Spec) (*worker, error) {
	key, err := spec.key()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if spec.Authorities != "" {
		if transport.TLSClientConfig.RootCAs, err = roots(spec.Authorities); err != nil {
			return nil, err
		}
	}
	return &worker{
		sinks: s, spec: spec, key: key, done: make(chan struct{}), status: Status{Here: true},
		client: &http.Client{
			Transport: transport, Timeout: answerTimeout,
			// Who is sent elsewhere would not know that what was signed for one receiver went to another.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func roots(pem string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(pem)) {
		return nil, invalidf("authorities: there is no certificate in it (PEM)")
	}
	return pool, nil
}

func (w *worker) start(ctx context.Context) {
	ctx, w.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(w.done)
		defer w.client.CloseIdleConnections()
		retry := backoff.Backoff{Policy: redeliver}
		for ctx.Err() == nil {
			err := w.run(ctx, &retry)
			if ctx.Err() != nil {
				return
			}
			w.failed(err)
			backoff.Sleep(ctx, retry.Next())
		}
	}()
}

// stop delivering, and wait until that is over.
func (w *worker) stop() {
	if w.cancel != nil {
		w.cancel(errStopped)
		<-w.done
	}
}

func (w *worker) describe(s *Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Here, s.Delivered, s.Failures, s.Problem, s.Since = true, w.status.Delivered, w.status.Failures, w.status.Problem, w.status.Since
	s.Position = max(s.Position, w.status.Position)
}

// run delivers from the cursor on, until a delivery fails.
func (w *worker) run(ctx context.Context, retry *backoff.Backoff) error {
	c, err := w.sinks.cfg.Cursors.OpenExpired(ctx, cursorName(w.spec.Name))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := c.Close(closing); err != nil {
			w.sinks.log.Warn("how far a sink is was not written: some events are delivered again", "sink", w.spec.Name, "error", err)
		}
	}()
	for {
		if err := c.Err(); err != nil {
			return err
		}
		events, next, err := w.next(ctx, c)
		if err != nil {
			return err
		}
		if err := w.deliver(ctx, events); err != nil {
			return err
		}
		if err := c.AckThrough(next); err != nil {
			return err
		}
		retry.Reset()
		w.accepted(len(events), next)
	}
}

// next returns the events of a delivery, and the position up to which they are; none, if nothing happened for a while that the sink
// wants.
func (w *worker) next(ctx context.Context, c *cursor.Cursor) ([]json.RawMessage, seglog.Position, error) {
	at := c.State().Mark
	waiting, cancel := context.WithTimeout(ctx, idleEvery)
	defer cancel()
	answer, err := w.sinks.cfg.History.Follow(waiting, history.Question{Match: w.spec.matches, After: at, Limit: maxEvents, Full: true})
	var expired *seglog.ExpiredError
	if errors.As(err, &expired) {
		lost, err := w.expired(at, expired.First)
		return []json.RawMessage{lost}, expired.First, err
	}
	if err != nil {
		return nil, 0, err
	}
	if ctx.Err() != nil {
		return nil, 0, ctx.Err()
	}
	var out []json.RawMessage
	size, next := 0, answer.Next
	for i := range answer.Changes {
		e, err := w.event(&answer.Changes[i])
		if err != nil {
			return nil, 0, err
		}
		if size += len(e); size > maxBytes && len(out) > 0 {
			next = answer.Changes[i].Position - 1
			break
		}
		out = append(out, e)
	}
	return out, next, nil
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

func (w *worker) event(c *history.Change) (json.RawMessage, error) {
	subject := c.Resource + "/" + c.Name
	if c.Namespace != "" {
		subject = c.Resource + "/" + c.Namespace + "/" + c.Name
	}
	return json.Marshal(envelope{
		SpecVersion: "1.0", ID: w.sinks.cfg.History.Feed.Epoch() + "-" + strconv.FormatInt(int64(c.Position), 10), Source: w.sinks.cfg.Source,
		Type: typePrefix + string(c.Operation) + "d", Subject: subject, Time: c.Time, DataContentType: "application/json",
		Sequence: positionText(c.Position), Data: c,
	})
}

// expired says that changes are missing: the feed has them no more.
func (w *worker) expired(after, first seglog.Position) (json.RawMessage, error) {
	return json.Marshal(envelope{
		SpecVersion: "1.0", ID: w.sinks.cfg.History.Feed.Epoch() + "-" + strconv.FormatInt(int64(first), 10) + "-expired", Source: w.sinks.cfg.Source,
		Type: typeExpired, Time: w.sinks.cfg.Now().UTC(), DataContentType: "application/json", Sequence: positionText(first),
		Data: map[string]any{
			"after": after, "upTo": first,
			"message": "the changes after one position, up to the other, are not in the change feed any more; list the objects anew",
		},
	})
}

// deliver a batch. It is accepted by an answer of 2xx.
func (w *worker) deliver(ctx context.Context, events []json.RawMessage) error {
	if len(events) == 0 {
		return nil
	}
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
	id, now := "msg_"+base64.RawURLEncoding.EncodeToString(sum[:16]), strconv.FormatInt(w.sinks.cfg.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	req.Header.Set("User-Agent", "proxima")
	req.Header.Set("webhook-id", id)
	req.Header.Set("webhook-timestamp", now)
	req.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(sign(w.key, id, now, body)))
	answer, err := w.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s", strings.ReplaceAll(err.Error(), w.spec.URL, w.spec.shown()))
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s: %s", w.spec.shown(), answer.Status, strings.TrimSpace(string(text)))
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

func (w *worker) accepted(events int, at seglog.Position) {
	w.sinks.delivered.WithLabelValues(w.spec.Name).Add(float64(events))
	w.sinks.up.WithLabelValues(w.spec.Name).Set(1)
	last, _ := w.sinks.cfg.History.Feed.Log.End()
	w.sinks.behind.WithLabelValues(w.spec.Name).Set(float64(max(last-at, 0)))
	w.mu.Lock()
	again := w.status.Problem != ""
	w.status.Delivered += uint64(events)
	w.status.Position, w.status.Problem, w.status.Since = int64(at), "", nil
	w.mu.Unlock()
	if again {
		w.sinks.log.Info("a sink of the change feed delivers again", "sink", w.spec.Name)
	}
}

func (w *worker) failed(err error) {
	w.sinks.failures.WithLabelValues(w.spec.Name).Inc()
	w.sinks.up.WithLabelValues(w.spec.Name).Set(0)
	w.mu.Lock()
	first := w.status.Problem == ""
	w.status.Failures++
	w.status.Problem = err.Error()
	if first {
		now := w.sinks.cfg.Now().UTC()
		w.status.Since = &now
	}
	at := w.status.Position
	w.mu.Unlock()
	last, _ := w.sinks.cfg.History.Feed.Log.End()
	w.sinks.behind.WithLabelValues(w.spec.Name).Set(float64(max(int64(last)-at, 0)))
	if first {
		w.sinks.log.Warn("a sink of the change feed does not deliver; it is tried again, and nothing is left out", "sink", w.spec.Name, "url", w.spec.shown(), "error", err)
	}
}
