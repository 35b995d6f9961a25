// Package plot draws what summaries say: traffic between zones, a Service, and how zones were.
//
// It owns the layout, which is a Drawing of plain numbers, and its form as SVG. Enter at Zones, Service
// and History, then at Drawing.SVG. The same input gives the same bytes. A Drawing is complete: it has no
// scripts and refers to nothing outside it. All names are text, whatever they contain, and stay within their
// frames. It reads no clock and asks nobody.
package plot
