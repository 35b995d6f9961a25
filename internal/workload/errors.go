package workload

import (
	"errors"
	"fmt"
	"time"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// foreignError: the name is another live workload's.
type foreignError struct {
	key    resource.Key
	holder string
	age    time.Duration
}

func (e *foreignError) Error() string {
	return fmt.Sprintf("dataplane %s is registered by %s, seen %s ago: choose another --name, or stop the other one",
		e.key, e.holder, e.age.Round(time.Second))
}

func asForeign(err error, target **foreignError) bool { return errors.As(err, target) }
