package nacos

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/proxima-mesh/proxima/internal/registry"
)

// Codes of answers (com.alibaba.nacos.api.exception.NacosException, ResponseCode).
const (
	resultOK     = 200
	resultFailed = 500

	codeNotFound     = 300 // of a configuration
	codeStarting     = 300 // of a server that is starting: clients try another one, and again
	codeUnregistered = 301 // clients connect anew
	codeNoHandler    = 302
	codeForbidden    = 403
	codeInvalid      = 400
	codeConflict     = 409
	codeServerError  = 500
)

// header is what every request has.
type header struct {
	RequestID string `json:"requestId"`
}

// result is what every response has.
type result struct {
	ResultCode int    `json:"resultCode"`
	ErrorCode  int    `json:"errorCode"`
	Success    bool   `json:"success"`
	Message    string `json:"message,omitempty"`
	RequestID  string `json:"requestId,omitempty"`
}

// problem of a request, as clients of Nacos are told.
type problem struct {
	code    int
	message string
}

func (p *problem) Error() string { return p.message }

func invalid(format string, args ...any) error {
	return &problem{codeInvalid, fmt.Sprintf(format, args...)}
}

type serverCheckResponse struct {
	result
	ConnectionID string `json:"connectionId"`
	Negotiation  bool   `json:"supportAbilityNegotiation"`
}

type connectionSetup struct {
	header
	ClientVersion string            `json:"clientVersion"`
	Tenant        string            `json:"tenant"`
	Labels        map[string]string `json:"labels"`
}

// named is what requests of naming have.
type named struct {
	header
	Namespace   string `json:"namespace"`
	ServiceName string `json:"serviceName"`
	GroupName   string `json:"groupName"`
}

// instance of a service, as it is registered, and in lists.
type instance struct {
	InstanceID  string            `json:"instanceId,omitempty"`
	IP          string            `json:"ip"`
	Port        int               `json:"port"`
	Weight      *float64          `json:"weight"`
	Healthy     *bool             `json:"healthy"`
	Enabled     *bool             `json:"enabled"`
	Ephemeral   *bool             `json:"ephemeral"`
	ClusterName string            `json:"clusterName"`
	ServiceName string            `json:"serviceName,omitempty"`
	Metadata    map[string]string `json:"metadata"`
	// What clients of version 1 read.
	HeartBeatInterval int    `json:"instanceHeartBeatInterval,omitempty"`
	HeartBeatTimeOut  int    `json:"instanceHeartBeatTimeOut,omitempty"`
	DeleteTimeout     int    `json:"ipDeleteTimeout,omitempty"`
	IDGenerator       string `json:"instanceIdGenerator,omitempty"`
}

type instanceRequest struct {
	named
	Type     string    `json:"type"`
	Instance *instance `json:"instance"`
}

type instanceResponse struct {
	result
	Type string `json:"type"`
}

type batchInstanceRequest struct {
	named
	Type      string      `json:"type"`
	Instances []*instance `json:"instances"`
}

type subscribeServiceRequest struct {
	named
	Subscribe bool   `json:"subscribe"`
	Clusters  string `json:"clusters"`
}

type serviceQueryRequest struct {
	named
	Cluster     string `json:"cluster"`
	HealthyOnly bool   `json:"healthyOnly"`
}

// serviceInfo is the instances of a service.
type serviceInfo struct {
	Name        string     `json:"name"`
	GroupName   string     `json:"groupName"`
	Clusters    string     `json:"clusters"`
	CacheMillis int        `json:"cacheMillis"`
	Hosts       []instance `json:"hosts"`
	LastRefTime int64      `json:"lastRefTime"`
	Checksum    string     `json:"checksum"`
	AllIPs      bool       `json:"allIPs"`
	Protected   bool       `json:"reachProtectionThreshold"`
	Valid       bool       `json:"valid"`
}

type serviceListRequest struct {
	named
	PageNo   int `json:"pageNo"`
	PageSize int `json:"pageSize"`
}

type serviceListResponse struct {
	result
	Count        int      `json:"count"`
	ServiceNames []string `json:"serviceNames"`
}

type notifySubscriber struct {
	header
	Namespace   string `json:"namespace"`
	ServiceName string `json:"serviceName"`
	GroupName   string `json:"groupName"`
	Module      string `json:"module"`
}

// configNamed is what requests of configuration have.
type configNamed struct {
	DataID string `json:"dataId"`
	Group  string `json:"group"`
	Tenant string `json:"tenant"`
}

type configRequest struct {
	header
	configNamed
	Content  string            `json:"content"`
	CasMD5   string            `json:"casMd5"`
	Addition map[string]string `json:"additionMap"`
}

type configQueryResponse struct {
	result
	Content      string `json:"content"`
	ContentType  string `json:"contentType,omitempty"`
	MD5          string `json:"md5,omitempty"`
	LastModified int64  `json:"lastModified,omitempty"`
	EncryptedKey string `json:"encryptedDataKey,omitempty"`
	Tag          string `json:"tag,omitempty"`
	Beta         bool   `json:"beta"`
}

type configListenRequest struct {
	header
	Listen   bool                  `json:"listen"`
	Contexts []configListenContext `json:"configListenContexts"`
}

// configListenContext is an entry, and the MD5 that a client has of it; empty: none.
type configListenContext struct {
	configNamed
	MD5 string `json:"md5"`
}

type configListenResponse struct {
	result
	Changed []configNamed `json:"changedConfigs"`
}

// connectReset asks a client to connect to another server: that of the address, if its list has that, else the
// next one of its list.
type connectReset struct {
	header
	ServerIP   string `json:"serverIp"`
	ServerPort string `json:"serverPort"`
	Module     string `json:"module"`
	told       bool
}

type configChangeNotify struct {
	header
	configNamed
	Module string `json:"module"`
}

const (
	defaultGroup   = "DEFAULT_GROUP"
	defaultCluster = "DEFAULT"
	publicName     = "public"
	// maxName of a service or a group, in bytes.
	maxName = 512
	// ordinary is the weight of a Dataplane that is 1 in Nacos.
	ordinary = 100
)

// service that a request is about. Older clients put the group before the name: GROUP@@NAME.
func (n *named) service(namespaces registry.Namespaces) (registry.Service, error) {
	group, name := n.GroupName, n.ServiceName
	if before, after, ok := strings.Cut(name, "@@"); ok {
		group, name = before, after
	}
	if group == defaultGroup {
		group = ""
	}
	switch {
	case name == "":
		return registry.Service{}, invalid("serviceName is missing")
	case len(name) > maxName, len(group) > maxName:
		return registry.Service{}, invalid("serviceName or groupName has more than %d bytes", maxName)
	case strings.ContainsAny(group, "@#"), strings.Contains(name, "@@"):
		return registry.Service{}, invalid("serviceName and groupName must not contain @@")
	}
	return registry.Service{Namespace: namespaces.Of(n.Namespace), Group: group, Name: name}, nil
}

func groupOf(s registry.Service) string {
	if s.Group == "" {
		return defaultGroup
	}
	return s.Group
}

// zoneKeys of metadata, in which applications say which zone they are in.
var zoneKeys = []string{"topology.kubernetes.io/zone", "zone"}

// of the catalogue is the instance that a client registers.
func (i *instance) of(s registry.Service, core *registry.Core) (*registry.Instance, error) {
	out, err := i.parse(s)
	if err == nil {
		core.Place(out, zoneKeys...)
	}
	return out, err
}

// parse is of, but for where the instance is.
func (i *instance) parse(s registry.Service) (*registry.Instance, error) {
	address, err := netip.ParseAddr(i.IP)
	if err != nil {
		return nil, invalid("ip %.60q is no IP address", i.IP)
	}
	if i.Port < 0 || i.Port > 65535 {
		return nil, invalid("port %d is not from 0 to 65535", i.Port)
	}
	weight := 1.0
	if i.Weight != nil {
		weight = *i.Weight
	}
	if weight < 0 || weight > 10_000 || weight != weight {
		return nil, invalid("weight %g is not from 0 to 10000", weight)
	}
	out := &registry.Instance{
		Service: s, Cluster: i.ClusterName, Address: address, Port: uint16(i.Port), Weight: weightOf(weight),
		Enabled: i.Enabled == nil || *i.Enabled, Healthy: i.Healthy == nil || *i.Healthy, Ephemeral: i.Ephemeral == nil || *i.Ephemeral,
		Protocol: registry.Nacos, Metadata: i.Metadata,
	}
	if out.Cluster == "" {
		out.Cluster = defaultCluster
	}
	return out, nil
}

// weightOf a Dataplane, for one of Nacos: 1 is ordinary; above 10 they are alike.
func weightOf(weight float64) int32 {
	n := int32(min(weight*ordinary+0.5, 1000))
	if n == 0 && weight > 0 {
		return 1
	}
	return n
}

// infoOf a listing, for the clusters that a client wants (separated by commas; empty: all).
func infoOf(l *registry.Listing, clusters string, healthyOnly bool, protect float64) *serviceInfo {
	out := &serviceInfo{
		Name: l.Service.Name, GroupName: groupOf(l.Service), Clusters: clusters, CacheMillis: 10_000, Hosts: []instance{},
		LastRefTime: int64(l.Position), Valid: true,
	}
	healthy := 0
	for n, in := range l.Instances {
		cluster := in.Cluster
		if cluster == "" {
			cluster = defaultCluster
		}
		if clusters != "" && !containsPart(clusters, cluster) {
			continue
		}
		if in.Healthy {
			healthy++
		}
		host := instance{
			IP: in.Address.String(), Port: int(in.Port), Weight: new(l.Weights[n]), Healthy: new(in.Healthy), Enabled: new(in.Enabled),
			Ephemeral: new(in.Ephemeral || in.Protocol != registry.Nacos), ClusterName: cluster,
			ServiceName: groupOf(l.Service) + "@@" + l.Service.Name, Metadata: in.Metadata,
			HeartBeatInterval: 5000, HeartBeatTimeOut: 15_000, DeleteTimeout: 30_000, IDGenerator: "simple",
		}
		if host.Metadata == nil {
			host.Metadata = map[string]string{}
		}
		host.InstanceID = fmt.Sprintf("%s#%d#%s#%s", host.IP, host.Port, cluster, host.ServiceName)
		out.Hosts = append(out.Hosts, host)
	}
	if n := len(out.Hosts); n > 0 && float64(healthy)/float64(n) < protect {
		out.Protected = true
		for i := range out.Hosts {
			out.Hosts[i].Healthy = new(true)
		}
		return out
	}
	if healthyOnly {
		kept := out.Hosts[:0]
		for _, h := range out.Hosts {
			if *h.Healthy && *h.Enabled {
				kept = append(kept, h)
			}
		}
		out.Hosts = kept
	}
	return out
}

func containsPart(list, part string) bool {
	for p := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(p) == part {
			return true
		}
	}
	return false
}
