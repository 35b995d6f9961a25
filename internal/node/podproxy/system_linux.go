package podproxy

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
)

// system is the node's kernel.
func system(dir string) kernel {
	return kernel{
		names: func() ([]string, error) {
			entries, err := os.ReadDir(dir)
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil
			}
			var out []string
			for _, e := range entries {
				out = append(out, e.Name())
			}
			return out, err
		},
		open: func(name string) (namespace, error) {
			ns, err := netns.OpenPath(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			return opened{ns}, nil
		},
		stands: redirect.Stands, put: redirect.Install, cookie: netns.Cookie,
	}
}

type opened struct{ *netns.NS }

// Addresses implements namespace.
func (o opened) Addresses() ([]netip.Addr, error) {
	all, err := o.Handle().AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for i := range all {
		if a, ok := netip.AddrFromSlice(all[i].IP); ok && !a.IsLoopback() {
			out = append(out, a.Unmap())
		}
	}
	return out, nil
}
