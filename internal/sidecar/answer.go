package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// answer a question of the control plane. Nothing is changed but log levels, and no secret leaves.
func (s *Supervisor) answer(ctx context.Context, question, argument string) ([]byte, error) {
	switch question {
	case wire.AskConfig:
		dump, err := s.ask(ctx, http.MethodGet, "/config_dump?include_eds")
		if err != nil {
			return nil, err
		}
		return redact(dump)
	case wire.AskClusters:
		return s.ask(ctx, http.MethodGet, "/clusters?format=json")
	case wire.AskStats:
		return s.ask(ctx, http.MethodGet, "/stats/prometheus?usedonly")
	case wire.AskStatus:
		return json.Marshal(s.status(ctx))
	case wire.AskHeld:
		return json.Marshal(s.relay.Held())
	case wire.AskLogging:
		query, err := loggingQuery(argument)
		if err != nil {
			return nil, err
		}
		return s.ask(ctx, http.MethodPost, "/logging"+query)
	}
	return nil, status.Errorf(codes.Unimplemented, "this supervisor does not know the question %.40q", question)
}

// ask Envoy.
func (s *Supervisor) ask(ctx context.Context, method, path string) ([]byte, error) {
	code, body, err := s.admin.Do(ctx, method, path)
	switch {
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "Envoy does not answer: %v", err)
	case code == http.StatusBadRequest, code == http.StatusNotFound:
		why, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n") // its usage follows
		return nil, status.Errorf(codes.InvalidArgument, "Envoy: %.200s", why)
	case code != http.StatusOK:
		return nil, status.Errorf(codes.Unavailable, "Envoy answers %d: %.200s", code, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// level is LEVEL, or LOGGER=LEVEL (envoy.mesh operations/admin, POST /logging).
var level = regexp.MustCompile(`^(?:([a-z0-9_]{1,64})=)?(trace|debug|info|warning|error|critical|off)$`)

// loggingQuery of a change of levels.
func loggingQuery(argument string) (string, error) {
	if argument == "" {
		return "", nil
	}
	m := level.FindStringSubmatch(argument)
	if m == nil {
		return "", status.Errorf(codes.InvalidArgument,
			"%.80q: want LEVEL or LOGGER=LEVEL, with a level of trace, debug, info, warning, error, critical and off", argument)
	}
	name := m[1]
	if name == "" {
		name = "level"
	}
	return "?" + url.Values{name: {m[2]}}.Encode(), nil
}

// hidden takes the place of a secret, as in Envoy's own dumps.
const hidden = "[redacted]"

// Secrets of Envoy's configuration: Envoy leaves out what its API marks as sensitive, which headers
// and the credentials of extensions are not.
var (
	secretField = map[string]bool{
		"private_key": true, "password": true, "session_ticket_keys": true, "generic_secret": true, "api_key": true, "secret": true,
		"shared_secret": true, "token": true, "token_secret": true, "hmac_secret": true,
	}
	secretHeader = map[string]bool{
		"authorization": true, "proxy-authorization": true, "cookie": true, "set-cookie": true, "x-api-key": true, "api-key": true,
		"dd-api-key": true, "x-auth-token": true,
	}
)

// redact a configuration in JSON, token by token: it may have some 20 MB.
func redact(in []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(in))
	d.UseNumber()
	r := redactor{out: bytes.NewBuffer(make([]byte, 0, len(in)))}
	for {
		token, err := d.Token()
		if token == nil && err != nil {
			if len(r.open) == 0 && r.out.Len() > 0 {
				return r.out.Bytes(), nil
			}
			return nil, errors.Join(errors.New("the configuration of Envoy is no JSON"), err)
		}
		if len(r.open) == 0 && r.out.Len() > 0 {
			return nil, errors.New("the configuration of Envoy is more than one value")
		}
		r.add(token)
	}
}

// redactor writes the tokens of JSON.
type redactor struct {
	out  *bytes.Buffer
	open []frame
}

// frame is an object or an array that is open.
type frame struct {
	object bool
	n      int // values and keys so far
	// secret: what is in it is.
	secret bool
	// key of the next value; header is the value of the field "key".
	key, header string
}

func (r *redactor) add(token json.Token) {
	if closing, ok := token.(json.Delim); ok && (closing == '}' || closing == ']') {
		r.open = r.open[:len(r.open)-1]
		r.out.WriteByte(byte(closing))
		return
	}
	var at *frame
	if len(r.open) > 0 {
		at = &r.open[len(r.open)-1]
		isKey := at.object && at.n%2 == 0
		switch {
		case at.object && !isKey:
			r.out.WriteByte(':')
		case at.n > 0:
			r.out.WriteByte(',')
		}
		at.n++
		if isKey {
			at.key, _ = token.(string)
			r.write(token)
			return
		}
	}
	secret := at != nil && (at.secret || secretField[at.key])
	if opening, ok := token.(json.Delim); ok {
		r.open = append(r.open, frame{object: opening == '{', secret: secret && at.key != "secret"}) // a dump of secrets has public parts
		r.out.WriteByte(byte(opening))
		return
	}
	if text, ok := token.(string); ok && at != nil {
		switch {
		case at.object && at.key == "key":
			at.header = strings.ToLower(text)
		case secret && at.key != "filename" && at.key != "@type" && at.key != "name",
			secretHeader[at.header] && (at.key == "value" || at.key == "raw_value"):
			token = hidden
		}
	}
	r.write(token)
}

func (r *redactor) write(token json.Token) {
	text, _ := json.Marshal(token) // strings, numbers, booleans and null have a form
	r.out.Write(text)
}
