#!/bin/sh
# Generates zz_generated.openapi.go, the OpenAPI definitions of every type that
# the API server serves, and beside Proxima's own types the names by which those
# definitions know them. Run it through `go generate ./...`.
set -eu
cd "$(dirname "$0")"

# What Kubernetes owns: read for its definitions, never written to.
set -- \
	k8s.io/api/authentication/v1 \
	k8s.io/api/authorization/v1 \
	k8s.io/api/coordination/v1 \
	k8s.io/api/core/v1 \
	k8s.io/api/discovery/v1 \
	k8s.io/api/events/v1 \
	k8s.io/api/networking/v1 \
	k8s.io/apimachinery/pkg/api/resource \
	k8s.io/apimachinery/pkg/apis/meta/v1 \
	k8s.io/apimachinery/pkg/runtime \
	k8s.io/apimachinery/pkg/util/intstr \
	k8s.io/apimachinery/pkg/version \
	sigs.k8s.io/gateway-api/apis/v1
readonly_pkgs=$(echo "$@" | tr ' ' ',')

# The report lists names in Kubernetes' types that break its own rules: of no use here.
exec go tool openapi-gen \
	--output-dir . \
	--output-pkg github.com/proxima-mesh/proxima/internal/apiserver/openapi \
	--output-file zz_generated.openapi.go \
	--output-model-name-file zz_generated.model_name.go \
	--readonly-pkg "$readonly_pkgs" \
	--go-header-file /dev/null \
	--report-filename /dev/null \
	github.com/proxima-mesh/proxima/api/mesh/v1alpha1 \
	github.com/proxima-mesh/proxima/api/multicluster/v1beta1 \
	github.com/proxima-mesh/proxima/api/planner/v1alpha1 "$@"
