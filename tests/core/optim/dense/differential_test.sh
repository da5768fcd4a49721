#!/bin/sh
# Compares every optimizer, with random settings, with the PyTorch of this machine. Where there is
# none, says so and passes.
set -eu
if ! /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  echo "skipped: no python3-torch here (apt-get install python3-torch)"
  exit 0
fi
seed=${1:-$(date +%j)}
echo "seed $seed"
/usr/bin/python3 -B tests/golden/optim/make_golden.py --random "$seed" 150 |
  tests/core/optim/dense/replay
