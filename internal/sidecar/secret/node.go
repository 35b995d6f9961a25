package secret

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"
)

// Node is a Source: the certificate of an agent, which the agent renews and keeps in a file. It is
// for the control plane alone, and has no SPIFFE ID.
type Node struct {
	// File of the agent's credentials (package identity).
	File string
}

// nodeCheck is how often the file is looked at.
const nodeCheck = 2 * time.Second

// Run implements Source.
func (n Node) Run(ctx context.Context, _ *Identity, update func(*Identity) error, problem func(error)) {
	ticker := time.NewTicker(nodeCheck)
	defer ticker.Stop()
	var last []byte
	for {
		data, err := os.ReadFile(n.File)
		if err == nil && !bytes.Equal(data, last) {
			var i *Identity
			if i, err = parseNode(data); err == nil {
				err = update(i)
			}
			if err == nil {
				last = data
			}
		}
		problem(err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// parseNode reads the credentials of an agent.
func parseNode(data []byte) (*Identity, error) {
	var stored struct {
		Certificate string `json:"certificate"`
		CA          string `json:"ca"`
		Key         string `json:"key"`
	}
	if json.Unmarshal(data, &stored) != nil {
		return nil, errors.New("the credentials of the agent are damaged") // without parts of the key
	}
	key, _ := pem.Decode([]byte(stored.Key))
	if key == nil {
		return nil, errors.New("the credentials of the agent have no key")
	}
	i := &Identity{Chain: decodePEM(stored.Certificate), Key: key.Bytes, Roots: map[string][][]byte{"": decodePEM(stored.CA)}}
	if err := i.parse(); err != nil {
		return nil, fmt.Errorf("the credentials of the agent: %w", err)
	}
	return i, nil
}

func decodePEM(text string) [][]byte {
	var out [][]byte
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out
		}
		out = append(out, block.Bytes)
	}
}
