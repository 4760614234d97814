#!/bin/sh
# Prints the figures of docs/MEASURING.md: `make measure`. Takes some minutes; other work on the machine shows in it.
set -eu
weft=${WEFT_BIN:-build/weft}
tools=${WEFT_TOOLS:-build/tools}
model=${MODEL:-samples/tiny}
mid=${MID:-build/measure/mid}

title() {
    printf '\n## %s\n\n' "$*"
}
show() {
    printf '$ %s\n' "$*"
    "$@" 2>&1
    echo
}

title "The machine"
show lscpu | grep -E 'Model name|^CPU\(s\)|L2|L3|BIOS' || true
show uptime

title "The shipped model"
show "$weft" perplexity -m "$model" --text "$model/heldout.txt"
for k in 0 3 5; do
    printf '$ weft generate -m %s --batch %s/prompts.jsonl -n 128 -t 0 --draft %s --stats\n' "$model" "$model" $k
    "$weft" generate -m "$model" --batch "$model/prompts.jsonl" -n 128 -t 0 --draft $k --stats 2>&1 >/dev/null
    echo
done
show "$weft" fidelity -m "$model" --text "$model/heldout.txt" --prompts 48 --length 240

title "A model of 2 GB"
[ -f "$mid/config.json" ] || show "$tools/make_model" --preset mid --out "$mid"
for mode in --exact --replay=140; do
    for n in 64 512 2048; do
        awk -v n=$n 'BEGIN { for (i = 0; i < n; i++) printf "%d ", (i * 7919 + 13) % 1000 + 10 }' > build/measure/ids
        start=$(date +%s.%N)
        "$weft" score -m "$mid" --ids build/measure/ids $mode --out build/measure/score > /dev/null
        end=$(date +%s.%N)
        echo "score $mode, $n tokens: $(echo "$end $start $n" | awk '{ printf "%.2f s, %.1f ms per token, start of the program included", $1 - $2, 1000 * ($1 - $2) / $3 }')"
    done
done
