package dubbo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// classpath of the applications of Java Dubbo (test/jvm/dubbo). tools/interop-registries sets it.
func classpath(t *testing.T) string {
	path := os.Getenv("PROXIMA_DUBBO_JVM")
	if path == "" {
		t.Skip("PROXIMA_DUBBO_JVM is not set: `make interop-registries` builds and runs the applications of Java")
	}
	return filepath.Join(path, "dubbo-1.jar") + string(filepath.ListSeparator) + filepath.Join(path, "lib", "*")
}

// startJava runs an application of Java Dubbo until the test ends.
func startJava(t *testing.T, a application) *process {
	t.Helper()
	path := classpath(t)
	at := a.Registry
	if !strings.Contains(at, "://") {
		at = "nacos://" + at
	}
	mode := a.Mode
	if mode == "service" {
		mode = "instance"
	}
	arguments := []string{
		"-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", "-cp", path, "shop.Application",
		"role=" + a.Role, "name=" + a.Name, "registry=" + at, "protocol=" + a.Protocol, fmt.Sprint("port=", a.Port), "reply=" + a.Reply,
		"address=" + a.Address,
	}
	if mode != "" {
		arguments = append(arguments, "mode="+mode)
	}
	return launch(t, "java "+a.Role+" "+a.Name, func(dir string) *exec.Cmd {
		return exec.Command("java", append([]string{"-Duser.home=" + dir, "-DJM.SNAPSHOT.PATH=" + dir, "-Ddubbo.meta.cache.filePath=" + dir}, arguments...)...)
	})
}

// Providers and consumers of Java and of Go find each other by each registry, in each way to register, with
// both protocols.
func TestJava(t *testing.T) {
	classpath(t)
	address := ownAddress(t) // Java takes no loopback address
	for _, registry := range []string{"nacos", "zookeeper"} {
		for _, mode := range []string{"service", "interface", "all"} {
			for _, protocol := range []string{"tri", "dubbo"} {
				t.Run(registry+"/"+mode+"/"+protocol, func(t *testing.T) {
					c := newControl(t).serveZooKeeper()
					at := c.address()
					if registry == "zookeeper" {
						at = c.zookeeper
					}
					a := application{Role: "provider", Name: "orders", Registry: at, Mode: mode, Protocol: protocol, Address: address, Port: freePort(t), Reply: "java"}
					first := startJava(t, a)
					a.Port, a.Reply, a.MetadataPort = freePort(t), "go", freePort(t)
					start(t, a)
					want := 2
					if mode == "all" {
						want *= 2
					}
					// A consumer of Java that starts meanwhile loses what changes between its query and its subscription.
					for end := time.Now().Add(time.Minute); c.providers() < want; time.Sleep(50 * time.Millisecond) {
						if time.Now().After(end) {
							t.Fatalf("%d providers are registered, want %d", c.providers(), want)
						}
					}
					consumers := []*process{
						start(t, application{Role: "consumer", Name: "shop", Registry: at, Mode: mode, Protocol: protocol}),
						startJava(t, application{Role: "consumer", Name: "shop-java", Registry: at, Mode: mode, Protocol: protocol}),
					}
					for _, consumer := range consumers {
						consumer.until(0, "java greets")
					}
					first.stop()
					for _, consumer := range consumers {
						consumer.until(0, "go greets") // by weight, Java may prefer its own while there are both
					}
				})
			}
		}
	}
}

// A provider of Java is asked for its metadata: by the protocol dubbo the older MetadataService, by Triple the newer
// one.
func TestJavaMetadata(t *testing.T) {
	classpath(t)
	for _, protocol := range []string{"dubbo", "tri"} {
		t.Run(protocol, func(t *testing.T) {
			c := newControl(t)
			startJava(t, application{
				Role: "provider", Name: "orders", Registry: c.address(), Mode: "service", Protocol: protocol, Address: ownAddress(t), Port: freePort(t), Reply: "java",
			})
			for end := time.Now().Add(time.Minute); c.providers() == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			}
			c.metadataStored("")
		})
	}
}
