package kind

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// What kubectl's users are used to read where a value is missing.
const (
	none    = "<none>"
	unset   = "<unset>"
	unknown = "<unknown>"
)

// maxListed is how many ports or addresses a cell names before it counts.
const maxListed = 3

func nameColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{
		Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"],
	}
}

func ageColumn() metav1.TableColumnDefinition {
	return column("Age", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
}

func column(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

// wide is a column that is printed with -o wide only.
func wide(name, description string) metav1.TableColumnDefinition {
	c := column(name, description)
	c.Priority = 1
	return c
}

func age(obj metav1.Object) string { return since(obj.GetCreationTimestamp().Time) }

func since(t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(time.Since(t))
}

func orElse(s, missing string) string {
	if s == "" {
		return missing
	}
	return s
}

// listed collects the items of a cell: the first few by name, the rest by number.
type listed struct {
	items []string
	count int
}

func (l *listed) add(item string) {
	if l.count < maxListed {
		l.items = append(l.items, item)
	}
	l.count++
}

func (l *listed) string(missing string) string {
	s := strings.Join(l.items, ",")
	if l.count > maxListed {
		return fmt.Sprintf("%s + %d more...", s, l.count-maxListed)
	}
	return orElse(s, missing)
}
