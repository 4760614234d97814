#!/bin/sh
# Runs each argument as a command (split at spaces), one after the other, prints how long it took and a summary.
# Exit status 1 when any failed. WEFT_TEST_TIMEOUT: seconds after which one suite counts as hung (default 900).
set -u

limit=${WEFT_TEST_TIMEOUT:-900}
failed=
passes=0
failures=0
begin=$(date +%s)
for suite in "$@"; do
    echo "== $suite"
    start=$(date +%s%N)
    # shellcheck disable=SC2086
    timeout -k 10 "$limit" $suite
    status=$?
    ms=$((($(date +%s%N) - start) / 1000000))
    if [ $status -eq 0 ]; then
        result=passed
    elif [ $status -eq 124 ] || [ $status -eq 137 ]; then
        result="FAILED (no end after $limit s)"
    else
        result="FAILED (exit status $status)"
    fi
    printf '   %s, %d.%03d s\n' "$result" $((ms / 1000)) $((ms % 1000))
    if [ $status -eq 0 ]; then
        passes=$((passes + 1))
    else
        failures=$((failures + 1))
        failed="$failed
   $suite: $result"
    fi
done
if [ -n "$failed" ]; then echo "== failed:$failed"; fi
echo "== all suites, $(($(date +%s) - begin)) s:"
echo "$passes passed, $failures failed"
[ "$failures" -eq 0 ] && [ "$passes" -gt 0 ]
