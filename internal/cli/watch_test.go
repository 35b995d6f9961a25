package cli

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// streams is a server that answers each watch with the next of its bodies.
type streams struct {
	bodies []string
	asked  []string
}

// RoundTrip implements http.RoundTripper.
func (s *streams) RoundTrip(req *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, req.URL.Query().Get("resourceVersion"))
	body := s.bodies[0]
	s.bodies = s.bodies[1:]
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body)), Request: req, Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

func event(typ, version string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"resourceVersion":%q}}}`, typ, version)
}

// TestFollowGoesOn: a watch that the server ends goes on where it ended, and one
// that fell too far behind starts again.
func TestFollowGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const expired = `{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}`
		server := &streams{bodies: []string{
			event("ADDED", "1") + event("BOOKMARK", "5"),
			event("MODIFIED", "6") + expired,
			event("ADDED", "9") + event("DELETED", "10"),
		}}
		c := &connection{cfg: &rest.Config{Host: "http://server", Transport: server}}
		c = c.unhurried()
		var seen []string
		began := time.Now()
		err := follow(t.Context(), func() (*rest.Request, error) { return c.request("GET", kind.Service, "ns") }, target{kind: kind.Service}, "",
			func(typ apiwatch.EventType, raw []byte) (bool, error) {
				seen = append(seen, string(typ)+" "+versionOf(raw))
				return typ != apiwatch.Deleted, nil
			})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ADDED 1", "MODIFIED 6", "ADDED 9", "DELETED 10"}, seen); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"", "5", ""}, server.asked); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("three streams within %s: the server is stormed", took)
		}
	})
}

func TestFollowTellsWhatBreaksIt(t *testing.T) {
	for name, body := range map[string]string{
		"refusal":  `{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Forbidden","message":"not yours","code":403}}`,
		"nonsense": `{"type":`,
	} {
		t.Run(name, func(t *testing.T) {
			c := (&connection{cfg: &rest.Config{Host: "http://server", Transport: &streams{bodies: []string{body}}}}).unhurried()
			err := follow(t.Context(), func() (*rest.Request, error) { return c.request("GET", kind.Service, "") }, target{}, "",
				func(apiwatch.EventType, []byte) (bool, error) { return true, nil })
			if err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestWatchedRowsStayInColumns(t *testing.T) {
	var out bytes.Buffer
	c := changes{out: &out}
	for _, row := range [][]string{{"EVENT", "NAME"}, {"MODIFIED", "a-long-name", "x"}, {"ADDED", "a", "y"}} {
		c.printRow(row)
	}
	want := "EVENT   NAME\nMODIFIED   a-long-name   x\nADDED      a             y\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}
