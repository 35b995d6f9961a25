//go:build !unix

package testkit

import (
	"errors"
	"testing"
)

// Postgres skips the test: there is no throw-away server on this system.
func Postgres(t testing.TB) string {
	t.Helper()
	t.Skip("no PostgreSQL: throw-away servers need a Unix system")
	return ""
}

// LaunchPostgres fails: there is no throw-away server on this system.
func LaunchPostgres(...string) (url string, end func(), err error) {
	return "", nil, errors.New("no PostgreSQL: throw-away servers need a Unix system")
}
