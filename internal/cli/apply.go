package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/cli/manifest"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// fieldManager is the name by which the server notes what apply set.
const fieldManager = "proxima"

type applyFlags struct {
	namespace string
	files     []string
	force     bool
	dryRun    string
}

func newApply(s *settings) *cobra.Command {
	var a applyFlags
	cmd := &cobra.Command{
		Use:     "apply -f FILE|DIR|-",
		GroupID: "objects",
		Short:   "Make objects as files describe them",
		Long: `Apply makes the objects that files describe, or changes those that exist, by
server-side apply: fields that a file does not mention stay as they are, and
fields that another client set are not taken over silently. If a file can't be
read or parsed, nothing is applied. If the server refuses an object, the others
are applied all the same, and the exit code is 1.`,
		Example: "  proxima apply -f web.yaml\n  proxima apply -f deploy/ --dry-run=server\n  proxima get service web -o yaml | proxima apply -n copy -f -",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("files are given by -f, as in -f %s", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return s.apply(cmd.Context(), a) },
	}
	f := cmd.Flags()
	addNamespaceFlag(f, &a.namespace)
	addFilesFlag(f, &a.files)
	f.BoolVar(&a.force, "force-conflicts", false, "take over fields that another client set")
	f.StringVar(&a.dryRun, "dry-run", "none", "none; or server: let the server check everything and store nothing")
	return cmd
}

func (s *settings) apply(ctx context.Context, a applyFlags) error {
	if len(a.files) == 0 {
		return usagef("-f is needed: a file, a directory, or - for standard input")
	}
	if a.dryRun != "none" && a.dryRun != "server" {
		return usagef("--dry-run %q: choose none or server", a.dryRun)
	}
	c, err := s.connect(a.namespace)
	if err != nil {
		return err
	}
	objects, err := s.readObjects(a.files, c.namespace, a.namespace != "")
	if err != nil {
		return fmt.Errorf("nothing was applied:\n%w", err)
	}
	// What lives in a namespace needs it first.
	slices.SortStableFunc(objects, func(x, y placed) int { return boolToInt(y.isNamespace()) - boolToInt(x.isNamespace()) })
	return s.each(c, objects, "applied", func(o placed) error {
		outcome, err := c.apply(ctx, o, a)
		if err != nil {
			return explainApply(err)
		}
		if a.dryRun == "server" {
			outcome += " (dry run)"
		}
		fmt.Fprintf(s.io.Out, "%s %s\n", o.title(c), outcome)
		return nil
	})
}

// placed is an object of a file, with where it belongs.
type placed struct {
	*unstructured.Unstructured
	kind *resource.Descriptor
}

func (o placed) isNamespace() bool { return o.kind.Resource == "namespaces" }

// title of an object in messages; the namespace goes without saying if it is
// the one in use.
func (o placed) title(c *connection) string { return title(c, o.kind, o.GetNamespace(), o.GetName()) }

func title(c *connection, d *resource.Descriptor, namespace, name string) string {
	if !d.Namespaced || namespace == c.namespace {
		return d.Singular + "/" + name
	}
	return fmt.Sprintf("%s/%s in namespace %s", d.Singular, name, namespace)
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// readObjects of files. Those without a namespace are placed in the given one,
// which is the only one allowed if it is fixed.
func (s *settings) readObjects(files []string, namespace string, fixed bool) ([]placed, error) {
	documents, err := manifest.Read(files, s.io.In)
	if err != nil {
		return nil, err
	}
	var objects []placed
	var errs []error
	for _, doc := range documents {
		o := placed{Unstructured: doc.Object}
		if o.kind, err = kindOf(doc.Object); err == nil {
			err = o.place(namespace, fixed)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", doc.Source, err))
		}
		objects = append(objects, o)
	}
	return objects, errors.Join(errs...)
}

func kindOf(u *unstructured.Unstructured) (*resource.Descriptor, error) {
	gvk := u.GroupVersionKind()
	for _, d := range kind.All() {
		switch {
		case d.GVK == gvk:
			return d, nil
		case d.GVK.Group == gvk.Group && d.GVK.Kind == gvk.Kind:
			return nil, fmt.Errorf("%s has the apiVersion %s here, not %s", gvk.Kind, d.GVK.GroupVersion(), u.GetAPIVersion())
		}
	}
	for _, d := range kind.All() {
		if strings.EqualFold(d.GVK.Kind, gvk.Kind) {
			return nil, fmt.Errorf("there is no kind %s in %s: write kind: %s and apiVersion: %s", gvk.Kind, u.GetAPIVersion(), d.GVK.Kind, d.GVK.GroupVersion())
		}
	}
	return nil, fmt.Errorf("the kind %s of %s is not served; known kinds: %s", gvk.Kind, u.GetAPIVersion(), strings.Join(kindNames(), ", "))
}

func (o placed) place(namespace string, fixed bool) error {
	switch own := o.GetNamespace(); {
	case !o.kind.Namespaced && own != "":
		return fmt.Errorf("%s %s: a %s is in no namespace: remove metadata.namespace", o.kind.Singular, o.GetName(), o.kind.Singular)
	case !o.kind.Namespaced:
	case own == "":
		o.SetNamespace(namespace)
	case fixed && own != namespace:
		return fmt.Errorf("%s %s: it is in namespace %s, which -n %s can't change", o.kind.Singular, o.GetName(), own, namespace)
	}
	return nil
}

// each does something with every object, says what went wrong with which, and
// goes on; but no further once the server can't be reached.
func (s *settings) each(c *connection, objects []placed, done string, do func(placed) error) error {
	failed := 0
	for _, o := range objects {
		err := do(o)
		if err == nil {
			continue
		}
		if away := explainWay(c.cfg, err); away != nil {
			return away
		}
		err = fmt.Errorf("%s: %w", o.title(c), explainAPI(c.cfg, err))
		if len(objects) == 1 {
			return err
		}
		failed++
		s.printError(err)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d objects could not be %s", failed, len(objects), done)
	}
	return nil
}

// apply one object and return the outcome: created, configured or unchanged.
func (c *connection) apply(ctx context.Context, o placed, a applyFlags) (string, error) {
	before, err := c.fetch(ctx, o)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	// A server does not take these back; they come with objects that were read
	// from one.
	o.SetManagedFields(nil)
	body, err := json.Marshal(o.Object)
	if err != nil {
		return "", err
	}
	req, err := c.request(http.MethodPatch, o.kind, o.GetNamespace())
	if err != nil {
		return "", err
	}
	// JSON is YAML.
	req.Name(o.GetName()).SetHeader("Content-Type", string(types.ApplyYAMLPatchType)).Body(body).
		Param("fieldManager", fieldManager).Param("fieldValidation", "Strict")
	if a.force {
		req.Param("force", "true")
	}
	if a.dryRun == "server" {
		req.Param("dryRun", metav1.DryRunAll)
	}
	answer, err := perform(ctx, req)
	if err != nil {
		return "", err
	}
	after := &unstructured.Unstructured{}
	if err := after.UnmarshalJSON(answer); err != nil {
		return "", fmt.Errorf("%w: %w", errNotJSON, err)
	}
	switch {
	case before == nil:
		return "created", nil
	case sameContent(before, after):
		return "unchanged", nil
	}
	return "configured", nil
}

// fetch the object as it is; nil with the error.
func (c *connection) fetch(ctx context.Context, o placed) (*unstructured.Unstructured, error) {
	req, err := c.request(http.MethodGet, o.kind, o.GetNamespace())
	if err != nil {
		return nil, err
	}
	body, err := perform(ctx, req.Name(o.GetName()))
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(body); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	return u, nil
}

// sameContent compares two states of an object without their managedFields.
func sameContent(a, b *unstructured.Unstructured) bool {
	content := func(u *unstructured.Unstructured) string {
		u = u.DeepCopy()
		u.SetManagedFields(nil)
		u.SetResourceVersion("")
		text, err := json.Marshal(u.Object) // keys in order
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	return content(a) == content(b)
}

// managerName is in the message of a conflict: conflict with "NAME" using v1.
var managerName = regexp.MustCompile(`^conflict with ("(?:[^"\\]|\\.)*")`)

// explainApply names the managers of conflicting fields, and the error of each
// field that is refused.
func explainApply(err error) error {
	if apierrors.IsConflict(err) {
		return explainConflict(err)
	}
	// A server answers 500 to fields that are not in its schema (KEP-555).
	if text := err.Error(); strings.HasPrefix(text, "failed to create typed patch object") || strings.HasPrefix(text, "failed to convert new object") {
		return &problem.Error{Code: problem.ObjectInvalid, Err: err, Hint: "is a field misspelt, or a value of the wrong type?"}
	}
	if causes := causesOf(err); apierrors.IsInvalid(err) && len(causes) > 1 {
		return errors.New("it is not valid:\n    " + strings.Join(causes, "\n    "))
	}
	return err
}

func explainConflict(err error) error {
	owners := map[string][]string{}
	if details := detailsOf(err); details != nil {
		for _, c := range details.Causes {
			if c.Type != metav1.CauseTypeFieldManagerConflict {
				continue
			}
			who := strings.TrimPrefix(c.Message, "conflict with ")
			if m := managerName.FindStringSubmatch(c.Message); m != nil {
				who = m[1]
			}
			owners[who] = append(owners[who], c.Field)
		}
	}
	if len(owners) == 0 {
		return &problem.Error{
			Code: problem.ObjectOutdated,
			Err:  err,
			Hint: "metadata.resourceVersion is that of an older state: remove the line, or begin with the newest state",
		}
	}
	var lines []string
	for _, who := range slices.Sorted(maps.Keys(owners)) {
		lines = append(lines, fmt.Sprintf("%s set %s", who, strings.Join(owners[who], ", ")))
	}
	return &problem.Error{
		Code: problem.FieldConflict,
		Err:  errors.New("it sets fields to other values than their owners did:\n    " + strings.Join(lines, "\n    ")),
		Hint: "leave these fields out of the file, or take them over with --force-conflicts",
	}
}
