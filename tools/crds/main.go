// Command crds writes the CustomResourceDefinitions, and the page about them.
//
//	crds DIR PAGE
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/tools/crds/crd"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: crds DIR PAGE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "crds:", err)
		os.Exit(1)
	}
}

// write replaces the files of dir, so that none of a kind that is gone stays.
func write(dir, page string) error {
	all, err := crd.All()
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range old {
		errs = append(errs, os.Remove(name))
	}
	errs = append(errs, os.MkdirAll(dir, 0o755))
	for _, d := range all {
		text, err := yaml.Marshal(d)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, d.Metadata.Name+".yaml"), text, 0o644))
	}
	text, err := crd.Reference()
	return errors.Join(append(errs, err, os.WriteFile(page, []byte(text), 0o644))...)
}
