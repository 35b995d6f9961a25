package traffic

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fake answers as the HTTP API of Prometheus is documented.
func fake(t *testing.T, status int, answer string, asked *http.Request) *Prometheus {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/prom/api/v1/query" {
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		if asked != nil {
			*asked = *r.Clone(context.Background())
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	return &Prometheus{URL: server.URL + "/prom/", Header: http.Header{"Authorization": {"Bearer secret"}}}
}

const vector = `{"status":"success","data":{"resultType":"vector","result":[
	{"metric":{"namespace":"shop","service":"web","from_zone":"b","to_zone":"a"},"value":[1435781451.781,"1000"]},
	{"metric":{"namespace":"shop","service":"web","from_zone":"a","to_zone":"a"},"value":[1435781451.781,"2e3"]},
	{"metric":{"namespace":"shop","service":"web","from_zone":"","to_zone":"a"},"value":[1435781451.781,"7"]},
	{"metric":{"namespace":"shop","service":"cart","from_zone":"a","to_zone":"b"},"value":[1435781451.781,"NaN"]}]}}`

// TestQuery: a value per second becomes that of a month; series without a number, or with an
// empty zone, say nothing.
func TestQuery(t *testing.T) {
	var asked http.Request
	p := fake(t, http.StatusOK, vector, &asked)
	got, err := p.Query(t.Context(), `sum by (namespace) (x{a="b"})`, Bytes)
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{Namespace: "shop", Service: "web", From: "a", To: "a", GB: amount(2e3 * 2.63e6 / 1e9)},
		{Namespace: "shop", Service: "web", From: "b", To: "a", GB: amount(1e3 * 2.63e6 / 1e9)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if asked.Form.Get("query") != `sum by (namespace) (x{a="b"})` || asked.Header.Get("Authorization") != "Bearer secret" {
		t.Errorf("asked %v with %v", asked.Form, asked.Header)
	}
	if got, err = p.Query(t.Context(), "x", Connections); err != nil || got[1].GB != nil || *got[1].Connections != 2.63e9 {
		t.Errorf("connections: %+v, %v", got, err)
	}
}

// TestQueryFails: what is wrong is said, whoever is at fault.
func TestQueryFails(t *testing.T) {
	for name, tc := range map[string]struct {
		status       int
		answer, want string
	}{
		"the expression":  {400, `{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}`, "the expression failed: bad_data: parse error"},
		"no vector":       {200, `{"status":"success","data":{"resultType":"matrix","result":[]}}`, "gives a matrix: it must give an instant vector"},
		"a scalar":        {200, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`, "gives a scalar"},
		"another server":  {404, `<html>`, "answers 404 Not Found: is it a Prometheus"},
		"JSON of another": {200, `{}`, `its status is ""`},
		"another label": {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"namespace":"a","service":"b","pod":"x"},"value":[1,"1"]}]}}`,
			`label "pod": sum by (namespace, service, from_zone, to_zone)`},
		"no label":       {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"service":"b"},"value":[1,"1"]}]}}`, "namespace: missing"},
		"no number":      {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"namespace":"a","service":"b"},"value":[1,"x"]}]}}`, `value "x" is no number`},
		"no pair":        {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"namespace":"a","service":"b"},"value":[1]}]}}`, "not a pair"},
		"a negative one": {200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"namespace":"a","service":"b"},"value":[1,"-5"]}]}}`, "must be from 0"},
	} {
		_, err := fake(t, tc.status, tc.answer, nil).Query(t.Context(), "x", Bytes)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	for _, url := range []string{"", "prometheus:9090", "ftp://x", "http://"} {
		if _, err := (&Prometheus{URL: url}).Query(t.Context(), "x", Bytes); err == nil || !strings.Contains(err.Error(), "no address of a Prometheus") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(vector))
	f.Add([]byte(`{"status":"error"}`))
	f.Add([]byte(`{"status":"success","data":{"resultType":"vector","result":[{"metric":null,"value":null}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		entries, err := decode(body, Bytes)
		if err != nil {
			return
		}
		if err := Check(entries); err != nil {
			t.Errorf("what was decoded does not pass: %v", err)
		}
	})
}
