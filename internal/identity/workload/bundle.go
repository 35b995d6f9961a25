package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// bundle of a mesh, as it is on disk. Immutable.
type bundle struct {
	Mesh         string   `json:"mesh"`
	Domain       string   `json:"trustDomain"`
	Roots        string   `json:"roots,omitempty"`
	ExportedTo   []string `json:"exportedTo,omitempty"`
	Generation   uint64   `json:"generation"`
	Issuer       string   `json:"issuer,omitempty"`
	AcceptsPlain bool     `json:"acceptsPlain,omitempty"`
}

type storedTrust struct {
	Version int       `json:"version"`
	Zone    string    `json:"zone,omitempty"`
	Bundles []*bundle `json:"bundles"`
}

// parsed checks a bundle and makes it usable.
func (b *bundle) parsed() (mesh.Bundle, error) {
	out := mesh.Bundle{Mesh: b.Mesh, ExportedTo: b.ExportedTo}
	var err error
	if out.Domain, err = mesh.ParseDomain(b.Domain); err != nil {
		return mesh.Bundle{}, err
	}
	if b.Roots != "" {
		if out.Roots, err = certpem.ParseCertificates([]byte(b.Roots)); err != nil {
			return mesh.Bundle{}, fmt.Errorf("roots of mesh %s: %w", b.Mesh, err)
		}
	}
	if b.Mesh == "" || b.Generation == 0 || b.Issuer != "" && len(out.Roots) == 0 {
		return mesh.Bundle{}, fmt.Errorf("bundle of mesh %q: name, generation or roots are missing", b.Mesh)
	}
	return out, nil
}

func trustOf(bundles map[string]*bundle) (*mesh.Trust, error) {
	parsed := make([]mesh.Bundle, 0, len(bundles))
	for _, b := range bundles {
		p, err := b.parsed()
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, p)
	}
	return mesh.NewTrust(parsed...)
}

func loadTrust(dir string) (bundles map[string]*bundle, zone string, err error) {
	data, err := readSecret(filepath.Join(dir, trustFile))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]*bundle{}, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	return decodeTrust(data)
}

func decodeTrust(data []byte) (bundles map[string]*bundle, zone string, err error) {
	var stored storedTrust
	if err := json.Unmarshal(data, &stored); err != nil || stored.Version != diskVersion {
		return nil, "", fmt.Errorf("%s: damaged, or of another version", trustFile)
	}
	out := map[string]*bundle{}
	for _, b := range stored.Bundles {
		if b == nil || out[b.Mesh] != nil {
			return nil, "", fmt.Errorf("%s: damaged", trustFile)
		}
		out[b.Mesh] = b
	}
	return out, stored.Zone, nil
}

func saveTrust(dir, zone string, bundles map[string]*bundle) error {
	stored := storedTrust{Version: diskVersion, Zone: zone}
	for _, b := range bundles {
		stored.Bundles = append(stored.Bundles, b)
	}
	slices.SortFunc(stored.Bundles, func(a, b *bundle) int { return strings.Compare(a.Mesh, b.Mesh) })
	data, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	return write(dir, filepath.Join(dir, trustFile), data)
}
