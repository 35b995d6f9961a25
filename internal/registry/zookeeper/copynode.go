package zookeeper

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// copyPrefix begins the names of nodes that are copies, and whose data have no place to say so: the payload of
// Curator is of an application's own type, or there is none.
const copyPrefix = "proxima-copy-"

// isRPC reports whether a service is of providers or consumers of an interface of Dubbo, which are URLs.
func isRPC(s registry.Service) (iface, category string, ok bool) {
	parts := strings.Split(s.Name, ":")
	if s.Group == "" && len(parts) == 4 && (parts[0] == providers || parts[0] == consumers) {
		return parts[1], parts[0], true
	}
	return "", "", false
}

// copyNode is the node of a copy: its path below the root of the client, and its data; ok is false if its names are
// none of nodes.
func copyNode(in *registry.Instance) (path string, data []byte, ok bool) {
	own, isOwn := detailOf(in)
	if iface, category, rpc := isRPC(in.Service); rpc {
		name := urlOf(in, iface)
		if isOwn {
			name, data = markURL(in.ID, in.MirroredFrom()), own.Data
		} else {
			data = dataOf(in, true, false)
		}
		return "/" + rootDubbo + "/" + iface + "/" + category + "/" + name, data, validName(iface) && validName(name)
	}
	name, data := addressOf(in), dataOf(in, false, false)
	marked := ofDubbo(in) // among the metadata
	if isOwn {
		name, data = in.ID, own.Data
		var with []byte
		if with, marked = markData(data, in.MirroredFrom()); marked {
			data = with
		}
	}
	if !marked {
		name = copyPrefix + name
		data = renamed(data, name)
	}
	return "/" + rootServices + "/" + in.Service.Grouped() + "/" + name, data, validName(in.Service.Grouped()) && validName(name)
}

// CopiedApart reports whether the copy of an instance is another node than that of the instance itself, so that both
// can be there: it is for mirror.Config.
func CopiedApart(in *registry.Instance) bool {
	if _, _, rpc := isRPC(in.Service); rpc {
		return true
	}
	own, isOwn := detailOf(in)
	if !isOwn {
		return !ofDubbo(in)
	}
	_, ok := markData(own.Data, "-")
	return !ok
}

// Refuse says why a ZooKeeper does not get a copy of an instance; it is for mirror.Config.
func Refuse(in *registry.Instance) string {
	if _, category, _ := isRPC(in.Service); category == consumers {
		return "it is a consumer, which nothing calls"
	}
	copied := *in
	if _, _, ok := copyNode(&copied); !ok {
		return "its name is none of a node"
	}
	return ""
}

// markURL adds the registry that it is copied from to the parameters of a URL that is the name of a node.
func markURL(name, from string) string {
	separator := "?"
	if text, err := url.QueryUnescape(name); err == nil && strings.Contains(text, "?") {
		separator = "&"
	}
	return name + url.QueryEscape(separator+registry.KeyMirroredFrom+"="+from)
}

// markData adds the registry that it is copied from to the metadata of Curator's JSON; ok is false if they have none.
// All else stays as its client wrote it.
func markData(data []byte, from string) (out []byte, ok bool) {
	var doc, payload map[string]json.RawMessage
	var metadata map[string]json.RawMessage
	if json.Unmarshal(data, &doc) != nil || json.Unmarshal(doc["payload"], &payload) != nil || payload["metadata"] == nil ||
		json.Unmarshal(payload["metadata"], &metadata) != nil {
		return nil, false
	}
	if metadata == nil { // null
		metadata = map[string]json.RawMessage{}
	}
	metadata[registry.KeyMirroredFrom], _ = json.Marshal(from) // a text
	for _, level := range []struct {
		in   map[string]json.RawMessage
		key  string
		from any
	}{{payload, "metadata", metadata}, {doc, "payload", payload}} {
		b, err := plainJSON(level.from)
		if err != nil {
			return nil, false
		}
		level.in[level.key] = b
	}
	out, err := plainJSON(doc)
	return out, err == nil
}

// renamed is Curator's JSON with another ID, if it is that.
func renamed(data []byte, id string) []byte {
	var doc map[string]json.RawMessage
	if json.Unmarshal(data, &doc) != nil || doc["id"] == nil {
		return data
	}
	doc["id"], _ = json.Marshal(id) // a text
	if out, err := plainJSON(doc); err == nil {
		return out
	}
	return data
}

// plainJSON writes without the escapes of HTML, which change nothing but the bytes.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
