// Package sbom lists what a binary consists of, as a CycloneDX document: the modules and the
// toolchain that the go command recorded in it.
//
// Enter at Write. It reads the binary alone, so that the list is of what was linked.
package sbom

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/proxima-mesh/proxima/tools/release/build"
)

// Write writes the document about a binary. at is its time.
func Write(w io.Writer, binary string, p build.Platform, version string, at time.Time) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("build information of %s: %w", binary, err)
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(document(info, sha256.Sum256(content), p, version, at), cdx.SpecVersion1_6)
}

func document(info *debug.BuildInfo, digest [sha256.Size]byte, p build.Platform, version string, at time.Time) *cdx.BOM {
	product := cdx.Component{
		BOMRef: "proxima", Type: cdx.ComponentTypeApplication, Name: "proxima", Version: version,
		Description: "Kubernetes Services for any set of machines, for " + p.String(),
		PackageURL:  purl(info.Main.Path, version),
		Hashes:      &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(digest[:])}},
		Licenses:    &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	parts := []cdx.Component{{
		BOMRef: purl("std", goVersion), Type: cdx.ComponentTypeLibrary, Name: "std", Version: goVersion, PackageURL: purl("std", goVersion),
	}}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		parts = append(parts, component(module))
	}
	slices.SortFunc(parts, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	refs := make([]string, len(parts))
	for i, part := range parts {
		refs[i] = part.BOMRef
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(digest)
	bom.Metadata = &cdx.Metadata{
		Timestamp: at.UTC().Format(time.RFC3339), Component: &product,
		Tools: &cdx.ToolsChoice{Components: &[]cdx.Component{{
			Type: cdx.ComponentTypeApplication, Name: "github.com/proxima-mesh/proxima/tools/release", Version: version,
		}}},
	}
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: product.BOMRef, Dependencies: &refs}}
	return bom
}

// component of a module. What go.sum has of it is the SHA-256 of the list of its files.
func component(m *debug.Module) cdx.Component {
	c := cdx.Component{BOMRef: purl(m.Path, m.Version), Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl(m.Path, m.Version)}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) == sha256.Size {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}

// purl of a Go module (https://github.com/package-url/purl-spec/blob/main/types/golang-definition.json).
func purl(path, version string) string {
	return "pkg:golang/" + strings.ToLower(path) + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// serial is a UUID of version 8 (RFC 9562) out of the digest of the binary, so that the
// document about it has always the same.
func serial(digest [sha256.Size]byte) string {
	id := digest[:16]
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
}
