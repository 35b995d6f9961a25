package credential

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/certpem"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/secretfile"
)

const (
	fileName    = "external-tls.json"
	dirMode     = 0o700
	secretMode  = 0o600
	diskVersion = 1
	// maxFile bounds what is read back, in bytes.
	maxFile = 64 << 20
)

func path(dir string) string { return filepath.Join(dir, fileName) }

// file is all that a node has.
type file struct {
	Version  int      `json:"version"`
	Services []stored `json:"services"`
}

// stored is what a service needs; PEM.
type stored struct {
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	Generation  uint64 `json:"generation"`
	Roots       string `json:"roots,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	Problem     string `json:"problem,omitempty"`
}

func (s stored) service() proxy.ServiceName {
	return proxy.ServiceName{Namespace: s.Namespace, Name: s.Name}
}

// parse checks it. What has neither certificates nor a problem is not possible.
func (s stored) parse() (*held, error) {
	h := &held{generation: s.Generation, problem: s.Problem, stored: s}
	switch {
	case s.Namespace == "" || s.Name == "":
		return nil, errors.New("certificates and keys without the name of a service")
	case s.Problem != "":
		return h, nil
	case s.Roots == "" && s.Certificate == "":
		return nil, errors.New("neither authorities nor a certificate")
	case (s.Certificate == "") != (s.Key == ""):
		return nil, errors.New("a certificate without its key, or a key without its certificate")
	}
	if s.Roots != "" {
		certs, err := certpem.ParseCertificates([]byte(s.Roots))
		if err != nil {
			return nil, fmt.Errorf("authorities: %w", err)
		}
		h.roots = x509.NewCertPool()
		for _, c := range certs {
			h.roots.AddCert(c)
		}
	}
	if s.Certificate != "" {
		pair, err := tls.X509KeyPair([]byte(s.Certificate), []byte(s.Key))
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		h.pair = &pair
	}
	return h, nil
}

// load what an earlier run kept; nothing if there is no file.
func load(dir string) ([]stored, error) {
	data, err := secretfile.Read(path(dir), secretfile.Rule{
		Readers: secretfile.OwnerOnly, Max: maxFile, Advice: "the keys in it are given up", Kind: "it is not one of ours",
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decode(data)
}

func decode(data []byte) ([]stored, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	if f.Version != diskVersion {
		return nil, fmt.Errorf("version %d is unknown", f.Version)
	}
	return f.Services, nil
}

// save a whole state, readable by the agent's user alone. Without any service there is no
// file.
func save(dir string, all map[proxy.ServiceName]*held) error {
	if len(all) == 0 {
		err := os.Remove(path(dir))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	f := file{Version: diskVersion}
	for _, h := range all {
		f.Services = append(f.Services, h.stored)
	}
	slices.SortFunc(f.Services, func(a, b stored) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	return atomicfile.Write(path(dir), data, secretMode)
}
