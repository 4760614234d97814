#!/bin/sh
# Prints the figures of docs/MEASURING.md about the shipped model, replay, the network and messages: `make measure`. Takes some minutes; other work on the machine shows in it.
set -eu
weft=${WEFT_BIN:-build/weft}
model=${MODEL:-samples/tiny}
mid=${MID:-build/measure/mid}

show() {
    printf '\n$ %s\n' "$*"
    "$@" 2>&1
}

show uname -sm
grep -m 1 'model name' /proc/cpuinfo || true
show uptime
show "$weft" perplexity -m "$model" --text "$model/heldout.txt"
for k in 0 3 5; do
    printf '\n$ weft generate -m %s --batch %s/prompts.jsonl -n 128 -t 0 --draft %s --stats\n' "$model" "$model" $k
    "$weft" generate -m "$model" --batch "$model/prompts.jsonl" -n 128 -t 0 --draft $k --stats 2>&1 >/dev/null
done
show "$weft" fidelity -m "$model" --text "$model/heldout.txt" --prompts 48 --length 240
[ -f "$mid/config.json" ] || show "${WEFT_TOOLS:-build/tools}/make_model" --preset mid --out "$mid"
show build/bench/bench_model "$mid"
show "$weft" bench prefill -m "$mid" -p 64,256,1024 -c 64,256,1024 --repeats 5
show "$weft" bench actors
