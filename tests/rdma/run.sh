#!/bin/sh
# run.sh PROGRAM...: runs the programs, one after the other, in the guest of guest.sh. Where no guest can be had it says
# why and succeeds, unless WEFT_RDMA_REQUIRED=1.
set -u
here=$(dirname "$0")
WEFT_GUEST_PASS="${WEFT_GUEST_PASS:-} WEFT_BIN WEFT_TOOLS WEFT_RDMA_SO WEFT_TEST_TIMEOUT ASAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS" \
    bash "$here/guest.sh" sh tests/run_suites.sh "$@"
status=$?
if [ $status -eq 77 ]; then
    if [ "${WEFT_RDMA_REQUIRED:-0}" = 1 ]; then
        echo "test-rdma: FAILED: WEFT_RDMA_REQUIRED=1, but no guest can be had (see above)" >&2
        exit 1
    fi
    echo "test-rdma: skipped, for the reason above"
    exit 0
fi
exit $status
