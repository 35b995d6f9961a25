package translate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// parse a message of YAML or JSON, with the names of Envoy's documentation or those of JSON.
func parse[T proto.Message](of T, value string) (T, error) {
	out := of.ProtoReflect().New().Interface().(T)
	text, err := yaml.YAMLToJSONStrict([]byte(value))
	if err != nil {
		return out, malformed{err}
	}
	if err := protojson.Unmarshal(text, out); err != nil {
		return out, malformed{readable(err)}
	}
	return out, valid(out)
}

// malformed is a value that is no message of its type, valid or not.
type malformed struct{ error }

func (m malformed) Error() string { return "value: " + m.error.Error() }

// valid checks what the generated code knows of a message.
func valid(m proto.Message) error {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		return v.ValidateAll()
	}
	return nil
}

// readable takes out what protojson adds at random, so that programs do not compare its errors.
func readable(err error) error { return errors.New(strings.ReplaceAll(err.Error(), "\u00a0", " ")) }

// edit a message by Merge (RFC 7396: lists are replaced, null removes) or JSONPatch (RFC 6902). The
// message that is given stays as it is.
func edit[T proto.Message](m T, p *mesh.ProxyPatchItem) (T, error) {
	var none T
	before, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return none, readable(err)
	}
	value, err := yaml.YAMLToJSONStrict([]byte(p.Value))
	if err != nil {
		return none, fmt.Errorf("value: %w", err)
	}
	desc := m.ProtoReflect().Descriptor()
	var after []byte
	if p.Op == mesh.PatchMerge {
		after, err = mergeJSON(before, value, desc)
	} else {
		after, err = patchJSON(before, value, desc)
	}
	if err != nil {
		return none, err
	}
	out := m.ProtoReflect().New().Interface().(T)
	if err := protojson.Unmarshal(after, out); err != nil {
		return none, readable(err)
	}
	return out, valid(out)
}

func mergeJSON(before, value []byte, desc protoreflect.MessageDescriptor) ([]byte, error) {
	var patch map[string]any
	if err := json.Unmarshal(value, &patch); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	text, err := json.Marshal(protoNames(patch, desc))
	if err != nil {
		return nil, err
	}
	return jsonpatch.MergePatch(before, text)
}

func patchJSON(before, value []byte, desc protoreflect.MessageDescriptor) ([]byte, error) {
	var ops []map[string]any
	if err := json.Unmarshal(value, &ops); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	for _, op := range ops {
		for _, key := range []string{"path", "from"} {
			if path, ok := op[key].(string); ok {
				op[key] = protoPath(path, desc)
			}
		}
	}
	text, err := json.Marshal(ops)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	return patch.Apply(before)
}

// fieldOf a message by either of its names; nil: it has none.
func fieldOf(desc protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if desc == nil {
		return nil
	}
	if f := desc.Fields().ByName(protoreflect.Name(name)); f != nil {
		return f
	}
	return desc.Fields().ByJSONName(name)
}

// protoNames names the fields of a part of a message as its definition does.
func protoNames(value any, desc protoreflect.MessageDescriptor) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = protoNames(v[i], desc)
		}
	case map[string]any:
		if url, ok := v["@type"].(string); ok {
			if t, err := protoregistry.GlobalTypes.FindMessageByURL(url); err == nil {
				desc = t.Descriptor()
			}
		}
		out := make(map[string]any, len(v))
		for key, item := range v {
			f := fieldOf(desc, key)
			switch {
			case f == nil:
				out[key] = item
			case f.IsMap():
				out[string(f.Name())] = mapValues(item, f.MapValue().Message())
			default:
				out[string(f.Name())] = protoNames(item, f.Message())
			}
		}
		return out
	}
	return value
}

func mapValues(value any, desc protoreflect.MessageDescriptor) any {
	if m, ok := value.(map[string]any); ok && desc != nil {
		for key := range m {
			m[key] = protoNames(m[key], desc)
		}
	}
	return value
}

// protoPath names the fields of a JSON pointer as their definitions do, as far as those are known.
func protoPath(path string, desc protoreflect.MessageDescriptor) string {
	parts := strings.Split(path, "/")
	inMap := false
	for i, part := range parts[1:] {
		if inMap || part == "-" || part != "" && part[0] >= '0' && part[0] <= '9' {
			inMap = false
			continue
		}
		f := fieldOf(desc, part)
		if f == nil {
			break
		}
		parts[i+1] = string(f.Name())
		if f.IsMap() {
			desc, inMap = f.MapValue().Message(), true
		} else {
			desc = f.Message()
		}
	}
	return strings.Join(parts, "/")
}
