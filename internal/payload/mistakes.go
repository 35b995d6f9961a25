package payload

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxMistakes of one object are reported. Upstream joins them to a message in time
// that grows with their square: 50,000 invalid labels would take minutes.
const MaxMistakes = 100

// Few are the first of the mistakes, and how many there are more.
func Few(errs field.ErrorList) field.ErrorList {
	more := len(errs) - MaxMistakes
	if more <= 0 {
		return errs
	}
	last := errs[MaxMistakes]
	rest := field.Invalid(field.NewPath(last.Field), field.OmitValueType{}, fmt.Sprintf("and %d more mistakes", more))
	return append(errs[:MaxMistakes:MaxMistakes], rest)
}
