#!/bin/sh
# Builds the shim and lays it out, with its manifest, in shims/.
set -eu
cd "$(dirname "$0")"
case "$(uname -s)" in
    Darwin) suffix=dylib ;;
    *) suffix=so ;;
esac
mkdir -p shims
cargo build --release --target-dir target
cp "target/release/libSTEM.$suffix" STEM.shim.json shims/
