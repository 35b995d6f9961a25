package main

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// zookeeperClient registers as Curator's service discovery does: an ephemeral node for each instance.
type zookeeperClient struct{ conn *zk.Conn }

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func connectZooKeeper(address string) (client, error) {
	conn, events, err := zk.Connect([]string{address}, 30*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		return nil, err
	}
	for deadline := time.After(30 * time.Second); ; {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				go func() { // the client waits for who reads them
					for range events { //nolint:revive // nothing is to be done
					}
				}()
				return &zookeeperClient{conn}, nil
			}
		case <-deadline:
			conn.Close()
			return nil, errors.New("no session after 30 s")
		}
	}
}

func (c *zookeeperClient) close() { c.conn.Close() }

func zookeeperName(n int) string { return addressOf(n).String() + ":8080" }

func (c *zookeeperClient) register(service string, n int) error {
	id := zookeeperName(n)
	data := fmt.Appendf(nil, `{"name":%q,"id":%q,"address":%q,"port":8080,"sslPort":null,"payload":{"@class":"org.apache.dubbo.registry.zookeeper.ZookeeperInstance","id":%q,"name":%q,"metadata":{"version":"1.4.2","zone":"a"}},"registrationTimeUTC":1764000000000,"serviceType":"DYNAMIC","uriSpec":null}`,
		service, id, addressOf(n), id, service)
	at := "/services/" + service + "/" + id
	for range 3 {
		_, err := c.conn.Create(at, data, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		for _, parent := range []string{"/services", path.Dir(at)} {
			if _, err := c.conn.Create(parent, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
				return err
			}
		}
	}
	return zk.ErrNoNode
}

func (c *zookeeperClient) deregister(service string, n int) error {
	return c.conn.Delete("/services/"+service+"/"+zookeeperName(n), -1)
}

// query has the names of the instances, as Dubbo's interface level needs them; a list with their data takes a request
// for each more.
func (c *zookeeperClient) query(service string) (int, error) {
	names, _, err := c.conn.Children("/services/" + service)
	if errors.Is(err, zk.ErrNoNode) {
		return 0, nil
	}
	return len(names), err
}

// follow as clients do: a watch says that something changed, and the list is read again, with a new watch.
func (c *zookeeperClient) follow(service string, changed func(func(int) bool, time.Time)) error {
	_, _, events, err := c.conn.ChildrenW("/services/" + service)
	if err != nil {
		return err
	}
	go func() {
		for {
			if e, ok := <-events; !ok || e.Err != nil {
				return // the connection has ended
			}
			var names []string
			if names, _, events, err = c.conn.ChildrenW("/services/" + service); err != nil {
				return
			}
			at := time.Now()
			changed(func(n int) bool { return slices.Contains(names, zookeeperName(n)) }, at)
		}
	}()
	return nil
}

func (c *zookeeperClient) list() (int, error) {
	names, _, err := c.conn.Children("/services")
	size := 0
	for _, n := range names {
		size += len(n) + 4 // its length is before it
	}
	return size, err
}
