package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// elsewhere answers a request that this instance cannot, with err: by the first of the other
// instances that has the stream. An instance that was asked by another one says 421, as RFC
// 9110 section 15.5.20 has it for a server that has no answer for a target.
func (c Config) elsewhere(w http.ResponseWriter, r *http.Request, body any, err error) {
	if r.Header.Get(forwardedHeader) != "" {
		refuse(w, http.StatusMisdirectedRequest, metav1.StatusReasonConflict, err)
		return
	}
	data, encodeErr := json.Marshal(body)
	if encodeErr != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, encodeErr)
		return
	}
	var silent []string
	if c.Instances != nil {
		for _, name := range c.Instances.Others() {
			done, askErr := c.ask(w, r, name, data)
			if done {
				return
			}
			if askErr != nil {
				silent = append(silent, name)
				c.Logger.Warn("another instance was not asked", "instance", name, "path", r.URL.Path, "error", askErr)
			}
		}
	}
	if len(silent) > 0 {
		err = fmt.Errorf("%w, and no answer came from %s", err, strings.Join(silent, ", "))
	}
	refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
}

// ask has one instance answer a request. It reports whether that one had the stream.
func (c Config) ask(w http.ResponseWriter, r *http.Request, name string, body []byte) (done bool, err error) {
	out, err := http.NewRequestWithContext(r.Context(), r.Method, r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	out.Header.Set("Content-Type", "application/json")
	out.Header.Set(forwardedHeader, "1")
	resp, err := c.Instances.Send(r.Context(), name, out)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusMisdirectedRequest {
		return false, nil
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxPassed))
	if err != nil {
		return false, err
	}
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(answer) // the client has gone, if it fails
	return true, nil
}
