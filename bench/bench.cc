// Runs psd's standard workloads and their floors.

#include "bench/run_main.h"

int main(int argc, char** argv) {
  return psd::bench::RunMain(argc, argv, /*with_peer=*/false);
}
