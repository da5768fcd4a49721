// A psd daemon with a function of its own.

#include <cstdint>

#include "client/psd.h"
#include "server/daemon/daemon.h"

absl::StatusOr<int64_t> Twice(int64_t x) {
  return 2 * x;
}

int main(int argc, char** argv) {
  psd::FunctionRegistry functions;
  const absl::Status registered = functions.Register("twice", psd::Typed(Twice));
  PSD_CHECK(registered.ok(), registered.message());
  return psd::server::RunDaemon(argc, argv, {functions});
}
