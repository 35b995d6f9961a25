// Package summary keeps sums of all Services for those who look at a control plane: a line a Service, flows between
// zones, totals by namespace, and how they were in the last hours.
//
// A Table follows the catalog and the demand. A change costs what the changed Services cost: sums are of whole numbers,
// so that a Service's part is taken off and added again without error. Enter at Table.Run, on the instance that plans.
// Viewers ask for a Scope, the namespaces that they may read; viewers of equal Scopes share what was made for one.
package summary
