package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
	sigsyaml "sigs.k8s.io/yaml"
)

var limits = Limits{Depth: 100, Values: 100_000, Members: 10_000}

// aliases is a YAML document in which each level holds the one before nine times.
func aliases(levels int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x]\n")
	for i := 1; i <= levels; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	return b.String()
}

func TestYAML(t *testing.T) {
	allowed := Limits{Depth: 10, Values: 1000, Members: 100, Aliases: true}
	for name, tc := range map[string]struct {
		body   string
		limits Limits
		values int
		want   string // part of the error
	}{
		"plain":                 {"a: 1\nb: [x, y]\n", limits, 5, ""},
		"JSON":                  {`{"a":1,"b":["x","*y"]}`, limits, 5, ""},
		"star in text":          {"a: 'it is *bold*'\nb: |\n  *c\n  - *d\ne: x * y\n", limits, 4, ""},
		"anchor alone":          {"a: &x 1\n", limits, 2, ""},
		"empty":                 {"", limits, 1, ""},
		"second document":       {"a: 1\n---\nb: *x\n", limits, 2, ""},
		"alias":                 {"a: &x 1\nb: *x\n", limits, 0, "line 2: YAML aliases (*name) are not accepted"},
		"alias as merge key":    {"a: &x {b: 1}\nc:\n  <<: *x\n", limits, 0, "line 3: YAML aliases"},
		"alias as key":          {"a: &x b\n*x : 1\n", limits, 0, "YAML aliases"},
		"alias in UTF-16":       {utf16("a: &x 1\nb: *x\n"), limits, 0, "YAML aliases"},
		"alias where allowed":   {"a: &x [1, 2]\nb: *x\n", allowed, 7, ""},
		"alias of an alias":     {aliases(2), allowed, 194, ""},
		"aliases that multiply": {aliases(6), allowed, 0, "more than 1000 values"},
		"alias within itself":   {"a: &x [*x]\n", allowed, 0, "*x is a part of what it stands for"},
		"aliases that nest":     {nested(12), allowed, 0, "more than 10 levels"},
		"deep":                  {strings.Repeat("[", 101) + "x" + strings.Repeat("]", 101), limits, 0, "more than 100 levels"},
		"many":                  {"[" + strings.Repeat("x,", 100_000) + "]", limits, 0, "send it as JSON"},
		"wide":                  {strings.Repeat("? x\n", 101), allowed, 0, "more than 100 members"},
		"no YAML":               {"a: [", limits, 0, "yaml:"},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := YAML([]byte(tc.body), tc.limits)
			if tc.want == "" && (err != nil || values != tc.values) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%d values, error %v; want %d, %q", values, err, tc.values, tc.want)
			}
		})
	}
}

// nested is a document whose aliases nest deeper than its text does.
func nested(levels int) string {
	out := "a0: &a0 [x]\n"
	for i := 1; i <= levels; i++ {
		out += fmt.Sprintf("a%d: &a%d [*a%d]\n", i, i, i-1)
	}
	return out
}

func utf16(text string) string {
	out := "\xff\xfe"
	for _, r := range text {
		out += string([]byte{byte(r), byte(r >> 8)})
	}
	return out
}

func TestJSON(t *testing.T) {
	for name, tc := range map[string]struct {
		body   string
		values int
		want   string
	}{
		"scalar":     {`1`, 1, ""},
		"object":     {`{"a":1,"b":["x","[{,\"\\"]}`, 5, ""},
		"deep":       {strings.Repeat(`{"a":`, 101), 0, "more than 100 levels"},
		"deep, flat": {strings.Repeat(`[[]],`, 101), 304, ""},
		"wide":       {"[{" + strings.Repeat(`"a":1,`, 10_000) + `"a":1}]`, 0, "more than 10000 members"},
		"long list":  {"[" + strings.Repeat("1,", 50_000) + "1]", 50_002, ""},
		"many":       {"[" + strings.Repeat("{},", 50_000) + "{}]", 0, "more than 100000 values"},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := JSON([]byte(tc.body), limits)
			if tc.want == "" && (err != nil || values != tc.values) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%d values, error %v; want %d, %q", values, err, tc.values, tc.want)
			}
		})
	}
}

func TestProtobuf(t *testing.T) {
	if n, err := Protobuf([]byte("k8s\x00\x0a\x04\x0a\x02v1\x12\x00"), limits); err != nil || n < 4 {
		t.Errorf("%d values: %v", n, err)
	}
	for _, text := range []string{strings.Repeat("x", 1<<20), strings.Repeat(" ", 1<<20), strings.Repeat("*\t123456789", 1<<16)} {
		object := protowire.AppendBytes([]byte{0x0a}, protowire.AppendBytes([]byte{0x0a}, []byte(text)))
		if n, err := Protobuf(object, limits); err != nil {
			t.Errorf("1 MiB of %.20q: %d values: %v", text, n, err)
		}
	}
	var large *TooLargeError
	if _, err := Protobuf([]byte(strings.Repeat("\x0a\x00", 100_001)), limits); !errors.As(err, &large) {
		t.Errorf("many empty messages: %v", err)
	}
	inner := []byte{}
	for range 80 {
		inner = protowire.AppendBytes([]byte{0x0a}, inner)
	}
	if _, err := Protobuf(inner, limits); err == nil || !strings.Contains(err.Error(), "64 levels") {
		t.Errorf("deep: %v", err)
	}
	if n, err := Protobuf([]byte("\x0a\xff"), limits); err != nil {
		t.Errorf("cut off: %d: %v", n, err)
	}
}

// TestMemoryOfTheCheck: the check itself must not use the memory that it limits.
func TestMemoryOfTheCheck(t *testing.T) {
	body := []byte(aliases(2) + "x: [" + strings.Repeat("*a2,", 50_000) + "]\n")
	if len(body) < 200_000 {
		t.Fatal("the body is too small for the test")
	}
	for name, aliases := range map[string]bool{"refused": false, "bounded": true} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := YAML(body, Limits{Depth: 100, Values: 100_000, Members: 10_000, Aliases: aliases}); err == nil {
			t.Errorf("%s: no error", name)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 200<<20 {
			t.Errorf("%s: allocated %d MB for a body of %d kB", name, used>>20, len(body)>>10)
		}
	}
}

// FuzzYAML compares the count with what decoders make: what is let through has no
// alias, and no more values than were counted.
func FuzzYAML(f *testing.F) {
	for _, body := range []string{
		"a: 1\nb: [x, y]\n",
		`{"a":["x"]}`,
		"a: &x 1\nb: *x\n",
		aliases(2),
		"- - - a\n",
		"? a\n: b\n",
		"a: !!binary |\n  eA==\n",
		utf16("a: *b"),
	} {
		f.Add([]byte(body))
	}
	small := Limits{Depth: 20, Values: 500, Members: 50}
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := YAML(body, small)
		bounded := small
		bounded.Aliases = true
		with, errWith := YAML(body, bounded)
		if err == nil && (errWith != nil || with != n) {
			t.Fatalf("without aliases %d, with %d: %v", n, with, errWith)
		}
		if errWith != nil {
			return
		}
		raw, decodeErr := sigsyaml.YAMLToJSON(body)
		if decodeErr != nil {
			return
		}
		if made := valuesOf(t, raw); made > with+1 { // an empty document becomes null
			t.Fatalf("%d values were counted, %d came out of %q", with, made, body)
		}
		var node yaml.Node
		if err == nil && !json.Valid(body) && yaml.Unmarshal(body, &node) == nil && hasAlias(&node) {
			t.Fatalf("an alias was let through: %q", body)
		}
	})
}

func hasAlias(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		return true
	}
	for _, c := range n.Content {
		if hasAlias(c) {
			return true
		}
	}
	return false
}

// FuzzJSON: what is let through has no more values, and is no deeper, than counted.
func FuzzJSON(f *testing.F) {
	for _, body := range []string{`{"a":["x",{}]}`, `[[[[`, `"\"[,"`, `{"a":1,"a":2}`, "\xff"} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := JSON(body, Limits{Depth: 20, Values: 500, Members: 50})
		if err != nil || !json.Valid(body) {
			return
		}
		if made := valuesOf(t, body); made > n {
			t.Fatalf("%d values were counted, %d came out of %q", n, made, body)
		}
	})
}

// FuzzProtobuf: no body makes it panic or count without end.
func FuzzProtobuf(f *testing.F) {
	f.Add([]byte("k8s\x00\x0a\x04\x0a\x02v1\x12\x00"))
	f.Add([]byte("\x0b\x0c\x0d\x01\x02\x03\x04"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if n, err := Protobuf(body, Limits{Depth: 20, Values: 500, Members: 50}); err == nil && n > 500 {
			t.Fatalf("%d values let through", n)
		}
	})
}

func valuesOf(t *testing.T, raw []byte) int {
	t.Helper()
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // some are too large for a float
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return countAny(v)
}

func countAny(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += countAny(e)
		}
	case map[string]any:
		for _, e := range v {
			n += countAny(e)
		}
	}
	return n
}
