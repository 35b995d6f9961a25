package scavenge

import (
	"os"
	"slices"
	"strings"
	"testing"
)

const smaps = `00400000-02a00000 r-xp 00000000 fe:00 1234                               /usr/bin/proxima
Size:              39936 kB
Private_Dirty:     39936 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
02a00000-03000000 r--p 02600000 fe:00 1234                               /usr/bin/proxima
Private_Dirty:         0 kB
Anonymous:             0 kB
03000000-03100000 r--p 02c00000 fe:00 1234                               /usr/bin/proxima
Private_Dirty:         8 kB
Anonymous:             8 kB
03100000-03200000 rw-p 02d00000 fe:00 1234                               /usr/bin/proxima
Private_Dirty:         0 kB
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0 
Anonymous:          4096 kB
7f0000000000-7f0000010000 r-xp 00000000 fe:00 99                         /usr/lib/libc.so.6
Private_Dirty:         0 kB
`

func TestClean(t *testing.T) {
	got, err := clean(strings.NewReader(smaps), "/usr/bin/proxima")
	want := []region{{0x400000, 0x2a00000}, {0x2a00000, 0x3000000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%x, %v, want %x", got, err, want)
	}
	if _, err := clean(strings.NewReader("no mapping at all\n"), ""); err == nil {
		t.Error("damaged lines are taken")
	}
}

// TestDropFilePages: the program goes on, with fewer pages.
func TestDropFilePages(t *testing.T) {
	before := residentFile(t)
	n, err := dropFilePages()
	if err != nil || n == 0 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of files are resident, before %d kB", after, before)
	}
}

// residentFile is RssFile of proc_pid_status(5), in kB.
func residentFile(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "RssFile:" {
			n := 0
			for _, c := range fields[1] {
				n = 10*n + int(c-'0')
			}
			return n
		}
	}
	t.Fatal("no RssFile")
	return 0
}
