#pragma once

// Floors for the network: a bare gRPC echo and a bare TCP stream to another process behind the
// same network, which is //bench:helper.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/server.h"
#include "bench/workload.h"

namespace psd::bench {

inline constexpr size_t kMaxEchoBytes = size_t{2} << 20;

// A unary echo with gRPC's default settings. Thread-compatible.
class EchoFloor {
 public:
  static absl::StatusOr<std::unique_ptr<EchoFloor>> Start(const Environment& environment);
  // Makes one empty call and waits for its answer.
  absl::Status Call();
  // Makes one call whose request and answer have at least these numbers of bytes, from the same
  // memory each time. Requires: both are at most kMaxEchoBytes.
  absl::Status Carry(size_t request_bytes, size_t answer_bytes);
  // Makes `calls` empty calls, `in_flight` at a time.
  absl::Status CallMany(int calls, int in_flight);

 private:
  explicit EchoFloor(std::unique_ptr<Server> server);
  absl::Status CallWith(const grpc::ByteBuffer& request);

  const std::unique_ptr<Server> server_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
};

// A connection that carries as many bytes as it is asked for, either way. Thread-compatible.
class TcpFloor {
 public:
  static absl::StatusOr<std::unique_ptr<TcpFloor>> Start(const Environment& environment,
                                                         size_t max_bytes);
  ~TcpFloor();
  // Asks for `bytes`, receives them into the same memory each time and reads them once.
  // Requires: bytes <= max_bytes; a multiple of 64.
  absl::Status Pull(size_t bytes);
  // Sends `bytes`, always the same ones. The other end receives them into the same memory each
  // time, reads them once and answers. Requires: as Pull.
  absl::Status Push(size_t bytes);
  // A pull in parts: Ask asks for bytes, and Receive receives the next of these bytes into the
  // caller's memory.
  absl::Status Ask(size_t bytes);
  absl::Status Receive(std::byte* to, size_t bytes);

 private:
  TcpFloor(std::unique_ptr<Server> server, int socket, size_t max_bytes);

  const std::unique_ptr<Server> server_;
  const int socket_;
  std::vector<float> payload_;
};

// The other ends of the floors. They listen on a free port of `host`, print their address
// "HOST:PORT\n" and serve: the echo until its input is closed, TCP until its one connection ends.
int ServeEcho(const std::string& host);
int ServeTcp(const std::string& host);

}  // namespace psd::bench
