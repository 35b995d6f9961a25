package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/traffic"
)

// SurveyPath answers what plans would make of all Services, compared with kube-proxy, as a
// topology.Survey; nothing is applied. POST a SurveyRequest as JSON.
const SurveyPath = "/proxima/v1/simulate/all"

// SurveyRequest is the JSON that is posted to SurveyPath.
type SurveyRequest struct {
	// Top Services of the answer; 0: all.
	Top int `json:"top,omitempty"`
	// Price as topology.ParsePrice reads it; empty: that of ZoneCosts.
	Price string `json:"price,omitempty"`
	// Bytes per connection, each as topology.ParseBytes reads it.
	Bytes []string `json:"bytesPerConnection,omitempty"`
	// Traffic in a month.
	Traffic []traffic.Entry `json:"traffic,omitempty"`
}

// maxSurveyBytes of a request. 200,000 entries have some 25 MB.
const maxSurveyBytes = 32 << 20

// question that a request asks. Errors name the field.
func (r *SurveyRequest) question() (q topology.SurveyQuestion, err error) {
	if r.Top < 0 || r.Top > maxTop {
		return q, fmt.Errorf("top %d: 0 to %d", r.Top, maxTop)
	}
	q.Top, q.Traffic = r.Top, r.Traffic
	if r.Price != "" {
		if q.Price, err = topology.ParsePrice(r.Price); err != nil {
			return q, fmt.Errorf("price %w", err)
		}
	}
	for _, text := range r.Bytes {
		b, err := topology.ParseBytes(text, corev1.NamespaceDefault)
		if err != nil {
			return q, fmt.Errorf("bytesPerConnection %w", err)
		}
		q.Bytes = append(q.Bytes, b)
	}
	return q, traffic.Check(r.Traffic)
}

type surveyHandler struct {
	Config
	scopes *scopes
}

// ServeHTTP implements http.Handler.
func (h surveyHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is answered here", http.StatusMethodNotAllowed)
		return
	}
	var request SurveyRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSurveyBytes))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&request)
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("there is something behind the object")
		}
	}
	var question topology.SurveyQuestion
	if err == nil {
		question, err = request.question()
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		refuse(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, fmt.Errorf("the request: %w", err))
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, fmt.Errorf("the request: %w", err))
		return
	}
	scope, err := h.scopes.of(r)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
		return
	}
	question.Within = within(scope)
	survey, err := h.Planner.Survey(question)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
		return
	}
	answer(w, survey)
}
