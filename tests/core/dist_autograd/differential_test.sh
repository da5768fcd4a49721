#!/bin/sh
# Compares psd with the torch.distributed.autograd of this machine on random graphs over up to three
# workers. Where there is none, says so and passes.
set -eu
if ! /usr/bin/python3 -c 'import torch.distributed.rpc as r; r.init_rpc' 2>/dev/null; then
  echo "skipped: no python3-torch with RPC here (apt-get install python3-torch)"
  exit 0
fi
seed=${1:-$(($(date +%j) * 1000))}
count=${2:-60}
folder=tests/core/dist_autograd
echo "seed $seed"
$folder/graphs write "$seed" "$count" |
  /usr/bin/python3 -B $folder/torch_graphs.py >"${TEST_TMPDIR:-/tmp}/gradients"
$folder/graphs check "$seed" "$count" <"${TEST_TMPDIR:-/tmp}/gradients"
