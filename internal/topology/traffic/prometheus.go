package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/proxima-mesh/proxima/internal/locality"
)

// Labels that the result of a query must have. Another name becomes one of them with
// label_replace of PromQL.
const (
	LabelNamespace = "namespace"
	LabelService   = "service"
	LabelFrom      = "from_zone"
	LabelTo        = "to_zone"
)

// Unit of the values of a query.
type Unit string

// The units, of which a value is so many per second.
const (
	Bytes       Unit = "bytes"
	Connections Unit = "connections"
)

// SecondsPerMonth is the mean month of the Gregorian calendar.
const SecondsPerMonth = 2.63e6

const bytesPerGB = 1e9

// Prometheus is a server that speaks its HTTP API. The zero value but for URL works.
type Prometheus struct {
	// URL of the server, without /api/v1.
	URL string
	// Client of HTTP; nil: http.DefaultClient.
	Client *http.Client
	// Header is added to requests, such as Authorization; nil: none.
	Header http.Header
}

// maxAnswerBytes of a server. 200,000 series have some 40 MB.
const maxAnswerBytes = 64 << 20

// answer of the path /api/v1/query (Prometheus, "HTTP API", instant queries).
type answer struct {
	Status    string `json:"status"`
	ErrorType string `json:"errorType"`
	Error     string `json:"error"`
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

// sample is an element of an instant vector.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  []json.RawMessage `json:"value"`
}

// Query evaluates an expression now. Its result has the labels namespace and service, and
// either both from_zone and to_zone or neither; other labels are refused, as values would be
// counted twice. Values are in a unit per second, and are taken to hold for a month. It blocks
// until the server has answered or ctx ends.
func (p *Prometheus) Query(ctx context.Context, expression string, unit Unit) ([]Entry, error) {
	body, err := p.ask(ctx, expression)
	if err != nil {
		return nil, err
	}
	return decode(body, unit)
}

// ask a server.
func (p *Prometheus) ask(ctx context.Context, expression string) ([]byte, error) {
	base, err := url.Parse(p.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("%q is no address of a Prometheus: write it as http://HOST:PORT", p.URL)
	}
	form := url.Values{"query": {expression}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base.JoinPath("api", "v1", "query").String(), strings.NewReader(form))
	if err != nil {
		return nil, err
	}
	for name, values := range p.Header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := p.Client
	if client == nil {
		client = http.DefaultClient
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", base.Host, err)
	case len(body) > maxAnswerBytes:
		return nil, fmt.Errorf("the answer of %s has more than %d bytes: sum the expression by the four labels", base.Host, maxAnswerBytes)
	case res.StatusCode/100 == 2, json.Valid(body) && res.StatusCode/100 != 3:
		return body, nil // an error of the expression is in the answer
	}
	return nil, fmt.Errorf("%s answers %s: is it a Prometheus, and is this its address?", base.Host, res.Status)
}

// decode an answer.
func decode(body []byte, unit Unit) ([]Entry, error) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("the answer is not that of a Prometheus: %w", err)
	}
	switch {
	case a.Status == "error":
		return nil, fmt.Errorf("the expression failed: %s: %s", a.ErrorType, a.Error)
	case a.Status != "success":
		return nil, fmt.Errorf("the answer is not that of a Prometheus: its status is %q", a.Status)
	case a.Data.ResultType != "vector":
		return nil, fmt.Errorf("the expression gives a %s: it must give an instant vector, as sum by (…) (rate(…[1h])) does", a.Data.ResultType)
	}
	var samples []sample
	if err := json.Unmarshal(a.Data.Result, &samples); err != nil {
		return nil, fmt.Errorf("the answer is not that of a Prometheus: %w", err)
	}
	entries := make([]Entry, 0, len(samples))
	for i := range samples {
		r := &samples[i]
		e, err := entryOf(r.Metric, r.Value, unit)
		if err != nil {
			return nil, fmt.Errorf("series %s: %w", seriesName(r.Metric), err)
		}
		if e != nil {
			entries = append(entries, *e)
		}
	}
	if len(entries) > maxEntries {
		return nil, fmt.Errorf("the expression gives %d series, at most %d", len(entries), maxEntries)
	}
	sorted(entries)
	if err := checkAll(entries, func(i int) string { return "series of " + entries[i].name() }); err != nil {
		return nil, err
	}
	return entries, nil
}

// entryOf a series; nil: it says nothing (NaN: a rate of nothing divided by nothing), or its
// zones are not known.
func entryOf(labels map[string]string, value []json.RawMessage, unit Unit) (*Entry, error) {
	e := &Entry{}
	var noFrom, noTo bool
	for label, text := range labels {
		switch label {
		case LabelNamespace:
			e.Namespace = text
		case LabelService:
			e.Service = text
		case LabelFrom:
			e.From, noFrom = locality.Zone(text), text == ""
		case LabelTo:
			e.To, noTo = locality.Zone(text), text == ""
		default:
			return nil, fmt.Errorf("label %q: sum by (%s, %s, %s, %s), so that no traffic is counted twice",
				label, LabelNamespace, LabelService, LabelFrom, LabelTo)
		}
	}
	if len(value) != 2 {
		return nil, errors.New("its value is not a pair of time and text")
	}
	var text string
	if err := json.Unmarshal(value[1], &text); err != nil {
		return nil, fmt.Errorf("its value is no text: %w", err)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("value %q is no number", text)
	}
	if !finite(v) || noFrom || noTo {
		return nil, nil
	}
	v *= SecondsPerMonth
	if unit == Connections {
		e.Connections = &v
	} else {
		v /= bytesPerGB
		e.GB = &v
	}
	return e, nil
}

func seriesName(labels map[string]string) string {
	return fmt.Sprintf("{%s=%q, %s=%q, %s=%q, %s=%q}", LabelNamespace, labels[LabelNamespace], LabelService, labels[LabelService],
		LabelFrom, labels[LabelFrom], LabelTo, labels[LabelTo])
}
