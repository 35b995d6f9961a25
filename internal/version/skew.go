package version

import (
	"fmt"
	"strconv"
	"strings"
)

// Skew that a server admits between itself and what dials it, in minor versions.
const (
	// MaxOlder is how much older a client may be.
	MaxOlder = 2
	// MaxNewer is how much newer it may be.
	MaxNewer = 1
)

// CheckSkew refuses a client whose version is too far from the server's. what names the
// client in the error, which says what to upgrade first. A version that does not parse is
// admitted: it is a build of somebody's own.
func CheckSkew(server, what, client string) error {
	s, known := parse(server)
	c, clientKnown := parse(client)
	if !known || !clientKnown {
		return nil
	}
	switch {
	case c.major == s.major && c.minor+MaxOlder >= s.minor && c.minor <= s.minor+MaxNewer:
		return nil
	case c.major < s.major || c.major == s.major && c.minor < s.minor:
		return fmt.Errorf("%s has version %s, and the control plane that it dials has %s: at most %d minor versions older are admitted; upgrade %s, "+
			"by way of the versions between", what, client, server, MaxOlder, what)
	}
	return fmt.Errorf("%s has version %s, and the control plane that it dials has %s: at most %d minor version newer is admitted; upgrade that control plane first, then %s",
		what, client, server, MaxNewer, what)
}

type minor struct{ major, minor int }

// parse reads major and minor of v1.2.3-suffix.
func parse(text string) (minor, bool) {
	text, ok := strings.CutPrefix(text, "v")
	if !ok {
		return minor{}, false
	}
	first, rest, ok := strings.Cut(text, ".")
	if !ok {
		return minor{}, false
	}
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	m, err2 := strconv.Atoi(second)
	return minor{major, m}, err1 == nil && err2 == nil && major >= 0 && m >= 0
}
