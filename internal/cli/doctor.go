package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/node/local"
	noderanges "github.com/proxima-mesh/proxima/internal/node/ranges"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// finding of the doctor: what was looked at, what is wrong with it (empty:
// nothing) and what to do.
type finding struct {
	Check   string `json:"check"`
	Problem string `json:"problem,omitempty"`
	Fix     string `json:"fix,omitempty"`
	Note    string `json:"note,omitempty"`
}

// doctorFlags say what to look at and what to do.
type doctorFlags struct {
	output    string
	fix, undo bool
	// dnsAddress takes the place of the agent's own.
	dnsAddress string
	// root of the file system that is looked at; only tests set it.
	root string
}

func newDoctor(s *settings) *cobra.Command {
	var d doctorFlags
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: "operate",
		Short:   "Look for what could go wrong on this machine, and say how to mend it",
		Long: `Doctor looks at this machine, at its agent and at the control plane that its
kubeconfig names, and changes nothing. It exits with 1 if it found a problem.

With --fix it points this machine's resolver at the agent, so that programs find
the names of Services; the agent takes that back when it ends, --undo does so at
once. Nothing else is changed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(d.output); err != nil {
				return err
			}
			if d.fix && d.undo {
				return usagef("--fix and --undo: choose one")
			}
			if d.undo {
				if err := s.undoResolver(cmd.Context(), d); err != nil {
					return err
				}
			}
			findings := s.examine(cmd.Context(), d)
			if d.output == "json" || d.output == "yaml" {
				if err := printValue(s.io.Out, findings, d.output); err != nil {
					return err
				}
			} else {
				printFindings(s.io.Out, findings)
			}
			for _, f := range findings {
				if f.Problem != "" {
					return &exitError{code: 1}
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	addOutputFlag(f, &d.output)
	f.BoolVar(&d.fix, "fix", false, "point this machine's resolver at the agent (needs root)")
	f.BoolVar(&d.undo, "undo", false, "take back what --fix did (needs root)")
	f.StringVar(&d.dnsAddress, "dns-address", "", "ADDRESS:PORT of the DNS server for --fix (default: that of this machine's agent)")
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

// examine looks at everything. What one check learns of the agent and of the
// control plane, later ones use.
func (s *settings) examine(ctx context.Context, d doctorFlags) []finding {
	findings := []finding{s.dataDirectory(), s.privateFiles(), openFiles(), lowPorts()}
	cfg, _, configErr := s.restConfig()
	var server finding
	var plane []finding
	var ranges []netip.Prefix
	answer := s.meanwhile(ctx, func(ctx context.Context) {
		if server = s.server(ctx, cfg, configErr); server.Problem == "" {
			ranges = s.serviceRanges(ctx)
			plane = planeState(ctx, cfg)
		}
	})
	if isNoKubeconfig(configErr) && answer.api() != "" {
		server = finding{Check: "control plane " + answer.api(), Note: "on another machine, and no kubeconfig here: what follows is what the agent knows"}
	}
	if ranges == nil {
		ranges, _ = noderanges.Read(filepath.Join(s.dataDir, "node")) // none, or another user's
	}
	agent := answer.status
	findings = append(append(findings, server), append(plane, s.agentState(answer))...)
	if agent != nil {
		findings = append(findings, unsavedState(agent))
	}
	findings = append(findings, credentialFindings(ctx, agent)...)
	if !answer.hung() { // it has ports, which its process may share with a control plane
		findings = append(findings, portsFree(server.Problem != "", answer.absent())...)
	}
	if answer.hung() {
		findings = append(findings, finding{Check: resolverCheck, Note: "not looked at: this machine's agent does not answer"})
	} else {
		findings = append(findings, s.resolver(ctx, d, agent, ranges))
	}
	findings = append(findings, rangeFindings(ranges, agent)...)
	findings = append(findings, s.kernelFindings(ctx, d, agent)...)
	return append(findings, otherProxies(ctx, d.root), kernelModes(d.root))
}

// planeState is about the store of a control plane, and about machines that are gone, or
// may be; none for an API that is not Proxima's, or that does not let this user ask.
func planeState(ctx context.Context, cfg *rest.Config) []finding {
	var status admin.Status
	if err := callJSON(ctx, cfg, http.MethodGet, admin.StatusPath, nil, &status); err != nil {
		return nil
	}
	f := finding{Check: "store of the control plane", Note: status.Store.Name + ", can be written"}
	if status.Store.Problem != "" {
		f.Note, f.Problem = "", status.Store.Problem
		f.Fix = fixDisk + "; reads go on, and writes are refused until then"
	}
	return []finding{f, auditState(status.Audit), machineFinding(finding{Check: "machines"}, &status, time.Now())}
}

// unsavedState is about the files that the agent needs for its next start.
func unsavedState(agent *admin.NodeStatus) finding {
	f := finding{Check: "agent's state on disk"}
	if len(agent.Unsaved) == 0 {
		f.Note = "saved"
		return f
	}
	var problems []string
	for _, u := range agent.Unsaved {
		problems = append(problems, fmt.Sprintf("%s cannot be written since %s: %s", u.File, u.Since.Local().Format(time.DateTime), u.Error))
	}
	f.Problem = strings.Join(problems, "; ")
	f.Fix = fixDisk + "; the agent serves from memory, and a restart would begin with what is on disk"
	return f
}

// agentState is what this machine's agent says of itself.
func (s *settings) agentState(answer agentAnswer) finding {
	f := finding{Check: "agent"}
	agent := answer.status
	var denied *local.DeniedError
	switch {
	case answer.absent() && answer.joined != nil:
		f.Problem, f.Fix = "it is not running, though it has joined "+answer.joined.Server, "start it with "+answer.startCommand()
	case answer.absent():
		f.Note = "none with data directory " + s.dataDir + " runs on this machine; --data-dir names another one"
	case errors.As(answer.err, &denied):
		f.Note = answer.err.Error() + ": " + denied.Hint()
	case answer.err != nil:
		f.Problem, f.Fix = answer.err.Error(), problem.HintOf(answer.err, "see its log")
	case agent.Cluster != nil:
		f.Note = "mode " + agent.Agent.Mode + ", following a Kubernetes API"
	case agent.View == nil || !agent.View.Connected:
		f.Problem = "it has no connection to the control plane, and serves by the last state it was told"
		f.Fix = "see its log; is the control plane's port for node views (6444) reachable from here?"
	default:
		f.Note = "mode " + agent.Agent.Mode + ", connected"
	}
	return f
}

// privateFiles: keys, tokens and state are for this user alone.
func (s *settings) privateFiles() finding {
	f := finding{Check: "permissions of the data directory"}
	if runtime.GOOS == "windows" {
		f.Note = "not looked at on this system"
		return f
	}
	var open []string
	for _, name := range []string{"", "pki", "tokens", "node", "kubeconfig", "store.db", "keys"} {
		path := filepath.Join(s.dataDir, name)
		info, err := os.Stat(path)
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			open = append(open, fmt.Sprintf("%s (%04o)", path, info.Mode().Perm()))
		}
	}
	// What lies in a private directory nobody else gets to, whatever its own mode.
	if info, err := os.Stat(s.dataDir); err != nil || info.Mode().Perm()&0o077 == 0 || len(open) == 0 {
		return f
	}
	f.Problem = "others can get at " + strings.Join(open, ", ")
	f.Fix = "chmod -R go= " + s.dataDir
	return f
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
func (s *settings) server(ctx context.Context, cfg *rest.Config, err error) finding {
	f := finding{Check: "control plane"}
	if err != nil {
		f.Problem, f.Fix = err.Error(), problem.HintOf(err, "check the kubeconfig")
		return f
	}
	f.Check += " " + cfg.Host
	cfg.Timeout = 5 * time.Second
	var info version.Info
	before := time.Now()
	date, err := getJSON(ctx, cfg, "/version", &info)
	if err != nil && context.Cause(ctx) != nil {
		f.Problem, f.Fix = "it does not answer", "this machine's agent does not either: are they one process (\"proxima up\") that was stopped?"
		return f
	}
	if err = explainAPI(cfg, err); err != nil {
		f.Problem, f.Fix = err.Error(), problem.HintOf(err, "see the control plane's log")
		return f
	}
	f.Note = info.GitVersion
	if skew := date.Sub(before); !date.IsZero() && (skew > time.Minute || skew < -time.Minute) {
		f.Problem = fmt.Sprintf("its clock differs from this machine's by %s", skew.Round(time.Second))
		f.Fix = "set both clocks, best by NTP: leases and certificates are judged by them"
	}
	return f
}

// portsFree looks at the ports that "proxima up" would take: those of a control
// plane if none answers, those of an agent if none is here.
func portsFree(plane, agent bool) []finding {
	var findings []finding
	for _, p := range []struct {
		flag string
		port int
		ask  bool
	}{
		{"--api-address", 6443, plane}, {"--grpc-port", defaultGRPCPort, plane},
		{"--health-port", defaultHealthPort, agent}, {"--metrics-port", defaultMetricsPort, agent},
		{"--dns-port", app.DefaultDNSPort(os.Geteuid() == 0), agent},
	} {
		if !p.ask {
			continue
		}
		f := finding{Check: fmt.Sprintf("port %d", p.port), Note: "free"}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)))
		if err == nil {
			l.Close()
		} else if errors.Is(err, syscall.EADDRINUSE) {
			f.Problem = "it is in use by another program, or by an agent with another data directory"
			f.Fix = "stop that program, or choose another port with " + p.flag + "; --data-dir names the agent's data directory"
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
