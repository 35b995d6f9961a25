package apiserver

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// tables prints objects of a kind as rows, as defined by its descriptor.
type tables struct{ kind *resource.Descriptor }

// ConvertToTable implements rest.TableConvertor for one object or a list.
func (t tables) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if opts, ok := options.(*metav1.TableOptions); !ok || !opts.NoHeaders {
		table.ColumnDefinitions = t.columns()
	}
	row := func(obj runtime.Object) error {
		typed, ok := obj.(resource.Object)
		if !ok {
			return fmt.Errorf("print %s: %T is no object", t.kind.GVK.Kind, obj)
		}
		table.Rows = append(table.Rows, metav1.TableRow{
			Cells:  t.cells(typed),
			Object: runtime.RawExtension{Object: obj},
		})
		return nil
	}
	if !meta.IsListType(object) {
		if m, err := meta.CommonAccessor(object); err == nil {
			table.ResourceVersion = m.GetResourceVersion()
		}
		return table, row(object)
	}
	if m, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
		table.Continue = m.GetContinue()
		table.RemainingItemCount = m.GetRemainingItemCount()
	}
	return table, meta.EachListItem(object, row)
}

func (t tables) columns() []metav1.TableColumnDefinition {
	if t.kind.Cells != nil {
		return t.kind.Columns
	}
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name"},
		{Name: "Age", Type: "string"},
	}
}

func (t tables) cells(obj resource.Object) []any {
	if t.kind.Cells != nil {
		return t.kind.Cells(obj)
	}
	age := "<unknown>"
	if created := obj.GetCreationTimestamp(); !created.IsZero() {
		age = duration.HumanDuration(time.Since(created.Time))
	}
	return []any{obj.GetName(), age}
}
