package app

import (
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
)

func noProblems(*admin.Status, *catalog.Snapshot) []admin.Problem { return nil }
