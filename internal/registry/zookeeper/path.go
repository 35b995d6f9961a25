package zookeeper

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/registry"
)

// place says what a path is for.
type place int

const (
	// outside of what is mapped, and of where clients have nodes of their own.
	outside place = iota
	// ofExtra are nodes outside of what is mapped, which clients have if there is a quota for them.
	ofExtra
	// standing nodes are parents that are always there.
	standing
	// passage is a parent that is there while it has children.
	passage
	// ofInstance and ofEntry are nodes that clients write.
	ofInstance
	ofEntry
)

// target of a path.
type target struct {
	place     place
	namespace string
	service   registry.Service // of an instance
	id        string           // of an instance: the name of its node
	entry     registry.ConfigKey
	rule      bool // the entry is a rule of Dubbo 2
}

const (
	rootServices = "services"
	rootDubbo    = "dubbo"
	rootSystem   = "zookeeper"

	providers     = "providers"
	consumers     = "consumers"
	configurators = "configurators"
	routers       = "routers"

	mapping  = "mapping"
	metadata = "metadata"
	config   = "config"
	// groupDefinitions has the definitions of interfaces, as Dubbo stores them in Nacos.
	groupDefinitions = "dubbo"
)

var (
	roots      = []string{rootServices, rootDubbo, rootSystem}
	categories = []string{providers, consumers, configurators, routers}
	sides      = []string{"provider", "consumer"}
)

// maxPath in bytes. A URL of Dubbo has some hundreds.
const maxPath = 16 << 10

// checkPath refuses what ZooKeeper refuses (PathUtils.validatePath).
func checkPath(path string) error {
	switch {
	case path == "/":
		return nil
	case len(path) > maxPath:
		return fmt.Errorf("a path of %d bytes; at most %d are allowed", len(path), maxPath)
	case !strings.HasPrefix(path, "/"), strings.HasSuffix(path, "/"):
		return fmt.Errorf("path %.100q does not begin with /, or ends with it", path)
	}
	for name := range strings.SplitSeq(path[1:], "/") {
		if !validName(name) {
			return fmt.Errorf("path %.100q has a component that is no name", path)
		}
	}
	return nil
}

// validName of a node.
func validName(name string) bool {
	if name == "" || name == "." || name == ".." {
		return false
	}
	for _, r := range name {
		if r == '/' || r < 0x20 || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0 && r <= 0xffff {
			return false
		}
	}
	return true
}

// prefix of the paths of a namespace.
func (s *Server) prefix(namespace string) string {
	if name := s.core.Namespaces.NameOf(namespace); name != "" {
		return "/" + name
	}
	return ""
}

// target of a path that is valid.
func (s *Server) target(path string) target {
	if path == "/" {
		return target{place: standing}
	}
	names := strings.Split(path[1:], "/")
	namespace := s.core.Namespaces.Of("")
	if !slices.Contains(roots, names[0]) {
		of := s.core.Namespaces.Of(names[0])
		if err := s.core.CheckNamespace(of); err != nil || s.prefix(of) != "/"+names[0] {
			if err != nil && !errors.Is(err, registry.ErrNoNamespace) || len(names) > 1 && slices.Contains(roots, names[1]) {
				return target{} // a namespace that is being deleted, or a registration in one that is missing
			}
			return target{place: ofExtra, namespace: namespace}
		}
		namespace = of
		if names = names[1:]; len(names) == 0 {
			return target{place: standing, namespace: namespace}
		}
		if !slices.Contains(roots, names[0]) {
			return target{place: ofExtra, namespace: namespace}
		}
	}
	t := target{namespace: namespace}
	switch {
	case names[0] == rootServices && len(names) < 3:
		t.place = standing
	case names[0] == rootServices && len(names) == 3:
		t.place, t.service, t.id = ofInstance, registry.ParseGrouped(namespace, names[1]), names[2]
	case names[0] == rootDubbo:
		t.dubbo(names[1:])
	case names[0] == rootSystem && len(names) == 1 && len(path) == len(rootSystem)+1:
		t.place = standing
	}
	return t
}

// dubbo finds the target below /dubbo.
func (t *target) dubbo(names []string) {
	if len(names) < 2 {
		t.place = standing
		return
	}
	switch names[0] {
	case mapping:
		if len(names) == 2 {
			t.isEntry(mapping, names[1])
		}
	case config:
		if t.place = standing; len(names) == 3 {
			t.isEntry(names[1], names[2])
		} else if len(names) > 3 {
			t.place = outside
		}
	case metadata:
		t.metadata(names[1:])
	default:
		t.ofInterface(names)
	}
}

func (t *target) isEntry(group, name string) {
	t.place, t.entry = ofEntry, registry.ConfigKey{Namespace: t.namespace, Group: group, DataID: name}
}

// metadata is below /dubbo/metadata: APP/REVISION, or INTERFACE[/VERSION][/GROUP]/SIDE/APP.
func (t *target) metadata(names []string) {
	n := len(names)
	switch {
	case n == 1:
		t.place = standing
	case n >= 3 && n <= 5 && slices.Contains(sides, names[n-2]):
		version, group := "", ""
		if n > 3 {
			version = names[1]
		}
		if n > 4 {
			group = names[2]
		}
		t.isEntry(groupDefinitions, strings.Join([]string{names[0], version, group, names[n-2], names[n-1]}, ":"))
	case n == 2 && !slices.Contains(sides, names[1]):
		t.isEntry(names[1], names[0])
	case n <= 4:
		t.place = passage
	}
}

// ofInterface is below /dubbo/NAME, which is an interface, or an application.
func (t *target) ofInterface(names []string) {
	category := names[1]
	switch {
	case len(names) == 2 && slices.Contains(categories, category):
		t.place = standing
	case len(names) == 2:
		t.isEntry(category, names[0])
	case len(names) != 3:
	case category == providers || category == consumers:
		u, err := parseURL(names[2])
		if err != nil {
			return
		}
		t.place, t.id = ofInstance, names[2]
		t.service = registry.Service{
			Namespace: t.namespace, Name: strings.Join([]string{category, names[0], u.params["version"], u.params["group"]}, ":"),
		}
	case category == configurators || category == routers:
		sum := sha256.Sum256([]byte(names[2]))
		t.isEntry(category, names[0]+"/"+hex.EncodeToString(sum[:12]))
		t.id, t.rule = names[2], true
	}
}

// parentOnly reports whether a node that a client creates at the path of an entry is a parent: clients make
// those of metadata one by one, empty or with their address. Metadata of an application are a JSON object.
func (t *target) parentOnly(path string, data []byte) bool {
	if t.place != ofEntry || t.rule || t.entry.Group == mapping || t.entry.Group == groupDefinitions || strings.Contains(path, "/"+rootDubbo+"/"+config+"/") {
		return false
	}
	return !isMetadata(string(data))
}

// isMetadata reports whether a content is what Dubbo stores of a revision of an application.
func isMetadata(content string) bool {
	if !strings.HasPrefix(strings.TrimSpace(content), "{") {
		return false
	}
	var head map[string]json.RawMessage
	if json.Unmarshal([]byte(content), &head) != nil {
		return false
	}
	for _, key := range []string{"app", "revision", "services"} {
		if _, ok := head[key]; ok {
			return true
		}
	}
	return false
}

// pathsOf an entry.
func (s *Server) pathsOf(key registry.ConfigKey, o *meshv1alpha1.RegistryConfig) []string {
	prefix := s.prefix(key.Namespace) + "/" + rootDubbo + "/"
	definition := strings.Split(key.DataID, ":")
	switch {
	case key.Group == mapping && validName(key.DataID):
		return []string{prefix + mapping + "/" + key.DataID}
	case key.Group == configurators || key.Group == routers:
		name, hash, ok := strings.Cut(key.DataID, "/")
		sum := sha256.Sum256([]byte(o.Spec.Description))
		if ok && validName(name) && validName(o.Spec.Description) && hash == hex.EncodeToString(sum[:12]) {
			return []string{prefix + name + "/" + key.Group + "/" + o.Spec.Description}
		}
	case key.Group == groupDefinitions && len(definition) == 5 && slices.Contains(sides, definition[3]):
		definition = slices.DeleteFunc(definition, func(part string) bool { return part == "" })
		if len(definition) >= 3 && !slices.ContainsFunc(definition, func(part string) bool { return !validName(part) }) {
			return []string{prefix + metadata + "/" + strings.Join(definition, "/")}
		}
	case validName(key.Group) && validName(key.DataID):
		if !slices.Contains(categories, key.Group) && !slices.Contains(sides, key.Group) && isMetadata(o.Spec.Content) {
			return []string{prefix + key.DataID + "/" + key.Group, prefix + metadata + "/" + key.DataID + "/" + key.Group}
		}
		return []string{prefix + config + "/" + key.Group + "/" + key.DataID}
	}
	return nil
}

// pathOf an instance; empty: its names are none of nodes.
func (s *Server) pathOf(in *registry.Instance) string {
	prefix := s.prefix(in.Service.Namespace) + "/"
	if parts := strings.Split(in.Service.Name, ":"); in.Service.Group == "" && len(parts) == 4 && (parts[0] == providers || parts[0] == consumers) {
		name := in.ID
		if in.Protocol != registry.ZooKeeper {
			name = urlOf(in, parts[1])
		}
		if !validName(parts[1]) || !validName(name) || slices.Contains([]string{mapping, config, metadata}, parts[1]) {
			return ""
		}
		return prefix + rootDubbo + "/" + parts[1] + "/" + parts[0] + "/" + name
	}
	name := in.ID
	if in.Protocol != registry.ZooKeeper {
		name = addressOf(in)
	}
	if !validName(in.Service.Grouped()) || !validName(name) {
		return ""
	}
	return prefix + rootServices + "/" + in.Service.Grouped() + "/" + name
}

// dubboURL is an address of a provider or consumer.
type dubboURL struct {
	protocol, host, path string
	port                 uint16
	params               map[string]string
}

// parseURL reads the name of a node, which is a URL that is escaped as a whole.
func parseURL(name string) (dubboURL, error) {
	u := dubboURL{params: map[string]string{}}
	text, err := url.QueryUnescape(name)
	if err != nil {
		return u, err
	}
	address, query, _ := strings.Cut(text, "?")
	protocol, rest, ok := strings.Cut(address, "://")
	if !ok || protocol == "" {
		return u, fmt.Errorf("%.100q is no URL", text)
	}
	u.protocol = protocol
	host, path, _ := strings.Cut(rest, "/")
	u.path = path
	if _, after, ok := strings.Cut(host, "@"); ok {
		host = after
	}
	if u.host, u.port, err = hostPort(host); err != nil {
		return u, err
	}
	for pair := range strings.SplitSeq(query, "&") {
		if key, value, _ := strings.Cut(pair, "="); key != "" {
			u.params[key] = value
		}
	}
	return u, nil
}
