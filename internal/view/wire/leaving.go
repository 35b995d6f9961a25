package wire

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
)

// EncodeLeaving marshals the resource of a node that is about to be removed.
func EncodeLeaving(node string) ([]byte, error) {
	body, err := marshal(&nodev1.Leaving{Node: node})
	if err != nil {
		return nil, fmt.Errorf("marshal leaving node %s: %w", node, err)
	}
	return body, nil
}

// DecodeLeaving reads the name of a node from the body of the resource of that name.
func DecodeLeaving(name string, body []byte) (string, error) {
	var m nodev1.Leaving
	if err := proto.Unmarshal(body, &m); err != nil {
		return "", err
	}
	if name == "" || m.GetNode() != name {
		return "", fmt.Errorf("content is of node %q", m.GetNode())
	}
	return name, nil
}
