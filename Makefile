# Each target has a line of help after ##; the first target prints them.
.PHONY: help dev test race race-compile model simulate mutants fuzz bench scale doors chaos chaos-matrix chaos-report migrations build dist image generate protos lint ci zones

# Go fails where there is a .git that git cannot read; then it builds unstamped.
STAMP = $$(git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
CHAOS_TIME = 60s
FUZZ_TIME = 10s

help: ## print this list
	@echo 'Each target needs Go and make, and beside them what its line says.'
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

dev: build ## run a whole cluster here: etcd, two rooms, a console (flags in ARGS)
	@exec bin/march dev $(ARGS)

test: ## run the tests; needs Chromium, and installs it if it can (STRICT=1: none may be missing; LIVE=1: those too that need other systems' programs or build another version, all variants of each claim, and more seeds, tags and IDs, as .ci/run has them; flags and packages in ARGS)
	@.ci/test $(ARGS)

# In these hours and days pass, by the same goroutines as in other tests: a third of the detector's time.
LONGEST = ^(TestRestoreOverMidnight|TestMigrationOverMidnight|TestTellsThatItIsNotReady|TestALeapWithTwoInstancesIsShown|TestTimeTagsWithoutWorker|TestMigrationsUnderLoad|TestProblemsOfTimeTags|TestListTags)$$

# The simulation lets one goroutine run at a time, and programs' tests start processes: there the detector finds nothing.
# PART is the part of the other packages that are taken: every second one for 1/2 and 2/2.
PART = 1/1
RACED = $$(go list ./... | grep -v -e /cmd/ -e /internal/sim | awk -v p=$(PART) 'split(p, of, "/") && NR % of[2] == of[1] - 1')

race: ## run all tests but the programs' and the longest under the race detector (PART=1/2: those of every second package only); needs gcc
	go test -race -short -vet=off -timeout 15m -skip '$(LONGEST)' $(RACED)

race-compile: # what make race tests
	@go list -race -test -export $(RACED)

model: ## check the model of the protocol, and that its mutants are caught; needs spin and gcc (flags in ARGS)
	@STRICT=1 .ci/programs spin gcc
	go run ./allocator/ledger/model $(ARGS)

simulate: ## simulate whole clusters under faults, 1,000 seeds of them (flags in ARGS: -seed N, -seeds N)
	go run ./cmd/simulate $(ARGS)

mutants: ## make mistakes on purpose, and see that the simulation finds each (flags in ARGS)
	go run ./cmd/simulate mutants $(ARGS)

fuzz: ## fuzz each codec and parser, and the simulation, for FUZZ_TIME each
	.ci/fuzz $(FUZZ_TIME)

bench: ## measure March against its yardsticks here, in some minutes; Redis and PostgreSQL where they are installed (flags in ARGS)
	go run ./cmd/bench $(ARGS)

scale: build ## measure rooms, recovers, moves and writes in etcd with a million tags, a far etcd, and what one caller can take of others (flags in ARGS)
	go run ./cmd/bench scale $(ARGS)

chaos: ## torture a cluster of processes for CHAOS_TIME, and check every ID (flags in ARGS)
	go build -buildvcs=$(STAMP) -tags chaos -o bin/chaos/ ./cmd/march ./cmd/chaos
	bin/chaos/chaos --march bin/chaos/march --time $(CHAOS_TIME) $(ARGS)

chaos-matrix: ## take etcd back in time in every way, in ten minutes (flags in ARGS)
	go build -buildvcs=$(STAMP) -tags chaos -o bin/chaos/ ./cmd/march ./cmd/chaos
	bin/chaos/chaos matrix --march bin/chaos/march $(ARGS)

chaos-report: ## the same as chaos, and keep its report in docs/chaos.txt (flags in ARGS)
	go build -buildvcs=$(STAMP) -tags chaos -o bin/chaos/ ./cmd/march ./cmd/chaos
	bin/chaos/chaos --march bin/chaos/march --time $(CHAOS_TIME) $(ARGS) >docs/chaos.txt

migrations: ## migrate 100 times under load, and measure what callers notice
	go test ./console -run 'TestMigrationsUnderLoad|TestMigrateManyActiveTags|TestMigrateCostsTheSame|TestMovesCostWhatIsLost' -v -timeout 30m -migrations 100

doors: build ## call the door for Redis with real clients: ioredis, node-redis, redis-py, redis-cli, redis-benchmark; needs npm and python3-redis
	.ci/doors/run

build: ## build bin/march
	go build -buildvcs=$(STAMP) -o bin/march ./cmd/march

dist: ## make in bin/dist a release for all platforms, a minute each (ARGS: linux/amd64, say, for some only; SIGN: a file with the secret key that signs the checksums, as minisign makes it)
	SIGN='$(SIGN)' .ci/dist/build bin/dist $(ARGS)

image: ## make an image of the release in bin/dist, for its Linux platforms; needs buildah
	.ci/dist/image bin/dist

generate: ## write again what is made of api/march/v1; needs protoc
	.ci/generate

zones: ## take the time zones of the Go release
	cp "$$(go env GOROOT)/lib/time/zoneinfo.zip" allocator/period/

protos: ## lint the protos, and compare them with those of the commit in testdata/previous; needs protoc
	.ci/protos

lint: ## run golangci-lint, after building it (a minute or two the first time)
	go tool -modfile=.ci/lint/go.mod golangci-lint run
	cd .ci/openapi && go tool -modfile=../lint/go.mod golangci-lint run
	cd .ci/dist && go tool -modfile=../lint/go.mod golangci-lint run
	cd .ci/chart && go tool -modfile=../lint/go.mod golangci-lint run

ci: ## run everything that a change must pass; installs what it needs if it can
	bash .ci/run
