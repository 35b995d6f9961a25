package version

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// refusalAge is how long a refusal is listed. Clients try again every few seconds.
const refusalAge = time.Minute

// Refusal is a client whose version was refused.
type Refusal struct {
	// Name of the node or zone, and the version that it announced.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Reason says what to upgrade first.
	Reason string    `json:"reason"`
	Last   time.Time `json:"last"`
}

// Refusals are the clients that were refused for their versions within the last minute.
// The zero value has none. Safe for concurrent use.
type Refusals struct {
	mu   sync.Mutex
	last map[string]Refusal
}

// Check is CheckSkew of a client that what and name describe, as in "zone" and "east". It
// records a refusal, and forgets it when the client is admitted.
func (r *Refusals) Check(server, what, name, client string, now time.Time) error {
	err := CheckSkew(server, what+" "+name, client)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.last, name)
		return nil
	}
	if r.last == nil {
		r.last = map[string]Refusal{}
	}
	r.last[name] = Refusal{Name: name, Version: client, Reason: err.Error(), Last: now}
	return err
}

// List returns those of the minute before now, ordered by name. A nil r has none.
func (r *Refusals) List(now time.Time) []Refusal {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Refusal
	for name, one := range r.last {
		if now.Sub(one.Last) > refusalAge {
			delete(r.last, name)
			continue
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Refusal) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
