package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
)

func newInstall(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "install",
		GroupID: "operate",
		Short:   "Print what is installed into a Kubernetes cluster",
	}
	cmd.AddCommand(newInstallKubernetes(s), newInstallProgram())
	return cmd
}

// newInstallProgram is for the init container of gateways whose container is of an image of Envoy.
func newInstallProgram() *cobra.Command {
	return &cobra.Command{
		Use:    "program PATH",
		Short:  "Copy this program to a path, so that it runs in the container of another image",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := installProgram(args[0]); err != nil {
				return fmt.Errorf("install this program: %w", err)
			}
			return nil
		},
	}
}

// installProgram copies this program to a path. What is there is replaced.
func installProgram(to string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer from.Close()
	part, err := os.OpenFile(to+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(part, from)
	if err = errors.Join(err, part.Chmod(0o755), part.Close()); err != nil {
		return err
	}
	return os.Rename(to+".part", to)
}

func newInstallKubernetes(s *settings) *cobra.Command {
	var o manifests.Options
	var values string
	cmd := &cobra.Command{
		Use:   "kubernetes",
		Short: "Print the manifests of a preset, for kubectl apply",
		Long: `Kubernetes prints the manifests by which Proxima runs in a cluster. It changes
nothing and asks no cluster. The Helm chart deploy/helm/proxima renders the same.

Presets:
  planner-only            observes, explains and simulates what a plan would save,
                          beside kube-proxy. It reads, and changes nothing
  kube-proxy-replacement  agents in kube-proxy's place, which follow the planner
  zone                    the same, and the cluster is one zone of several
  global                  the control plane of the zones

"proxima docs reference/chart-values" lists the values, and
"proxima docs reference/permissions" the permissions of each preset, with their
reasons.`,
		Example: "  proxima install kubernetes | kubectl apply -f -\n" +
			"  proxima install kubernetes --preset kube-proxy-replacement --set apiServer=https://10.0.0.1:6443 | kubectl apply --server-side -f -",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if values != "" {
				text, err := os.ReadFile(values)
				if err != nil {
					return fmt.Errorf("--values: %w", err)
				}
				o.Values = text
			}
			o.Set = append([]string{"createNamespace=true"}, o.Set...)
			objects, err := manifests.Render(o)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(s.io.Out, manifests.Join(objects))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Preset, "preset", "", "what is installed: planner-only, kube-proxy-replacement, zone or global (default: that of the values, else planner-only)")
	f.StringArrayVar(&o.Set, "set", nil, "a value, as PATH=VALUE, as in image.tag=v1.0.0; may be repeated")
	f.StringVar(&values, "values", "", "file with values, as YAML; --set goes before it")
	return cmd
}

func newUninstall(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "uninstall",
		GroupID: "operate",
		Short:   "Print what is to be deleted from a Kubernetes cluster",
	}
	cmd.AddCommand(newUninstallKubernetes(s))
	return cmd
}

func newUninstallKubernetes(s *settings) *cobra.Command {
	var definitions bool
	cmd := &cobra.Command{
		Use:   "kubernetes",
		Short: "Print the objects of all presets, for kubectl delete",
		Long: `Kubernetes prints the names of everything that "proxima install kubernetes" prints,
whatever the preset. It changes nothing and asks no cluster.

The CustomResourceDefinitions stay, unless --crds is given: with a definition, all
objects of its kind are deleted. Where agents took kube-proxy's place, put it back
first: an agent that ends leaves its rules, so that traffic flows, and
"proxima node --cleanup" removes them on the node.`,
		Example: "  proxima uninstall kubernetes | kubectl delete --ignore-not-found -f -\n" +
			"  proxima uninstall kubernetes --crds | kubectl delete --ignore-not-found -f -",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			objects, err := manifests.Removal(definitions)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(s.io.Out, manifests.Join(objects))
			return err
		},
	}
	cmd.Flags().BoolVar(&definitions, "crds", false, "also the CustomResourceDefinitions, and with them all objects of Proxima's kinds")
	return cmd
}
