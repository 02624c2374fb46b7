# make demo   trains the demo cluster: needs Go, git, make and root
# make test   runs all tests; sets up what they need
# make help   lists the rest

SHELL    := /bin/bash
GO       ?= go
TOOL     := $(GO) tool -modfile=tools/go.mod
BIN      := bin
FUZZTIME ?= 30s
FUZZ     ?= .
PKG      ?=
SAMPLE   ?= 0
SEED     ?= 1
MIN      ?= 95
JSON     ?=
ONLY     ?=
TRAIN    ?=
TEST     ?=
RACE     ?=
FIRST    ?= 1
SEEDS    ?= 1000
KERNEL   ?=
LIMIT    ?= 3600
SUITES   ?=
PSLITE   ?=
ZMQ      ?=
RUNS     ?= 20
KILLS    ?= 2
TIME     ?= 5s

# One build cache for all: the race detector alone needs cgo.
export CGO_ENABLED := 0

.PHONY: help build clients figures curves demo first-hour demo-smoke test simulate conformance exactly-once kernel-test torch pslite p4 spec lint generate cross fuzz mutants bench man wheel deb image setup clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

build: ## build bin/libra
	GIT_OPTIONAL_LOCKS=0 $(GO) build -o $(BIN)/libra ./cmd/libra
	@if [ -n "$$SUDO_UID" ]; then chown "$$SUDO_UID:$$SUDO_GID" $(BIN) $(BIN)/libra; fi # sudo make demo leaves nothing of root's, and go's git no index

clients: ## build the C library, clients/c/build/libra.so.1
	$(MAKE) -C clients/c

demo: build ## train the demo cluster: four workers, one switch, one parameter server
	$(BIN)/libra demo $(ARGS)

first-hour: ## do what a new user does in the first hour, in a minute or so
	scripts/first-hour.sh

demo-smoke: build
	$(BIN)/libra demo --rows 200000 --json | tail -n 1
	$(BIN)/libra demo --rows 20000 --sync --backend udp --loss 0.01 --duplicate 0.01 --reorder 0.01 --json | tail -n 1

test: setup ## run all tests (RACE=1: under the race detector)
	@for t in p4c-bm2-ss simple_switch_grpc; do command -v $$t >/dev/null || \
		echo "left out: the tests of packages p4 and cmd/libra that need $$t, which is not on the PATH (docs/p4.md)"; done
	@echo "left out: programs over ps-lite itself, whose van is tested on a fake of it: make pslite PSLITE=DIR runs them (docs/pslite.md)"
	scripts/test.sh $(if $(RACE),-race)

simulate: build ## live the lives of SEEDS seeds from FIRST on (ONLY: kinds of trouble, docs/simulation.md)
	$(BIN)/libra simulate --seeds $(FIRST)-$$(( $(FIRST) + $(SEEDS) - 1 )) --only '$(ONLY)' $(ARGS)

conformance: ## compare the XDP program with the model on a million random frames
	$(GO) test -count=1 -run '^TestAggregateEqualsModel$$' -v ./bpf -frames 1000000

exactly-once: ## deliver ten million frames on two CPUs, with repetitions, and look for lost or doubled updates
	$(GO) test -count=1 -run '^Test(Rounds)?ExactlyOnce' -v ./bpf -deliveries 10000000

kernel-test: ## run the tests of bpf and afxdp in emulated machines: all kernels, cards and architectures, or the Debian kernel of series KERNEL; each for LIMIT seconds at most
	$(if $(KERNEL),scripts/kernel-test.sh -k $(KERNEL),scripts/kernel-matrix.sh) -t $(LIMIT)

torch: ## run the tests of the Python package with Debian 12's, 13's and unstable's PyTorch (SUITES; chroots are made once, root)
	scripts/torch.sh $(SUITES)

pslite: ## build the van for the tree PSLITE of dmlc/ps-lite, in out/pslite (for ThreadSanitizer also the tree ZMQ of zeromq/libzmq), run its programs RUNS times over it, another for TIME, and kill what takes part KILLS times
	scripts/pslite.sh '$(PSLITE)' out/pslite '$(ZMQ)'
	LIBRA_PSLITE=$(CURDIR)/out/pslite $(GO) test -count=1 -timeout 3h -v -run '^TestPSLite' ./clients -pslite-runs $(RUNS) -pslite-kills $(KILLS) -pslite-time $(TIME)

p4: ## compile the switch program (needs p4c)
	p4test p4/program/libra_v1model.p4
	$(GO) test -count=1 -timeout 60m -run '^TestCompiledIsCurrent$$' ./p4/program -recompile
	$(GO) test -count=1 -run '^(TestCompiledBelongsToSources|TestTablesOfTNABelongToProgram)$$' ./p4/program -record
	$(GO) test -count=1 -run '^TestTNACompiles$$' -v ./p4/program

spec: ## check the protocol's models in docs/spec, and that their mutants fail (needs spin)
	scripts/spec.sh

lint: ## gofmt, go vet and golangci-lint
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "run gofmt -w on these files"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -C tools/mutants ./...
	$(GO) vet -C codec/_asm ./...
	$(TOOL) golangci-lint run ./...
	cd tools/mutants && $(GO) tool -modfile=../go.mod golangci-lint run ./...
	cd codec/_asm && $(GO) tool -modfile=../../tools/go.mod golangci-lint run ./...

generate: $(BIN)/protoc-gen-go $(BIN)/protoc-gen-go-grpc ## rebuild BPF objects, gRPC stubs and golden files (needs clang-16, protoc)
	$(GO) generate ./...

$(BIN)/protoc-gen-go $(BIN)/protoc-gen-go-grpc: tools/go.mod
	@mkdir -p $(BIN)
	$(GO) build -modfile=tools/go.mod -o $(BIN)/ \
		google.golang.org/protobuf/cmd/protoc-gen-go \
		google.golang.org/grpc/cmd/protoc-gen-go-grpc

cross: ## build for the other platforms, and vet what is of darwin only, tests included
	GOOS=linux GOARCH=arm64 $(GO) build ./...
	GOOS=darwin GOARCH=arm64 $(GO) build ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet -C tools/mutants ./...
	$(GO) test -count=1 -run '^TestNoFusedMultiplyAdd$$' ./scripts -assemble-all

fuzz: ## run the fuzz targets that match FUZZ, each for FUZZTIME, and keep new inputs
	scripts/fuzz.sh $(FUZZTIME) '$(FUZZ)'

mutants: ## change the code of PKG in SAMPLE places, one at a time, and list the changes that no test sees (hours if all)
	$(GO) build -C tools/mutants -o '$(CURDIR)/$(BIN)/mutants' .
	$(BIN)/mutants -pkg '$(PKG)' -sample $(SAMPLE) -seed $(SEED) -min $(MIN) -only '$(ONLY)' -json '$(JSON)'

bench: ## run the Go benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

figures: build ## measure again, half an hour or so, and write the tables of README.md and docs/performance.md (ONLY: engine, push, aggregator, tenants, soak)
	$(GO) run ./scripts/figures -libra $(BIN)/libra -out out/figures -only '$(ONLY)'

curves: build ## draw the curves of docs/tuning.md anew into out/curves, from the files TRAIN and TEST (ten minutes; root)
	$(GO) run ./scripts/curves -libra $(BIN)/libra -data '$(TRAIN)' -test '$(TEST)' -out out/curves $(ARGS)

man: build ## write a manual page for each command to out/man
	$(BIN)/libra reference man --out out/man

wheel: ## make a wheel of the Python package, with libra.so.1, in out
	scripts/wheel.sh out

deb: ## make a Debian package in out
	scripts/deb.sh out

image: ## make a container image, libra, of the static binary, or of LIBRA (needs podman or buildah)
	@mkdir -p out/image
	$(if $(LIBRA),install -m 755 '$(LIBRA)' out/image/libra,$(GO) build -trimpath -o out/image/libra ./cmd/libra)
	"$$(command -v podman || command -v buildah || { echo 'make image: install podman or buildah' >&2; exit 1; })" \
		build $(ARGS) -f packaging/Containerfile -t libra out/image

setup: ## install what tests and code generation need (Debian; root)
	scripts/setup.sh

clean: ## remove what make built
	rm -rf $(BIN)
