// Package console tests the web console in Debian's Chromium: what is shown, that nothing runs but its own files, that it can be used
// with a keyboard, how it looks, that its numbers are those of the planner and the command line, and that it stays true while links,
// control planes and windows come and go. A browser that is missing is a failure.
package console
