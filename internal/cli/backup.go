package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/keyring"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// file completes the one argument as a file.
func file(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

func newBackup(s *settings) *cobra.Command {
	x := &backups{settings: s}
	cmd := &cobra.Command{
		Use:     "backup FILE | --to DIR|s3://BUCKET/PREFIX",
		GroupID: "operate",
		Short:   "Save the control plane's state to a file, while it runs",
		Long: `Backup saves everything in the control plane's store, as it is at one moment.
Secrets stay encrypted in it: to restore them, the key file pki/secrets.keys
of the data directory is needed too, and the folder pki/ca so that agents need not
join again. Keep copies of both apart from backups, or use --with-keys.

With --to the backup gets a name of its own in a directory or an object store, and with
--every there is another one each time that duration has passed, until the command is
stopped. One that fails is reported and made again.`,
		Example: "  proxima backup proxima-$(date +%F).backup\n" +
			"  proxima backup --to s3://backups/proxima?endpoint=minio.example.com:9000 --every 6h --keep 720h",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: file,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && (x.to != "" || x.every != 0 || x.keep != 0):
				return usagef("give a FILE, or --to with --every and --keep")
			case len(args) == 1:
				return x.save(cmd.Context(), args[0])
			case x.to == "":
				return usagef("where to: give a FILE, or --to")
			case x.every < 0 || x.keep < 0 || x.every > 0 && x.every < time.Minute:
				return usagef("--every must be 1m at least, and --keep must not be negative")
			}
			target, err := blob.Open(x.to)
			if err != nil {
				return usagef("--to: %w", err)
			}
			return x.repeat(cmd.Context(), target)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&x.withKeys, "with-keys", false, "put the keys of secrets and of the certificate authority into the file")
	f.StringVar(&x.to, "to", "", "a directory or s3://BUCKET/PREFIX?endpoint=HOST:PORT&region=NAME for backups; credentials come from AWS_ACCESS_KEY_ID, … or the files of AWS")
	f.DurationVar(&x.every, "every", 0, "with --to: the time from one backup to the next; 0: there is one")
	f.DurationVar(&x.keep, "keep", 0, "with --to: how long backups are kept; the newest is kept always; 0: all are")
	return cmd
}

// backups is the command "backup".
type backups struct {
	*settings
	withKeys    bool
	to          string
	every, keep time.Duration
}

// save a backup to a file.
func (x *backups) save(ctx context.Context, file string) error {
	path := admin.BackupPath
	if x.withKeys {
		path = admin.BackupKeysPath
	}
	cfg, _, err := x.restConfig()
	if err != nil {
		return err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = 0 // it takes as long as it takes
	resp, err := send(ctx, cfg, http.MethodGet, path, nil)
	if err != nil {
		return explainAPI(cfg, err)
	}
	defer resp.Body.Close()
	b, err := app.ReceiveBackup(resp.Body, file)
	if err != nil {
		return err
	}
	if x.to != "" {
		return nil
	}
	fmt.Fprintf(x.io.Err, "%s: %d records at revision %d, checked\n", file, b.Records, b.Revision)
	if x.withKeys {
		fmt.Fprintf(x.io.Err, "WARNING: the file contains %d key files: it gives access to every secret and every identity. "+
			"Protect it like a password.\n", b.Files)
	} else {
		fmt.Fprintln(x.io.Err, "The file contains no keys. A restore also needs pki/secrets.keys (for Secrets) and pki/ca "+
			"(or agents must join again): keep copies of them elsewhere.")
	}
	return nil
}

// repeat backups to a target, until ctx ends.
func (x *backups) repeat(ctx context.Context, target blob.Target) error {
	retry := backoff.Backoff{Policy: backoff.Policy{First: 10 * time.Second, Last: 10 * time.Minute}}
	for {
		begun := time.Now()
		err := x.keepOne(ctx, target)
		if x.every == 0 || ctx.Err() != nil && err == nil {
			return err
		}
		wait := max(x.every-time.Since(begun), 0)
		if err == nil {
			retry.Reset()
		} else if ctx.Err() == nil {
			wait = min(x.every, retry.Next())
			fmt.Fprintf(x.io.Err, "the backup failed, and is tried again in %s: %v\n", wait.Round(time.Second), err)
		}
		if !backoff.Sleep(ctx, wait) {
			return nil
		}
	}
}

// keepOne makes a backup, and deletes those that are too old.
func (x *backups) keepOne(ctx context.Context, target blob.Target) error {
	dir, err := os.MkdirTemp("", "proxima-backup-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "new.backup")
	if err := x.save(ctx, file); err != nil {
		return err
	}
	name, err := app.KeepBackup(ctx, target, file)
	if err != nil {
		return err
	}
	fmt.Fprintf(x.io.Err, "%s: %s, checked\n", target, name)
	if x.keep == 0 {
		return nil
	}
	n, err := app.PruneBackups(ctx, target, time.Now().Add(-x.keep))
	if n > 0 {
		fmt.Fprintf(x.io.Err, "%s: %d backups older than %s are deleted\n", target, n, x.keep)
	}
	return err
}

func newRestore(s *settings) *cobra.Command {
	cfg := app.RestoreConfig{}
	var at string
	cmd := &cobra.Command{
		Use:     "restore FILE | --from DIR|s3://BUCKET/PREFIX",
		GroupID: "operate",
		Short:   "Make a control plane's state from a backup",
		Long: `Restore makes the store of a control plane that is not running. The backup is
checked as a whole before anything is written, and the store takes its place at
once or not at all. Resource versions continue above all that were ever issued;
watches get 410 Expired, after which clients list again by themselves.

With --at the backup, or the newest of --from that is old enough, is brought to the state
at that time by the changes in the change feed. That is done with objects; Leases, Events,
tokens and revocations are as in the backup.

What was changed after that is lost. That includes revocations: tokens that
were revoked since then are valid again.`,
		Example: "  proxima restore proxima-2026-03-04.backup --data-dir /var/lib/proxima\n" +
			"  proxima restore --from /mnt/backups --at 2026-03-04T15:30:00Z --feed-offload /mnt/feed",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: file,
		RunE: func(cmd *cobra.Command, args []string) error {
			log, err := s.logger()
			if err != nil {
				return err
			}
			if (len(args) == 1) == (cfg.From != "") {
				return usagef("give a FILE, or --from with a place of backups")
			}
			if len(args) == 1 {
				cfg.File = args[0]
			}
			if at == "" && (cfg.Offload != "" || len(cfg.FeedRoots) > 0) {
				return usagef("--feed-offload and --feed-root are for --at")
			}
			if at != "" {
				if cfg.At, err = time.Parse(time.RFC3339, at); err != nil {
					return usagef("--at %q: want a time such as 2026-03-04T15:30:00Z", at)
				}
			}
			cfg.DataDir, cfg.Logger = s.dataDir, log
			r, err := app.Restore(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			s.printRestored(r)
			s.printAt(cfg.At, r)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Store, "store", "sqlite:", "where the state is to be kept, as for the control plane")
	f.BoolVar(&cfg.Force, "force", false, "replace a state that is there; it is kept next to the new one")
	f.StringVar(&cfg.From, "from", "", "a directory or s3://BUCKET/PREFIX with backups of \"proxima backup --to\"")
	f.StringVar(&at, "at", "", "restore objects as they were at a time, such as 2026-03-04T15:30:00Z")
	f.StringVar(&cfg.Offload, "feed-offload", "", "with --at: where the control plane offloaded its change feed to")
	f.StringSliceVar(&cfg.FeedRoots, "feed-root", nil, "with --at: directories of the change feed (default: \"feed\" in the data directory)")
	return cmd
}

// printAt tells what a restore to a time has done.
func (s *settings) printAt(at time.Time, r app.Restored) {
	if at.IsZero() {
		return
	}
	fmt.Fprintf(s.io.Err, "%d changes of objects since the backup were applied", r.Changes)
	if r.Changes > 0 {
		fmt.Fprintf(s.io.Err, ", the last of %s", r.LastChange.Local().Format(time.RFC3339Nano))
	}
	fmt.Fprintln(s.io.Err, "; all else is as in the backup")
	if !r.Complete {
		fmt.Fprintf(s.io.Err, "WARNING: no later change is known. What was changed until %s and was not yet in the feed that was read is missing.\n",
			at.Local().Format(time.RFC3339))
	}
}

func (s *settings) printRestored(r app.Restored) {
	w := s.io.Err
	fmt.Fprintf(w, "restored %d records of %s, then at revision %d; it goes on after revision %d\n",
		r.Records, r.Created.Local().Format(time.RFC3339), r.Revision, r.Base)
	for _, path := range r.Keys {
		fmt.Fprintf(w, "restored key file %s\n", path)
	}
	for _, path := range r.Kept {
		fmt.Fprintf(w, "kept what was there as %s\n", path)
	}
	if len(r.MissingKeys) > 0 {
		fmt.Fprintf(w, "WARNING: secrets are encrypted with keys that are not here (%s). Put the key file back as %s before you start the control plane.\n",
			strings.Join(r.MissingKeys, ", "), r.KeyFile)
	}
	if r.NoAuthority {
		fmt.Fprintln(w, "WARNING: the folder pki/ca is not here. Put it back before you start the control plane, or all agents must join again.")
	}
}

func newSecrets(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "secrets",
		GroupID: "operate",
		Short:   "Show and change the keys that encrypt Secrets",
	}
	cmd.AddCommand(newSecretsStatus(s), newSecretsRotate(s), newSecretsDiscard(s))
	return cmd
}

func newSecretsDiscard(s *settings) *cobra.Command {
	var namespace string
	var force bool
	cmd := &cobra.Command{
		Use:   "discard KIND NAME --force",
		Short: "Delete a Secret whose key is lost for good",
		Long: `Discard deletes a Secret or GlobalSecret that cannot be decrypted any more, because
its key is in no copy of the key file. An ordinary deletion reads what it deletes,
and so fails. "proxima secrets status" lists what is lost. A secret that can be
decrypted is refused.`,
		Example: "  proxima secrets discard secret db-password -n shop --force\n  proxima secrets discard globalsecret ca --force",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := findKind(args[0])
			if err != nil {
				return err
			}
			if !force {
				return &problem.Error{
					Code: problem.Usage,
					Err:  usagef("a discarded secret cannot be recovered: add --force"),
					Hint: "if there is a copy of the key file, put it back instead",
				}
			}
			object := args[1]
			if d.Namespaced {
				c, err := s.connect(namespace)
				if err != nil {
					return err
				}
				object = c.namespace + "/" + object
			}
			request := keyring.DiscardRequest{Resource: d.Resource, Object: object}
			if err := s.call(cmd.Context(), http.MethodPost, keyring.DiscardPath, request, &request); err != nil {
				return err
			}
			fmt.Fprintf(s.io.Out, "%s/%s discarded\n", d.Singular, args[1])
			return nil
		},
	}
	addNamespaceFlag(cmd.Flags(), &namespace)
	cmd.Flags().BoolVar(&force, "force", false, "required: confirms that the secret cannot be recovered")
	return cmd
}

func newSecretsStatus(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show which keys there are, and what needs them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var status keyring.Status
			if err := s.call(cmd.Context(), http.MethodGet, keyring.StatusPath, nil, &status); err != nil {
				return err
			}
			w := tabwriter.NewWriter(s.io.Out, 6, 4, 3, ' ', 0)
			fmt.Fprintln(w, "KEY\tSTATE\tRECORDS\tAGE")
			for _, k := range status.Keys {
				state, age := "old", "<unknown>"
				switch {
				case k.Encrypts:
					state = "encrypts"
				case k.Missing:
					state = "MISSING"
				}
				if !k.Created.IsZero() {
					age = duration.HumanDuration(time.Since(k.Created))
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", k.ID, state, k.Records, age)
			}
			for _, object := range status.Lost {
				fmt.Fprintf(s.io.Err, "its key is missing: %s\n", object)
			}
			for _, key := range status.Unreadable {
				fmt.Fprintf(s.io.Err, "not encrypted, or not in a form that is known: %s\n", key)
			}
			return w.Flush()
		},
	}
}

func newSecretsRotate(s *settings) *cobra.Command {
	var prune bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Encrypt all Secrets with a new key",
		Long: `Rotate creates a new key and encrypts every Secret again with it, while the control
plane runs. If it is interrupted, run it again: it continues where it stopped. Old keys
stay in the key file until --prune drops them, which it does when nothing in the
store needs them any more. Backups from before still do: keep a copy of the key
file for as long as you keep them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.rotate(cmd.Context()); err != nil {
				return err
			}
			if prune {
				return s.prune(cmd.Context())
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false, "then drop the old keys; waits for about a minute until requests with them have ended")
	return cmd
}

func (s *settings) rotate(ctx context.Context) error {
	var answer keyring.RotateAnswer
	for more := true; more; more = answer.More {
		request := keyring.RotateRequest{Continue: answer.More}
		answer = keyring.RotateAnswer{}
		if err := s.call(ctx, http.MethodPost, keyring.RotatePath, request, &answer); err != nil {
			return err
		}
		if n := answer.Status.Outdated(); n > 0 && answer.More {
			fmt.Fprintf(s.io.Err, "%d left\n", n)
		}
	}
	if n := answer.Status.Outdated(); n > 0 {
		return fmt.Errorf("%d records still need an old key: run it again, and see the control plane's log", n)
	}
	for _, k := range answer.Status.Keys {
		switch {
		case k.Encrypts:
			fmt.Fprintf(s.io.Err, "%d records are encrypted with key %s\n", k.Records, k.ID)
		case k.Missing:
			fmt.Fprintf(s.io.Err, "%d records are not: their key %s is missing\n", k.Records, k.ID)
		}
	}
	return nil
}

func (s *settings) prune(ctx context.Context) error {
	for {
		var answer keyring.PruneAnswer
		if err := s.call(ctx, http.MethodPost, keyring.PrunePath, nil, &answer); err != nil {
			return err
		}
		if answer.WaitSeconds == 0 {
			fmt.Fprintf(s.io.Err, "%d old keys dropped: %s\n", len(answer.Dropped), strings.Join(answer.Dropped, ", "))
			return nil
		}
		wait := time.Duration(answer.WaitSeconds) * time.Second
		fmt.Fprintf(s.io.Err, "waiting %s for requests that may use an old key\n", wait)
		if !backoff.Sleep(ctx, wait) {
			return errors.New("interrupted; the old keys are kept, run it again")
		}
	}
}
