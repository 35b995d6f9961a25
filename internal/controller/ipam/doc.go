// Package ipam decides which cluster addresses and node ports a Service gets.
//
// It owns the rules (usable addresses of a range, static and dynamic band,
// dual-stack choice, release on type change) and the controller that repairs
// IPAddress objects. Enter at NewPlan, then Choose; Repair is the controller.
//
// It never decides ownership. Addresses and Ports are fast guesses kept up to
// date by the caller's events; the truth is the IPAddress object, created in
// the same store transaction as the Service under the condition that its key is
// absent. The way of one allocation:
//
//	plan, errs := ipam.NewPlan(old, svc, addresses.Families())
//	choice, err := ipam.Choose(plan, addresses, ports)
//	for {
//		choice.Apply(svc)
//		// commit svc and its IPAddress objects in one transaction
//		// conflict on the key of addr: err = choice.Retry(addr); go round again
//	}
//
// So a guess that is behind costs one more attempt, never a second owner.
package ipam
