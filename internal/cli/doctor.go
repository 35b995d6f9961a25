package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/version"
)

// finding of the doctor: what was looked at, what is wrong with it (empty:
// nothing) and what to do.
type finding struct {
	Check   string `json:"check"`
	Problem string `json:"problem,omitempty"`
	Fix     string `json:"fix,omitempty"`
	Note    string `json:"note,omitempty"`
}

func newDoctor(s *settings) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: "operate",
		Short:   "Look for what could go wrong on this machine, and say how to mend it",
		Long:    "Doctor looks at this machine and at the control plane that its kubeconfig names,\nand changes nothing. It exits with 1 if it found a problem.",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := s.examine(cmd.Context())
			switch output {
			case "json", "yaml":
				if err := printValue(s.io.Out, findings, output); err != nil {
					return err
				}
			case "table", "wide":
				printFindings(s.io.Out, findings)
			default:
				return usagef("-o %q: choose table, wide, json or yaml", output)
			}
			for _, f := range findings {
				if f.Problem != "" {
					return &exitError{code: 1}
				}
			}
			return nil
		},
	}
	addOutputFlag(cmd.Flags(), &output)
	return cmd
}

func printFindings(out io.Writer, findings []finding) {
	for _, f := range findings {
		if f.Problem == "" {
			fmt.Fprintf(out, "ok       %s%s\n", f.Check, prefixed(": ", f.Note))
			continue
		}
		fmt.Fprintf(out, "problem  %s: %s\n         fix: %s\n", f.Check, f.Problem, f.Fix)
	}
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func (s *settings) examine(ctx context.Context) []finding {
	findings := []finding{s.dataDirectory(), openFiles(), lowPorts()}
	server := s.server(ctx)
	findings = append(findings, server)
	if server.Problem != "" {
		findings = append(findings, portsFree()...)
	}
	return findings
}

// dataDirectory must be writable, or makeable, and have room.
func (s *settings) dataDirectory() finding {
	f := finding{Check: "data directory " + s.dataDir}
	dir := s.dataDir
	for {
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			f.Problem, f.Fix = dir+" is not a directory", "choose another --data-dir"
			return f
		}
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			f.Problem, f.Fix = err.Error(), "choose a --data-dir that this user can read"
			return f
		}
		dir = filepath.Dir(dir)
	}
	if err := writable(dir); err != nil {
		f.Problem, f.Fix = fmt.Sprintf("%s can't be written: %v", dir, err), "choose a --data-dir that this user can write to"
		return f
	}
	const enough = 256 << 20
	if free, ok := freeBytes(dir); ok && free < enough {
		f.Problem = fmt.Sprintf("only %d MB are free", free>>20)
		f.Fix = "make room: writes are refused, and nothing is lost, when the disk is full"
	}
	return f
}

// openFiles: each proxied connection takes up to six descriptors.
func openFiles() finding {
	f := finding{Check: "limit of open files"}
	limit, ok := openFileLimit()
	if !ok {
		f.Note = "not limited here"
		return f
	}
	f.Note = strconv.FormatUint(limit, 10)
	if limit < 4096 {
		f.Problem = fmt.Sprintf("%d: the userspace mode carries about %d connections at a time", limit, limit/4)
		f.Fix = "raise it with ulimit -n, or LimitNOFILE= in a unit file"
	}
	return f
}

// lowPorts tells which service ports this user can listen on.
func lowPorts() finding {
	f := finding{Check: "ports below 1024"}
	first, ok := firstFreePort()
	switch {
	case os.Geteuid() == 0 || (ok && first <= 1):
		f.Note = "can be served"
	case ok:
		f.Note = fmt.Sprintf("service ports below %d can't be served by this user; use higher ones, or run as root", first)
	default:
		f.Note = "may need privileges"
	}
	return f
}

// server is the control plane that the kubeconfig names: reachable, and of the
// same mind about the time.
func (s *settings) server(ctx context.Context) finding {
	f := finding{Check: "control plane"}
	cfg, _, err := s.restConfig()
	if err != nil {
		f.Problem, f.Fix = err.Error(), hintOr(err, "check the kubeconfig")
		return f
	}
	f.Check += " " + cfg.Host
	cfg.Timeout = 5 * time.Second
	var info version.Info
	before := time.Now()
	date, err := getJSON(ctx, cfg, "/version", &info)
	if err = explainAPI(cfg, err); err != nil {
		f.Problem, f.Fix = err.Error(), hintOr(err, "see the control plane's log")
		return f
	}
	f.Note = info.GitVersion
	if skew := date.Sub(before); !date.IsZero() && (skew > time.Minute || skew < -time.Minute) {
		f.Problem = fmt.Sprintf("its clock differs from this machine's by %s", skew.Round(time.Second))
		f.Fix = "set both clocks, best by NTP: leases and certificates are judged by them"
	}
	return f
}

func hintOr(err error, otherwise string) string {
	var h hinter
	if errors.As(err, &h) {
		return h.Hint()
	}
	return otherwise
}

// portsFree looks at the ports that "proxima up" would take.
func portsFree() []finding {
	var findings []finding
	for _, p := range []struct {
		flag string
		port int
	}{
		{"--api-address", 6443}, {"--grpc-port", defaultGRPCPort},
		{"--health-port", defaultHealthPort}, {"--metrics-port", defaultMetricsPort},
	} {
		f := finding{Check: fmt.Sprintf("port %d", p.port), Note: "free"}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)))
		if err == nil {
			l.Close()
		} else if errors.Is(err, syscall.EADDRINUSE) {
			f.Problem, f.Fix = "another program listens on it", "stop that program, or choose another port with "+p.flag
		} else {
			f.Problem, f.Fix = err.Error(), "choose another port with "+p.flag
		}
		findings = append(findings, f)
	}
	return findings
}

func writable(dir string) error {
	f, err := os.CreateTemp(dir, ".proxima-doctor-*")
	if err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			return pathErr.Err
		}
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// procUint reads one number of a file under /proc.
func procUint(path string) (uint64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}
