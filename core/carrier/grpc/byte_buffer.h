#pragma once

// Between our buffers and gRPC's, without copying payloads.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/carrier/byte_reader.h"

namespace psd::carrier {

// One network message of all `parts`. gRPC keeps a reference to each until it has been written;
// only tiny parts are copied.
grpc::ByteBuffer ToByteBuffer(const std::vector<Buffer>& parts);

// A received network message as chunks. Keeps the bytes alive.
class ReceivedBytes {
 public:
  // Fails (false) only if gRPC cannot hand out the bytes.
  bool Open(const grpc::ByteBuffer& buffer);

  // Valid as long as this object.
  ByteReader reader() const { return ByteReader(chunks_); }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<absl::string_view> chunks_;
};

}  // namespace psd::carrier
