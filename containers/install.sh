#!/bin/sh
# Install calib into an image that is being built: install.sh WHEELS EXTRAS [DEBIAN_PACKAGE ...]
# WHEELS is the folder that `make wheelhouse` filled; no Python package comes from anywhere else, and
# what the base image's Python has itself, such as PyTorch, stays. Debian packages come from the base
# image's own sources, now and not at run time.
set -eu
wheels=$1 extras=$2
shift 2
python=${PYTHON:-python3}
"$python" -c 'import ensurepip' 2>/dev/null || set -- python3-venv "$@"
if [ $# -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
  rm -rf /var/lib/apt/lists/*
fi
"$python" -m venv --system-site-packages /opt/calib
/opt/calib/bin/python -m pip install --quiet --no-cache-dir --no-index --find-links "$wheels" \
  "calib[$extras]"
# the models' layers are traced once, for every user of the image
CALIB_CACHE=/opt/calib/cache /opt/calib/bin/python -m calib.training.models.specs
