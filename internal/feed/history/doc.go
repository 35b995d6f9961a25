// Package history answers from a change feed what happened to objects, who did it, and what they were at an earlier time.
//
// It owns how a change is told: its operation, who made it, and which fields differ. Enter at New. It never decides who may
// ask, and never gives a value of a Secret away.
package history
