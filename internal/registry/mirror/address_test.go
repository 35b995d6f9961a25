package mirror

import (
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	for _, c := range []struct{ text, want, user, password string }{
		{"nacos://old", "nacos://old:8848", "", ""},
		{"nacos+tls://nacos:s%40e:cret@a:1,b", "nacos+tls://a:1,b:8848", "nacos", "s@e:cret"},
		{"zk://a,b:2182/shop/", "zk://a:2181,b:2182/shop", "", ""},
		{"zookeeper://[::1]:2181", "zk://[::1]:2181", "", ""},
		{"eureka://u:p@h/eureka", "eureka://h:8761/eureka", "u", "p"},
	} {
		a, err := ParseAddress(c.text)
		if err != nil || a.String() != c.want || a.Username != c.user || a.Password != c.password {
			t.Errorf("%s: %s %q %q, %v", c.text, a, a.Username, a.Password, err)
		}
	}
	for _, text := range []string{"", "old:8848", "http://old", "nacos://", "nacos://a,", "nacos://u:secret@a/path", "zk://u:sec%ret@a", "zk://u:secret@a?x=secret"} {
		if _, err := ParseAddress(text); err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec%ret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
