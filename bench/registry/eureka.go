package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// eurekaClient is a client of Eureka, by JSON, with a connection of its own.
type eurekaClient struct {
	base string
	http http.Client
}

func connectEureka(address string) (client, error) {
	c := &eurekaClient{base: "http://" + address + "/eureka/", http: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}, Timeout: 30 * time.Second}}
	// A server that starts listens before it answers.
	var err error
	for range 300 {
		if _, err = c.do(http.MethodGet, "apps/delta", "", http.StatusOK); err == nil {
			return c, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, err
}

func (c *eurekaClient) close() { c.http.CloseIdleConnections() }

func (c *eurekaClient) do(method, path, body string, want int) ([]byte, error) {
	r, err := http.NewRequest(method, c.base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != want {
		return text, &statusError{method + " " + path, response.StatusCode, text}
	}
	return text, nil
}

type statusError struct {
	what string
	code int
	text []byte
}

func (e *statusError) Error() string { return fmt.Sprintf("%s: %d %.200s", e.what, e.code, e.text) }

func eurekaID(service string, n int) string { return service + ":" + addressOf(n).String() + ":8080" }

func (c *eurekaClient) register(service string, n int) error {
	now := time.Now().UnixMilli()
	body := fmt.Sprintf(`{"instance":{"instanceId":%q,"hostName":%q,"app":%q,"ipAddr":%q,"status":"UP","overriddenStatus":"UNKNOWN","port":{"$":8080,"@enabled":"true"},"securePort":{"$":443,"@enabled":"false"},"countryId":1,"dataCenterInfo":{"@class":"com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo","name":"MyOwn"},"leaseInfo":{"renewalIntervalInSecs":30,"durationInSecs":3600},"metadata":{"version":"1.4.2","zone":"a"},"homePageUrl":"","statusPageUrl":"","healthCheckUrl":"","vipAddress":%q,"secureVipAddress":%q,"isCoordinatingDiscoveryServer":"false","lastUpdatedTimestamp":"%d","lastDirtyTimestamp":"%d"}}`,
		eurekaID(service, n), addressOf(n), strings.ToUpper(service), addressOf(n), service, service, now, now)
	_, err := c.do(http.MethodPost, "apps/"+strings.ToUpper(service), body, http.StatusNoContent)
	return err
}

func (c *eurekaClient) deregister(service string, n int) error {
	_, err := c.do(http.MethodDelete, "apps/"+strings.ToUpper(service)+"/"+eurekaID(service, n), "", http.StatusOK)
	return err
}

func (c *eurekaClient) query(service string) (int, error) {
	text, err := c.do(http.MethodGet, "apps/"+strings.ToUpper(service), "", http.StatusOK)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return 0, nil
	}
	return bytes.Count(text, []byte(`"instanceId"`)), err
}

// follow is not what Eureka has: its clients ask at intervals, which staleness measures.
func (c *eurekaClient) follow(string, func(func(int) bool, time.Time)) error {
	return errors.New("clients of Eureka are not told of changes")
}

// delta is what a client of Eureka reads at each interval.
func (c *eurekaClient) delta() ([]byte, error) {
	return c.do(http.MethodGet, "apps/delta", "", http.StatusOK)
}

func (c *eurekaClient) list() (int, error) {
	text, err := c.do(http.MethodGet, "apps", "", http.StatusOK)
	return len(text), err
}
