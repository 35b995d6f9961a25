# Proxima. "make help" lists the targets; "make demo" and "make test" are where to start.
SHELL := /bin/bash
GO ?= go
BIN := $(CURDIR)/bin
VERSION ?= v0.1.0-dev
LDFLAGS := -s -w -X github.com/proxima-mesh/proxima/internal/version.version=$(VERSION)
# Modules of their own: what they compare us with is not linked into the product.
MODULES := $(shell ls -d test/endpointslice test/topology test/crd test/chart test/console test/pulsar bench/fanout bench/feed bench/registry bench/xds tools/console tools/release 2>/dev/null | paste -sd,)
PLAIN := $(shell ls -d test/chart test/console bench/fanout bench/feed bench/registry bench/xds tools/console tools/release 2>/dev/null | paste -sd,)
# Images are IMAGE:VERSION. SIGNING_KEY is a private key in a file, BUILDER a URI of whose it is.
IMAGE ?= ghcr.io/proxima-mesh/proxima
RELEASE = cd tools/release && CGO_ENABLED=0 $(GO) run . -root $(CURDIR) -version '$(VERSION)' -image '$(IMAGE)' \
  $(if $(SIGNING_KEY),-signing-key '$(abspath $(SIGNING_KEY))') $(if $(BUILDER),-builder '$(BUILDER)')
GOSOURCES := $(shell find cmd internal api -name '*.go' -not -name '*_test.go' 2>/dev/null) $(wildcard internal/console/dist/*) \
  documentation.go README.md CHANGELOG.md $(shell find docs -type f) go.mod go.sum

export GOTOOLCHAIN := local
# One set of build flags everywhere, as compiled packages are then shared.
export GOFLAGS := -trimpath

.PHONY: build help demo check test etcd interop-mcs interop-skew interop-kube interop-envoy interop-gatewayapi interop-registries interop-clients interop-pulsar soak lint gen bench cross image packages release release-check clean

build: $(BIN)/proxima $(BIN)/proxima-sidecar ## build bin/proxima and bin/proxima-sidecar

$(BIN)/proxima: $(GOSOURCES)
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/proxima

$(BIN)/proxima-sidecar: $(GOSOURCES)
	CGO_ENABLED=0 $(GO) build -tags grpcnotrace -ldflags '$(LDFLAGS)' -o $@ ./cmd/proxima-sidecar

$(BIN)/kubectl: test/kubectl/main.go test/kubectl/go.mod test/kubectl/go.sum
	cd test/kubectl && CGO_ENABLED=0 $(GO) build -o $@ .

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

check: ## build, vet and race tests of a package: PKG=internal/delta; RUN=TestX for some
	@tools/check '$(PKG)' '$(RUN)'

demo: build ## see it work, on this machine, in a minute
	$(BIN)/proxima demo $(DEMO_FLAGS)

test: build $(BIN)/kubectl ## all tests, with the race detector
	@tools/setup
	$(GO) run ./tools/testreport -modules $(MODULES) -plain $(PLAIN) -- ./...

soak: build $(BIN)/kubectl ## the long versions of the tests
	@tools/setup
	PROXIMA_SOAK=1 $(GO) run ./tools/testreport -timeout 24h -again 0 -modules $(MODULES),test/etcd -plain $(PLAIN) -- ./...

etcd: ## the etcd store on real servers: contract, upstream's suite, crashes (minutes)
	@tools/setup
	$(GO) run ./tools/testreport -modules test/etcd -- ./internal/store/etcd

interop-mcs: build ## mcs-api's conformance suite on a lab of two zones, as root (minutes)
	@tools/interop-mcs

interop-skew: build ## earlier revisions beside this one, in every pairing (minutes)
	@tools/interop-skew $(REVISIONS)

interop-kube: build $(BIN)/kubectl ## on the real Kubernetes, beside kube-proxy, as root (minutes)
	@tools/interop-kube

interop-envoy: ## policies and routes on real Envoys, oldest and newest (minutes)
	@tools/interop-envoy

interop-gatewayapi: build $(BIN)/kubectl ## Gateway API's conformance suite, profiles of meshes, as root
	@tools/interop-gatewayapi

interop-registries: ## unmodified clients of registries, and a ZooKeeper; JDK, mvn (minutes)
	@tools/interop-registries

interop-clients: build $(BIN)/kubectl ## clients of Kubernetes: Python, JS, Java, Ansible, Flux (minutes)
	@tools/interop-clients

# Kernel modes on Debian's kernel, in QEMU (minutes). It has no text, as the list of targets fills a screen.
interop-kernels:
	@tools/interop-kernels

interop-pulsar: build ## the real Pulsar, its clients, an S3 server; JDK, mvn (minutes)
	@tools/interop-pulsar

lint: ## gofmt, tsc, and go vet with the linters of .golangci.yml
	@tools/lint/run

gen: ## generate code and reference pages
	tools/gen

bench: build ## benchmarks; BENCH=smoke for a quick look
	bench/run $(BENCH)

# Types and vet, from sources: a minute for each where "make cross" takes ten. It has no text, as interop-kernels.
platforms:
	CGO_ENABLED=0 $(GO) run ./tools/platforms linux/arm64 windows/amd64 darwin/arm64 -- ./cmd/proxima

cross: ## build for every platform that must build
	for target in linux/amd64 linux/arm64 windows/amd64 darwin/arm64; do \
	  echo "$$target"; CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) build -o /dev/null ./cmd/proxima || exit 1; done
	CGO_ENABLED=0 GOOS=windows $(GO) vet ./internal/proxy/kernelspace/... ./internal/proxy/modes ./internal/cli

image: ## OCI images for linux/amd64 and linux/arm64, in dist/image
	@$(RELEASE) image

packages: ## deb and rpm packages, in dist/packages
	@$(RELEASE) packages

release: ## a release in dist: archives, packages, images, checksums, provenance
	@$(RELEASE) all

release-check: build ## two releases are equal; packages are installed, units run (minutes)
	@tools/setup release
	@$(RELEASE) check
	cd tools/release && CGO_ENABLED=0 PROXIMA_RELEASE=1 $(GO) test -count 1 -v -run Installed ./packages

clean: ## remove what was built
	rm -rf $(BIN) $(CURDIR)/dist
