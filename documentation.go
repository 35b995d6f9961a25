// Package proxima holds the documentation of this version, for "proxima docs".
package proxima

import "embed"

// Documentation is README.md, CHANGELOG.md and the pages of docs, as they are in the repository.
//
//go:embed README.md CHANGELOG.md docs
var Documentation embed.FS
