package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
)

// EncodeSuspect marshals the resource of a suspect node.
func EncodeSuspect(node string) ([]byte, error) {
	body, err := marshal(&nodev1.Suspect{Node: node})
	if err != nil {
		return nil, fmt.Errorf("marshal suspect %s: %w", node, err)
	}
	return body, nil
}

// DecodeSuspect reads the name of a suspect node from the body of the resource of that name.
func DecodeSuspect(name string, body []byte) (string, error) {
	var m nodev1.Suspect
	if err := proto.Unmarshal(body, &m); err != nil {
		return "", err
	}
	if name == "" || m.GetNode() != name {
		return "", fmt.Errorf("content is of node %q", m.GetNode())
	}
	return name, nil
}
