#include "core/carrier/grpc/byte_buffer.h"

#include "core/base/tsan.h"

namespace psd::carrier {
namespace {

// Copying fewer bytes than this costs less than a counted reference.
constexpr size_t kCopyBytes = 1024;

grpc::Slice ToSlice(const Buffer& buffer) {
  if (buffer.size() <= kCopyBytes) return grpc::Slice(buffer.data(), buffer.size());
  auto* reference = new Buffer(buffer);  // freed by the callback, on some thread of gRPC's
  PSD_TSAN_RELEASE(reference);
  return grpc::Slice(
      const_cast<std::byte*>(buffer.data()), buffer.size(),
      [](void* user_data) {
        PSD_TSAN_ACQUIRE(user_data);
        delete static_cast<Buffer*>(user_data);
      },
      reference);
}

}  // namespace

grpc::ByteBuffer ToByteBuffer(const std::vector<Buffer>& parts) {
  if (parts.size() == 1) {
    grpc::Slice slice = ToSlice(parts[0]);
    return grpc::ByteBuffer(&slice, 1);
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(parts.size());
  for (const Buffer& part : parts) slices.push_back(ToSlice(part));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

bool ReceivedBytes::Open(const grpc::ByteBuffer& buffer) {
  if (!buffer.Dump(&slices_).ok()) return false;
  chunks_.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    chunks_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return true;
}

}  // namespace psd::carrier
