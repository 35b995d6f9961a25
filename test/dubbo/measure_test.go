package dubbo

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nacos-group/nacos-sdk-go/v2/clients"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/config_client"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/naming_client"
	"github.com/nacos-group/nacos-sdk-go/v2/common/constant"
	"github.com/nacos-group/nacos-sdk-go/v2/model"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	core "github.com/proxima-mesh/proxima/internal/registry"
)

// replicas of the application that is measured.
const replicas = 20

// What one consumer of all interfaces of an application is sent while its instances come one after the other: by
// interface, and by application, with the metadata of each instance (two of dubbo-go have different revisions) and
// the mapping of each interface. A provider of dubbo-go says what it registers; its replicas are copies of that.
func TestMeasure(t *testing.T) {
	if os.Getenv("PROXIMA_DUBBO_MEASURE") == "" {
		t.Skip("PROXIMA_DUBBO_MEASURE is not set: it takes a minute, and prints figures for docs/how-to/registry-dubbo.md")
	}
	for _, test := range []struct {
		interfaces int
		less       float64 // at least, of bytes
	}{{50, 0.9}, {3, 0.6}} {
		t.Run(fmt.Sprint(test.interfaces), func(t *testing.T) {
			byInterface, byApplication := measure(t, "interface", test.interfaces), measure(t, "service", test.interfaces)
			less := 1 - float64(byApplication.bytes)/float64(byInterface.bytes)
			fmt.Printf("%d interfaces, %d instances: by interface %d pushes, %d bytes, %d instances registered; by application %d pushes, %d bytes, %d instances registered: %.1f %% fewer bytes\n",
				test.interfaces, replicas, byInterface.pushes, byInterface.bytes, byInterface.registered, byApplication.pushes, byApplication.bytes, byApplication.registered, 100*less)
			if less < test.less {
				t.Errorf("%.1f %% fewer bytes, want %.0f %%", 100*less, 100*test.less)
			}
			if pushes := 1 - float64(byApplication.pushes)/float64(byInterface.pushes); pushes < test.less {
				t.Errorf("%.1f %% fewer pushes, want %.0f %%", 100*pushes, 100*test.less)
			}
		})
	}
}

type measured struct {
	pushes, registered uint64
	bytes              int64
}

func measure(t *testing.T, mode string, interfaces int) (out measured) {
	sample := newControl(t)
	start(t, application{
		Role: "provider", Name: "orders", Registry: sample.address(), Mode: mode, Protocol: "dubbo", Port: freePort(t), MetadataPort: freePort(t),
		Reply: "first", Interfaces: interfaces - 1,
	})
	want := 1
	if mode == "interface" {
		want = interfaces
	}
	var services []core.Service
	sample.Eventually("the provider has registered", func() bool {
		services = sample.Index.Names("default")
		return len(services) == want && sample.providers() == want && (mode == "interface" || sample.Index.Listing(services[0], "").Instances[0].Metadata[core.KeyStorage] == core.StorageRemote)
	})

	c := newControl(t)
	naming, configs := sdk(t, c)
	for _, s := range services {
		if err := naming.Subscribe(&vo.SubscribeParam{ServiceName: s.Name, GroupName: "DEFAULT_GROUP", SubscribeCallback: func([]model.Instance, error) {}}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // until the SDK has subscribed, and its first change is held back no more
	pushes, sent := c.pushes(), c.sent.Load()
	for i := range replicas {
		for _, s := range services {
			in := *sample.Index.Registered(s)[0]
			in.Address, in.Ephemeral, in.Metadata = netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}), false, maps.Clone(in.Metadata)
			if mode == "service" {
				c.store(t, configs, sample, in.Metadata[core.KeyRevision], i)
				in.Metadata[core.KeyRevision] += fmt.Sprint(i)
				in.Metadata[core.KeyStorage] = core.StorageRemote
			}
			if err := c.Registrar.Put(t.Context(), &in, core.User{Admin: true}); err != nil {
				t.Fatal(err)
			}
			out.registered++
		}
		expected := pushes + uint64((i+1)*len(services))
		c.Eventually("the consumer is told", func() bool { return c.pushes() >= expected })
	}
	return measured{pushes: c.pushes() - pushes, bytes: c.sent.Load() - sent, registered: out.registered}
}

// store the metadata of a replica, and the mappings with the first one, and read them as a consumer does.
func (c *control) store(t *testing.T, configs config_client.IConfigClient, sample *control, revision string, replica int) {
	t.Helper()
	keys := sample.Configs.List("default", func(k core.ConfigKey) bool { return k.Group == revision || k.Group == "mapping" && replica == 0 })
	for _, key := range keys {
		content := sample.Configs.Get(key).Spec.Content
		if key.Group == revision {
			key.Group += fmt.Sprint(replica)
			content = strings.ReplaceAll(content, revision, key.Group)
		}
		if err := c.Configs.Put(t.Context(), core.User{}, key, func(spec *meshv1alpha1.RegistryConfigSpec, _ bool) error {
			spec.Content = content
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := configs.GetConfig(vo.ConfigParam{DataId: key.DataID, Group: key.Group}); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *control) pushes() uint64 {
	for _, s := range c.Status() {
		if s.Protocol == core.Nacos {
			return s.Pushes
		}
	}
	return 0
}

// sdk is a client of Nacos, as a consumer of dubbo-go has it.
func sdk(t *testing.T, c *control) (naming_client.INamingClient, config_client.IConfigClient) {
	t.Helper()
	dir := t.TempDir()
	param := vo.NacosClientParam{
		ClientConfig:  constant.NewClientConfig(constant.WithCacheDir(dir), constant.WithLogDir(dir), constant.WithNotLoadCacheAtStart(true)),
		ServerConfigs: []constant.ServerConfig{*constant.NewServerConfig("127.0.0.1", uint64(c.port))},
	}
	naming, err := clients.NewNamingClient(param)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(naming.CloseClient)
	configs, err := clients.NewConfigClient(param)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(configs.CloseClient)
	return naming, configs
}
