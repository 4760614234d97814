#!/bin/sh
# run_fuzz.sh BUILD SECONDS: runs every libFuzzer program in BUILD for SECONDS, starting from tests/fuzz/corpus/NAME
# where that exists. New inputs stay in BUILD/corpus/NAME; inputs that fail are written to BUILD/crash-*.
set -u

build=$1
seconds=$2
failed=
for program in "$build"/fuzz_*; do
    [ -f "$program" ] && [ -x "$program" ] || continue
    name=${program##*/fuzz_}
    seeds=tests/fuzz/corpus/$name
    mkdir -p "$build/corpus/$name"
    echo "== $program, $seconds s"
    [ -d "$seeds" ] || seeds=
    # shellcheck disable=SC2086
    "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$build/crash-$name-" "$build/corpus/$name" $seeds || failed="$failed $name"
done
if [ -n "$failed" ]; then
    echo "== failed:$failed"
    exit 1
fi
