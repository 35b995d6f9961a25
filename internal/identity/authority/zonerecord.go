package authority

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
)

// zoneRecord is a zoneAuthority as it is kept. It has the key in it.
type zoneRecord struct {
	Version int    `json:"version"`
	Mesh    string `json:"mesh"`
	Zone    string `json:"zone"`
	Chain   string `json:"chain"`
	Roots   string `json:"roots"`
	Key     string `json:"key"`
}

func (a *zoneAuthority) record(c ZoneConfig) ([]byte, error) {
	key, err := certpem.EncodeKey(a.key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(zoneRecord{recordVersion, c.Mesh, c.Zone,
		string(certpem.EncodeCertificates(a.chain...)), string(certpem.EncodeCertificates(a.roots...)), string(key)})
}

func loadZoneAuthority(data []byte, domain mesh.Domain) (*zoneAuthority, error) {
	var rec zoneRecord
	if err := json.Unmarshal(data, &rec); err != nil || rec.Version != recordVersion {
		return nil, errors.New("not the record of an intermediate of this version")
	}
	chain, key, err := parsePair([]byte(rec.Chain), []byte(rec.Key))
	if err != nil {
		return nil, err
	}
	roots, err := certpem.ParseCertificates([]byte(rec.Roots))
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	return &zoneAuthority{chain: chain, roots: roots, key: key}, checkConstraints(chain[0], domain)
}
