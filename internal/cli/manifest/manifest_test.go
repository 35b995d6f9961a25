package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const a = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n"

// found lists what was parsed as "source kind/name".
func found(documents []Document) []string {
	var out []string
	for _, d := range documents {
		out = append(out, d.Source+": "+d.Object.GetKind()+"/"+d.Object.GetName())
	}
	return out
}

func TestParse(t *testing.T) {
	jsonA := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`
	for name, tc := range map[string]struct {
		in   string
		want []string
	}{
		"nothing":             {in: ""},
		"comments only":       {in: "# nothing\n---\n\n---\n"},
		"one":                 {in: a, want: []string{"f, line 1: ConfigMap/a"}},
		"mark first":          {in: "---\n" + a, want: []string{"f, line 2: ConfigMap/a"}},
		"content on the mark": {in: "--- " + jsonA, want: []string{"f, line 1: ConfigMap/a"}},
		"byte order mark":     {in: "\ufeff" + a, want: []string{"f, line 1: ConfigMap/a"}},
		"windows line ends":   {in: strings.ReplaceAll(a+"---\n"+a, "\n", "\r\n"), want: []string{"f, line 1: ConfigMap/a", "f, line 6: ConfigMap/a"}},
		"comment in front":    {in: "# first\n\n" + a + "---\n# second\n" + a, want: []string{"f, line 3: ConfigMap/a", "f, line 9: ConfigMap/a"}},
		"mark in a value":     {in: a + "data:\n  x: |\n    ---\n    y\n", want: []string{"f, line 1: ConfigMap/a"}},
		"four dashes":         {in: a + "data: {x: \"\n ----\"}\n", want: []string{"f, line 1: ConfigMap/a"}},
		"json":                {in: jsonA, want: []string{"f, line 1: ConfigMap/a"}},
		"json in a row":       {in: jsonA + "\n\n" + jsonA + jsonA, want: []string{"f, line 1: ConfigMap/a", "f, line 3: ConfigMap/a", "f, line 3: ConfigMap/a"}},
		"json then yaml":      {in: jsonA + "\n---\n" + a, want: []string{"f, line 1: ConfigMap/a", "f, line 3: ConfigMap/a"}},
		"aliases":             {in: a + "data: &d {x: y}\nmore: *d\n", want: []string{"f, line 1: ConfigMap/a"}},
		"flow style":          {in: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", want: []string{"f, line 1: ConfigMap/a"}},
		"list": {
			in:   `{"apiVersion":"v1","kind":"List","items":[` + jsonA + `,` + jsonA + `]}`,
			want: []string{"f, line 1, items[0]: ConfigMap/a", "f, line 1, items[1]: ConfigMap/a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse("f", []byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, found(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseKeepsWholeNumbers(t *testing.T) {
	got, err := Parse("f", []byte(a+"count: 9007199254740993\n"))
	if err != nil {
		t.Fatal(err)
	}
	if n := got[0].Object.Object["count"]; n != int64(9007199254740993) {
		t.Errorf("got %v (%T): a float loses the last digits", n, n)
	}
}

func TestParseMistakes(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"broken yaml": {in: a + "---\nkind: [\n", want: "f: line 6:"},
		"tab":         {in: "kind:\n\tx: y\n", want: "f: line 2:"},
		"aliases that multiply": {
			in:   a + "x: &x [1,1,1,1,1,1,1,1,1]\ny: &y [*x,*x,*x,*x,*x,*x,*x,*x,*x]\nz: [" + strings.Repeat("*y,", 40_000) + "]\n",
			want: "f: with its aliases (*name) written out, it has more than 2000000 values",
		},
		"key twice":      {in: a + "kind: Service\n", want: `key "kind" already set`},
		"broken json":    {in: "{\n\"kind\": \"X\",,\n}", want: "f: line 2: invalid character ','"},
		"text":           {in: "hello", want: "f, line 1: it is no object"},
		"a sequence":     {in: "- 1\n", want: "f, line 1: it is no object"},
		"no apiVersion":  {in: "kind: Service\nmetadata: {name: a}\n", want: "f, line 1: apiVersion is needed"},
		"no kind":        {in: "---\napiVersion: v1\nmetadata: {name: a}\n", want: "f, line 2: kind is needed"},
		"numeric kind":   {in: "apiVersion: v1\nkind: 7\n", want: "kind is needed, and is text"},
		"no metadata":    {in: "apiVersion: v1\nkind: Service\n", want: "Service: metadata is needed"},
		"no name":        {in: "apiVersion: v1\nkind: Service\nmetadata: {}\n", want: "Service: metadata.name is needed"},
		"generateName":   {in: "apiVersion: v1\nkind: Service\nmetadata: {generateName: a-}\n", want: "generateName makes another object each time"},
		"numeric name":   {in: "apiVersion: v1\nkind: Service\nmetadata: {name: 10}\n", want: "metadata.name: 10 is not text: write it in quotes"},
		"bad apiVersion": {in: "apiVersion: a/b/c\nkind: Service\nmetadata: {name: a}\n", want: "apiVersion: unexpected GroupVersion string"},
		"item":           {in: "apiVersion: v1\nkind: List\nitems: [1]\n", want: "items[0] is no object"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse("f", []byte(tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want %q in it", err, tc.want)
			}
			if got != nil {
				t.Errorf("got %v in addition to the error", found(got))
			}
		})
	}
}

func TestReadReportsAllMistakes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good/2.yaml", a)
	write("good/1.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"b"}}`)
	write("good/notes.txt", "not read")
	write("good/below/x.yaml", "not: [read")
	bad := write("bad.yaml", "kind: X\n---\n[\n")

	got, err := Read([]string{filepath.Join(dir, "good"), "-"}, strings.NewReader(a))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		filepath.Join(dir, "good", "1.json") + ", line 1: Service/b", good + ", line 1: ConfigMap/a",
		"standard input, line 1: ConfigMap/a",
	}
	if diff := cmp.Diff(want, found(got)); diff != "" {
		t.Error(diff)
	}

	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	got, err = Read([]string{good, bad, empty, filepath.Join(dir, "absent.yaml")}, nil)
	if got != nil || err == nil {
		t.Fatalf("got %v and error %v, want mistakes only", found(got), err)
	}
	for _, want := range []string{"line 1: apiVersion is needed", "bad.yaml: line 3:", "there is no .yaml, .yml or .json file in it", "absent.yaml: no such file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in the error:\n%v", want, err)
		}
	}
	if _, err := Read([]string{"-"}, strings.NewReader("# nothing\n")); err == nil || !strings.Contains(err.Error(), "there is no object in it") {
		t.Errorf("of an empty file: %v", err)
	}
}

// FuzzParse: whatever is read has what every object needs, or is an error.
func FuzzParse(f *testing.F) {
	f.Add([]byte(a + "---\n" + a))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}]}{}`))
	f.Add([]byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"))
	f.Add([]byte("--- \n---\n# x\n--- {"))
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, err := Parse("f", data)
		if err != nil && documents != nil {
			t.Fatal("documents in addition to an error")
		}
		for _, d := range documents {
			if d.Object.GetKind() == "" || d.Object.GetAPIVersion() == "" || d.Object.GetName() == "" {
				t.Fatalf("%s lacks kind, apiVersion or name", d.Source)
			}
			if _, err := d.Object.MarshalJSON(); err != nil {
				t.Fatalf("%s can't be sent: %v", d.Source, err)
			}
		}
	})
}
