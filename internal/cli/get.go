package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

type getFlags struct {
	namespace     string
	allNamespaces bool
	selector      string
	output        string
}

func newGet(s *settings) *cobra.Command {
	var g getFlags
	cmd := &cobra.Command{
		Use:     "get KIND [NAME]",
		GroupID: "objects",
		Short:   "List objects, or show one",
		Example: "  proxima get services\n  proxima get endpointslices -A -o wide\n  proxima get dataplane web-1 -o yaml",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.get(cmd, g, args)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return kindNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f := cmd.Flags()
	f.StringVarP(&g.namespace, "namespace", "n", "", "namespace (default: the kubeconfig's, else default)")
	f.BoolVarP(&g.allNamespaces, "all-namespaces", "A", false, "all namespaces")
	f.StringVarP(&g.selector, "selector", "l", "", "labels to select by, as in app=web,tier!=db")
	f.StringVarP(&g.output, "output", "o", "table", "table, wide, json or yaml")
	return cmd
}

func (s *settings) get(cmd *cobra.Command, g getFlags, args []string) error {
	if !slices.Contains([]string{"table", "wide", "json", "yaml"}, g.output) {
		return usagef("-o %q: choose table, wide, json or yaml", g.output)
	}
	if _, err := labels.Parse(g.selector); err != nil {
		return usagef("-l %q: %w", g.selector, err)
	}
	if len(args) == 2 && (g.selector != "" || g.allNamespaces) {
		return usagef("a name goes with neither -l nor -A")
	}
	d, err := findKind(args[0])
	if err != nil {
		return err
	}
	cfg, namespace, err := s.restConfig()
	if err != nil {
		return err
	}
	if g.namespace != "" {
		namespace = g.namespace
	}
	req, err := rawRequest(cfg, d)
	if err != nil {
		return err
	}
	req.Resource(d.Resource).NamespaceIfScoped(namespace, d.Namespaced && !g.allNamespaces)
	if len(args) == 2 {
		req.Name(args[1])
	}
	if g.selector != "" {
		req.Param("labelSelector", g.selector)
	}
	asTable := g.output == "table" || g.output == "wide"
	if asTable {
		req.SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	}
	body, err := req.DoRaw(cmd.Context())
	if err != nil {
		return explainAPI(cfg, err)
	}
	if asTable {
		var table metav1.Table
		if err := json.Unmarshal(body, &table); err != nil {
			return fmt.Errorf("the server's table can't be read: %w", err)
		}
		if len(table.Rows) == 0 {
			fmt.Fprintln(s.io.Err, nothingFound(d, namespace, g.allNamespaces))
			return nil
		}
		return printTable(s.io.Out, &table, g.output == "wide", d.Namespaced && g.allNamespaces)
	}
	return printObject(s.io.Out, body, g.output)
}

func nothingFound(d *resource.Descriptor, namespace string, all bool) string {
	if !d.Namespaced || all {
		return "No " + d.Resource + " found."
	}
	return fmt.Sprintf("No %s found in namespace %s.", d.Resource, namespace)
}

// rawRequest starts a GET of the kind's group version whose body is read as is.
func rawRequest(cfg *rest.Config, d *resource.Descriptor) (*rest.Request, error) {
	gv := d.Kind.GroupVersion()
	own := rest.CopyConfig(cfg)
	own.GroupVersion = &gv
	own.APIPath = "/apis"
	if gv.Group == "" {
		own.APIPath = "/api"
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, err
	}
	return client.Verb(http.MethodGet), nil
}

// findKind by plural, singular or short name, with the group behind a dot where
// several kinds share a name (events.events.k8s.io).
func findKind(word string) (*resource.Descriptor, error) {
	name, group, _ := strings.Cut(strings.ToLower(word), ".")
	for _, d := range kind.All() {
		if group != "" && group != d.Kind.Group {
			continue
		}
		if name == d.Resource || name == d.Singular || slices.Contains(d.ShortNames, name) {
			return d, nil
		}
	}
	return nil, &hintError{
		err:  usagef("unknown kind %q", word),
		hint: "known kinds: " + strings.Join(kindNames(), ", "),
	}
}

func kindNames() []string {
	var names []string
	for _, d := range kind.All() {
		if !slices.Contains(names, d.Resource) {
			names = append(names, d.Resource)
		}
	}
	slices.Sort(names)
	return names
}

var errNotJSON = errors.New("the server's answer is not JSON")

func toYAML(body []byte) ([]byte, error) {
	out, err := yaml.JSONToYAML(body)
	if err != nil {
		return nil, errors.Join(errNotJSON, err)
	}
	return out, nil
}
