package scavenge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// region is a range of addresses.
type region struct{ start, end uintptr }

// dropFilePages takes the pages of the program's own file out of its memory: code and constants.
// They are in the page cache, and come back as they are used. It returns how many bytes the
// regions have; of those only what was resident is given back.
func dropFilePages() (int, error) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	regions, err := clean(f, program)
	if err != nil {
		return 0, fmt.Errorf("/proc/self/smaps: %w", err)
	}
	total := 0
	for _, r := range regions {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED)
		if errno != 0 {
			return total, fmt.Errorf("madvise: %w", errno)
		}
		total += int(r.end - r.start)
	}
	return total, nil
}

// filePages are the bytes of files that are resident, as in /proc/self/statm, proc_pid_statm(5): its third
// field. 0: it is not known.
func filePages() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 3 {
		return 0
	}
	pages, err := strconv.ParseUint(fields[2], 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// clean are the mappings of a file that cannot be written and of which the process has no page
// of its own: the linker makes parts read-only that it wrote before (relro), and these would be
// lost. The form is that of /proc/PID/smaps, proc_pid_smaps(5).
func clean(smaps io.Reader, file string) ([]region, error) {
	var out []region
	var now region
	ours, own := false, false
	end := func() {
		if ours && !own {
			out = append(out, now)
		}
		ours, own = false, false
	}
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if name, isValue := strings.CutSuffix(fields[0], ":"); isValue {
			if (name == "Anonymous" || name == "Swap") && len(fields) > 1 && fields[1] != "0" {
				own = true
			}
			continue
		}
		end()
		from, to, found := strings.Cut(fields[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		stop, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); !found || err != nil || len(fields) < 5 {
			return nil, fmt.Errorf("%q is no mapping", lines.Text())
		}
		now = region{uintptr(start), uintptr(stop)}
		ours = strings.HasPrefix(fields[1], "r-") && len(fields) == 6 && fields[5] == file
	}
	end()
	return out, lines.Err()
}
