package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	sigsjson "sigs.k8s.io/json"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/payload"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// AnnotationUnknown on a copy keeps what a newer program wrote and this one does not know, as
// JSON. Global passes it on; once this program knows it, the copy is fetched again.
const AnnotationUnknown = meshv1alpha1.GroupName + "/unknown-fields"

// maxUnknown bounds the annotation, in bytes: Kubernetes allows 256 KiB for all of an object.
const maxUnknown = 128 << 10

// maxFields and maxPath bound what is kept of larger ones.
const (
	maxFields = 10
	maxPath   = 200
)

// unknown is the value of AnnotationUnknown.
type unknown struct {
	// Fields that are not known, by path, in order.
	Fields []string `json:"fields"`
	// Payload of the original, with these fields. Empty: it is too large to be kept.
	Payload json.RawMessage `json:"payload,omitempty"`
}

// unmarshal decodes a payload, and returns the paths of fields that it has and the kind has
// not, in order.
func (k Kind) unmarshal(body []byte) (obj resource.Object, fields []string, err error) {
	if _, err := payload.JSON(body, payloadLimits); err != nil {
		return nil, nil, fmt.Errorf("decode payload: %w", err)
	}
	obj = k.Descriptor.New()
	if len(body) == 0 {
		return obj, nil, nil
	}
	strict, err := sigsjson.UnmarshalStrict(body, obj, sigsjson.DisallowUnknownFields)
	if err != nil {
		return nil, nil, fmt.Errorf("decode payload: %w", err)
	}
	for _, one := range strict {
		var field sigsjson.FieldError
		if errors.As(one, &field) {
			fields = append(fields, field.FieldPath())
		}
	}
	slices.Sort(fields)
	return obj, fields, nil
}

// encoded is the value of the annotation.
func (u unknown) encoded() (string, error) {
	text, err := json.Marshal(u)
	if err == nil && len(text) > maxUnknown {
		u.Payload, u.Fields = nil, u.Fields[:min(len(u.Fields), maxFields)]
		for i, path := range u.Fields {
			u.Fields[i] = path[:min(len(path), maxPath)]
		}
		text, err = json.Marshal(u)
	}
	if err != nil {
		return "", fmt.Errorf("keep unknown fields: %w", err)
	}
	return string(text), nil
}

// unknownOf reads what is kept of a copy; ok is false if there is nothing, or if the object
// is no copy.
func unknownOf(obj resource.Object) (u unknown, ok bool) {
	notes := obj.GetAnnotations()
	text := notes[AnnotationUnknown]
	if _, labelled := federation.OwnerOf(obj.GetLabels()); text == "" || !labelled || notes[federation.AnnotationSyncName] == "" {
		return u, false
	}
	return u, json.Unmarshal([]byte(text), &u) == nil
}

// learnt reports whether this program knows more of a copy than the one that stored it.
func (k Kind) learnt(obj resource.Object) bool {
	u, ok := unknownOf(obj)
	if !ok {
		return obj.GetAnnotations()[AnnotationUnknown] != "" // damaged
	}
	if len(u.Payload) == 0 {
		return true // it cannot be told
	}
	_, fields, err := k.unmarshal(u.Payload)
	return err != nil || !slices.Equal(fields, u.Fields)
}

// withUnknown adds to the fields of a copy what its original has besides.
func withUnknown(obj resource.Object, fields map[string]json.RawMessage) error {
	u, ok := unknownOf(obj)
	if !ok || len(u.Payload) == 0 {
		return nil
	}
	original := map[string]json.RawMessage{}
	if err := json.Unmarshal(u.Payload, &original); err != nil {
		return fmt.Errorf("unknown fields: %w", err)
	}
	for name, value := range original {
		merged, err := overlay(value, fields[name])
		if err != nil {
			return fmt.Errorf("unknown fields: %s: %w", name, err)
		}
		fields[name] = merged
	}
	return nil
}

// overlay is the original where known has nothing, and known elsewhere. Lists of different
// lengths are those of known.
func overlay(original, known json.RawMessage) (json.RawMessage, error) {
	if len(known) == 0 {
		return original, nil
	}
	var a, b any
	if err := errors.Join(sigsjson.UnmarshalCaseSensitivePreserveInts(original, &a),
		sigsjson.UnmarshalCaseSensitivePreserveInts(known, &b)); err != nil {
		return nil, err
	}
	return json.Marshal(overlaid(a, b))
}

func overlaid(original, known any) any {
	switch k := known.(type) {
	case map[string]any:
		o, ok := original.(map[string]any)
		if !ok {
			return known
		}
		for name, value := range k {
			o[name] = overlaid(o[name], value)
		}
		return o
	case []any:
		o, ok := original.([]any)
		if !ok || len(o) != len(k) {
			return known
		}
		for i := range k {
			k[i] = overlaid(o[i], k[i])
		}
	}
	return known
}
