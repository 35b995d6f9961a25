package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/secretfile"
)

const (
	certificatesDir = "certificates"
	trustFile       = "trust.json"
	suffix          = ".json"
	secretMode      = 0o600
	dirMode         = 0o700
	diskVersion     = 1
	// maxFile bounds what is read back, in bytes.
	maxFile = 4 << 20
)

// storedCertificate has key and chain in one file, so that a crash while it is replaced
// cannot leave a key next to another's certificate.
type storedCertificate struct {
	Version   int     `json:"version"`
	Namespace string  `json:"namespace,omitempty"`
	Name      string  `json:"name,omitempty"`
	NodeMesh  string  `json:"nodeMesh,omitempty"`
	Gateway   string  `json:"gateway,omitempty"`
	ID        mesh.ID `json:"id"`
	Mesh      string  `json:"mesh"`
	Issuer    string  `json:"issuer"`
	Chain     string  `json:"chain"`
	Key       string  `json:"key"`
}

// Names of a gateway's role on disk.
var (
	gatewayNames = map[mesh.Kind]string{mesh.IngressID: "ingress", mesh.EgressID: "egress"}
	gatewayKinds = map[string]mesh.Kind{"ingress": mesh.IngressID, "egress": mesh.EgressID}
)

func (s *storedCertificate) subject() Subject {
	return Subject{Namespace: s.Namespace, Name: s.Name, Mesh: s.NodeMesh, Gateway: gatewayKinds[s.Gateway]}
}

// makeDirs makes what is missing, and writes nothing if nothing is: the disk may be
// read-only.
func makeDirs(dir string) error {
	path := filepath.Join(dir, certificatesDir)
	if err := os.MkdirAll(path, dirMode); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() == dirMode {
		return err
	}
	return os.Chmod(path, dirMode)
}

// write replaces a file of the directory.
func write(dir, path string, data []byte) error {
	if err := makeDirs(dir); err != nil {
		return err
	}
	return atomicfile.Write(path, data, secretMode)
}

// fileOf a subject: names of objects may be longer than those of files.
func fileOf(s Subject) string {
	text := s.Namespace + "\x00" + s.Name + "\x00" + s.Mesh
	if s.Gateway != 0 {
		text += "\x00" + gatewayNames[s.Gateway]
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16]) + suffix
}

func certificatePath(dir string, s Subject) string {
	return filepath.Join(dir, certificatesDir, fileOf(s))
}

func saveCertificate(dir string, s Subject, svid *mesh.SVID, issuer string) error {
	key, err := certpem.EncodeKey(svid.Key)
	if err != nil {
		return err
	}
	data, err := json.Marshal(storedCertificate{
		Version: diskVersion, Namespace: s.Namespace, Name: s.Name, NodeMesh: s.Mesh, Gateway: gatewayNames[s.Gateway],
		ID: svid.ID, Mesh: svid.Mesh, Issuer: issuer,
		Chain: string(certpem.EncodeCertificates(svid.Chain...)), Key: string(key),
	})
	if err != nil {
		return err
	}
	return write(dir, certificatePath(dir, s), data)
}

// loadCertificate of a subject and its ID. A missing file, or one of another ID, is not
// an error. The clock is ignored: Current checks it.
func (m *Manager) loadCertificate(s Subject, id mesh.ID) (*mesh.SVID, string, error) {
	path := certificatePath(m.config.Dir, s)
	data, err := readSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	svid, issuer, err := decodeCertificate(data, s)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	if svid.ID != id {
		return nil, "", nil // the workload has another service account or mesh now
	}
	return svid, issuer, nil
}

// decodeCertificate reads what saveCertificate wrote for a subject. Errors never quote it.
func decodeCertificate(data []byte, s Subject) (*mesh.SVID, string, error) {
	var stored storedCertificate
	if err := json.Unmarshal(data, &stored); err != nil {
		return nil, "", errors.New("damaged")
	}
	if stored.Version != diskVersion || stored.subject() != s {
		return nil, "", fmt.Errorf("not a certificate of %s of version %d", s, diskVersion)
	}
	chain, err := certpem.ParseCertificates([]byte(stored.Chain))
	if err != nil {
		return nil, "", err
	}
	key, err := certpem.ParseKey([]byte(stored.Key))
	if err != nil {
		return nil, "", err
	}
	svid, err := mesh.NewSVID(stored.Mesh, chain, key)
	if err != nil {
		return nil, "", err
	}
	if svid.ID != stored.ID {
		return nil, "", errors.New("the certificate is of another identity")
	}
	return svid, stored.Issuer, nil
}

func removeCertificate(dir string, s Subject) error {
	if err := os.Remove(certificatePath(dir, s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// prune removes the certificates whose file names are not to be kept.
func prune(dir string, keep map[string]bool) error {
	entries, err := os.ReadDir(filepath.Join(dir, certificatesDir))
	if err != nil {
		return fmt.Errorf("remove old certificates: %w", err)
	}
	var failures []error
	for _, e := range entries {
		if keep[e.Name()] || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, certificatesDir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// readSecret reads a file that only its owner may read.
func readSecret(path string) ([]byte, error) {
	return secretfile.Read(path, secretfile.Rule{
		Readers: secretfile.OwnerOnly, Max: maxFile, Advice: "the key in it is given up", Kind: "it is not one of ours",
	})
}
