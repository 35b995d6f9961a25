package wire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// Messages of proxima.identity.v1 (api/identity/v1/identity.proto).

// TrustBundle is what is trusted for a mesh (Bundle).
type TrustBundle struct {
	Mesh, Domain string
	Roots        [][]byte // DER
	ExportedTo   []string
	Generation   uint64
	Issuer       string
}

// maxBundles of a message, and maxRoots of a mesh: more is no answer of a control plane.
const maxBundles, maxRoots = 10_000, 64

// ParseTrust reads a TrustResponse.
func ParseTrust(data []byte) ([]TrustBundle, error) {
	out := []TrustBundle{}
	err := Fields(data, func(num protowire.Number, value []byte) error {
		if num != 1 {
			return nil
		}
		if len(out) == maxBundles {
			return errors.New("a message with too many meshes")
		}
		b, err := parseBundle(value)
		out = append(out, b)
		return err
	})
	return out, err
}

func parseBundle(data []byte) (TrustBundle, error) {
	var b TrustBundle
	err := EachField(data, func(num protowire.Number, value []byte, number uint64) error {
		switch num {
		case 1:
			b.Mesh = string(value)
		case 2:
			b.Domain = string(value)
		case 3:
			if len(b.Roots) == maxRoots {
				return errors.New("a mesh with too many roots")
			}
			b.Roots = append(b.Roots, value)
		case 4:
			b.ExportedTo = append(b.ExportedTo, string(value))
		case 5:
			b.Generation = number
		case 6:
			b.Issuer = string(value)
		}
		return nil
	})
	if err == nil && (b.Mesh == "" || b.Domain == "") {
		err = errors.New("a bundle without a mesh or its trust domain")
	}
	return b, err
}

// IssueRequest asks for the certificate of a workload; csr is DER.
func IssueRequest(namespace, name string, csr []byte) Frame {
	workload := appendString(appendString(nil, 1, namespace), 2, name)
	return appendBytes(appendBytes(nil, 1, workload), 3, csr)
}

// ParseIssued reads the certificates (DER) of an IssueResponse, the leaf first.
func ParseIssued(data []byte) (chain [][]byte, err error) {
	err = Fields(data, func(num protowire.Number, value []byte) error {
		if num == 1 {
			chain = append(chain, value)
		}
		return nil
	})
	if err == nil && (len(chain) == 0 || len(chain) > maxRoots) {
		err = errors.New("an answer with no certificate, or too many")
	}
	return chain, err
}

// Acknowledgement of a TrustBundle; HoldsUntil in Unix seconds, 0: there is no certificate.
type Acknowledgement struct {
	Mesh       string
	Generation uint64
	HoldsUntil int64
}

// Acknowledge is a TrustRequest.
func Acknowledge(all []Acknowledgement) Frame {
	var out Frame
	for _, a := range all {
		one := appendString(nil, 1, a.Mesh)
		one = protowire.AppendVarint(protowire.AppendTag(one, 2, protowire.VarintType), a.Generation)
		if a.HoldsUntil != 0 {
			one = protowire.AppendVarint(protowire.AppendTag(one, 3, protowire.VarintType), uint64(a.HoldsUntil))
		}
		out = appendBytes(out, 1, one)
	}
	return out
}

// WorkloadHeader in the metadata of calls with a token is the name of the workload.
const WorkloadHeader = "proxima-workload"
