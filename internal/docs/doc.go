// Package docs renders the documentation of this version: pages with a menu and a search that needs no server.
//
// Enter at New with the Markdown files, then serve Site as a file system, or Export it. It is deterministic: equal files
// give equal bytes. Raw HTML in pages is left out, so that a page is no more than what its author wrote as Markdown.
package docs
