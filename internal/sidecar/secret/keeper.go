package secret

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

// Source gets identities until ctx ends, and passes each on. It renews them in time, and retries
// by itself; current is the one that is held, nil if none is. problem is called with what keeps it
// from getting one, and with nil when it does.
type Source interface {
	Run(ctx context.Context, current *Identity, update func(*Identity) error, problem func(error))
}

// Config of a Keeper. Dir and Source are required.
type Config struct {
	// Dir keeps the identity, for the owner alone.
	Dir    string
	Source Source
	// Authorities (a file, PEM) of the control plane's server certificates.
	Authorities string
	// Files keeps certificate.pem, key.pem and roots.pem in Dir too, for gRPC.
	Files bool
	// OnChange is called with each identity, the one of the last run included. It must not block.
	OnChange func(*Identity)
	Logger   *slog.Logger // nil: silence
	Now      func() time.Time
}

// Keeper has the identity of a workload.
type Keeper struct {
	config Config

	mu      sync.Mutex
	current *Identity
	problem error
	there   chan struct{} // closed when there is one
}

const (
	identityFile = "identity.json"
	secretMode   = 0o600
	dirMode      = 0o700
)

// NewKeeper starts from what an earlier one left in the directory.
func NewKeeper(c Config) (*Keeper, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.OnChange == nil {
		c.OnChange = func(*Identity) {}
	}
	k := &Keeper{config: c, there: make(chan struct{}), problem: errors.New("no certificate was asked for yet")}
	if err := os.MkdirAll(c.Dir, dirMode); err != nil {
		return nil, err
	}
	i, err := load(filepath.Join(c.Dir, identityFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		c.Logger.Warn("the certificate of the last run is not used", "error", err)
	default:
		if c.Files { // the last run may have done without
			err = k.writeFiles(i)
		}
		k.use(i)
		return k, err
	}
	return k, nil
}

func load(path string) (*Identity, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := &Identity{}
	if err := json.Unmarshal(data, i); err != nil {
		return nil, fmt.Errorf("%s: damaged", path) // without parts of the key
	}
	return i, i.parse()
}

// use an identity from now on.
func (k *Keeper) use(i *Identity) {
	k.mu.Lock()
	first := k.current == nil
	k.current, k.problem = i, nil
	k.mu.Unlock()
	if first {
		close(k.there)
	}
	k.config.OnChange(i)
}

// Run keeps the identity up to date until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	k.config.Source.Run(ctx, k.Current(), k.update, func(err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.problem = err
	})
}

// update keeps an identity on disk, then uses it.
func (k *Keeper) update(i *Identity) error {
	if err := i.parse(); err != nil {
		return err
	}
	if old := k.Current(); old != nil && old.equal(i) {
		return nil
	}
	data, err := json.Marshal(i)
	if err == nil {
		err = atomicfile.Write(filepath.Join(k.config.Dir, identityFile), data, secretMode)
	}
	if err == nil && k.config.Files {
		err = k.writeFiles(i)
	}
	if err != nil {
		// It is used all the same: traffic matters more than the next start.
		k.config.Logger.Error("the certificate is not on disk: the proxy cannot start without a control plane", "error", err)
	}
	k.use(i)
	k.config.Logger.Info("certificate", "id", i.ID(), "serial", i.Serial(), "runsOut", i.NotAfter())
	return nil
}

func (i *Identity) equal(other *Identity) bool {
	if !slices.EqualFunc(i.Chain, other.Chain, slices.Equal) || len(i.Roots) != len(other.Roots) {
		return false
	}
	for domain, roots := range i.Roots {
		if !slices.EqualFunc(roots, other.Roots[domain], slices.Equal) {
			return false
		}
	}
	return true
}

// writeFiles for gRPC's file_watcher, which takes them together when certificate and key fit. It
// takes a name of any trust domain by any root, so the roots are those of the own domain alone.
func (k *Keeper) writeFiles(i *Identity) error {
	roots := i.Roots[i.Domain()]
	var errs []error
	for name, data := range map[string][]byte{
		"key.pem": i.keyPEM(), "certificate.pem": i.certificatePEM(), "roots.pem": encodePEM("CERTIFICATE", roots...),
	} {
		errs = append(errs, atomicfile.Write(filepath.Join(k.config.Dir, name), data, secretMode))
	}
	return errors.Join(errs...)
}

// Current identity; nil: there is none.
func (k *Keeper) Current() *Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// Problem is why there is no newer certificate; nil: all is well.
func (k *Keeper) Problem() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.problem
}

// There is closed once there is an identity.
func (k *Keeper) There() <-chan struct{} { return k.there }

// TLS is the configuration for connections to a host of the control plane: it shows the newest
// certificate. The error says why there is none.
func (k *Keeper) TLS(host string) (*tls.Config, error) {
	i := k.Current()
	if i == nil {
		return nil, fmt.Errorf("there is no certificate of the workload yet: %w", k.Problem())
	}
	roots, err := authorities(k.config.Authorities)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: host, RootCAs: roots, Time: k.config.Now,
		Certificates: []tls.Certificate{i.TLS()},
	}, nil
}

func authorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("authorities of the control plane: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("authorities of the control plane: %s has no certificate", path)
	}
	return pool, nil
}
