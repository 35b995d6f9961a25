package access

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/proxima-mesh/proxima/internal/identity"
)

// RequireNode refuses the peer of a gRPC call unless its verified client certificate is
// that of the named node. what completes the message "may not … of node". The error is a
// gRPC status.
func RequireNode(ctx context.Context, name, what string) error {
	subject, err := callerOf(ctx)
	if err != nil {
		return err
	}
	if own, ok := identity.NodeName(subject.User, subject.Groups); !ok || own != name {
		return status.Errorf(codes.PermissionDenied, "%s may not %s of node %q", subject.User, what, name)
	}
	return nil
}

// CallerInstance reports whether the verified client certificate of a gRPC call is that of
// another instance of this control plane, which is an administrator's.
func CallerInstance(ctx context.Context) bool {
	subject, err := callerOf(ctx)
	if err != nil {
		return false
	}
	instance, err := identity.SubjectFor(identity.Admin, identity.InstanceName)
	return err == nil && subject.User == instance.User && slices.Contains(subject.Groups, identity.GroupAdmins)
}

// CallerNode is the node of the verified client certificate of a gRPC call. The error is a
// gRPC status: the caller is no node.
func CallerNode(ctx context.Context) (string, error) {
	subject, err := callerOf(ctx)
	if err != nil {
		return "", err
	}
	name, ok := identity.NodeName(subject.User, subject.Groups)
	if !ok {
		return "", status.Errorf(codes.PermissionDenied, "%s is not a node", subject.User)
	}
	return name, nil
}

// CallerZone is the zone of the verified client certificate of a gRPC call. The error is a
// gRPC status: the caller is no control plane of a zone.
func CallerZone(ctx context.Context) (string, error) {
	subject, err := callerOf(ctx)
	if err != nil {
		return "", err
	}
	name, ok := identity.ZoneName(subject.User, subject.Groups)
	if !ok {
		return "", status.Errorf(codes.PermissionDenied, "%s is not a zone: %s", subject.User, GlobalServesZones)
	}
	return name, nil
}

// GlobalServesZones is why the global control plane refuses a node's agent.
const GlobalServesZones = "this is the global control plane, which serves the control planes of zones alone; " +
	"a node joins the control plane of its own zone (proxima node --server ADDRESS-OF-THE-ZONE)"

// callerOf is the subject of the verified client certificate of a gRPC call.
func callerOf(ctx context.Context) (identity.Subject, error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return identity.Subject{}, status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return identity.Subject{}, status.Error(codes.Unauthenticated, "a client certificate is needed")
	}
	return identity.SubjectOf(info.State.VerifiedChains[0][0]), nil
}
