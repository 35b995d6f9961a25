package cli

import (
	"cmp"
	"crypto"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/release"
	"github.com/proxima-mesh/proxima/internal/version"
)

func newVersion(s *settings) *cobra.Command {
	var output, verify, keyFile string
	cmd := &cobra.Command{
		Use:     "version [--verify DIR|FILE [--key FILE]]",
		GroupID: "operate",
		Short:   "Show what this binary is, or verify the files of a release",
		Long: `Version shows what this binary is.

With --verify it checks the files of a release that are in a folder, or one of
them: that each has the checksum that SHA256SUMS lists, and that its statement
(SLSA provenance) is about it. With --key every statement must also be signed by
that key; without, the checks find damage, not forgery. It needs no network and
no control plane, and exits with 1 if a file does not pass.`,
		Example: "  proxima version --verify dist --key release.pub",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch output {
			case "table", "wide", "json", "yaml":
			default:
				return usagef("-o %q: choose table, wide, json or yaml", output)
			}
			if verify != "" {
				return s.verifyRelease(verify, keyFile, output)
			}
			if keyFile != "" {
				return usagef("--key goes with --verify")
			}
			info := version.Get()
			if output == "json" || output == "yaml" {
				return printValue(s.io.Out, info, output)
			}
			fmt.Fprintf(s.io.Out, "proxima %s (Kubernetes API %s, %s, %s)\n", info.Version, info.Kubernetes, info.Go, info.Platform)
			return nil
		},
	}
	f := cmd.Flags()
	addOutputFlag(f, &output)
	f.StringVar(&verify, "verify", "", "folder with the files of a release, or one of the files: verify them")
	f.StringVar(&keyFile, "key", "", "with --verify: file with the public key (PEM) that must have signed the statements")
	for _, name := range []string{"verify", "key"} {
		_ = f.SetAnnotation(name, commandLineOnly, nil) // the flag is there
	}
	return cmd
}

// verifyRelease prints what was found of each file. The error names those that did not pass.
func (s *settings) verifyRelease(path, keyFile, output string) error {
	var key crypto.PublicKey
	if keyFile != "" {
		data, err := os.ReadFile(keyFile)
		if err != nil {
			return usagef("--key: %w", err)
		}
		if key, err = release.ParsePublicKey(data); err != nil {
			return &problem.Error{Code: problem.Usage, Err: fmt.Errorf("--key %s: %w", keyFile, err)}
		}
	}
	report, err := release.Verify(path, key)
	if err != nil {
		return err
	}
	if output == "json" || output == "yaml" {
		if err := printValue(s.io.Out, report, output); err != nil {
			return err
		}
		return report.Err()
	}
	w := tabwriter.NewWriter(s.io.Out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "FILE\tBYTES\tRESULT")
	for _, f := range report.Files {
		result := "passed"
		if f.Problem != "" {
			result = "failed"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", f.Name, f.Bytes, result)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := report.Err(); err != nil {
		return err
	}
	fmt.Fprintf(s.io.Out, "version %s, commit %s, built by %s\n", report.Version, cmp.Or(report.Commit, "unknown"), report.Builder)
	if report.Signed {
		fmt.Fprintf(s.io.Out, "signatures: every statement is signed by the key in %s\n", keyFile)
	} else {
		fmt.Fprintln(s.io.Out, "signatures: not verified; --key FILE verifies who built the release")
	}
	return nil
}
