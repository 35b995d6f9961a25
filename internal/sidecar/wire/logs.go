package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// LogServer is the attribute of a resource whose logs go to the server that is its value, HOST:PORT.
const LogServer = "proxima.tcp"

// LogLine is a line for a server.
type LogLine struct{ Server, Line string }

// Fields of ExportLogsServiceRequest and of what is in it (opentelemetry/proto/collector/logs/v1,
// opentelemetry/proto/logs/v1, opentelemetry/proto/resource/v1, opentelemetry/proto/common/v1).
const (
	logsResource, logsScope = 1, 2
	scopeRecord             = 2
	recordBody              = 5
	valueString             = 1
)

// ParseLogs reads a request to export logs: the texts of those for servers of LogServer.
func ParseLogs(data []byte) ([]LogLine, error) {
	var out []LogLine
	err := Fields(data, func(num protowire.Number, value []byte) error {
		if num != 1 {
			return nil
		}
		server := ""
		var lines []string
		err := Fields(value, func(num protowire.Number, value []byte) (err error) {
			switch num {
			case logsResource:
				server, err = logServer(value)
			case logsScope:
				err = Fields(value, func(num protowire.Number, value []byte) error {
					if num != scopeRecord {
						return nil
					}
					line, err := textIn(value, recordBody)
					lines = append(lines, line)
					return err
				})
			}
			return err
		})
		for _, line := range lines {
			if server != "" {
				out = append(out, LogLine{server, line})
			}
		}
		return err
	})
	return out, err
}

// logServer is the value of the attribute LogServer of a resource.
func logServer(resource []byte) (server string, err error) {
	err = Fields(resource, func(num protowire.Number, value []byte) error {
		if num != 1 {
			return nil
		}
		key, text, err := "", "", error(nil)
		err = Fields(value, func(num protowire.Number, v []byte) error {
			if num == 1 {
				key = string(v)
			}
			return nil
		})
		if err == nil && key == LogServer {
			text, err = textIn(value, 2)
			server = text
		}
		return err
	})
	return server, err
}

// textIn a message is what its field has, if that is an AnyValue with a string.
func textIn(message []byte, field protowire.Number) (text string, err error) {
	err = Fields(message, func(num protowire.Number, value []byte) error {
		if num != field {
			return nil
		}
		return Fields(value, func(num protowire.Number, value []byte) error {
			if num == valueString {
				text = string(value)
			}
			return nil
		})
	})
	return text, err
}
