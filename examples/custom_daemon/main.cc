// A psd daemon with functions of its own: everything that `psd` is and does, and those.
//
//   bazel build -c opt //examples/custom_daemon:all
//   bazel-bin/examples/custom_daemon/daemon --dev &
//   bazel-bin/examples/custom_daemon/use

#include "examples/custom_daemon/functions.h"
#include "server/daemon/daemon.h"

int main(int argc, char** argv) {
  return psd::server::RunDaemon(argc, argv, {psd::examples::MakeFunctions()});
}
