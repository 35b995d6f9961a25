package sbom_test

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/build/buildtest"
	"github.com/proxima-mesh/proxima/tools/release/sbom"
)

// TestWrite: every module that is linked into the product is in the document, with what
// go.sum has of it.
func TestWrite(t *testing.T) {
	file := buildtest.Binary(t, "../../..")
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var one, other bytes.Buffer
	if err := errors.Join(sbom.Write(&one, file, build.Host(), "v1.2.3", at), sbom.Write(&other, file, build.Host(), "v1.2.3", at)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), other.Bytes()) {
		t.Error("two documents of one binary differ")
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&one, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.Metadata.Component.Version != "v1.2.3" || bom.Metadata.Timestamp != "2030-01-02T03:04:05Z" || !strings.HasPrefix(bom.SerialNumber, "urn:uuid:") {
		t.Errorf("%+v", bom.Metadata)
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	components := map[string]cdx.Component{}
	for _, c := range *bom.Components {
		components[c.Name+" "+c.Version] = c
	}
	if len(components) != len(info.Deps)+1 || len(components) < 50 {
		t.Errorf("%d components of %d modules and the standard library", len(components), len(info.Deps))
	}
	for _, m := range info.Deps {
		c, ok := components[m.Path+" "+m.Version]
		if !ok || c.Hashes == nil || c.PackageURL != "pkg:golang/"+strings.ToLower(m.Path)+"@"+strings.ReplaceAll(m.Version, "+", "%2B") {
			t.Errorf("%s: %+v", m.Path, c)
		}
	}
	if _, ok := components["std "+strings.TrimPrefix(info.GoVersion, "go")]; !ok {
		t.Error("the standard library is not in it")
	}
	if refs := (*bom.Dependencies)[0]; len(*refs.Dependencies) != len(components) {
		t.Errorf("%d dependencies", len(*refs.Dependencies))
	}
}

func TestNoBinary(t *testing.T) {
	if err := sbom.Write(&bytes.Buffer{}, "sbom_test.go", build.Host(), "v1.2.3", time.Now()); err == nil {
		t.Error("a text has components")
	}
}
