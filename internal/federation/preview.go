package federation

import (
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Preview is what a zone would put into its store for an object of global, whatever else is
// there: body is an Object, marshalled. Its error is why the object would be refused.
func Preview(zone string, t Type, body []byte) (Put, error) {
	o, err := ParseObject(body)
	if err != nil {
		return Put{}, err
	}
	r := &Receiver{config: ReceiverConfig{Side: AtZone, Zone: zone}}
	return r.put(&followed{typ: t}, &discovery.Resource{
		Name: o.Resource(), Version: "preview", Resource: &anypb.Any{TypeUrl: t.Name, Value: body},
	})
}
