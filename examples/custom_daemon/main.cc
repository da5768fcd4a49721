// A psd daemon with its own functions. It does everything that `psd` does, and serves those
// functions.
//
//   bazel build -c opt //examples/custom_daemon:all
//   bazel-bin/examples/custom_daemon/daemon --dev &
//   bazel-bin/examples/custom_daemon/use

#include "examples/custom_daemon/functions.h"
#include "server/daemon/daemon.h"

int main(int argc, char** argv) {
  return psd::server::RunDaemon(argc, argv, {psd::examples::MakeFunctions()});
}
