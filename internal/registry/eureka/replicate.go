package eureka

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// maxReplicated is how many actions of a peer are taken at a time; Netflix's servers send 250.
const maxReplicated = 5000

// replication is what another server of Eureka says that its clients did
// (com.netflix.eureka.cluster.protocol.ReplicationInstance).
type replication struct {
	App        string  `json:"appName"`
	ID         string  `json:"id"`
	LastDirty  flexInt `json:"lastDirtyTimestamp"`
	Overridden string  `json:"overriddenStatus"`
	Status     string  `json:"status"`
	Instance   *info   `json:"instanceInfo"`
	Action     string  `json:"action"`
}

// replicated is the outcome of one.
type replicated struct {
	StatusCode int `json:"statusCode"`
}

// replicate does what the clients of another server did: this control plane is a peer in its ring while
// applications move.
func (s *Server) replicate(r *request) answer {
	b, err := r.body()
	if err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	var batch struct {
		List []replication `json:"replicationList"`
	}
	if err := json.Unmarshal(b, &batch); err != nil {
		return refuse(http.StatusBadRequest, fmt.Errorf("read replication: %w", err))
	}
	if len(batch.List) > maxReplicated {
		return refuse(http.StatusBadRequest, fmt.Errorf("a batch of %d actions; at most %d are taken", len(batch.List), maxReplicated))
	}
	out := struct {
		List []replicated `json:"responseList"`
	}{List: []replicated{}}
	for i := range batch.List {
		out.List = append(out.List, replicated{s.replay(r, &batch.List[i]).status})
	}
	body, err := json.Marshal(out)
	if err != nil {
		return refuse(http.StatusInternalServerError, err)
	}
	return answer{status: http.StatusOK, body: body, format: &format{}}
}

// replay one action.
func (s *Server) replay(r *request, a *replication) answer {
	if a.Action == "Register" {
		if a.Instance == nil {
			return answer{status: http.StatusBadRequest}
		}
		return s.registerInfo(r, a.App, a.Instance)
	}
	one := *r
	one.Request = r.WithContext(r.Context())
	query := url.Values{}
	part := []string(nil)
	one.Method = http.MethodPut
	switch a.Action {
	case "Heartbeat":
		query.Set("lastDirtyTimestamp", strconv.FormatInt(int64(a.LastDirty), 10))
	case "Cancel":
		one.Method = http.MethodDelete
	case "StatusUpdate":
		part = []string{"status"}
		query.Set("value", a.Status)
	case "DeleteStatusOverride":
		one.Method, part = http.MethodDelete, []string{"status"}
	default:
		return answer{status: http.StatusBadRequest}
	}
	one.URL = &url.URL{Path: r.URL.Path, RawQuery: query.Encode()}
	return s.change(&one, a.App, a.ID, part)
}
