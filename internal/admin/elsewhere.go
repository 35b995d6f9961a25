package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrElsewhere is what a Federation returns when another instance of the control plane may
// have the stream that a call needs.
var ErrElsewhere = errors.New("this instance of the control plane does not have the stream")

// Instances are the other instances of a control plane.
type Instances interface {
	// Others returns their names, in order.
	Others() []string
	// Send sends a request to one of them, as the control plane. The caller closes the
	// body of the answer.
	Send(ctx context.Context, name string, r *http.Request) (*http.Response, error)
}

// forwardedHeader marks a request of another instance, which is not passed on again.
const forwardedHeader = "Proxima-Forwarded"

// maxPassed bounds the answer of another instance.
const maxPassed = 64 << 20

// elsewhere answers a request that this instance cannot, with err: by the other instance
// that has the stream. An instance that was asked by another one says 421, as RFC 9110
// section 15.5.20 has it for a server that has no answer for a target.
func (c Config) elsewhere(w http.ResponseWriter, r *http.Request, body any, err error) {
	if r.Header.Get(forwardedHeader) != "" {
		refuse(w, http.StatusMisdirectedRequest, metav1.StatusReasonConflict, err)
		return
	}
	var data []byte
	if body != nil {
		var encodeErr error
		if data, encodeErr = json.Marshal(body); encodeErr != nil {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, encodeErr)
			return
		}
	}
	passed, notHere := others{c.Instances, c.Logger}.ask(r.Context(), r.Method, r.URL.RequestURI(), data)
	if passed == nil {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, notHere.explain(err))
		return
	}
	w.Header().Set("Content-Type", passed.contentType)
	w.WriteHeader(passed.code)
	_, _ = w.Write(passed.body) // the client has gone, if it fails
}

// others asks the other instances of a control plane. Its Instances may be nil.
type others struct {
	Instances
	log *slog.Logger
}

// passedAnswer is what another instance answered.
type passedAnswer struct {
	code        int
	contentType string
	body        []byte
}

// unanswered are the instances that did not answer a request.
type unanswered struct {
	// without have no stream, silent did not say.
	without, silent []string
}

// explain completes the error of the instance that asked them.
func (u unanswered) explain(err error) error {
	if len(u.without) > 0 {
		err = fmt.Errorf("%w, nor to %s", err, strings.Join(u.without, ", "))
	}
	if len(u.silent) > 0 {
		err = fmt.Errorf("%w, and no answer came from %s", err, strings.Join(u.silent, ", "))
	}
	return err
}

// ask all instances at the same time: one that hangs delays no answer. It returns that of
// the first that has the stream; nil: none has.
func (o others) ask(ctx context.Context, method, uri string, body []byte) (*passedAnswer, unanswered) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var none unanswered
	for got := range o.outcomes(ctx, method, uri, body) {
		switch {
		case got.answer != nil:
			return got.answer, unanswered{}
		case got.err != nil:
			none.silent = append(none.silent, got.name)
		default:
			none.without = append(none.without, got.name)
		}
	}
	slices.Sort(none.without)
	slices.Sort(none.silent)
	return nil, none
}

// outcome is what came of asking one instance. Neither an answer nor an error: it does not
// have the stream.
type outcome struct {
	name   string
	answer *passedAnswer
	err    error
}

// outcomes of asking all instances at the same time, in the order in which they come. Whoever
// stops before the last must end ctx.
func (o others) outcomes(ctx context.Context, method, uri string, body []byte) iter.Seq[outcome] {
	return func(yield func(outcome) bool) {
		if o.Instances == nil {
			return
		}
		names := o.Others()
		came := make(chan outcome, len(names))
		for _, name := range names {
			go func() {
				answer, err := o.askOne(ctx, name, method, uri, body)
				came <- outcome{name, answer, err}
			}()
		}
		for range names {
			got := <-came
			if got.err != nil {
				path, _, _ := strings.Cut(uri, "?")
				o.log.Warn("another instance was not asked", "instance", got.name, "path", path, "error", got.err)
			}
			if !yield(got) {
				return
			}
		}
	}
}

// askOne instance; nil: it does not have the stream.
func (o others) askOne(ctx context.Context, name, method, uri string, body []byte) (*passedAnswer, error) {
	out, err := http.NewRequestWithContext(ctx, method, uri, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out.Header.Set("Content-Type", "application/json")
	out.Header.Set(forwardedHeader, "1")
	resp, err := o.Send(ctx, name, out)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusMisdirectedRequest {
		return nil, nil
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxPassed))
	if err != nil {
		return nil, err
	}
	return &passedAnswer{code: resp.StatusCode, contentType: resp.Header.Get("Content-Type"), body: answer}, nil
}
