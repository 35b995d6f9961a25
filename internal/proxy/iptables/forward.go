package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// BlockingForward lists the FORWARD chains of iptables-legacy that drop or reject what no rule
// of theirs accepts, unless one accepts translated connections as such ("-m conntrack
// --ctstate DNAT -j ACCEPT"). Of the options it uses Inside only. Without the commands of
// iptables-legacy there are none. It blocks for as long as the commands take.
func BlockingForward(ctx context.Context, opts Options) ([]string, error) {
	opts = opts.withDefaults()
	k, err := openSystem(Legacy, opts.Inside)
	if err != nil {
		return nil, nil // not installed
	}
	defer func() { _ = k.close() }()
	var out []string
	for _, f := range families {
		if !hasFamily(f) {
			continue
		}
		if there, err := k.holds(ctx, f, tableFilter); err != nil || !there {
			continue
		}
		saved, err := k.save(ctx, f, tableFilter, false)
		if err != nil {
			return nil, err
		}
		if by := blockedBy(string(saved)); by != "" {
			out = append(out, fmt.Sprintf("%s filter FORWARD of iptables-legacy (%s)", [...]string{"ip", "ip6"}[f], by))
		}
	}
	return out, nil
}

// blockedBy is what of the chain FORWARD blocks: "policy", "last rule", or nothing.
func blockedBy(saved string) (by string) {
	for line := range strings.Lines(saved) {
		words := strings.Fields(line)
		switch {
		case len(words) > 1 && words[0] == ":FORWARD" && words[1] == "DROP":
			by = "policy"
		case len(words) < 4 || words[0] != "-A" || words[1] != "FORWARD":
		case slices.Equal(words[2:], []string{"-j", "ACCEPT"}),
			slices.Equal(words[2:], []string{"-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT"}):
			return ""
		case by != "policy":
			by = ""
			if words[2] == "-j" && (words[3] == "DROP" || words[3] == "REJECT") {
				by = "last rule"
			}
		}
	}
	return by
}
