// Package console tests the web console in Debian's Chromium: what is shown, that nothing runs but its own files, that it can be used
// with a keyboard, and how it looks. A browser that is missing is a failure.
package console
