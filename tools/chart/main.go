// Command chart writes the pages of the chart's permissions and values.
//
//	chart DIR
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chart DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	permissions, err := manifests.PermissionsReference()
	values, more := manifests.ValuesReference()
	return errors.Join(err, more,
		os.WriteFile(filepath.Join(dir, "permissions.md"), []byte(permissions), 0o644),
		os.WriteFile(filepath.Join(dir, "chart-values.md"), []byte(values), 0o644))
}
