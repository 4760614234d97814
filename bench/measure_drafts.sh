#!/bin/sh
# Dynamic drafting against the best of the others, the three cases of docs/MEASURING.md. usage: bench/measure_drafts.sh [CLOCK [LIMIT]]
# CLOCK: cpu (default), one thread by processor time, for a machine that does other work too; wall, every CPU, for one that does not.
# LIMIT: of repeats, for a shorter run. Results go to build/measure/drafts-CLOCK-*.json and .png.
set -eu
weft=${WEFT_BIN:-build/weft}
clock=${1:-cpu}
limit=${2:-1000}
dir=${DIR:-build/measure}
mid=${MID:-$dir/mid}
sure=$mid-sure
mkdir -p "$dir"
[ -f "$mid/config.json" ] || "${WEFT_TOOLS:-build/tools}/make_model" --preset mid --out "$mid"

# The same weights, whose drafts say that they are surer: 2 on top of every logit.
if [ ! -f "$sure/calibration.json" ]; then
    mkdir -p "$sure"
    for f in "$mid"/*; do ln -f "$f" "$sure/"; done
    rev=$("$weft" model info "$mid" | sed -n 's/.*revision[ :]*\([0-9a-f]\{16\}\).*/\1/p' | head -1)
    one='{"temperature":[1,1,1,1,1],"shift":[2,2,2,2,2]}'
    printf '{"format":1,"model_revision":"%s","block":5,"choices":{"greedy":%s,"match":%s,"reject":%s}}\n' "$rev" "$one" "$one" "$one" \
        > "$sure/calibration.json"
fi

case_of() {
    name=$1 repeats=$2
    shift 2
    [ "$repeats" -le "$limit" ] || repeats=$limit
    plot=$(command -v gnuplot >/dev/null && echo "--plot $dir/drafts-$clock-$name.png" || true)
    printf '\n== %s, %s clock\n' "$name" "$clock"
    # shellcheck disable=SC2086
    "$weft" bench decode --clock "$clock" --repeats "$repeats" --prune 8 --json "$dir/drafts-$clock-$name.json" $plot "$@"
}
case_of tiny 100 -m samples/tiny --text samples/tiny/heldout.txt --seconds 0.03
case_of mid-single 100 -m "$mid" --accept stated --context 64 --seconds 0.1 --warm 1 -c 1,2
case_of mid 30 -m "$mid" --accept stated --context 64 --seconds 0.1 --warm 1 -c 4,8,16,32
case_of mid-sure 30 -m "$sure" --accept stated --context 64 --seconds 0.1 --warm 1 -c 1,2,4,8,16,32
uptime
