// Package cli is the command line of Proxima: flags, configuration, printing.
//
// It owns what a person types and reads. Enter at Main. Long-running roles are
// wired in package app; commands that talk to a control plane are thin clients
// of its API. Data goes to stdout, everything else to stderr. Exit codes: 0 fine,
// 1 failed, 2 wrong usage; "run" passes the exit code of its command through.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/heuristic"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// IO is where a command reads and writes, and its environment.
type IO struct {
	In io.Reader
	// Out and Err. The log, and a command that run starts, may write to Err at the same
	// time: a writer that is not a file gets one write at a time.
	Out, Err io.Writer
	// Env looks up an environment variable, as os.LookupEnv does.
	Env func(name string) (value string, ok bool)
	// Name by which this program was started; empty: it may not be started again, as an agent does for a self-test.
	Name string
}

// Stdio is this process's standard input and outputs, its environment and its name.
func Stdio() IO {
	return IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Env: os.LookupEnv, Name: os.Args[0]}
}

// Main runs one command line and returns the exit code. The first SIGINT or
// SIGTERM ends a long-running command in good order; a second one ends the
// process at once.
func Main(args []string, stdio IO) int { return MainWith(args, stdio, nil) }

// MainWith is Main with heuristics that the program was built with.
func MainWith(args []string, stdio IO, heuristics heuristic.Set) int {
	if err := heuristics.Check(); err != nil {
		fmt.Fprintln(stdio.Err, "proxima:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	return execute(ctx, &settings{io: stdio, onLogger: adoptKlog, heuristics: heuristics}, args)
}

// serialWriter lets one writer at a time through.
type serialWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *serialWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// execute one command line, and return its exit code.
func execute(ctx context.Context, s *settings, args []string) int {
	if _, ok := s.io.Err.(*os.File); !ok {
		s.io.Err = &serialWriter{to: s.io.Err}
	}
	root := newRoot(s)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var code *exitError
	if errors.As(err, &code) {
		return code.code
	}
	s.printError(err)
	if p, _ := problem.Of(err); p.Code == problem.Usage {
		fmt.Fprintf(s.io.Err, "  see: %s --help\n", cmd.CommandPath())
		return 2
	}
	return 1
}

// printError prints an error with its hint and its code. Usage errors print no code:
// the exit status and the usage line say what they are.
func (s *settings) printError(err error) {
	fmt.Fprintln(s.io.Err, "proxima: "+err.Error())
	p, _ := problem.Of(err)
	if p.Hint != "" {
		fmt.Fprintln(s.io.Err, "  hint: "+p.Hint)
	}
	if p.Code != "" && p.Code != problem.Usage {
		fmt.Fprintln(s.io.Err, "  code: "+string(p.Code))
	}
}

// usagef makes the error of a mistake in the command line or in the configuration.
func usagef(format string, args ...any) error {
	return &problem.Error{Code: problem.Usage, Err: fmt.Errorf(format, args...)}
}

// exitError ends the program with a code and no further word.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// newRoot makes the whole command tree.
func newRoot(s *settings) *cobra.Command {
	root := &cobra.Command{
		Use:           "proxima",
		Short:         "Kubernetes Services for any set of machines",
		Long:          "Proxima gives any set of machines Kubernetes Services: virtual IPs and names,\nEndpointSlices, and routing that stays near.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true // newCompletion is ours
	root.SetIn(s.io.In)
	root.SetOut(s.io.Out)
	root.SetErr(s.io.Err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &problem.Error{Code: problem.Usage, Err: err} })
	s.addGlobalFlags(root)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if isCompletion(cmd) {
			return nil // the command that is being completed loads what it needs
		}
		return s.load(cmd)
	}
	root.AddGroup(
		&cobra.Group{ID: "roles", Title: "Run:"},
		&cobra.Group{ID: "objects", Title: "Objects:"},
		&cobra.Group{ID: "operate", Title: "Operate:"},
	)
	root.AddCommand(
		newUp(s), newControlPlane(s), newNode(s), newIngress(s), newEgress(s), newRun(s), newSidecar(s), newDemo(s),
		newGet(s), newApply(s), newDelete(s), newDescribe(s), newHistory(s), newConvert(s),
		newStatus(s), newTop(s), newConsole(s), newExplain(s), newTrace(s), newSimulate(s), newPlot(s), newRollout(s), newDoctor(s), newDocs(s), newToken(s), newZone(s), newProxy(s), newRegistry(s), newCompletion(s), newVersion(s),
		newBackup(s), newRestore(s), newSecrets(s), newAudit(s), newFeed(s),
		newInstall(s), newUninstall(s),
		newLab(s),
		newReference(s),
	)
	s.completeFlags(root)
	markUsage(root)
	return root
}

// unknownCommand of a group, with those that may have been meant.
func unknownCommand(group *cobra.Command, word string) error {
	err := usagef("unknown command %q for %q", word, group.CommandPath())
	// cobra's own limit: two letters off.
	group.SuggestionsMinimumDistance = 2
	if meant := group.SuggestionsFor(word); len(meant) > 0 {
		return &problem.Error{Code: problem.Usage, Err: err, Hint: "did you mean " + strings.Join(meant, " or ") + "?"}
	}
	return err
}

// markUsage makes every complaint about arguments a usage error, and groups of
// commands refuse unknown words.
func markUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return &problem.Error{Code: problem.Usage, Err: err, Hint: "usage: " + c.UseLine()}
			}
			return nil
		}
	}
	if cmd.HasSubCommands() && cmd.RunE == nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(c, args[0])
			}
			return c.Help()
		}
		cmd.Args = cobra.ArbitraryArgs // RunE complains, and suggests
	}
	for _, sub := range cmd.Commands() {
		markUsage(sub)
	}
}
