#!/bin/sh
# Measures this machine's step times with a model, then a server, then predicts the server from the step times and prints
# both side by side. usage: bench/simulate_check.sh [MODEL [THREADS]]
# With fewer threads than CPUs the gateway and the client have a CPU of their own, as the prediction assumes.
set -eu
weft=${WEFT:-build/weft}
model=${1:-samples/tiny}
threads=${2:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/serve.conf" <<END
model = { path = "$model"; };
compute = { threads = $threads; };
speculation = { mode = "fixed"; draft_length = 3; };
END
"$weft" simulate --measure "$model" --threads "$threads" --drafts 3 "$work/profile.json"
"$weft" bench serve -m "$model" --config "$work/serve.conf" -c "${LOADS:-1,4,16}" -n "${REQUESTS:-64}" --json "$work/serve.json" > "$work/serve.txt"
"$weft" simulate --modes fixed --against "$work/serve.json" "$work/profile.json"
[ -z "${KEEP:-}" ] || cp "$work/profile.json" "$work/serve.json" "$KEEP"
