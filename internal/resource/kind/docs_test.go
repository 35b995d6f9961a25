package kind_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// policyPages are about policies, routes, and how to come to them.
var policyPages = []string{
	"concepts/policies.md", "concepts/trafficpermission.md", "concepts/backendpolicy.md", "concepts/workloadpolicy.md", "concepts/proxypatch.md",
	"concepts/routes.md", "how-to/strict-mtls.md",
}

var (
	yamlBlocks = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	tryBlocks  = regexp.MustCompile("(?ms)^<!-- try: (\\S+) -->\n```yaml\n(.*?)^```")
)

// TestPolicyPages: every object on these pages has no field but those of its kind, is valid, and
// has no field without an effect; what a lab with sidecars offers to try is what the pages show.
func TestPolicyPages(t *testing.T) {
	tried := 0
	for _, page := range policyPages {
		text, err := os.ReadFile(filepath.Join("../../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlocks.FindAllSubmatch(text, -1) {
			checkObjects(t, page, block[1])
		}
		for _, block := range tryBlocks.FindAllSubmatch(text, -1) {
			tried++
			want, err := os.ReadFile(filepath.Join("../../lab/try", string(block[1])))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(block[2], want) {
				t.Errorf("%s: the example is not internal/lab/try/%s, whose effect is tested", page, block[1])
			}
		}
	}
	if tried < 4 {
		t.Errorf("%d pages have an example of a lab", tried)
	}
}

func checkObjects(t *testing.T, page string, text []byte) {
	t.Helper()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		var head struct{ APIVersion, Kind string }
		if err == nil {
			err = sigsyaml.Unmarshal(document, &head)
		}
		if err != nil {
			t.Errorf("%s: %v in:\n%s", page, err, document)
			return
		}
		d := descriptorOf(head.Kind)
		if d == nil {
			t.Errorf("%s: no kind is called %q", page, head.Kind)
			continue
		}
		obj := d.New()
		if err := sigsyaml.UnmarshalStrict(document, obj); err != nil {
			t.Errorf("%s: %v in:\n%s", page, err, document)
			continue
		}
		if d.Default != nil {
			d.Default(obj)
		}
		if d.Validate != nil {
			for _, problem := range d.Validate(obj, nil) {
				t.Errorf("%s: %s %s: %v", page, head.Kind, obj.GetName(), problem)
			}
		}
		if d.Warnings != nil && d != kind.Mesh { // a Mesh with certificates is always told what they are for
			for _, warning := range d.Warnings(obj, nil) {
				t.Errorf("%s: %s %s: %s", page, head.Kind, obj.GetName(), warning)
			}
		}
	}
}

func descriptorOf(name string) *resource.Descriptor {
	for _, d := range kind.All() {
		if d.GVK.Kind == name {
			return d
		}
	}
	return nil
}
