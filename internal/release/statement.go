package release

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Types of an in-toto Statement v1 with SLSA provenance v1
// (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.1/provenance).
const (
	StatementType  = "https://in-toto.io/Statement/v1"
	ProvenanceType = "https://slsa.dev/provenance/v1"
	// BuildType says how to read the parameters of a build: docs/how-to/release.md.
	BuildType = "https://github.com/proxima-mesh/proxima/blob/main/docs/how-to/release.md#statements"
)

// Suffixes of the file with the statement about FILE.
const (
	// UnsignedSuffix is of a plain statement, in JSON.
	UnsignedSuffix = ".intoto.json"
	// SignedSuffix is of a DSSE envelope with the statement in it, in JSON, on one line.
	SignedSuffix = ".intoto.jsonl"
)

// Statement says of files how they were made.
type Statement struct {
	Type          string     `json:"_type"`
	Subject       []Subject  `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     Provenance `json:"predicate"`
}

// Subject is a file.
type Subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// Provenance is the predicate.
type Provenance struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
}

// BuildDefinition is everything that the bytes depend on.
type BuildDefinition struct {
	BuildType            string             `json:"buildType"`
	ExternalParameters   ExternalParameters `json:"externalParameters"`
	InternalParameters   InternalParameters `json:"internalParameters"`
	ResolvedDependencies []Resource         `json:"resolvedDependencies"`
}

// ExternalParameters are those that whoever builds chooses.
type ExternalParameters struct {
	Version string `json:"version"`
	// Target is the make target that writes the file.
	Target string `json:"target"`
}

// InternalParameters are those that the build sets by itself.
type InternalParameters struct {
	Go string `json:"go"`
	// Environment of the go command.
	Environment map[string]string `json:"environment"`
	Flags       []string          `json:"flags"`
	// SourceDateEpoch is the time of all files in archives, in seconds since 1970.
	SourceDateEpoch int64 `json:"sourceDateEpoch"`
}

// Resource is what the build read.
type Resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// RunDetails say who built. They have no times: two builds give equal bytes.
type RunDetails struct {
	Builder Builder `json:"builder"`
}

// Builder is who vouches for the statement.
type Builder struct {
	ID string `json:"id"`
}

// NewStatement is the statement about one file.
func NewStatement(file Sum, build BuildDefinition, builder string) Statement {
	return Statement{
		Type:          StatementType,
		Subject:       []Subject{{Name: file.Name, Digest: map[string]string{"sha256": file.Digest.String()}}},
		PredicateType: ProvenanceType,
		Predicate:     Provenance{BuildDefinition: build, RunDetails: RunDetails{Builder: Builder{ID: builder}}},
	}
}

// maxStatement bounds a statement and its envelope, in bytes.
const maxStatement = 1 << 20

// ParseStatement reads a statement of a type that this version knows. Fields that it does not
// know are ignored, as the specifications say.
func ParseStatement(data []byte) (*Statement, error) {
	if len(data) > maxStatement {
		return nil, fmt.Errorf("%d bytes are too many for a statement", len(data))
	}
	var s Statement
	if err := decodeOne(data, &s); err != nil {
		return nil, fmt.Errorf("not a statement in JSON: %w", err)
	}
	switch {
	case s.Type != StatementType:
		return nil, fmt.Errorf("_type %.80q: only %s is known", s.Type, StatementType)
	case s.PredicateType != ProvenanceType:
		return nil, fmt.Errorf("predicateType %.80q: only %s is known", s.PredicateType, ProvenanceType)
	case len(s.Subject) == 0:
		return nil, errors.New("it has no subject")
	}
	return &s, nil
}

// commit of the source; empty if the statement names none.
func (s *Statement) commit() string {
	for _, r := range s.Predicate.BuildDefinition.ResolvedDependencies {
		if c := r.Digest["gitCommit"]; c != "" {
			return c
		}
	}
	return ""
}

// digestOf a file by the statement.
func (s *Statement) digestOf(name string) (Digest, error) {
	for _, subject := range s.Subject {
		if subject.Name == name {
			return ParseDigest(subject.Digest["sha256"])
		}
	}
	return Digest{}, fmt.Errorf("it is about %.80s", s.Subject[0].Name)
}

// decodeOne JSON value, and nothing after it.
func decodeOne(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(into); err != nil {
		return err
	}
	if len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		return errors.New("more than one value")
	}
	return nil
}
