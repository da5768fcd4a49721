#pragma once

// Converts between psd's buffers and gRPC's without copying payloads.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/carrier/byte_reader.h"

namespace psd::carrier {

// Returns one network message that holds all `parts`. gRPC keeps a reference to each until it has
// been written; only tiny parts are copied.
grpc::ByteBuffer ToByteBuffer(const std::vector<Buffer>& parts);

// Gives access to a received network message as a list of chunks. Keeps the bytes alive.
class ReceivedBytes {
 public:
  // Returns false only if gRPC cannot hand out the bytes.
  bool Open(const grpc::ByteBuffer& buffer);

  // The reader is valid as long as this object.
  ByteReader reader() const { return ByteReader(chunks_); }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<absl::string_view> chunks_;
};

}  // namespace psd::carrier
