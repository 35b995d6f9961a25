// Package console has the pages of the web console, as files that the program carries.
//
// It serves files and holds no data: the pages get theirs from the API, with the credentials of who looks. Enter at New. The
// files in dist are bundled by tools/console from web.
package console
