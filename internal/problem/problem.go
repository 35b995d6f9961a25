// Package problem is the form in which errors reach users: a stable code, what was
// attempted on which object, the cause, and a hint that names the fix.
//
// It owns the type Error, the codes and their table (Definitions), from which the
// reference of problems is generated. Enter at Error and at Of. It is for the
// boundaries of the program: commands, the doctor, answers as JSON. Packages below
// return wrapped errors, or types of their own that implement Coded. It never
// prints and never logs.
package problem

import "strings"

// Code identifies a kind of problem, for scripts, searches and the documentation.
// Codes are lower-case words joined by dashes. A code that was in a release keeps
// its meaning.
type Code string

// Error is a problem as users see it. Err is required, all else may be empty.
type Error struct {
	// Code of the problem; one of Definitions.
	Code Code
	// Op that failed, as a verb: "open", "register".
	Op string
	// Object of Op: "store postgres", "node n1".
	Object string
	// Err is the cause.
	Err error
	// Hint names the fix, as a sentence without a full stop. It may hold names and
	// values of this case.
	Hint string
}

// Error is operation, object and cause; neither code nor hint.
func (e *Error) Error() string {
	head := strings.TrimSpace(e.Op + " " + e.Object)
	if head == "" {
		return e.Err.Error()
	}
	return head + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Coded is an error type of a package's own that says what problem it is. Types
// implement it when callers also branch by type; all others use Error.
type Coded interface {
	error
	Code() Code
	Hint() string
}

// Of returns the problem that an error is: the outermost code and the outermost hint
// of all Errors and Coded in its tree, with the whole error as Err. ok is false for
// nil and for an error without both. The result is the caller's.
func Of(err error) (p Error, ok bool) {
	p.Err = err
	walk(err, func(code Code, hint string) bool {
		ok = true
		if p.Code == "" {
			p.Code = code
		}
		if p.Hint == "" {
			p.Hint = hint
		}
		return p.Code != "" && p.Hint != ""
	})
	return p, ok
}

// HintOf returns the hint of an error, or otherwise if it has none.
func HintOf(err error, otherwise string) string {
	if p, _ := Of(err); p.Hint != "" {
		return p.Hint
	}
	return otherwise
}

// walk calls f for each problem in the tree of an error, outermost first, until f
// returns true. It reports whether f did.
func walk(err error, f func(Code, string) (done bool)) bool {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here, one error at a time
	case nil:
		return false
	case *Error:
		if (e.Code != "" || e.Hint != "") && f(e.Code, e.Hint) {
			return true
		}
	case Coded:
		if f(e.Code(), e.Hint()) {
			return true
		}
	}
	switch e := err.(type) { //nolint:errorlint // as above
	case interface{ Unwrap() error }:
		return walk(e.Unwrap(), f)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if walk(inner, f) {
				return true
			}
		}
	}
	return false
}
