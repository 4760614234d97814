#!/bin/sh
# Installs the Debian packages that Weft needs and this machine lacks; says what it does, asks nothing, does nothing when
# all is there.
#
#   deps.sh             what building and the tests need (make deps, make test)
#   deps.sh --program   what building the program needs (make run)
#   deps.sh PACKAGE...  those packages only
#
# Without a package that only some tests need it goes on and says which tests will be skipped. WITHOUT='NAME ...' leaves
# such packages out from the start: chromium, prometheus, gnuplot-nox, node.
set -eu

program='build-essential pkg-config libconfig-dev libjansson-dev libpcre2-dev libxxhash-dev libsodium-dev libck-dev
    libevent-dev libhttp-parser-dev libssl-dev libibverbs-dev librdmacm-dev liburing-dev'
tests='clang libclang-rt-dev libcriterion-dev curl openssl'
node_version=20.20.2 # where Debian's is older than the tests need
without=" ${WITHOUT:-} "

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

have() {
    command -v "$1" >/dev/null 2>&1
}

wanted() {
    case $without in *" $1 "*) return 1 ;; esac
}

can_install() {
    [ "$(id -u)" -eq 0 ] || have sudo
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

lists_are_new=no
install() {
    echo "deps: installing the missing Debian packages: $*"
    if [ $lists_are_new = no ]; then
        as_root apt-get update -q || echo "deps: apt-get update failed; trying with the lists that are here" >&2
        lists_are_new=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# Packages without which nothing goes on.
need() {
    missing=
    for p in "$@"; do
        # A tool that is on PATH from elsewhere needs no package.
        case $p in clang-tidy | clang-format) if have "$p"; then continue; fi ;; esac
        if ! installed "$p"; then missing="$missing $p"; fi
    done
    if [ -z "$missing" ]; then return 0; fi
    if ! can_install; then
        echo "deps: these Debian packages are missing and installing them needs root. As root, run:" >&2
        echo "    apt-get update && apt-get install -y --no-install-recommends$missing" >&2
        exit 1
    fi
    if ! install $missing; then
        echo "deps: apt-get could not install:$missing" >&2
        exit 1
    fi
}

# may NAME TESTS PACKAGE...: packages that only some tests need.
may() {
    name=$1 skipped=$2
    shift 2
    if ! wanted "$name"; then
        echo "deps: going without $name; skipped: $skipped"
    elif ! can_install || ! install "$@"; then
        echo "deps: $name could not be installed; skipped: $skipped" >&2
        return 1
    fi
}

# promtool comes with the server, which is not to run because of it.
may_prometheus() {
    systemd=no
    if [ -d /run/systemd/system ] && can_install && wanted prometheus; then systemd=yes; fi
    if [ $systemd = yes ]; then as_root systemctl mask prometheus.service; fi
    may prometheus 'server/test_operate: promtool_accepts_the_metrics' prometheus || true
    if [ $systemd = yes ]; then
        as_root systemctl unmask prometheus.service
        as_root systemctl disable prometheus.service || true
    fi
}

node_is_new() {
    have "$1" && [ "$("$1" -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge 20 ]
}

js=tests/js
js_tests='server/test_clients, model/test_tokenizer_js'

npm_failed() {
    echo "deps: npm $1 failed; skipped: $js_tests" >&2
}

# The official clients need a newer Node than some Debian releases have; then it comes from npm, for the tests alone.
may_node() {
    if ! have node || ! have npm; then
        may node "$js_tests" nodejs npm ca-certificates || return 0
        if ! have npm; then return 0; fi
    fi
    case $(uname -m) in x86_64) arch=x64 ;; aarch64) arch=arm64 ;; *) arch=none ;; esac
    own=build/node/node_modules/node-linux-$arch/bin/node
    if ! node_is_new node && ! node_is_new $own; then
        echo "deps: $(node --version) is too old for the tests; npm install node-linux-$arch@$node_version in build/node"
        mkdir -p build/node
        if ! npm install --prefix build/node --no-audit --no-fund --no-save --loglevel=error "node-linux-$arch@$node_version"
        then
            npm_failed install
            return 0
        fi
    fi
    if [ -f $js/node_modules/.package-lock.json ] &&
        [ -z "$(find $js/package.json $js/package-lock.json -newer $js/node_modules/.package-lock.json)" ]
    then
        return 0
    fi
    echo "deps: npm ci in $js (packages that only the tests use)"
    if (cd $js && npm ci --no-audit --no-fund --loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000); then
        touch $js/node_modules/.package-lock.json
    else
        npm_failed ci
    fi
}

what=${1:-all}
if ! have dpkg-query || ! have apt-get; then
    case $what in
    --program) packages=$program ;;
    all) packages="$program $tests; for some tests chromium, gnuplot, promtool, Node 20" ;;
    *) packages="$*" ;;
    esac
    echo "deps: this is not a Debian system; please install the equivalents of:" $packages
    exit 0
fi
case $what in
--program) need $program ;;
all)
    need $program $tests
    have gnuplot || may gnuplot-nox 'cli/test_bench_decode: plots' gnuplot-nox || true
    have chromium || may chromium 'server/test_page' chromium fonts-liberation || true
    have promtool || may_prometheus
    wanted node && may_node || true
    ;;
*) need "$@" ;;
esac
