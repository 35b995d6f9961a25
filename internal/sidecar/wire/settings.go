package wire

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// Settings is the type of the resource by which a control plane configures a supervisor itself, and
// SettingsName the name of the only one that a proxy has. Envoy never asks for it.
const (
	Settings     = "type.googleapis.com/proxima.sidecar.v1.Settings"
	SettingsName = "settings"
)

// SupervisorSettings is the body of a resource of type Settings. Its fields: 1 metrics, 2 a probe.
// The zero value says nothing.
type SupervisorSettings struct {
	// Metrics; nil: nothing is said of them.
	Metrics *MetricsSettings
	Probes  []ProbeSettings
}

// MetricsSettings says where and how metrics are served. Fields: 1 port, 2 path, 3 mutual TLS,
// 4 include, 5 exclude, 6 an application.
type MetricsSettings struct {
	// Port to listen on; 0: that of the supervisor's own configuration.
	Port uint16
	// Path of the page.
	Path string
	// MTLS admits clients with a certificate of the mesh alone.
	MTLS bool
	// Include and Exclude are expressions (RE2) of names of metrics; "": all, and none.
	Include, Exclude string
	Apps             []AppSettings
}

// AppSettings is a page of metrics of the workload, on its loopback address. Fields: 1 name, 2 port, 3 path.
type AppSettings struct {
	Name string
	Port uint16
	Path string
}

// ProbeSettings is a probe of the workload that the supervisor asks. Fields: 1 path, 2 kind, 3 port,
// 4 target.
type ProbeSettings struct {
	// Path by which the supervisor is asked.
	Path string
	// Kind is http, tcp or grpc.
	Kind string
	Port uint16
	// Target is the path of HTTP, or the service of gRPC.
	Target string
}

// maxSettings of each kind in a message: the API admits fewer.
const maxSettings = 1024

// errSettings: the message is none that Append makes.
var errSettings = errors.New("settings of a supervisor: a value is out of range")

// Append the message to b.
func (s *SupervisorSettings) Append(b []byte) []byte {
	if m := s.Metrics; m != nil {
		var body []byte
		body = appendNumber(body, 1, uint64(m.Port))
		body = appendString(body, 2, m.Path)
		if m.MTLS {
			body = appendNumber(body, 3, 1)
		}
		body = appendString(body, 4, m.Include)
		body = appendString(body, 5, m.Exclude)
		for _, a := range m.Apps {
			body = appendBytes(body, 6, appendString(appendNumber(appendString(nil, 1, a.Name), 2, uint64(a.Port)), 3, a.Path))
		}
		b = appendBytes(b, 1, body)
	}
	for _, p := range s.Probes {
		body := appendString(appendString(nil, 1, p.Path), 2, p.Kind)
		b = appendBytes(b, 2, appendString(appendNumber(body, 3, uint64(p.Port)), 4, p.Target))
	}
	return b
}

// ParseSettings reads the body of a resource of type Settings. It keeps nothing of data. Fields that
// it does not know are left out: a newer control plane may send them.
func ParseSettings(data []byte) (SupervisorSettings, error) {
	var s SupervisorSettings
	err := Fields(data, func(num protowire.Number, value []byte) error {
		switch num {
		case 1:
			m, err := parseMetrics(value)
			s.Metrics = &m
			return err
		case 2:
			p, err := parseProbe(value)
			s.Probes = append(s.Probes, p)
			if len(s.Probes) > maxSettings {
				return errSettings
			}
			return err
		}
		return nil
	})
	return s, err
}

func parseMetrics(data []byte) (MetricsSettings, error) {
	var m MetricsSettings
	err := EachField(data, func(num protowire.Number, value []byte, number uint64) (err error) {
		switch num {
		case 1:
			m.Port, err = port(number)
		case 2:
			m.Path = string(value)
		case 3:
			m.MTLS = number != 0
		case 4:
			m.Include = string(value)
		case 5:
			m.Exclude = string(value)
		case 6:
			var a AppSettings
			a, err = parseApp(value)
			m.Apps = append(m.Apps, a)
			if len(m.Apps) > maxSettings {
				return errSettings
			}
		}
		return err
	})
	return m, err
}

func parseApp(data []byte) (AppSettings, error) {
	var a AppSettings
	err := EachField(data, func(num protowire.Number, value []byte, number uint64) (err error) {
		switch num {
		case 1:
			a.Name = string(value)
		case 2:
			a.Port, err = port(number)
		case 3:
			a.Path = string(value)
		}
		return err
	})
	return a, err
}

func parseProbe(data []byte) (ProbeSettings, error) {
	var p ProbeSettings
	err := EachField(data, func(num protowire.Number, value []byte, number uint64) (err error) {
		switch num {
		case 1:
			p.Path = string(value)
		case 2:
			p.Kind = string(value)
		case 3:
			p.Port, err = port(number)
		case 4:
			p.Target = string(value)
		}
		return err
	})
	return p, err
}

func port(number uint64) (uint16, error) {
	if number > 1<<16-1 {
		return 0, errSettings
	}
	return uint16(number), nil
}
