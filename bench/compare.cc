// Runs psd's standard workloads, their floors, and the same workloads on PyTorch RPC.

#include "bench/run_main.h"

int main(int argc, char** argv) {
  return psd::bench::RunMain(argc, argv, /*with_peer=*/true);
}
