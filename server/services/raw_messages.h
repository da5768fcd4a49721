#pragma once

// Messages as the bytes that gRPC's raw methods take and give. Methods take bytes so that the
// memory of a request is estimated before it is parsed: a few bytes may become many in memory.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>
#include <grpcpp/support/status.h>

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/rpc/parse_cost.h"

namespace psd::server {

// Returns a bound on the memory that `bytes` take before and after they are parsed.
template <typename Message>
size_t MemoryOf(grpc::ByteBuffer& bytes) {
  grpc::ProtoBufferReader reader(&bytes);
  return bytes.Length() + rpc::ParseCost(*Message::descriptor(), reader);
}

// Parses `bytes`, and clears them. Errors: INVALID_ARGUMENT.
template <typename Message>
grpc::Status ParseBytes(grpc::ByteBuffer& bytes, Message& message) {
  const grpc::Status parsed = grpc::SerializationTraits<Message>::Deserialize(&bytes, &message);
  bytes.Clear();
  if (parsed.ok()) return parsed;
  return {grpc::StatusCode::INVALID_ARGUMENT, "the request cannot be parsed"};
}

// For the requests of services that need little memory. Errors: INVALID_ARGUMENT if a request would
// take more than 4 MiB of memory.
inline grpc::Status CheckSmall(size_t bytes) {
  constexpr size_t kMost = size_t{4} << 20;
  if (bytes <= kMost) return grpc::Status::OK;
  return {grpc::StatusCode::INVALID_ARGUMENT,
          absl::StrCat("the request would take ", bytes, " bytes of memory, at most ", kMost)};
}

// Parses a request that passes CheckSmall, and clears its bytes. Errors: those of CheckSmall and
// ParseBytes.
template <typename Message>
grpc::Status ParseSmall(grpc::ByteBuffer& bytes, Message& message) {
  const grpc::Status small = CheckSmall(MemoryOf<Message>(bytes));
  if (small.ok()) return ParseBytes(bytes, message);
  bytes.Clear();
  return small;
}

template <typename Message>
grpc::Status ToBytes(const Message& message, grpc::ByteBuffer& bytes) {
  bool own = false;
  return grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
}

}  // namespace psd::server
