#!/bin/sh
# Runs each argument as a command (split at spaces), prints how long it took and a summary. Exit status 1 when any failed.
# WEFT_TEST_TIMEOUT: seconds after which one suite counts as hung (default 900). WEFT_TEST_JOBS: how many run at a time
# (default 1); of several, each one's output is printed when it has ended.
set -u

limit=${WEFT_TEST_TIMEOUT:-900}
jobs=${WEFT_TEST_JOBS:-1}

# One suite: its output, then a line with its result and time; what failed is noted in $results.
run_one() {
    echo "== $1"
    start=$(date +%s%N)
    # shellcheck disable=SC2086
    timeout -k 10 "$limit" $1
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
        echo "$1" >>"$results/passed"
    else
        echo "   $1: $result" >>"$results/failed"
    fi
}

# One of several at a time: a call of this script by xargs.
if [ "${1:-}" = --one ]; then
    results=$2
    run_one "$3" >"$results/output.$$" 2>&1
    flock "$results" cat "$results/output.$$"
    rm -f "$results/output.$$"
    exit 0
fi

results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
trap 'exit 1' HUP INT TERM
: >"$results/passed"
: >"$results/failed"
begin=$(date +%s)
if [ "$jobs" -gt 1 ]; then
    printf '%s\0' "$@" | xargs -0 -n 1 -P "$jobs" sh "$0" --one "$results"
else
    for suite in "$@"; do
        run_one "$suite"
    done
fi
if [ -s "$results/failed" ]; then
    echo "== failed:"
    cat "$results/failed"
fi
passes=$(wc -l <"$results/passed")
failures=$(wc -l <"$results/failed")
echo "== all suites, $(($(date +%s) - begin)) s:"
echo "$passes passed, $failures failed"
# A suite that left no result at all was lost with its shell.
[ "$failures" -eq 0 ] && [ "$passes" -eq $# ] && [ "$passes" -gt 0 ]
