package eureka

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/registry"
)

// Statuses of an instance.
const (
	statusUp           = "UP"
	statusDown         = "DOWN"
	statusStarting     = "STARTING"
	statusOutOfService = "OUT_OF_SERVICE"
	statusUnknown      = "UNKNOWN"
)

func validStatus(s string) bool {
	switch s {
	case statusUp, statusDown, statusStarting, statusOutOfService, statusUnknown:
		return true
	}
	return false
}

// Lease of a client that names none, and how often it renews it, in seconds: Eureka's defaults.
const (
	defaultLease    = 90
	defaultRenewal  = 30
	minLease        = 3
	maxLease        = 24 * 60 * 60
	defaultDataType = "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo"
)

// info is an instance as clients of Eureka write and read it. In Detail of a registry.Instance it is
// what Eureka alone knows.
type info struct {
	InstanceID      string            `json:"instanceId,omitempty"`
	HostName        string            `json:"hostName,omitempty"`
	App             string            `json:"app,omitempty"`
	IPAddr          string            `json:"ipAddr,omitempty"`
	Status          string            `json:"status,omitempty"`
	Overridden      string            `json:"overriddenStatus,omitempty"`
	Port            port              `json:"port"`
	SecurePort      port              `json:"securePort"`
	CountryID       int               `json:"countryId"`
	DataCenter      dataCenter        `json:"dataCenterInfo"`
	Lease           lease             `json:"leaseInfo"`
	Metadata        map[string]string `json:"metadata"`
	HomePageURL     string            `json:"homePageUrl,omitempty"`
	StatusPageURL   string            `json:"statusPageUrl,omitempty"`
	HealthCheckURL  string            `json:"healthCheckUrl,omitempty"`
	SecureHealthURL string            `json:"secureHealthCheckUrl,omitempty"`
	VIP             string            `json:"vipAddress,omitempty"`
	SecureVIP       string            `json:"secureVipAddress,omitempty"`
	AppGroup        string            `json:"appGroupName,omitempty"`
	ASG             string            `json:"asgName,omitempty"`
	Coordinating    flexBool          `json:"isCoordinatingDiscoveryServer"`
	LastUpdated     flexInt           `json:"lastUpdatedTimestamp"`
	LastDirty       flexInt           `json:"lastDirtyTimestamp"`
	Action          string            `json:"actionType,omitempty"`
}

// port as Eureka writes it: {"$": 80, "@enabled": "true"}.
type port struct {
	Number  flexInt  `json:"$"`
	Enabled flexBool `json:"@enabled"`
}

type dataCenter struct {
	Class    string            `json:"@class"`
	Name     string            `json:"name"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// lease as its client asks for it, in seconds, and the times of its life, in milliseconds since 1970.
type lease struct {
	Renewal     flexInt `json:"renewalIntervalInSecs"`
	Duration    flexInt `json:"durationInSecs"`
	Registered  flexInt `json:"registrationTimestamp"`
	LastRenewal flexInt `json:"lastRenewalTimestamp"`
	Evicted     flexInt `json:"evictionTimestamp"`
	ServiceUp   flexInt `json:"serviceUpTimestamp"`
}

// flexInt is a number that clients write as a number or as text.
type flexInt int64

// UnmarshalJSON implements json.Unmarshaler.
func (n *flexInt) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	if text == "" || text == "null" {
		*n = 0
		return nil
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not a whole number", text)
	}
	*n = flexInt(v)
	return nil
}

// flexBool is true or false, as such or as text. Eureka writes it as text.
type flexBool bool

// UnmarshalJSON implements json.Unmarshaler.
func (v *flexBool) UnmarshalJSON(b []byte) error {
	switch strings.ToLower(strings.Trim(string(b), `"`)) {
	case "true":
		*v = true
	case "false", "", "null":
		*v = false
	default:
		return fmt.Errorf("%s is neither true nor false", b)
	}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (v flexBool) MarshalJSON() ([]byte, error) {
	return []byte(strconv.Quote(strconv.FormatBool(bool(v)))), nil
}

// errXML: a document that is not what Eureka's clients write.
var errXML = errors.New("not an <instance>")

// decodeJSON reads {"instance": {...}}.
func decodeJSON(b []byte) (*info, error) {
	var doc struct {
		Instance *info `json:"instance"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("read instance: %w", err)
	}
	if doc.Instance == nil {
		return nil, errors.New(`read instance: the document has no "instance"`)
	}
	return doc.Instance, nil
}

// node is an element of XML.
type node struct {
	name     string
	attrs    map[string]string
	text     string
	children []*node
}

// Limits of a document.
const (
	maxDepth = 8
	maxNodes = 4096
)

// parseXML reads a document into a tree.
func parseXML(b []byte) (*node, error) {
	d := xml.NewDecoder(bytes.NewReader(b))
	root, count := &node{}, 0
	stack := []*node{root}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read XML: %w", err)
		}
		top := stack[len(stack)-1]
		switch t := token.(type) {
		case xml.StartElement:
			if count++; count > maxNodes || len(stack) > maxDepth {
				return nil, fmt.Errorf("read XML: more than %d elements, or deeper than %d", maxNodes, maxDepth)
			}
			n := &node{name: t.Name.Local, attrs: map[string]string{}}
			for _, a := range t.Attr {
				n.attrs[a.Name.Local] = a.Value
			}
			top.children = append(top.children, n)
			stack = append(stack, n)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.CharData:
			top.text += string(t)
		}
	}
	if len(root.children) != 1 {
		return nil, errXML
	}
	return root.children[0], nil
}

// decodeXML reads <instance>…</instance>.
func decodeXML(b []byte) (*info, error) {
	root, err := parseXML(b)
	if err != nil {
		return nil, err
	}
	if root.name != "instance" {
		return nil, errXML
	}
	in := &info{Metadata: map[string]string{}}
	for _, n := range root.children {
		if err := in.setXML(n); err != nil {
			return nil, fmt.Errorf("read <%s>: %w", n.name, err)
		}
	}
	return in, nil
}

func (in *info) setXML(n *node) error {
	text := strings.TrimSpace(n.text)
	if to := in.texts()[n.name]; to != nil {
		*to = text
		return nil
	}
	switch n.name {
	case "port", "securePort":
		p := &in.Port
		if n.name == "securePort" {
			p = &in.SecurePort
		}
		return errors.Join(p.Number.UnmarshalJSON([]byte(text)), p.Enabled.UnmarshalJSON([]byte(n.attrs["enabled"])))
	case "countryId":
		v, err := strconv.Atoi(cmp.Or(text, "1"))
		in.CountryID = v
		return err
	case "isCoordinatingDiscoveryServer":
		return in.Coordinating.UnmarshalJSON([]byte(text))
	case "lastUpdatedTimestamp":
		return in.LastUpdated.UnmarshalJSON([]byte(text))
	case "lastDirtyTimestamp":
		return in.LastDirty.UnmarshalJSON([]byte(text))
	case "dataCenterInfo":
		in.DataCenter = dataCenter{Class: n.attrs["class"]}
		for _, c := range n.children {
			switch c.name {
			case "name":
				in.DataCenter.Name = strings.TrimSpace(c.text)
			case "metadata":
				in.DataCenter.Metadata = c.texts()
			}
		}
	case "metadata":
		in.Metadata = n.texts()
	case "leaseInfo":
		values := n.texts()
		l := &in.Lease
		for name, to := range l.fields() {
			if err := to.UnmarshalJSON([]byte(values[name])); err != nil {
				return err
			}
		}
	}
	return nil
}

// texts of the children, by their names.
func (n *node) texts() map[string]string {
	out := map[string]string{}
	for _, c := range n.children {
		out[c.name] = strings.TrimSpace(c.text)
	}
	return out
}

// texts are the fields that are texts, by their names.
func (in *info) texts() map[string]*string {
	return map[string]*string{
		"instanceId": &in.InstanceID, "hostName": &in.HostName, "app": &in.App, "ipAddr": &in.IPAddr, "status": &in.Status,
		"overriddenStatus": &in.Overridden, "overriddenstatus": &in.Overridden, "homePageUrl": &in.HomePageURL, "statusPageUrl": &in.StatusPageURL,
		"healthCheckUrl": &in.HealthCheckURL, "secureHealthCheckUrl": &in.SecureHealthURL, "vipAddress": &in.VIP, "secureVipAddress": &in.SecureVIP,
		"appGroupName": &in.AppGroup, "asgName": &in.ASG, "actionType": &in.Action,
	}
}

func (l *lease) fields() map[string]*flexInt {
	return map[string]*flexInt{
		"renewalIntervalInSecs": &l.Renewal, "durationInSecs": &l.Duration, "registrationTimestamp": &l.Registered,
		"lastRenewalTimestamp": &l.LastRenewal, "evictionTimestamp": &l.Evicted, "serviceUpTimestamp": &l.ServiceUp,
	}
}

// check is what a server of Netflix answers 400 to.
func (in *info) check(app string) error {
	switch {
	case in.id() == "":
		return errors.New("missing instanceId")
	case in.HostName == "":
		return errors.New("missing hostname")
	case in.IPAddr == "":
		return errors.New("missing ip address")
	case in.App == "":
		return errors.New("missing appName")
	case !strings.EqualFold(in.App, app):
		return fmt.Errorf("mismatched appName, expecting %s but was %s", app, in.App)
	case in.DataCenter.Name == "":
		return errors.New("missing dataCenterInfo Name")
	case in.Status != "" && !validStatus(in.Status):
		return fmt.Errorf("status %q is none of UP, DOWN, STARTING, OUT_OF_SERVICE, UNKNOWN", in.Status)
	}
	return nil
}

// id of the instance: clients before 1.1.149 have none, and are known by their host.
func (in *info) id() string { return cmp.Or(in.InstanceID, in.HostName) }

// duration of the lease that the client asks for.
func (in *info) duration() time.Duration {
	n := int64(in.Lease.Duration)
	if n == 0 {
		n = defaultLease
	}
	return time.Duration(min(max(n, minLease), maxLease)) * time.Second
}

// zoneKeys of metadata, in which clients say which zone they are in: Spring Cloud's, and Amazon's.
const (
	zoneKey       = "zone"
	amazonZoneKey = "availability-zone"
)

// instance is what is registered.
func (in *info) instance(namespace string) (*registry.Instance, error) {
	address, err := netip.ParseAddr(in.IPAddr)
	if err != nil {
		return nil, fmt.Errorf("ipAddr %q is no IP address", in.IPAddr)
	}
	for _, p := range []port{in.Port, in.SecurePort} {
		if p.Number < 0 || p.Number > 65535 {
			return nil, fmt.Errorf("port %d is not from 0 to 65535", p.Number)
		}
	}
	out := &registry.Instance{
		Service: registry.Service{Namespace: namespace, Name: strings.ToLower(in.App)}, ID: in.id(), Address: address,
		Weight: 100, Enabled: in.Status != statusOutOfService, Healthy: in.Status == "" || in.Status == statusUp || in.Status == statusOutOfService,
		Ephemeral: true, Protocol: registry.Eureka, Metadata: in.Metadata,
		Zone: locality.Zone(cmp.Or(in.Metadata[zoneKey], in.DataCenter.Metadata[amazonZoneKey])),
	}
	if in.Port.Enabled {
		out.Port = uint16(in.Port.Number)
	}
	if in.SecurePort.Enabled {
		out.SecurePort = uint16(in.SecurePort.Number)
	}
	detail := *in
	detail.Metadata, detail.Action, detail.Overridden, detail.IPAddr = nil, "", "", ""
	detail.Lease.LastRenewal, detail.Lease.Evicted = 0, 0
	if out.Detail, err = json.Marshal(&detail); err != nil {
		return nil, fmt.Errorf("write instance: %w", err)
	}
	return out, nil
}

// infoOf an instance of the catalogue, by whichever protocol it came.
func infoOf(in *registry.Instance, weight float64) *info {
	out := &info{}
	name := in.Service.Grouped()
	if in.Protocol == registry.Eureka && len(in.Detail) > 0 {
		if err := json.Unmarshal(in.Detail, out); err != nil {
			out = &info{}
		}
	}
	address := in.Address.String()
	out.App = strings.ToUpper(name)
	out.IPAddr = address
	if out.InstanceID == "" && out.HostName == "" {
		out.HostName = address
		out.InstanceID = netip.AddrPortFrom(in.Address, in.Port).String() + ":" + name
		out.VIP, out.SecureVIP = name, name
		out.CountryID = 1
		if in.Port != 0 {
			out.HomePageURL = "http://" + netip.AddrPortFrom(in.Address, in.Port).String() + "/"
		}
		out.Lease = lease{Renewal: defaultRenewal, Duration: defaultLease, Registered: millis(in.Created), ServiceUp: millis(in.Created)}
		out.LastDirty, out.LastUpdated = millis(in.Created), millis(in.Created)
	}
	if out.DataCenter.Name == "" {
		out.DataCenter = dataCenter{Class: defaultDataType, Name: "MyOwn"}
	}
	out.Port = port{Number: flexInt(cmp.Or(in.Port, uint16(out.Port.Number))), Enabled: in.Port != 0}
	out.SecurePort = port{Number: flexInt(cmp.Or(in.SecurePort, uint16(out.SecurePort.Number), 443)), Enabled: in.SecurePort != 0}
	out.Status, out.Overridden = statusOf(in, out.Status)
	out.Metadata = maps.Clone(in.Metadata)
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if in.Zone != "" && out.Metadata[zoneKey] == "" {
		out.Metadata[zoneKey] = string(in.Zone)
	}
	if weight != 1 {
		out.Metadata["weight"] = strconv.FormatFloat(weight, 'g', 4, 64)
	}
	return out
}

// statusOf an instance, and what overrides the status that it registered. registered is that.
func statusOf(in *registry.Instance, registered string) (status, overridden string) {
	switch {
	case !in.Enabled:
		if registered == statusOutOfService {
			return statusOutOfService, statusUnknown
		}
		return statusOutOfService, statusOutOfService
	case in.Healthy:
		return statusUp, statusUnknown
	case registered == statusDown, registered == statusStarting:
		return registered, statusUnknown
	}
	return statusDown, statusUnknown
}

func millis(t time.Time) flexInt {
	if t.IsZero() {
		return 0
	}
	return flexInt(t.UnixMilli())
}

// appendXML writes <instance>…</instance>.
func (in *info) appendXML(b *bytes.Buffer) {
	b.WriteString("<instance>")
	texts := in.texts()
	for _, name := range []string{"instanceId", "hostName", "app", "ipAddr", "status"} {
		element(b, name, *texts[name])
	}
	element(b, "overriddenstatus", in.Overridden)
	for _, p := range []struct {
		name string
		port port
	}{{"port", in.Port}, {"securePort", in.SecurePort}} {
		fmt.Fprintf(b, `<%s enabled="%t">%d</%s>`, p.name, p.port.Enabled, p.port.Number, p.name)
	}
	element(b, "countryId", strconv.Itoa(in.CountryID))
	fmt.Fprintf(b, `<dataCenterInfo class="%s">`, escaped(in.DataCenter.Class))
	element(b, "name", in.DataCenter.Name)
	if len(in.DataCenter.Metadata) > 0 {
		elements(b, "metadata", in.DataCenter.Metadata)
	}
	b.WriteString("</dataCenterInfo><leaseInfo>")
	fields := in.Lease.fields()
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		element(b, name, strconv.FormatInt(int64(*fields[name]), 10))
	}
	b.WriteString("</leaseInfo>")
	elements(b, "metadata", in.Metadata)
	for _, name := range []string{"appGroupName", "homePageUrl", "statusPageUrl", "healthCheckUrl", "secureHealthCheckUrl", "vipAddress", "secureVipAddress", "asgName"} {
		if *texts[name] != "" {
			element(b, name, *texts[name])
		}
	}
	element(b, "isCoordinatingDiscoveryServer", strconv.FormatBool(bool(in.Coordinating)))
	element(b, "lastUpdatedTimestamp", strconv.FormatInt(int64(in.LastUpdated), 10))
	element(b, "lastDirtyTimestamp", strconv.FormatInt(int64(in.LastDirty), 10))
	if in.Action != "" {
		element(b, "actionType", in.Action)
	}
	b.WriteString("</instance>")
}

func elements(b *bytes.Buffer, name string, values map[string]string) {
	b.WriteString("<" + name + ">")
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if validElement(key) {
			element(b, key, values[key])
		}
	}
	b.WriteString("</" + name + ">")
}

// validElement reports whether a key of metadata can be the name of an element (XML 1.0, 2.3; ASCII
// alone). Others are left out, as clients could not read the document.
func validElement(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_'
		if !letter && (i == 0 || !(r >= '0' && r <= '9' || r == '-' || r == '.')) {
			return false
		}
	}
	return name != ""
}

func element(b *bytes.Buffer, name, text string) {
	b.WriteString("<" + name + ">" + escaped(text) + "</" + name + ">")
}

func escaped(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // a buffer takes everything
	return b.String()
}
