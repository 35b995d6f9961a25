package doctor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// kernelModes reports which proxy modes this kernel can run. None is
// needed: userspace works anywhere.
func kernelModes(root string) Finding {
	f := Finding{ID: checkKernelFeatures, Check: "kernel"}
	if runtime.GOOS != "linux" {
		f.Note = "modes of this system: " + strings.Join(modes.Here()[1:], ", ")
		return f
	}
	k := kernelFiles{root: filepath.Join("/", root)}
	release := k.release()
	can, cannot := []string{}, []string{}
	for _, mode := range modes.Here()[1:] {
		needs, _ := modes.RequirementOf(mode)
		if why := k.lacks(release, needs.Major, needs.Minor, needs.Modules); why != "" {
			cannot = append(cannot, mode+" ("+why+")")
		} else {
			can = append(can, mode)
		}
	}
	f.Note = "Linux " + release + " can carry by " + strings.Join(can, ", ")
	if len(cannot) > 0 {
		f.Note += "; not by " + strings.Join(cannot, ", ")
	}
	return f
}

// kernelFiles is what can be read of a kernel below a root.
type kernelFiles struct{ root string }

func (k kernelFiles) release() string {
	data, err := os.ReadFile(filepath.Join(k.root, "proc/sys/kernel/osrelease"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}

func (k kernelFiles) lacks(release string, major, minor int, modules []string) string {
	var have [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &have[0], &have[1]); err == nil && slices.Compare(have[:], []int{major, minor}) < 0 {
		return fmt.Sprintf("needs %d.%d", major, minor)
	}
	for _, alternatives := range modules {
		if !slices.ContainsFunc(strings.Split(alternatives, "|"), func(m string) bool { return k.hasModule(release, m) }) {
			return "module " + strings.ReplaceAll(alternatives, "|", " or ") + " is not there"
		}
	}
	return ""
}

// hasModule: loaded, built in, or there to be loaded. Where there are no module
// lists, as in many containers, only what is loaded is known.
func (k kernelFiles) hasModule(release, name string) bool {
	if _, err := os.Stat(filepath.Join(k.root, "sys/module", name)); err == nil {
		return true
	}
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		data, err := os.ReadFile(filepath.Join(k.root, "lib/modules", release, list))
		if err == nil && bytes.Contains(data, []byte("/"+name+".ko")) {
			return true
		}
	}
	// What is built in and has no parameters has no folder there.
	return k.config()["CONFIG_"+configNames[name]]
}

// configNames of the modules above (Kconfig of net/netfilter).
var configNames = map[string]string{
	"nf_tables": "NF_TABLES", "ip_tables": "IP_NF_IPTABLES", "xt_statistic": "NETFILTER_XT_MATCH_STATISTIC",
	"ip_vs": "IP_VS", "ip_vs_rr": "IP_VS_RR",
}

// config is what the kernel was built with, where it is readable (CONFIG_IKCONFIG_PROC):
// the options that are =y.
func (k kernelFiles) config() map[string]bool {
	file, err := os.Open(filepath.Join(k.root, "proc/config.gz"))
	if err != nil {
		return nil
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil
	}
	out := map[string]bool{}
	for lines := bufio.NewScanner(unpacked); lines.Scan(); {
		if name, ok := strings.CutSuffix(lines.Text(), "=y"); ok {
			out[name] = true
		}
	}
	return out
}
