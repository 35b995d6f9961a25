package kind_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
)

var update = flag.Bool("update", false, "write what is printed into testdata/tables, for a person to check")

// TestTables prints the objects of each file in testdata/tables as kubectl
// would, plain and wide. Each file holds objects (YAML), plain and wide. The
// bubble's clock stands at 2000-01-01T00:00:00Z.
func TestTables(t *testing.T) {
	files, err := filepath.Glob("testdata/tables/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	all := descriptors()
	if len(files) != len(all) {
		t.Errorf("%d files for %d kinds", len(files), len(all))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { table(t, all[name], file) })
		})
	}
}

func table(t *testing.T, d *resource.Descriptor, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for _, f := range txtar.Parse(raw).Files {
		parts[f.Name] = string(f.Data)
	}
	var objects []resource.Object
	for text := range strings.SplitSeq(parts["objects"], "---\n") {
		obj := decode(t, d, text)
		if obj.GetCreationTimestamp().Time.IsZero() {
			obj.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-5 * time.Minute)))
		}
		objects = append(objects, obj)
	}
	if *update {
		out := &txtar.Archive{Files: []txtar.File{
			{Name: "objects", Data: []byte(parts["objects"])},
			{Name: "plain", Data: []byte(render(d, objects, 0))},
			{Name: "wide", Data: []byte(render(d, objects, 1))},
		}}
		if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, w := range []struct {
		name     string
		priority int32
	}{{"plain", 0}, {"wide", 1}} {
		if diff := cmp.Diff(parts[w.name], render(d, objects, w.priority)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", w.name, diff)
		}
	}
}

func render(d *resource.Descriptor, objects []resource.Object, priority int32) string {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 8, 3, ' ', 0)
	line := func(cell func(i int) any) {
		var cells []string
		for i, c := range d.Columns {
			if c.Priority <= priority {
				cells = append(cells, fmt.Sprint(cell(i)))
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	line(func(i int) any { return strings.ToUpper(d.Columns[i].Name) })
	for _, o := range objects {
		cells := d.Cells(o)
		line(func(i int) any { return cells[i] })
	}
	w.Flush()
	return out.String()
}
