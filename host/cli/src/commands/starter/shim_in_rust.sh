#!/bin/sh
# Builds the shim and lays it out, with its manifest, in shims/. PROFILE sets the profile (default: release).
set -eu
cd "$(dirname "$0")"
case "$(uname -s)" in
    Darwin) suffix=dylib ;;
    *) suffix=so ;;
esac
mkdir -p shims
profile=${PROFILE:-release}
cargo build --profile "$profile" --target-dir target
case "$profile" in
    dev) folder=debug ;;
    *) folder=$profile ;;
esac
cp "target/$folder/libSTEM.$suffix" STEM.shim.json shims/
