package cgroup

import (
	"path"
	"strings"
	"testing"
)

func TestNameOf(t *testing.T) {
	if got := nameOf("default", "web-1", 42); got != "proxima-default.web-1-42" {
		t.Error(got)
	}
	long := strings.Repeat("a", 253)
	one, other := nameOf(strings.Repeat("n", 63), long, 42), nameOf(strings.Repeat("n", 63), long[:252]+"b", 42)
	if len(one) > maxName || one == other || !strings.HasSuffix(one, "-42") || checkPath("/"+one) != nil {
		t.Errorf("%q (%d bytes), %q", one, len(one), other)
	}
}

func TestParse(t *testing.T) {
	const mounts = "24 1 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n" +
		"25 24 0:23 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n" +
		"26 24 0:24 /docker/x /mnt/part rw - cgroup2 cgroup2 rw\n" +
		"27 24 0:24 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
	if got := parseMounts(mounts); got != "/sys/fs/cgroup/uni fied" {
		t.Errorf("mount %q", got)
	}
	if got := parseMounts("25 24 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\nnonsense\n"); got != "" {
		t.Errorf("mount %q", got)
	}
	if got := parseOwn("4:memory:/x\n1:name=systemd:/\n0::/system.slice/web.service\n"); got != "/system.slice/web.service" {
		t.Errorf("own %q", got)
	}
	if parsePopulated("populated 0\nfrozen 0\n") || !parsePopulated("populated 1\nfrozen 0\n") || !parsePopulated("") {
		t.Error("populated")
	}
	for p, level := range map[string]int{"/": 0, "/a": 1, "/a/proxima-x.y-1": 2} {
		if got := levelOf(p); got != level {
			t.Errorf("level of %s: %d", p, got)
		}
	}
}

func TestCheckPath(t *testing.T) {
	for p, ok := range map[string]bool{
		"/proxima-a.b-1": true, "/system.slice/x.service/proxima-a.b-1": true,
		"": false, "/": false, "/other": false, "proxima-a.b-1": false, "/x/../proxima-a.b-1": false, "/proxima-a.b-1/": false,
		"/proxima-a.b-1/command": false, strings.Repeat("/a", MaxLevel) + "/proxima-a.b-1": false,
	} {
		if err := checkPath(p); (err == nil) != ok {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("27 24 0:24 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw\n0::/a\npopulated 0\n")
	f.Fuzz(func(t *testing.T, data string) {
		_ = parseMounts(data)
		_ = parsePopulated(data)
		if p := parseOwn(data); strings.Contains(p, "\n") {
			t.Fatalf("%q", p)
		}
	})
}

func FuzzCheckPath(f *testing.F) {
	f.Add("/a/proxima-a.b-1")
	f.Add("/../proxima-a")
	f.Fuzz(func(t *testing.T, p string) {
		if checkPath(p) == nil && path.Join("/root", p) != "/root"+p {
			t.Fatalf("%q leads elsewhere", p)
		}
	})
}
