package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/problem"
)

func newAudit(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "audit",
		GroupID: "operate",
		Short:   "Check the control plane's audit logs",
	}
	cmd.AddCommand(newAuditVerify(s))
	return cmd
}

func newAuditVerify(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "verify [FILE…]",
		Short: "Check that no record of the audit logs was changed or removed",
		Long: `Verify reads the audit logs in the data directory, audit.log and refused.log with
all older files, and checks that every record names the SHA-256 of the one before
it. With files, which are parts of one log in their order, it checks those only.
It needs no control plane, and one may run. It exits with 1 at the first break,
and prints where it is.

The chain has no secret. Who can write all files of a log can also make another
chain: keep the hash that verify prints elsewhere, and compare it later.`,
		Example: "  proxima audit verify --data-dir /var/lib/proxima",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				r, err := audit.VerifyFiles(args...)
				return s.printVerified("files", r, err)
			}
			var errs []error
			for _, name := range []string{audit.WritesLog, audit.RefusedLog} {
				r, err := audit.Verify(s.dataDir, name)
				if errors.Is(err, fs.ErrNotExist) {
					err = &problem.Error{
						Code: problem.LogMissing,
						Err:  fmt.Errorf("%s: there is no such log: %w", name, err),
						Hint: "name the control plane's data directory: --data-dir DIR",
					}
				}
				errs = append(errs, s.printVerified(name, r, err))
			}
			return errors.Join(errs...)
		},
	}
}

func (s *settings) printVerified(name string, r audit.Report, err error) error {
	for _, note := range r.Notes {
		fmt.Fprintln(s.io.Err, "note: "+note)
	}
	var broken *audit.Break
	switch {
	case errors.As(err, &broken):
		return fmt.Errorf("%s: the chain is broken: %w", name, err)
	case err != nil:
		return err
	case r.Records == 0:
		fmt.Fprintf(s.io.Out, "%s: no records\n", name)
		return nil
	}
	fmt.Fprintf(s.io.Out, "%s: %d records in %d files, number %d to %d, are unchanged; the hash of the last is %s\n",
		name, r.Records, r.Files, r.First, r.Last, r.Hash)
	return nil
}
