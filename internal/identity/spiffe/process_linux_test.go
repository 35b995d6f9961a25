package spiffe

import (
	"testing"
	"testing/fstest"
)

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) b) S 7 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4321 1 1"))
	f.Add([]byte("12 ()"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if started, parent, err := parseStat(data); err != nil && (started != 0 && parent != 0) {
			t.Fatal("a result and an error")
		}
	})
}

func FuzzParseCgroup(f *testing.F) {
	f.Add([]byte("1:name=systemd:/x\n0::/proxima/front\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if path := parseCgroup(data); path != "" && path[0] != '/' {
			t.Fatalf("%q", path)
		}
	})
}

func TestReadProcess(t *testing.T) {
	const rest = " 12 12 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 "
	proc := fstest.MapFS{
		"12/stat":   {Data: []byte("12 (evil) S 1 (x) S 7" + rest + "400 1")},
		"12/cgroup": {Data: []byte("4:cpu:/v1\n0::/proxima/front\n")},
		"7/stat":    {Data: []byte("7 (sh) S 5" + rest + "300 1")},
		// 5 began after its child: its ID was used again.
		"5/stat":   {Data: []byte("5 (sh) S 1" + rest + "350 1")},
		"9/stat":   {Data: []byte("9 (cut) S")},
		"8/stat":   {Data: []byte("8 (a) S 0" + rest + "1 1")},
		"8/cgroup": {Data: []byte("0::/gone (deleted)\n")},
	}
	p, err := readProcess(proc, 12, 1000, 100)
	if err != nil || p.Started != 400 || p.Cgroup != "/proxima/front" || p.UID != 1000 || p.GID != 100 ||
		len(p.Ancestors) != 1 || p.Ancestors[0] != (Ancestor{7, 300}) {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := readProcess(proc, 9, 0, 0); err == nil {
		t.Error("a file that is cut off")
	}
	if _, err := readProcess(proc, 99, 0, 0); err == nil {
		t.Error("a process that is not there")
	}
	if p, err := readProcess(proc, 8, 0, 0); err != nil || p.Cgroup != "" || len(p.Ancestors) != 0 {
		t.Errorf("%+v %v", p, err)
	}
}
