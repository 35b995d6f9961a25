package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/feed/seglog"
)

// MiB of each layout's data when something happens to its roots.
const growMiB = 64

// rooms are roots as directories with a size: seglog.Disk of the machine, whose roots have a bound.
type rooms struct {
	seglog.OS
	size map[string]int64
	lost map[string]bool
}

// Space implements seglog.Disk.
func (r *rooms) Space(dir string) (free, total uint64, err error) {
	if r.lost[dir] {
		return 0, 0, fmt.Errorf("%s: lost", dir)
	}
	used, err := usedBy(dir)
	if err != nil {
		return 0, 0, err
	}
	return uint64(max(r.size[dir]-used, 0)), uint64(r.size[dir]), nil
}

func usedBy(dir string) (int64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	total := int64(0)
	for _, name := range names {
		info, statErr := os.Stat(name)
		if statErr != nil {
			return 0, statErr
		}
		total += info.Size()
	}
	return total, err
}

// grow compares a layout of one partition, whose log is whole on one root, with segments, when roots are added and lost.
func grow(dir string) error {
	fmt.Printf("growing, %d MiB of entries each:\n", growMiB)
	fmt.Println("| what happens | layout | bytes moved before | until the new root is used | writes blocked, or with too few copies |")
	fmt.Println("|---|---|---|---|---|")
	for _, happens := range []func(string) error{added, lost, sizes} {
		if err := happens(dir); err != nil {
			return err
		}
	}
	return nil
}

// noise makes entries that cannot be compressed, of 1 MiB together.
func noise(at *seglog.Position) []*seglog.Entry {
	out := make([]*seglog.Entry, 256)
	for i := range out {
		*at++
		v := make([]byte, 4<<10)
		for j := 0; j < len(v); j += 8 {
			x := rand.Uint64()
			for k := range 8 {
				v[j+k] = byte(x >> (8 * k))
			}
		}
		out[i] = &seglog.Entry{Position: *at, Created: *at, Time: time.Now(), Kind: seglog.Put, Key: fmt.Sprintf("/k%d", *at%1000), Value: v}
	}
	return out
}

func put(l *seglog.Log, at *seglog.Position, mib int) error {
	for range mib {
		if err := l.Append(noise(at), 0); err != nil {
			return err
		}
	}
	return l.Sync()
}

// added: the first root is nearly full, and a second one comes.
func added(dir string) error {
	// One partition: its log is a file of one root. To use the other one it is moved there, whole, as it must not be written meanwhile.
	from, to := filepath.Join(dir, "partition-a"), filepath.Join(dir, "partition-b")
	disk := &rooms{size: map[string]int64{from: 1 << 40, to: 1 << 40}}
	one := seglog.Options{Roots: []string{from}, Epoch: "e", Reserve: 1, SegmentBytes: 1 << 40, Disk: disk}
	l, err := seglog.Open(one)
	if err != nil {
		return err
	}
	var at seglog.Position
	if err := put(l, &at, growMiB); err != nil {
		return err
	}
	began := time.Now()
	if err := l.Close(); err != nil {
		return err
	}
	moved, err := move(from, to)
	if err != nil {
		return err
	}
	one.Roots = []string{to}
	if l, err = seglog.Open(one); err != nil {
		return err
	}
	if err := put(l, &at, 1); err != nil {
		return err
	}
	took := time.Since(began)
	if err := l.Close(); err != nil {
		return err
	}
	row("a root is added", "one partition", moved, took, took)

	// Segments: the next one goes to the new root.
	a, b := filepath.Join(dir, "segments-a"), filepath.Join(dir, "segments-b")
	disk = &rooms{size: map[string]int64{a: (growMiB + 2) << 20, b: 1 << 40}}
	many := seglog.Options{Roots: []string{a}, Epoch: "e", Reserve: 1, SegmentBytes: 4 << 20, Disk: disk}
	if l, err = seglog.Open(many); err != nil {
		return err
	}
	at = 0
	if err := put(l, &at, growMiB); err != nil {
		return err
	}
	began = time.Now()
	if err := l.Close(); err != nil {
		return err
	}
	many.Roots = []string{a, b}
	if l, err = seglog.Open(many); err != nil {
		return err
	}
	blocked := time.Since(began)
	for n := 0; n == 0; n = l.Roots()[1].Segments {
		if err := put(l, &at, 1); err != nil {
			return err
		}
	}
	row("a root is added", "segments", 0, time.Since(began), blocked)
	return l.Close()
}

// lost: of two copies on three roots one root is gone.
func lost(dir string) error {
	root := func(name string) string { return filepath.Join(dir, "lost-"+name) }
	// One partition: a replica is a whole log. It is made again on the third root before there are two.
	disk := &rooms{size: map[string]int64{}, lost: map[string]bool{}}
	for _, name := range []string{"pa", "pb", "sa", "sb", "sc"} {
		disk.size[root(name)] = 1 << 40
	}
	var at seglog.Position
	l, err := seglog.Open(seglog.Options{Roots: []string{root("pa"), root("pb")}, Copies: 2, Epoch: "e", Reserve: 1, SegmentBytes: 1 << 40, Disk: disk})
	if err != nil {
		return err
	}
	if err := put(l, &at, growMiB); err != nil {
		return err
	}
	if err := l.Close(); err != nil {
		return err
	}
	began := time.Now()
	moved, err := move(root("pa"), root("pc"))
	if err != nil {
		return err
	}
	row("one of two copies is lost", "one partition", moved, time.Since(began), time.Since(began))

	// Segments: the open one is sealed, and the next has two copies at once.
	o := seglog.Options{Roots: []string{root("sa"), root("sb"), root("sc")}, Copies: 2, Epoch: "e", Reserve: 1, SegmentBytes: 4 << 20, Disk: disk}
	if l, err = seglog.Open(o); err != nil {
		return err
	}
	at = 0
	if err := put(l, &at, growMiB); err != nil {
		return err
	}
	segments := l.Segments()
	gone := filepath.Dir(segments[len(segments)-1].Copies[0])
	disk.lost[gone] = true
	began = time.Now()
	if err := l.Seal(); err != nil { // as a write to the lost root does
		return err
	}
	if err := put(l, &at, 1); err != nil {
		return err
	}
	took := time.Since(began)
	segments = l.Segments()
	if n := len(segments[len(segments)-1].Copies); n != 2 {
		return fmt.Errorf("the segment after a loss has %d copies", n)
	}
	row("one of two copies is lost", "segments", 0, took, took)
	return l.Close()
}

// sizes: three roots of sizes 1:2:4 are filled.
func sizes(dir string) error {
	unit := int64(growMiB/8) << 20
	disk := &rooms{size: map[string]int64{}}
	o := seglog.Options{Epoch: "e", Reserve: 1, SegmentBytes: 1 << 20, Disk: disk}
	for i, n := range []int64{1, 2, 4} {
		root := filepath.Join(dir, fmt.Sprintf("size-%d", i))
		o.Roots = append(o.Roots, root)
		disk.size[root] = n * unit
	}
	l, err := seglog.Open(o)
	if err != nil {
		return err
	}
	defer l.Close()
	var at seglog.Position
	n := 0
	for ; put(l, &at, 1) == nil; n++ {
	}
	capacity := int64(0)
	fmt.Printf("roots of sizes 1:2:4, filled until no entry can be written: ")
	for _, r := range l.Roots() {
		fmt.Printf("%d %% ", 100*r.Bytes/disk.size[r.Dir])
		capacity += disk.size[r.Dir]
	}
	fmt.Printf("of each; one partition can use the largest alone, %d %% of all\n", 100*4*unit/capacity)
	return nil
}

// bar of the plot.
type bar struct {
	what, layout string
	blocked      time.Duration
}

var bars []bar

// plot writes how long writes were blocked as an SVG.
func plot(file string) error {
	const left, width, height = 330, 420, 26
	longest := time.Duration(1)
	for _, b := range bars {
		longest = max(longest, b.blocked)
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", left+width+90, height*len(bars)+40)
	fmt.Fprintf(&out, `<rect width="100%%" height="100%%" fill="#fff"/>`+"\n"+`<text x="10" y="20" font-weight="bold">Writes blocked, or with too few copies, ms (%d MiB of entries)</text>`+"\n", growMiB)
	for i, b := range bars {
		y, color := 34+i*height, "#b0b7c3"
		if b.layout == "segments" {
			color = "#2f6fdb"
		}
		fmt.Fprintf(&out, `<text x="10" y="%d">%s: %s</text>`+"\n", y+14, b.what, b.layout)
		fmt.Fprintf(&out, `<rect x="%d" y="%d" width="%.1f" height="16" fill="%s"/>`+"\n", left, y+2, max(1, width*b.blocked.Seconds()/longest.Seconds()), color)
		fmt.Fprintf(&out, `<text x="%.1f" y="%d">%.0f</text>`+"\n", left+width*b.blocked.Seconds()/longest.Seconds()+8, y+14, b.blocked.Seconds()*1000)
	}
	out.WriteString("</svg>\n")
	return os.WriteFile(file, []byte(out.String()), 0o644)
}

func row(what, layout string, moved int64, used, blocked time.Duration) {
	bars = append(bars, bar{what, layout, blocked})
	fmt.Printf("| %s | %s | %d | %.0f ms | %.0f ms |\n", what, layout, moved, used.Seconds()*1000, blocked.Seconds()*1000)
}

// move the files of a directory, with a sync, as to another disk.
func move(from, to string) (int64, error) {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return 0, err
	}
	names, err := filepath.Glob(filepath.Join(from, "*"))
	total := int64(0)
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		f, err := os.Create(filepath.Join(to, filepath.Base(name)))
		if err != nil {
			return 0, err
		}
		if _, err := f.Write(data); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		if err := f.Close(); err != nil {
			return 0, err
		}
		total += int64(len(data))
	}
	return total, err
}
