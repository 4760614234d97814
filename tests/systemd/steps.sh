#!/bin/sh
# What run.sh does with the units, inside of the namespaces: as the pages say, step by step.
set -u
PATH=/opt/weft/bin:/usr/sbin:/usr/bin:/sbin:/bin
fails=0

say() { echo "test-systemd: $*"; }
bad() {
    say "FAILED: $*"
    fails=$((fails + 1))
}
# Whether the command comes to succeed, within a minute.
until_so() {
    for _ in $(seq 300); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.2
    done
    return 1
}
is() { # UNIT PROPERTY VALUE
    [ "$(systemctl show -p "$2" --value "$1")" = "$3" ]
}
expect() { # UNIT PROPERTY VALUE
    until_so is "$1" "$2" "$3" || bad "$1: $2 is $(systemctl show -p "$2" --value "$1"), not $3"
}
ready() { curl -sf "http://127.0.0.1:$1/health/ready"; }
main_pid() { systemctl show -p MainPID --value "$1"; }
restarts() { systemctl show -p NRestarts --value "$1"; }
stream() { # PORT FILE TOKENS
    curl -sN "http://127.0.0.1:$1/v1/completions" -d "{\"prompt\":\"Once\",\"max_tokens\":$3,\"ignore_eos\":true,
        \"stream\":true,\"stream_options\":{\"include_usage\":true}}" >"$2"
}
answers() { # PORT
    curl -sf "http://127.0.0.1:$1/v1/completions" -d '{"prompt":"Once","max_tokens":4}' | grep -q '"finish_reason"'
}

systemd-sysusers /opt/weft/lib/sysusers.d/weft.conf || bad "systemd-sysusers"
systemctl daemon-reload

say "one server: start, a request, reload for rotation"
sed -e 's|^\( *\)file = "";|\1file = "/var/log/weft/weft.log";|' /opt/weft/share/weft/config/single.conf >/etc/weft/weft.conf
grep -q /var/log/weft/weft.log /etc/weft/weft.conf || bad "the sample names no log file"
systemctl start weft.service || bad "it does not start"
until_so ready 8000 || bad "it is not ready"
answers 8000 || bad "it does not answer"
user=$(ps -o user= -p "$(main_pid weft.service)")
[ "$user" = weft ] || bad "it runs as $user"
mv /var/log/weft/weft.log /var/log/weft/weft.log.1
systemctl reload weft.service || bad "it is not reloaded"
again() { answers 8000 && grep -q request_end /var/log/weft/weft.log; }
until_so again || bad "the log was not opened again"

say "killed: it begins again"
pid=$(main_pid weft.service)
kill -KILL "$pid"
other() { [ "$(main_pid weft.service)" != "$pid" ] && ready 8000; }
until_so other || bad "it was not started again"
[ "$(restarts weft.service)" = 1 ] || bad "restarts: $(restarts weft.service)"

say "stop: what runs goes on to its end"
stream 8000 /tmp/whole 900 &
s=$!
until_so grep -q data: /tmp/whole || bad "no stream"
systemctl stop weft.service || bad "it does not stop"
wait $s
grep -q '"completion_tokens":900' /tmp/whole || bad "the stream was cut off"
expect weft.service ActiveState inactive
expect weft.service Result success

say "exit status 3: what was cut off is shown, and nothing begins again"
sed -i 's|drain = "[^"]*"|drain = "0us"|' /etc/weft/weft.conf
systemctl start weft.service || bad "it does not start"
until_so ready 8000 || bad "it is not ready"
for i in 1 2 3 4 5 6 7 8; do stream 8000 /tmp/cut.$i 900 & done
until_so grep -q data: /tmp/cut.1 || bad "no stream"
kill -TERM "$(main_pid weft.service)"
expect weft.service ActiveState failed
is weft.service ExecMainStatus 3 || bad "exit status $(systemctl show -p ExecMainStatus --value weft.service)"
wait
sleep 3 # longer than RestartSec: it would have begun again
is weft.service ActiveState failed && [ "$(restarts weft.service)" = 0 ] || bad "it began again after exit status 3"

say "exit status 2: a wrong configuration is not tried again"
systemctl reset-failed weft.service
cp /etc/weft/weft.conf /etc/weft/right.conf
echo 'nonsense = 1;' >>/etc/weft/weft.conf
systemctl start weft.service
expect weft.service ActiveState failed
is weft.service ExecMainStatus 2 || bad "exit status $(systemctl show -p ExecMainStatus --value weft.service)"
sleep 3
is weft.service ActiveState failed && [ "$(restarts weft.service)" = 0 ] || bad "it began again after exit status 2"
cp /etc/weft/right.conf /etc/weft/weft.conf
systemctl reset-failed weft.service

say "nodes of a deployment: start, a request, drain, kill, the target ends all"
cat >/etc/weft/cluster.conf <<'CONF'
model = { path = "/opt/weft/share/weft/samples/tiny"; };
compute = { threads = 1; };
kv = { memory = "64MiB"; };
cluster = { secret_file = "/etc/weft/secret"; state = "."; };
log = { file = "node.log"; };
nodes = (
    { name = "front"; roles = ["gateway"]; host = "127.0.0.1"; port = 7201; listen = "127.0.0.1:8200"; },
    { name = "back"; roles = ["prefill", "decode", "expert"]; host = "127.0.0.1"; port = 7202; } );
CONF
openssl rand -hex 32 >/etc/weft/secret
chown weft: /etc/weft/secret && chmod 400 /etc/weft/secret
systemctl enable --now weft@front weft@back || bad "the nodes do not start"
until_so ready 8200 || bad "the gateway is not ready"
answers 8200 || bad "it does not answer"
[ -s /var/lib/weft-nodes/back/back.epoch ] || bad "no boot epoch in /var/lib/weft-nodes/back"
weft drain /etc/weft/cluster.conf back || bad "weft drain"
expect weft@back ActiveState inactive
expect weft@back Result success
sleep 2 # longer than RestartSec
is weft@back ActiveState inactive || bad "a drained node began again"
systemctl start weft@back || bad "it does not start again"
until_so ready 8200 || bad "the gateway is not ready again"
pid=$(main_pid weft@back)
kill -KILL "$pid"
other() { [ "$(main_pid weft@back)" != "$pid" ] && weft status /etc/weft/cluster.conf; }
until_so other || bad "a killed node was not started again"
systemctl reload weft@back || bad "it is not reloaded"

say "something keeps a node from starting: it is tried until that has gone"
systemctl stop weft@back
exec 9>>/var/lib/weft-nodes/back/back.lock
flock 9
systemctl start weft@back
many() { [ "$(restarts weft@back)" -ge 7 ]; }
until_so many || bad "it was given up: $(systemctl show -p Result --value weft@back)"
exec 9>&-
until_so ready 8200 || bad "it does not start when nothing is in its way any more"
systemctl stop weft.target
for n in front back; do
    expect weft@$n ActiveState inactive
    is weft@$n Result success || bad "weft@$n: $(systemctl show -p Result --value weft@$n)"
done
[ $fails -eq 0 ] || tail -n 20 /var/lib/weft-nodes/*/node.log
[ $fails -eq 0 ] && say "passed"
[ $fails -eq 0 ]
