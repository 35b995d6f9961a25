package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/heuristic"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// settings are what all commands share.
type settings struct {
	io IO
	// onLogger is called with the logger that the flags configure; may be nil.
	onLogger   func(*slog.Logger)
	heuristics heuristic.Set // of a program of one's own; nil: none
	configFile string
	kubeconfig string
	dataDir    string
	logLevel   string
	logFormat  string
}

func (s *settings) addGlobalFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(&s.configFile, "config", "", "file with defaults for all flags (YAML, flag: value)")
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig of the API to talk to (default: $KUBECONFIG, then the data directory's)")
	f.StringVar(&s.dataDir, "data-dir", "", "directory for everything that must survive a restart (default: /var/lib/proxima for root, else proxima in $XDG_DATA_HOME or ~/.local/share)")
	f.StringVar(&s.logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// defaultDataDir follows the file system hierarchy for root and the XDG
// directories for other users.
func (s *settings) defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/proxima"
	}
	if dir, _ := s.io.Env("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "proxima")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "proxima")
	}
	// Without HOME, as of some services. A directory for files of all users is none for keys.
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) && u.HomeDir != "/" {
		return filepath.Join(u.HomeDir, ".local", "share", "proxima")
	}
	return noHome
}

// noHome is what users without a home directory have in Debian: nothing is found there, and nothing can be
// made, so what needs a data directory says so, and what needs none works.
const noHome = "/nonexistent/proxima"

// load fills flags that the command line left alone: from the environment, then
// from the configuration file.
func (s *settings) load(cmd *cobra.Command) error {
	if err := s.fromEnvironment(cmd.Flags()); err != nil {
		return err
	}
	if s.configFile != "" {
		if err := fromFile(cmd, s.configFile); err != nil {
			return err
		}
	}
	if s.dataDir == "" {
		s.dataDir = s.defaultDataDir()
	}
	log, err := s.logger()
	if err != nil {
		return err
	}
	if s.onLogger != nil {
		s.onLogger(log)
	}
	return nil
}

// envName of a flag: PROXIMA_ and the name in capitals.
func envName(flag string) string {
	return "PROXIMA_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets flags that the command line left alone. An empty
// variable counts as absent, as unsetting one is not possible everywhere.
func (s *settings) fromEnvironment(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value, _ := s.io.Env(envName(f.Name))
		if value == "" || f.Changed || !configurable(f) {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, usagef("environment variable %s: %w", envName(f.Name), err))
		}
	})
	return errors.Join(errs...)
}

// fromFile reads defaults. A key that no command has is a mistake; a key of
// another command is not this one's business.
func fromFile(cmd *cobra.Command, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return usagef("--config %s: there is no such file", path)
		}
		return fmt.Errorf("--config: %w", err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(data, &values); err != nil {
		return usagef("--config %s: %w", path, err)
	}
	known := allFlags(cmd.Root())
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if _, ok := known[key]; !ok || key == "config" {
			return &problem.Error{
				Code: problem.Usage,
				Err:  usagef("--config %s: unknown setting %q", path, key),
				Hint: "settings are named like flags, without the dashes in front: docs/reference/proxima.yaml has them all",
			}
		}
		f := cmd.Flags().Lookup(key)
		if f == nil || f.Changed || !configurable(f) {
			continue
		}
		if err := setValue(cmd.Flags(), f, values[key]); err != nil {
			return usagef("--config %s: %s: %w", path, key, err)
		}
	}
	return nil
}

// setValue of a flag; a setting without a value leaves the flag alone.
func setValue(flags *pflag.FlagSet, f *pflag.Flag, value any) error {
	var items []any
	switch v := value.(type) {
	case nil:
		return nil
	case map[string]any:
		return errors.New("takes a value, not a mapping")
	case []any:
		if _, many := f.Value.(pflag.SliceValue); !many {
			return errors.New("takes one value, not a list")
		}
		items = v
	default:
		items = []any{v}
	}
	for _, item := range items {
		_, text := item.(string)
		if typ := f.Value.Type(); !text && (typ == "string" || typ == "stringSlice" || typ == "stringArray") {
			// 1.10 would come out as 1.1, and off as false.
			return fmt.Errorf("takes text: write %v in quotes", item)
		}
		if err := flags.Set(f.Name, fmt.Sprint(item)); err != nil {
			return err
		}
	}
	return nil
}

// configurable reports whether a flag can be set other than on the command line.
func configurable(f *pflag.Flag) bool {
	_, only := f.Annotations[commandLineOnly]
	return f.Name != "help" && !only
}

// commandLineOnly annotates a flag with a name that means something else to another command:
// in a configuration file and in the environment there is one meaning for a name.
const commandLineOnly = "command-line-only"

// allFlags of all commands, by name.
func allFlags(root *cobra.Command) map[string]*pflag.Flag {
	known := map[string]*pflag.Flag{}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if configurable(f) {
				known[f.Name] = f
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	return known
}

// logger writes to stderr as the flags say.
func (s *settings) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, usagef("--log-level %q: choose debug, info, warn or error", s.logLevel)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch s.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(s.io.Err, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(s.io.Err, opts)), nil
	}
	return nil, usagef("--log-format %q: choose text or json", s.logFormat)
}
