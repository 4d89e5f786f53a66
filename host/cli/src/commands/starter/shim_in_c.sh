#!/bin/sh
# Builds the shim and lays it out, with its manifest, in shims/.
set -eu
cd "$(dirname "$0")"
case "$(uname -s)" in
    Darwin) suffix=dylib ;;
    *) suffix=so ;;
esac
mkdir -p shims
"${CC:-cc}" -std=c11 -O2 -Wall -Wextra -fPIC -shared -fvisibility=hidden \
    -DSW_TEMPLATE_SOC='"NAME-1"' -o "shims/libSTEM.$suffix" ./*.c -lm
cp STEM.shim.json shims/
