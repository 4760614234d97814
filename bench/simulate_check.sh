#!/bin/sh
# Measures this machine's step times with a model, then a server, then predicts the server from the step times and prints
# both side by side. usage: bench/simulate_check.sh [MODEL [THREADS [MODE]]]
# MODE: fixed (default, 3 drafts), dynamic, off.
# With fewer threads than CPUs the gateway and the client have a CPU of their own, as the prediction assumes.
set -eu
weft=${WEFT:-build/weft}
model=${1:-samples/tiny}
threads=${2:-1}
mode=${3:-fixed}
drafts=3
[ "$mode" != dynamic ] || drafts=5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/serve.conf" <<END
model = { path = "$model"; };
compute = { threads = $threads; };
speculation = { mode = "$mode"; draft_length = $drafts; };
END
"$weft" simulate --measure "$model" --threads "$threads" --drafts $drafts "$work/profile.json"
"$weft" bench serve -m "$model" --config "$work/serve.conf" -c "${LOADS:-1,4,16}" -n "${REQUESTS:-64}" --json "$work/serve.json" > "$work/serve.txt"
"$weft" simulate --modes $mode --against "$work/serve.json" "$work/profile.json"
[ -z "${KEEP:-}" ] || cp "$work/profile.json" "$work/serve.json" "$KEEP"
