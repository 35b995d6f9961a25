package cli

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	kresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/blob"
	"github.com/proxima-mesh/proxima/internal/feed"
)

// feedFlags are those of the change feed of a control plane.
type feedFlags struct {
	mode      string
	roots     []string
	copies    int
	retention string
	maxAge    time.Duration
	// offload as in app.FeedConfig.
	offload          string
	offloadAfter     time.Duration
	offloadRetention time.Duration
}

// minFeedRetention is the least of --feed-retention in bytes.
const minFeedRetention = 16 << 20

func (x *feedFlags) add(f *pflag.FlagSet) {
	f.StringVar(&x.mode, "feed", "auto", "keep committed changes for \"proxima history\", \"get --at\" and those who follow: on, off, or auto, which is on but with --store kubernetes, where it takes a second watch of all that the control plane follows. There is none with --store memory")
	f.StringSliceVar(&x.roots, "feed-root", nil, "directories for the change feed, best on different disks; one that is added later is used at once (default: \"feed\" in the data directory)")
	f.IntVar(&x.copies, "feed-copies", 2, "copies of each change in the feed, on different roots, as there are")
	f.StringVar(&x.retention, "feed-retention", "1Gi", "how many bytes of changes are kept, counted once for all copies")
	f.DurationVar(&x.maxAge, "feed-max-age", 0, "how long changes are kept at most; 0: as --feed-retention allows")
	f.StringVar(&x.offload, "feed-offload", "", "copy sealed parts of the feed to a directory or to s3://BUCKET/PREFIX?endpoint=HOST:PORT&region=NAME, where they are read from; credentials come from AWS_ACCESS_KEY_ID, … or the files of AWS")
	f.DurationVar(&x.offloadAfter, "feed-offload-after", feed.DefaultOffloadAfter, "how old changes are when they are kept at --feed-offload alone")
	f.DurationVar(&x.offloadRetention, "feed-offload-retention", 0, "how long changes are kept at --feed-offload; 0: for ever")
}

// config of a control plane on a store, as --store names it.
func (x *feedFlags) config(on string) (app.FeedConfig, error) {
	out := app.FeedConfig{Off: x.mode == "off" || x.mode == "auto" && on == app.StoreKubernetes, Copies: x.copies, Retention: feed.DefaultRetention, MaxAge: x.maxAge}
	if !slices.Contains([]string{"on", "off", "auto"}, x.mode) {
		return out, usagef("--feed %q: on, off or auto", x.mode)
	}
	if x.copies < 1 || x.copies > 8 {
		return out, usagef("--feed-copies %d: 1 to 8", x.copies)
	}
	if x.maxAge < 0 {
		return out, usagef("--feed-max-age %s: must not be negative", x.maxAge)
	}
	if x.offloadAfter < 0 || x.offloadRetention < 0 {
		return out, usagef("--feed-offload-after and --feed-offload-retention must not be negative")
	}
	if x.offload != "" {
		if _, err := blob.Open(x.offload); err != nil {
			return out, usagef("--feed-offload: %w", err)
		}
	}
	out.Offload, out.OffloadAfter, out.OffloadRetention = x.offload, x.offloadAfter, x.offloadRetention
	size, err := kresource.ParseQuantity(x.retention)
	if err != nil || size.Value() < minFeedRetention {
		return out, usagef("--feed-retention %q: want a size of 16Mi at least, as 1Gi", x.retention)
	}
	out.Retention = size.Value()
	seen := map[string]bool{}
	for _, dir := range x.roots {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return out, usagef("--feed-root %q: %w", dir, err)
		}
		if seen[abs] {
			return out, usagef("--feed-root %q is given twice: each needs a directory of its own", dir)
		}
		seen[abs] = true
		out.Roots = append(out.Roots, abs)
	}
	return out, nil
}
