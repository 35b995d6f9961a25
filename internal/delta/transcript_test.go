package delta

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "write the transcripts as they are now")

// TestTranscripts replays testdata/transcript. A line that is not indented is a
// command; the indented lines below it are what it must answer.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/transcript/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func replay(script string) string {
	d := &director{scopes: map[string]*Scope{}, sessions: map[string]*Session{}, frames: map[*Frame]string{}}
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for _, answer := range d.command(strings.Fields(line)) {
			fmt.Fprintln(&out, "  "+answer)
		}
	}
	return out.String()
}

// director runs the commands of a transcript.
type director struct {
	scopes   map[string]*Scope
	sessions map[string]*Session
	frames   map[*Frame]string // by whom a frame was got first
}

func (d *director) command(f []string) []string {
	verb, name, args := f[0], f[1], f[2:]
	switch verb {
	case "scope": // scope NAME [tombstones=N] [frame=N]
		var o Options
		for _, a := range args {
			key, value, _ := strings.Cut(a, "=")
			n, _ := strconv.Atoi(value)
			if key == "tombstones" {
				o.Tombstones = n
			} else {
				o.FrameSize = n
			}
		}
		d.scopes[name] = NewScope(o)
		return nil
	case "replace", "apply": // replace SCOPE POSITION TYPE/NAME=BODY… ; apply also -TYPE/NAME
		return d.write(verb, d.scopes[name], args)
	case "open": // open SESSION SCOPE
		d.sessions[name] = NewSession(d.scopes[args[0]])
		return nil
	case "say": // say SESSION TYPE [+NAME] [-NAME] [nonce=N] [reject=WORD] [have:NAME=BODY] [cursor=POSITION[#NAME:BODY,…]]
		if err := d.sessions[name].Step(request(args)); err != nil {
			return []string{"error: " + err.Error()}
		}
		return nil
	case "next": // next SESSION: one response
		return []string{d.next(name)}
	case "status":
		var out []string
		for _, s := range d.sessions[name].Status() {
			line := fmt.Sprintf("%s sent=%s unsent=%d unacked=%d", s.Type, s.Sent, s.Unsent, s.Unacked)
			if s.Rejected.Reason != "" {
				line += fmt.Sprintf(" rejected=%s (nonce %s)", s.Rejected.Reason, s.Rejected.Nonce)
			}
			out = append(out, line)
		}
		return out
	}
	return []string{"unknown command"}
}

func (d *director) write(verb string, s *Scope, args []string) []string {
	at, err := ParsePosition(args[0])
	if err != nil {
		return []string{"error: " + err.Error()}
	}
	var changes []Change
	var resources []Resource
	for _, a := range args[1:] {
		name, body, _ := strings.Cut(a, "=")
		name, removed := strings.CutPrefix(name, "-")
		typ, name, _ := strings.Cut(name, "/")
		r := Resource{Type: typ, Name: name, Body: []byte(body)}
		resources = append(resources, r)
		changes = append(changes, Change{Resource: r, Removed: removed})
	}
	var n int
	if verb == "replace" {
		n, err = s.Replace(at, resources)
	} else {
		n, err = s.Apply(at, changes)
	}
	if err != nil {
		return []string{"error: " + err.Error()}
	}
	return []string{fmt.Sprintf("changed %d", n)}
}

func request(args []string) Request {
	r := Request{Type: args[0]}
	have := func(name, version string) {
		if r.Versions == nil {
			r.Versions = map[string]string{}
		}
		r.Versions[name] = version
	}
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(a, "+"):
			r.Subscribe = append(r.Subscribe, a[1:])
		case strings.HasPrefix(a, "-"):
			r.Unsubscribe = append(r.Unsubscribe, a[1:])
		case key == "nonce":
			r.Nonce = value
		case key == "reject":
			r.Rejected = value
		case key == "cursor":
			position, content, digested := strings.Cut(value, "#")
			if digested {
				versions := map[string]string{}
				for one := range strings.SplitSeq(content, ",") {
					if name, body, ok := strings.Cut(one, ":"); ok {
						versions[name] = VersionOf([]byte(body))
					}
				}
				position = Cursor(position, versions)
			}
			have("", position)
		default:
			have(strings.TrimPrefix(key, "have:"), VersionOf([]byte(value)))
		}
	}
	return r
}

func (d *director) next(name string) string {
	f, err := d.sessions[name].Next()
	if err != nil {
		return "error: " + err.Error()
	}
	if f == nil {
		return "nothing"
	}
	var r discovery.DeltaDiscoveryResponse
	if err := proto.Unmarshal(f.Data, &r); err != nil {
		return "error: " + err.Error()
	}
	var parts []string
	for _, res := range r.Resources {
		parts = append(parts, res.Name+"="+string(res.Resource.Value))
	}
	for _, gone := range r.RemovedResources {
		parts = append(parts, "-"+gone)
	}
	at := r.SystemVersionInfo
	if at == "" {
		at = "more"
	}
	line := fmt.Sprintf("%s %s nonce=%s [%s]", r.TypeUrl, at, r.Nonce, strings.Join(parts, " "))
	if first, ok := d.frames[f]; ok {
		return line + " shared with " + first
	}
	d.frames[f] = name
	return line
}

func TestPosition(t *testing.T) {
	p := Position{Epoch: 0xabc, Sequence: 42}
	if got, err := ParsePosition(p.String()); err != nil || got != p {
		t.Errorf("ParsePosition(%q) = %v, %v", p, got, err)
	}
	for _, bad := range []string{"", ":", "1", "1:", ":1", "1:+1", "01:1", "1:01", "A:1", "1:1:1", "1:18446744073709551616", "-1:1", "1:1 "} {
		if p, err := ParsePosition(bad); err == nil {
			t.Errorf("ParsePosition(%q) = %v, expected an error", bad, p)
		}
	}
}

func FuzzParsePosition(f *testing.F) {
	f.Add("1:2")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParsePosition(s); err == nil && p.String() != s {
			t.Errorf("ParsePosition(%q) = %s", s, p)
		}
	})
}

// FuzzStep: whatever a client says, its session comes to an end of what it has
// to tell, and a well-behaved client next to it is not disturbed.
func FuzzStep(f *testing.F) {
	f.Add("t +a -b nonce=3.1\nt cursor=1:5\nu +* have:a=1")
	f.Add("t cursor=1:5\nt -*\nt +* reject=no nonce=1\nt -a")
	f.Fuzz(func(t *testing.T, script string) {
		s := NewScope(Options{FrameSize: 60})
		_, _ = s.Replace(Position{1, 5}, []Resource{{Type: "t", Name: "a", Body: []byte("1")}, {Type: "t", Name: "b", Body: []byte("2")}})
		session, good := NewSession(s), newClient("t")
		good.connect(s, true)
		for line := range strings.Lines(script) {
			if fields := strings.Fields(line); len(fields) > 0 && session.Step(request(fields)) != nil {
				return
			}
			for range 1000 {
				frame, err := session.Next()
				if err != nil {
					return
				}
				if frame == nil {
					break
				}
			}
			if frame, _ := session.Next(); frame != nil {
				t.Fatalf("after 1000 responses still more: %+v", frame)
			}
		}
		for range 10 {
			if _, err := good.step(); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, good.state["t"]); diff != "" {
			t.Fatal(diff)
		}
	})
}
