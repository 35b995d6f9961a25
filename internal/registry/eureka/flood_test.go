package eureka

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Clients that ask without end and never read an answer keep nobody else from being served.
func TestFlood(t *testing.T) {
	c := newClient(t)
	for i := range 50 {
		id := fmt.Sprintf("h:orders:%d", i)
		c.want(http.StatusNoContent, http.MethodPost, "apps/ORDERS", strings.Replace(instanceJSON(id, "UP"), "10.1.0.7", fmt.Sprintf("10.1.0.%d", i+1), 1))
	}
	c.hash("UP_50_")
	base, err := url.Parse(c.base)
	if err != nil {
		t.Fatal(err)
	}
	request := []byte("GET /eureka/apps HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n")
	for range 40 {
		conn, err := net.Dial("tcp", base.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetWriteDeadline(time.Now().Add(30 * time.Second))
		go func() { // until nothing more fits in between
			for range 10_000 {
				if _, err := conn.Write(request); err != nil {
					return
				}
			}
		}()
	}
	for i := range 10 {
		began := time.Now()
		c.want(http.StatusOK, http.MethodPut, fmt.Sprintf("apps/ORDERS/h:orders:%d?status=UP&lastDirtyTimestamp=1700000000001", i), "")
		c.want(http.StatusOK, http.MethodGet, "apps/ORDERS", "")
		if took := time.Since(began); took > 10*time.Second {
			t.Fatalf("another client waits %s", took)
		}
	}
}
