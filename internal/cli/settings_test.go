package cli

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// environment of a command line under test.
type environment map[string]string

func (e environment) lookup(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

// parsed parses a command line and loads its settings, without running it, and
// returns the values of its flags.
func parsed(t *testing.T, env environment, args ...string) (map[string]string, error) {
	t.Helper()
	s := &settings{io: IO{In: strings.NewReader(""), Out: new(bytes.Buffer), Err: new(bytes.Buffer), Env: env.lookup}}
	root := newRoot(s)
	var values map[string]string
	eachCommand(root, func(cmd *cobra.Command) {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			values = map[string]string{}
			cmd.Flags().VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
			return nil
		}
	})
	root.SetArgs(args)
	return values, root.ExecuteContext(context.Background())
}

// commandLines of every command, hidden ones too.
func commandLines(t *testing.T) [][]string {
	t.Helper()
	var lines [][]string
	eachCommand(newRoot(&settings{}), func(cmd *cobra.Command) {
		lines = append(lines, strings.Fields(cmd.CommandPath())[1:])
	})
	if len(lines) < 15 {
		t.Fatalf("only %d commands", len(lines))
	}
	return lines
}

func writeConfig(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sample values, by the type of a flag, other than any default.
func sample(f *pflag.Flag) string {
	switch f.Name {
	case "log-level":
		return "debug"
	case "log-format":
		return "json"
	}
	switch f.Value.Type() {
	case "bool":
		return fmt.Sprint(f.DefValue != "true")
	case "int", "int32", "int64":
		return "4242"
	case "duration":
		return "42s"
	case "float64":
		return "0.42"
	}
	return "forty-two"
}

func TestEveryFlagHasAVariable(t *testing.T) {
	for _, line := range commandLines(t) {
		want, err := parsed(t, nil, line...)
		if err != nil {
			t.Fatal(line, err)
		}
		env := environment{}
		cmd, _, err := newRoot(&settings{}).Find(line)
		if err != nil {
			t.Fatal(line, err)
		}
		visitAll(cmd, func(f *pflag.Flag) {
			if !configurable(f) || f.Name == "config" {
				return
			}
			value := sample(f)
			env[envName(f.Name)], want[f.Name] = value, value
			if _, list := f.Value.(pflag.SliceValue); list {
				want[f.Name] = "[" + value + "]"
			}
		})
		got, err := parsed(t, env, line...)
		if err != nil {
			t.Fatal(line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: %s", line, diff)
		}
	}
}

func visitAll(cmd *cobra.Command, visit func(*pflag.Flag)) {
	cmd.LocalFlags().VisitAll(visit)
	cmd.InheritedFlags().VisitAll(visit)
}

func TestPrecedence(t *testing.T) {
	config := writeConfig(t, "node-name: of-file\nzone: of-file\nmode: of-file\nservice-cidr: [10.0.0.0/16, 'fd00::/108']\ngrpc-port: 7\nrole: \"not ours\"\n")
	got, err := parsed(t, environment{"PROXIMA_CONFIG": config, "PROXIMA_NODE_NAME": "of-environment", "PROXIMA_ZONE": "of-environment", "PROXIMA_GRPC_PORT": ""},
		"up", "--node-name", "of-flag")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"node-name": "of-flag", "zone": "of-environment", "mode": "of-file",
		"service-cidr": "[10.0.0.0/16,fd00::/108]", "grpc-port": "7", "health-port": "10256",
	}
	maps.DeleteFunc(got, func(name, _ string) bool { return want[name] == "" })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSettingsThatAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		env    environment
		config string
		want   string
	}{
		"unknown key":         {config: "grpc-prot: 1\n", want: `unknown setting "grpc-prot"`},
		"key of no file":      {config: "config: a.yaml\n", want: `unknown setting "config"`},
		"help":                {config: "help: true\n", want: `unknown setting "help"`},
		"wrong type":          {config: "grpc-port: many\n", want: "grpc-port: "},
		"list for a value":    {config: "zone: [a, b]\n", want: "zone: takes one value, not a list"},
		"mapping":             {config: "zone: {a: b}\n", want: "zone: takes a value, not a mapping"},
		"number for text":     {config: "zone: 1.10\n", want: "zone: takes text: write 1.1 in quotes"},
		"boolean for text":    {config: "zone: off\n", want: "zone: takes text: write false in quotes"},
		"key twice":           {config: "zone: a\nzone: b\n", want: `key "zone" already set`},
		"no YAML":             {config: "zone: [\n", want: "did not find"},
		"no mapping":          {config: "- zone\n", want: "cannot unmarshal"},
		"variable":            {env: environment{"PROXIMA_GRPC_PORT": "many"}, want: "environment variable PROXIMA_GRPC_PORT: "},
		"log level":           {env: environment{"PROXIMA_LOG_LEVEL": "loud"}, want: `--log-level "loud": choose debug, info, warn or error`},
		"log format":          {env: environment{"PROXIMA_LOG_FORMAT": "xml"}, want: `--log-format "xml": choose text or json`},
		"no file":             {env: environment{"PROXIMA_CONFIG": "/nonexistent/config"}, want: "there is no such file"},
		"option of a mode":    {env: environment{"PROXIMA_EBPF_HOST_ONLY": "true"}, want: "--ebpf-host-only goes with --mode ebpf"},
		"two wrong variables": {env: environment{"PROXIMA_GRPC_PORT": "a", "PROXIMA_HEALTH_PORT": "b"}, want: "PROXIMA_HEALTH_PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"up"}
			if tc.config != "" {
				args = append(args, "--config", writeConfig(t, tc.config))
			}
			var out, errs bytes.Buffer
			code := execute(t.Context(), &settings{io: IO{Out: &out, Err: &errs, Env: tc.env.lookup}}, args)
			if code != 2 || !strings.Contains(errs.String(), tc.want) || out.Len() > 0 {
				t.Errorf("exit code %d, stdout %q, stderr %q; want 2, nothing, %q", code, &out, &errs, tc.want)
			}
		})
	}
}

func TestEmptySettingsLeaveDefaults(t *testing.T) {
	got, err := parsed(t, nil, "up", "--config", writeConfig(t, "grpc-port:\nservice-cidr: []\n# nothing\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got["grpc-port"] != "6444" || got["service-cidr"] != "[]" {
		t.Errorf("got grpc-port %s, service-cidr %s", got["grpc-port"], got["service-cidr"])
	}
}

func TestDataDirectory(t *testing.T) {
	s := &settings{io: IO{Env: environment{"XDG_DATA_HOME": "/data"}.lookup}}
	want := filepath.Join("/data", "proxima")
	if os.Geteuid() == 0 {
		want = "/var/lib/proxima"
	}
	if got := s.defaultDataDir(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFindKind(t *testing.T) {
	for word, want := range map[string]string{
		"services": "v1/Service", "svc": "v1/Service", "Service": "v1/Service", "events": "v1/Event",
		"events.events.k8s.io": "events.k8s.io/v1/Event", "dps": "mesh.proxima.dev/v1alpha1/Dataplane",
		"endpointslices.discovery.k8s.io": "discovery.k8s.io/v1/EndpointSlice",
	} {
		d, err := findKind(word)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := d.GVK.GroupVersion().String() + "/" + d.GVK.Kind; got != want {
			t.Errorf("%s: got %s, want %s", word, got, want)
		}
	}
	if !slices.IsSorted(kindNames()) {
		t.Error("kind names are not in order")
	}
}
