package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/kuma"
)

func newConvert(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "convert",
		GroupID: "objects",
		Short:   "Translate configuration of other meshes",
	}
	cmd.AddCommand(newConvertKuma(s))
	return cmd
}

func newConvertKuma(s *settings) *cobra.Command {
	var files []string
	var namespace string
	cmd := &cobra.Command{
		Use:   "kuma -f FILE",
		Short: "Translate policies, routes, services and identities of Kuma",
		Long: "Prints the objects of Proxima that say what those of Kuma say, of both generations (Timeout, MeshTimeout), as objects of Kubernetes or as\n" +
			"Kuma's own resources. What cannot be translated is named on the standard error, field by field, and the exit status is 1 then. Nothing is applied.",
		Example: "  proxima convert kuma -f policies.yaml >translated.yaml\n  proxima convert kuma -f - <policies.yaml | proxima apply -f - --dry-run=server",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if len(files) == 0 {
				return usagef("convert kuma needs a file: -f FILE, or - for the standard input")
			}
			return s.convertKuma(files, namespace)
		},
	}
	addNamespaceFlag(cmd.Flags(), &namespace)
	cmd.Flags().Lookup("namespace").Usage = "namespace of policies that name none and are not for a whole mesh (default: default)"
	addFilesFlag(cmd.Flags(), &files)
	return cmd
}

func (s *settings) convertKuma(names []string, namespace string) error {
	all := &kuma.Result{}
	for _, name := range names {
		files, err := filesIn(name)
		if err != nil {
			return fmt.Errorf("read policies: %w", err)
		}
		for _, file := range files {
			if err := s.convertFile(all, file, namespace); err != nil {
				return err
			}
		}
	}
	if err := all.Print(s.io.Out); err != nil {
		return err
	}
	for _, p := range all.Problems {
		fmt.Fprintln(s.io.Err, "not translated: "+p.String())
	}
	if len(all.Problems) > 0 {
		return &exitError{code: 1}
	}
	return nil
}

func (s *settings) convertFile(all *kuma.Result, file, namespace string) error {
	var manifests []byte
	var err error
	if file == "-" {
		manifests, err = io.ReadAll(s.io.In)
	} else {
		manifests, err = os.ReadFile(file)
	}
	if err != nil {
		return fmt.Errorf("read policies: %w", err)
	}
	result, err := kuma.Convert(manifests, kuma.Options{Namespace: namespace})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	all.Objects, all.Problems = append(all.Objects, result.Objects...), append(all.Problems, result.Problems...)
	return nil
}

// filesIn a directory, of YAML and JSON; a file is itself.
func filesIn(name string) ([]string, error) {
	if name == "-" {
		return []string{name}, nil
	}
	if info, err := os.Stat(name); err != nil || !info.IsDir() {
		return []string{name}, err
	}
	var files []string
	for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
		matches, err := filepath.Glob(filepath.Join(name, pattern))
		if err != nil {
			return nil, err
		}
		files = append(files, matches...)
	}
	slices.Sort(files)
	return files, nil
}
