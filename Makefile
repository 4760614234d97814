# Weft. `make run` installs what is missing, builds and starts the main job; `make test` does the same for the tests.
# `make help` lists every target. Sources are found by folder, so a new file needs no line here.

ifeq ($(origin CC),default)
CC := gcc
endif
JOBS ?= $(shell nproc)
# Parallel unless the caller chose a number of jobs.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(JOBS)
endif

BUILD ?= build
CFLAGS ?= -O2 -g
PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 30
GOLDEN ?= tests/golden
MODEL ?= samples/tiny
PROMPT ?= Once upon a time
CONFIG ?= config/single.conf
LISTEN ?= 127.0.0.1:8000

PKGS := liburing libconfig jansson libpcre2-8 libsodium libxxhash libevent_core libevent_extra libevent_openssl openssl ck
# -ffp-contract=off: a fused multiply-add appears only where the source asks for one, so that a result does not depend
# on the compiler. -fno-strict-aliasing: packed rows and mapped files are read through typed pointers.
WEFT_CFLAGS := -std=gnu17 -D_GNU_SOURCE= -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter -Wno-missing-field-initializers \
	-ffp-contract=off -fno-strict-aliasing -pthread -I. $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
WEFT_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lhttp_parser -lm -pthread -Wl,--build-id=sha1
ifdef WERROR
WEFT_CFLAGS += -Werror
endif

# SANITIZE=address|thread|fuzz is set by the asan, tsan and fuzz targets, each with its own BUILD folder. Criterion
# does not start under ThreadSanitizer and its forks hide leaks, so these builds use the plain runner of the harness.
ifeq ($(SANITIZE),address)
SAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else ifeq ($(SANITIZE),thread)
SAN_FLAGS := -fsanitize=thread -fno-omit-frame-pointer
else ifeq ($(SANITIZE),fuzz)
SAN_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
ifdef SANITIZE
TEST_CFLAGS := -DWEFT_PLAIN_RUNNER
TEST_LIBS :=
TEST_RUNNER := $(BUILD)/tests/plain_runner.o
else
TEST_CFLAGS :=
TEST_LIBS := -lcriterion
TEST_RUNNER :=
endif
# V=1 shows the whole commands.
ifdef V
Q :=
say = @:
else
Q := @
say = @printf '  %-5s %s\n'
endif
comma := ,
ALL_CFLAGS = $(WEFT_CFLAGS) $(CFLAGS) $(SAN_FLAGS)

LIB_SRC := $(wildcard config/*.c kvtiers/*.c transport/*.c model/*.c model/cpu/*.c actors/*.c actors/*/*.c cli/*.c)
# Vector paths are compiled with their own instruction set and chosen at run time.
AVX2_FLAGS := -mavx2 -mfma -mf16c
AVX512_FLAGS := $(AVX2_FLAGS) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vbmi -mavx512vnni
ifeq ($(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c,$(LIB_SRC))
endif
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
# The provider rdma, loaded at run time: built where the libraries are, linked to nothing of the program.
RDMA_PKGS := libibverbs librdmacm
RDMA_SRC := $(wildcard transport/rdma/*.c) transport/rdma.c transport/rdma_choose.c transport/rdma_hello.c \
	transport/transport.c config/address.c config/error.c
RDMA_OBJ := $(RDMA_SRC:%.c=$(BUILD)/pic/%.o)
RDMA_SO := $(if $(shell pkg-config --exists $(RDMA_PKGS) 2>/dev/null && echo yes),$(BUILD)/weft-rdma.so)
TOOL_SRC := $(wildcard tools/*.c)
TOOL_BIN := $(TOOL_SRC:%.c=$(BUILD)/%)
BENCH_SRC := $(wildcard bench/*.c)
BENCH_BIN := $(BENCH_SRC:%.c=$(BUILD)/%)
SUPPORT_SRC := $(wildcard tests/support/*.c)
SUPPORT_OBJ := $(SUPPORT_SRC:%.c=$(BUILD)/%.o)
TEST_SRC := $(wildcard tests/*/test_*.c tests/*/*/test_*.c)
# SUITES='actors kvtiers model/test_step': only these folders and suites, and no golden data.
ifdef SUITES
TEST_SRC := $(sort $(foreach s,$(SUITES),$(wildcard tests/$(s)/test_*.c tests/$(s)/*/test_*.c tests/$(s).c)))
endif
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
GOLDEN_SRC := $(wildcard tests/golden_*.c)
GOLDEN_BIN := $(if $(SUITES),,$(BUILD)/tests/golden_runner)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
REPLAY_BIN := $(FUZZ_SRC:%.c=$(BUILD)/%)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(BUILD)/%)
# Programs for the plain runner in every build: samples that a suite starts, and planted defects.
PLAIN_SRC := $(wildcard tests/*/plain_*.c)
PLAIN_BIN := $(PLAIN_SRC:%.c=$(BUILD)/%)
PLANTED_SRC := $(wildcard tests/sanitizer/planted_*.c)
PLANTED_BIN := $(PLANTED_SRC:%.c=$(BUILD)/%)
# weft with chosen tokens in place of the network's, for tests/server.
SCRIPTED_SRC := $(wildcard tests/server/script_hook.c)
# Doubles of libraries that tests load as the real ones are loaded.
DOUBLE_SRC := $(wildcard tests/doubles/*.c)
DOUBLE_SO := $(DOUBLE_SRC:%.c=$(BUILD)/%.so)
SCRIPTED_BIN := $(if $(SCRIPTED_SRC),$(BUILD)/tests/server/weft_scripted)
HEADERS := $(wildcard config/*.h kvtiers/*.h transport/*.h $(if $(RDMA_SO),transport/rdma/*.h) model/*.h model/cpu/*.h actors/*.h actors/*/*.h cli/*.h tests/*.h tests/support/*.h)
ifeq ($(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
HEADERS := $(filter-out %_avx2.h %_avx512.h,$(HEADERS))
endif
HEADER_OK := $(HEADERS:%=$(BUILD)/headers/%.ok)
C_FILES := $(LIB_SRC) weft.c $(TOOL_SRC) $(BENCH_SRC) $(TEST_SRC) $(SUPPORT_SRC) $(GOLDEN_SRC) $(FUZZ_SRC) \
	$(PLAIN_SRC) $(PLANTED_SRC) $(SCRIPTED_SRC) $(DOUBLE_SRC) $(wildcard tests/*.c tests/fuzz/*.c)
OBJ := $(sort $(C_FILES:%.c=$(BUILD)/%.o) $(RDMA_OBJ))

# What the suites start as a process, and where they find it.
export WEFT_BIN := $(BUILD)/weft
export WEFT_TOOLS := $(BUILD)/tools
export WEFT_RDMA_SO := $(BUILD)/weft-rdma.so
# Node 20 for the tests where the machine's is older (tools/deps.sh).
export WEFT_NODE := $(firstword $(wildcard build/node/node_modules/node-linux-*/bin/node) node)
export WITHOUT

all: $(BUILD)/weft $(RDMA_SO)

help:
	@echo 'make run      install what is missing, build, serve $(MODEL) (MODEL=DIR, LISTEN=HOST:PORT, CONFIG=FILE)'
	@echo 'make test     install what is missing, build, run every test'
	@echo
	@echo 'make text     build and generate text from $(MODEL) (MODEL=DIR, PROMPT=TEXT)'
	@echo 'make all      build/weft (the default; CC=clang, CFLAGS=..., BUILD=DIR, WERROR=1, JOBS=N, V=1)'
	@echo 'make deps     install the Debian packages that are missing (WITHOUT="chromium prometheus gnuplot-nox node": go without)'
	@echo 'make tools    build/tools/*'
	@echo 'make test-golden GOLDEN=DIR   every check on a folder of golden cases'
	@echo 'make test-shared  the cases of the shared tier on GlusterFS, with a brick and writers killed (needs root and glusterfs-server)'
	@echo 'make test-systemd  the systemd units under a systemd of their own (needs root, systemd, overlay and cgroup2)'
	@echo 'make test-rdma   the provider rdma in a virtual machine with soft-RoCE (needs qemu, 70 MB of kernel package)'
	@echo 'make test-rdma-asan   the same under AddressSanitizer and UndefinedBehaviorSanitizer; test-rdma-tsan: ThreadSanitizer'
	@echo 'make bench    build and run the benchmarks'
	@echo 'make measure  print figures of docs/MEASURING.md: the shipped model, replay, the network, messages'
	@echo 'make measure-drafts  planned drafting against every fixed length: CLOCK=cpu (default), CLOCK=wall on a quiet machine'
	@echo 'make test-long  crashes, damaged files, bad links and faults, each with many more places and seeds than make test has'
	@echo 'make soak     100,000 clients that leave at any moment'
	@echo 'make asan     every suite under AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan     every suite under ThreadSanitizer'
	@echo 'make fuzz     each fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS) seconds'
	@echo 'make docs     write the generated parts of docs/ again'
	@echo 'make tidy     clang-tidy'
	@echo 'make format   clang-format, in place'
	@echo 'make install  to PREFIX=$(PREFIX) (DESTDIR=... is put before it)'
	@echo 'make clean    remove $(BUILD)/'

# ---- building ------------------------------------------------------------------------------------------------------

# The status page is taken into the program as it is.
$(BUILD)/actors/gateway/status_page.o: actors/gateway/status_page.html

# Objects follow the compiler and its flags: when either changes, they are built again.
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(ALL_CFLAGS) $(TEST_CFLAGS)' | cmp -s - $@ || \
		printf '%s\n' '$(CC) $(ALL_CFLAGS) $(TEST_CFLAGS)' > $@

$(BUILD)/%_avx2.o $(BUILD)/headers/%_avx2.h.ok: ISA_FLAGS := $(AVX2_FLAGS)
$(BUILD)/%_avx512.o $(BUILD)/headers/%_avx512.h.ok: ISA_FLAGS := $(AVX512_FLAGS)

$(BUILD)/tests/%.o: tests/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ALL_CFLAGS) $(TEST_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ALL_CFLAGS) $(ISA_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/weft: $(BUILD)/weft.o $(LIB_OBJ)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) $^ -o $@ $(WEFT_LIBS)

$(BUILD)/pic/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(say) CC '$< (shared)'
	$(Q)$(CC) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c $< -o $@

$(BUILD)/weft-rdma.so: $(RDMA_OBJ)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) -shared $(if $(SANITIZE),,-Wl$(comma)-z$(comma)defs) $^ -o $@ \
		$(shell pkg-config --libs $(RDMA_PKGS) libevent_core libevent_extra) -ldl

$(TOOL_BIN) $(BENCH_BIN): $(BUILD)/%: $(BUILD)/%.o $(LIB_OBJ)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) $^ -o $@ $(WEFT_LIBS)

$(TEST_BIN): $(BUILD)/%: $(BUILD)/%.o $(SUPPORT_OBJ) $(TEST_RUNNER) $(LIB_OBJ)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) $^ -o $@ $(WEFT_LIBS) $(TEST_LIBS)

# Sees what a shard loads.
$(BUILD)/tests/actors/test_loading: TEST_LIBS += -Wl,--wrap=mdl_expert_load

$(PLAIN_BIN) $(PLANTED_BIN): $(BUILD)/%: $(BUILD)/%.o $(BUILD)/tests/plain_runner.o
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) $^ -o $@ -lm -pthread

$(BUILD)/tests/doubles/%.so: tests/doubles/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(say) LINK $@
	$(Q)$(CC) $(WEFT_CFLAGS) $(CFLAGS) -MMD -MP -fPIC -shared $< -o $@

$(SCRIPTED_BIN): $(BUILD)/weft.o $(LIB_OBJ) $(SCRIPTED_SRC:%.c=$(BUILD)/%.o)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) -Wl,--wrap=dec_pick $^ -o $@ $(WEFT_LIBS)

$(BUILD)/tests/golden_runner: $(GOLDEN_SRC:%.c=$(BUILD)/%.o) $(LIB_OBJ)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) $^ -o $@ $(WEFT_LIBS)

$(REPLAY_BIN): $(BUILD)/%: $(BUILD)/%.o $(BUILD)/tests/fuzz/replay.o $(LIB_OBJ)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) $^ -o $@ $(WEFT_LIBS)

$(FUZZ_BIN): $(BUILD)/%: $(BUILD)/tests/fuzz/%.o $(LIB_OBJ)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer $^ -o $@ $(WEFT_LIBS)

# Every header compiles alone.
$(HEADER_OK): $(BUILD)/headers/%.ok: % $(BUILD)/.flags $(HEADERS)
	@mkdir -p $(@D)
	@printf '#include "%s"\n' '$<' | \
		$(CC) $(ALL_CFLAGS) $(TEST_CFLAGS) $(ISA_FLAGS) -fsyntax-only -x c - && touch $@

tools: $(TOOL_BIN)

# ---- the two set-up commands ---------------------------------------------------------------------------------------

deps:
	@sh tools/deps.sh

# Without what only the tests need.
deps-program:
	@sh tools/deps.sh --program

# Each step is its own make: what deps installs must be there before the next one reads pkg-config.
run: deps-program
	@$(MAKE) --no-print-directory all
	$(BUILD)/weft serve --hint -m '$(MODEL)' --listen '$(LISTEN)' '$(CONFIG)'

text: all
	$(BUILD)/weft generate -m '$(MODEL)' -p '$(PROMPT)'

test: deps
	@$(MAKE) --no-print-directory test-programs
	@$(MAKE) --no-print-directory run-suites

# ---- tests ---------------------------------------------------------------------------------------------------------

test-programs: all tools $(SCRIPTED_BIN) $(DOUBLE_SO) $(TEST_BIN) $(PLAIN_BIN) $(GOLDEN_BIN) $(REPLAY_BIN) $(HEADER_OK)

run-suites:
	@sh tests/run_suites.sh $(sort $(TEST_BIN)) $(sort $(REPLAY_BIN)) \
		$(if $(GOLDEN_BIN),'$(GOLDEN_BIN) tests/golden')

test-golden: $(GOLDEN_BIN)
	$(if $(GOLDEN_BIN),$(GOLDEN_BIN) '$(GOLDEN)',@echo 'tests/golden_runner.c is not there'; exit 1)

# The shared tier on a real distributed file system.
test-shared: deps
	@sh tools/deps.sh glusterfs-server glusterfs-client || echo 'test-shared: going on without'
	@$(MAKE) --no-print-directory SUITES='kvtiers/test_shared' test-programs
	@sh tests/shared/run_gluster.sh $(BUILD)/tests/kvtiers/test_shared

# The systemd units, under a systemd of their own in namespaces on a copy of the root.
test-systemd: all
	@rm -rf $(BUILD)/systemd && $(MAKE) --no-print-directory install DESTDIR=$(BUILD)/systemd PREFIX=/opt/weft >/dev/null
	@sh tests/systemd/run.sh $(BUILD)/systemd

# The provider rdma against the kernel's soft-RoCE, in a virtual machine (tests/rdma/guest.sh). One test at a time: they
# change devices and look at what these count.
RDMA_SUITES := transport/test_rdma transport/test_rdma_faults transport/test_rdma_reasons transport/test_net_by_hand server/test_rdma_nodes \
	server/test_forms
test-rdma: deps
	@sh tools/deps.sh qemu-system-x86 busybox-static cpio kmod xz-utils zstd iproute2 ibverbs-providers perftest || \
		echo 'test-rdma: going on without'
	@$(MAKE) --no-print-directory SUITES='$(RDMA_SUITES)' test-programs
	@BUILD='$(BUILD)' WEFT_GUEST_SECONDS=1200 sh tests/rdma/run.sh $(RDMA_SUITES:%='$(BUILD)/tests/% -j1')

# The same with sanitizers. The programs and weft-rdma.so are instrumented, the verbs libraries are Debian's.
test-rdma-asan:
	@$(MAKE) --no-print-directory BUILD='$(BUILD)/asan' SANITIZE=address SUITES='$(RDMA_SUITES)' test-programs
	@BUILD='$(BUILD)' WEFT_GUEST_MEMORY=4096 WEFT_GUEST_SECONDS=7200 WEFT_TEST_TIMEOUT=3600 \
		WEFT_BIN='$(BUILD)/asan/weft' WEFT_TOOLS='$(BUILD)/asan/tools' WEFT_RDMA_SO='$(BUILD)/asan/weft-rdma.so' \
		ASAN_OPTIONS=detect_leaks=1:halt_on_error=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
		sh tests/rdma/run.sh $(RDMA_SUITES:%='$(BUILD)/asan/tests/%')

test-rdma-tsan:
	@$(MAKE) --no-print-directory BUILD='$(BUILD)/tsan' SANITIZE=thread SUITES='$(RDMA_SUITES)' test-programs
	@BUILD='$(BUILD)' WEFT_GUEST_MEMORY=8192 WEFT_GUEST_SECONDS=7200 WEFT_TEST_TIMEOUT=3600 \
		WEFT_BIN='$(BUILD)/tsan/weft' WEFT_TOOLS='$(BUILD)/tsan/tools' WEFT_RDMA_SO='$(BUILD)/tsan/weft-rdma.so' \
		TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
		sh tests/rdma/run.sh $(RDMA_SUITES:%='$(BUILD)/tsan/tests/%')

# Much more of what make test does about crashes, damaged files, bad links and faults of all kinds: every byte of an
# index, every pair of pages, more seeds, minutes of processes in one folder.
LONG_SUITES := kvtiers/test_ssd kvtiers/test_shared kvtiers/test_shared_usrbio actors/test_tier_crash actors/test_tiers actors/test_kv_nodes \
	actors/test_simulated actors/test_simulated_experts server/test_tiers
test-long: deps
	@$(MAKE) --no-print-directory SUITES='$(LONG_SUITES)' test-programs
	@WEFT_LONG=1 WEFT_SEEDS=1600 WEFT_SHARED_SECONDS=40 WEFT_TEST_TIMEOUT=3600 \
		$(MAKE) --no-print-directory SUITES='$(LONG_SUITES)' run-suites

# Many more random cancels than make test has time for.
soak: all $(BUILD)/tests/server/test_crowd
	WEFT_SOAK=100000 $(BUILD)/tests/server/test_crowd --filter 'crowd/clients*'

# The programs of the sanitizers run one test at a time, those of make test several; so here two run side by side.
asan tsan: export WEFT_TEST_JOBS := $(or $(WEFT_TEST_JOBS),2)

asan:
	@$(MAKE) --no-print-directory BUILD='$(BUILD)/asan' SANITIZE=address test-programs planted-programs
	@sh tests/sanitizer/check_planted.sh $(BUILD)/asan/tests/sanitizer/planted_leak 'LeakSanitizer'
	@sh tests/sanitizer/check_planted.sh $(BUILD)/asan/tests/sanitizer/planted_overflow 'AddressSanitizer'
	@sh tests/sanitizer/check_planted.sh $(BUILD)/asan/tests/sanitizer/planted_undefined 'runtime error'
	@ASAN_OPTIONS=detect_leaks=1:halt_on_error=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$(MAKE) --no-print-directory BUILD='$(BUILD)/asan' SANITIZE=address run-suites

tsan:
	@$(MAKE) --no-print-directory BUILD='$(BUILD)/tsan' SANITIZE=thread test-programs planted-programs
	@sh tests/sanitizer/check_planted.sh $(BUILD)/tsan/tests/sanitizer/planted_race 'ThreadSanitizer: data race'
	@TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
		$(MAKE) --no-print-directory BUILD='$(BUILD)/tsan' SANITIZE=thread run-suites

planted-programs: $(PLANTED_BIN)

fuzz:
	@$(MAKE) --no-print-directory BUILD='$(BUILD)/fuzz' SANITIZE=fuzz CC=clang CFLAGS='-O1 -g' fuzz-programs
	@sh tests/fuzz/run_fuzz.sh '$(BUILD)/fuzz' $(FUZZ_SECONDS)

fuzz-programs: $(FUZZ_BIN)

bench: all tools $(BENCH_BIN)
	@$(if $(BENCH_BIN),set -e; for b in $(BENCH_BIN); do echo "== $$b"; $$b; done,echo 'bench/ has no program yet')

# The figures of docs/MEASURING.md.
measure: all tools $(BENCH_BIN)
	@mkdir -p $(BUILD)/measure
	@sh bench/measure.sh

measure-drafts: all tools
	@sh bench/measure_drafts.sh $(or $(CLOCK),cpu) $(REPEATS)

# ---- the rest ------------------------------------------------------------------------------------------------------

docs: $(BUILD)/weft
	$(BUILD)/weft config --explain --markdown > docs/CONFIG.md

tidy:
	@sh tools/deps.sh clang-tidy
	@printf '%s\n' $(filter-out %_avx2.c %_avx512.c,$(sort $(C_FILES))) | \
		xargs -n 4 -P $(JOBS) sh -c 'clang-tidy --quiet "$$@" -- $(WEFT_CFLAGS)' tidy

format:
	@sh tools/deps.sh clang-format
	clang-format -i $(sort $(C_FILES) $(HEADERS))

install: all
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/share/weft/config' '$(DESTDIR)$(PREFIX)/share/doc/weft'
	install -m 755 $(BUILD)/weft '$(DESTDIR)$(PREFIX)/bin/weft'
	$(if $(RDMA_SO),install -d '$(DESTDIR)$(PREFIX)/lib/weft' && install -m 755 $(RDMA_SO) '$(DESTDIR)$(PREFIX)/lib/weft')
	for f in config/*.conf; do \
		sed 's|"samples/|"$(PREFIX)/share/weft/samples/|' "$$f" > '$(DESTDIR)$(PREFIX)/share/weft/'"$$f" || exit 1; done
	chmod 644 '$(DESTDIR)$(PREFIX)/share/weft/config/'*.conf
	install -m 644 README.md LICENSE docs/*.md '$(DESTDIR)$(PREFIX)/share/doc/weft'
	install -d '$(DESTDIR)$(PREFIX)/share/weft/grafana' '$(DESTDIR)$(PREFIX)/lib/systemd/system'
	install -m 644 contrib/grafana-weft.json '$(DESTDIR)$(PREFIX)/share/weft/grafana'
	install -d '$(DESTDIR)$(PREFIX)/share/weft/prometheus'
	install -m 644 contrib/prometheus-weft.yml '$(DESTDIR)$(PREFIX)/share/weft/prometheus'
	for unit in weft.service weft@.service weft.target; do \
		sed 's|@PREFIX@|$(PREFIX)|g' "contrib/$$unit" > "$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit" && \
		chmod 644 "$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit" || exit 1; done
	install -d '$(DESTDIR)$(PREFIX)/lib/sysusers.d'
	install -m 644 contrib/weft.sysusers '$(DESTDIR)$(PREFIX)/lib/sysusers.d/weft.conf'
	if [ -d samples ]; then cp -R samples '$(DESTDIR)$(PREFIX)/share/weft/'; fi

clean:
	rm -rf '$(BUILD)'

FORCE:

.PHONY: all help tools deps deps-program run text test test-programs run-suites test-golden test-rdma test-rdma-asan test-rdma-tsan test-shared test-systemd test-long soak asan tsan planted-programs fuzz \
	fuzz-programs bench measure measure-drafts docs tidy format install clean FORCE
.SECONDARY: $(OBJ)
.DELETE_ON_ERROR:

-include $(OBJ:.o=.d)
