package redact

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
)

// markFile tells a root from an empty directory in its place, as when its disk is not mounted.
const markFile = "feed-root.id"

// missingRoots returns a text for each root whose disk is not the one that was there when this instance saw the root first. A root that is seen first gets
// a mark, which is remembered. It is called in the turn.
func (r *Redactions) missingRoots() (out []string) {
	for _, root := range r.cfg.Feed.Roots() {
		path := filepath.Join(root, markFile)
		data, err := os.ReadFile(path)
		mark, known := strings.TrimSpace(string(data)), r.memory.Roots[root]
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			out = append(out, fmt.Sprintf("the root %s cannot be read: %v", root, err))
		case known == "" && mark == "":
			mark = rand.Text()
			if err := atomicfile.Create(path, []byte(mark+"\n"), 0o600); err != nil {
				r.log.Warn("a root of the change feed is not marked: if its disk is not mounted later, that is not seen", "root", root, "error", err)
				continue
			}
			fallthrough
		case known == "":
			r.memory.Roots[root], r.dirty = mark, true
		case mark != known:
			out = append(out, fmt.Sprintf("the root %s is not the disk that it was, whose segments may have the value: mount it; if it is lost for good, write %s to %s", root, known, path))
		}
	}
	return out
}
