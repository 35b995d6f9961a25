package translate

import (
	"regexp"
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// span is a duration of a policy; nil: none was said.
func span(d *mesh.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(d.Value())
}

// positive is span, and nil for 0.
func positive(d *mesh.Duration) *durationpb.Duration {
	if d == nil || d.Value() <= 0 {
		return nil
	}
	return durationpb.New(d.Value())
}

func number(n *int32) *wrapperspb.UInt32Value {
	if n == nil || *n < 0 {
		return nil
	}
	return wrapperspb.UInt32(uint32(*n))
}

// orMost is a limit, of which 0 is none.
func orMost(n *int32) *wrapperspb.UInt32Value {
	if n == nil || *n <= 0 {
		return wrapperspb.UInt32(1<<32 - 1)
	}
	return wrapperspb.UInt32(uint32(*n))
}

// pack a message. The messages of this package can always be encoded.
func pack(m proto.Message) *anypb.Any {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic("translate: encode " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return out
}

// percentage with two decimal places, as Envoy's denominator allows.
func percentage(p float64) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: uint32(p * 10000), Denominator: typev3.FractionalPercent_MILLION}
}

func text(m mesh.ValueMatch) *matcherv3.StringMatcher {
	switch m.Type {
	case mesh.MatchPrefix:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: m.Value}}
	case mesh.MatchRegularExpression:
		return expression(m.Value)
	}
	return exact(m.Value)
}

func exact(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}

func expression(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(value)}}
}

// regex of RE2; Envoy compares the whole text.
func regex(value string) *matcherv3.RegexMatcher { return &matcherv3.RegexMatcher{Regex: value} }

func quote(s string) string { return regexp.QuoteMeta(s) }

// literal is a text in place of a match, in which Envoy looks for \1.
func literal(s string) string { return strings.ReplaceAll(s, `\`, `\\`) }
