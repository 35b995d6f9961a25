// Package zoneshift puts ZoneShifts into effect, and ends them when their time is over.
//
// A ZoneShift is in effect as long as its condition Active is true. Package backend makes
// its endpoints terminating then; nothing but the status is read there, so that no clock has
// a say in what EndpointSlices hold. This package owns the condition: Evaluate, which is
// pure, says which endpoints a shift takes out of which Services, and Controller, of the
// leader, decides, writes the condition and the events, and deletes shifts that ended long
// ago. A shift that was refused stays so until its spec is changed: that another endpoint
// became ready is no reason to move traffic hours after somebody asked for it.
package zoneshift
