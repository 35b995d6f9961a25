package sidecar

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	in := `{"configs":[{"@type":"x","n":1.50,"none":null,"yes":true,"empty":{},"list":[[],"a"],
	"dynamic_active_secrets":[{"secret":{"name":"identity","tls_certificate":{"certificate_chain":{"inline_string":"PUBLIC"},
	  "private_key":{"inline_string":"KEY-1"}}}}],
	"private_key":{"filename":"/etc/key"},"token":"KEY-2",
	"session_ticket_keys":{"keys":[{"inline_bytes":"KEY-3"}]},
	"request_headers_to_add":[{"header":{"key":"Authorization","value":"KEY-4"}},{"header":{"key":"x-env","value":"prod"}}],
	"initial_metadata":[{"key":"x-api-key","raw_value":"KEY-5"}]}]}`
	out, err := redact([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(out, &value); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if strings.Contains(string(out), "KEY-") {
		t.Errorf("secrets are left in %s", out)
	}
	for _, kept := range []string{
		`"PUBLIC"`, `"/etc/key"`, `"value":"prod"`, `"n":1.50`, `"none":null`, `"yes":true`, `"empty":{}`, `"list":[[],"a"]`, `"name":"identity"`,
		`"Authorization"`,
	} {
		if !strings.Contains(string(out), kept) {
			t.Errorf("%s is missing in %s", kept, out)
		}
	}
	if n := strings.Count(string(out), hidden); n != 5 {
		t.Errorf("%d secrets are hidden, want 5", n)
	}
	for _, bad := range []string{"", "{", `{"a":}`, "x"} {
		if _, err := redact([]byte(bad)); err == nil {
			t.Errorf("%q is taken as JSON", bad)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add([]byte(`{"a":[{"key":"cookie","value":"x"},null,1e9,"\u0000"],"password":{"inline_string":"y"}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := redact(in)
		if err == nil && !json.Valid(out) {
			t.Errorf("%q became %q", in, out)
		}
	})
}

func TestLoggingQuery(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string]string{"": "", "debug": "?level=debug", "upstream=trace": "?upstream=trace"} {
		if got, err := loggingQuery(argument); err != nil || got != want {
			t.Errorf("%q: %q, %v", argument, got, err)
		}
	}
	for _, bad := range []string{"loud", "a=b", "&x", "upstream=debug&paths=x", "=debug"} {
		if _, err := loggingQuery(bad); err == nil {
			t.Errorf("%q is a level", bad)
		}
	}
}
