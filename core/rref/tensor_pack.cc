#include "core/rref/tensor_pack.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/rref/value_format.h"

namespace psd::rref {
namespace {

size_t AlignUp(size_t offset) {
  return (offset + kSmallTensorAlignment - 1) / kSmallTensorAlignment * kSmallTensorAlignment;
}

// Memory from malloc: blocks of this size are made and freed once per message.
Buffer PackSmall(absl::Span<const Buffer> each, size_t bytes) {
  std::shared_ptr<std::byte[]> block(
      new (std::align_val_t{kBlockAlignment}) std::byte[bytes],
      [](std::byte* data) { operator delete[](data, std::align_val_t{kBlockAlignment}); });
  std::byte* data = block.get();
  size_t offset = 0;
  for (const Buffer& buffer : each) {
    if (buffer.size() > kSmallTensorBytes || buffer.empty()) continue;
    size_t start = AlignUp(offset);
    std::memset(data + offset, 0, start - offset);
    std::memcpy(data + start, buffer.data(), buffer.size());
    offset = start + buffer.size();
  }
  return Buffer(std::move(block), data, bytes);
}

size_t SmallBytes(absl::Span<const Buffer> each) {
  size_t bytes = 0;
  for (const Buffer& buffer : each) {
    if (buffer.size() <= kSmallTensorBytes && !buffer.empty()) {
      bytes = AlignUp(bytes) + buffer.size();
    }
  }
  return bytes;
}

absl::Status WrongBuffer(size_t tensor, size_t need, size_t have) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", tensor, " needs ", need, " bytes, of which ", have, " arrived"));
}

// The bytes of each tensor, as slices of what arrived.
absl::StatusOr<std::vector<Buffer>> SliceBuffers(absl::Span<const TensorSpec> specs,
                                                 absl::Span<const Buffer> buffers) {
  bool any_small = false;
  for (const TensorSpec& spec : specs)
    any_small |= spec.bytes > 0 && spec.bytes <= kSmallTensorBytes;
  Buffer small;
  if (any_small) {
    if (buffers.empty())
      return absl::InvalidArgumentError("the buffer of small tensors is missing");
    small = buffers[0];
    buffers.remove_prefix(1);
  }
  std::vector<Buffer> each;
  each.reserve(specs.size());
  size_t offset = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const size_t size = specs[i].bytes;
    if (size == 0) {
      each.emplace_back();
    } else if (size <= kSmallTensorBytes) {
      offset = AlignUp(offset);
      if (offset > small.size() || size > small.size() - offset) {
        return WrongBuffer(i, size, offset > small.size() ? 0 : small.size() - offset);
      }
      each.push_back(small.Slice(offset, size));
      offset += size;
    } else {
      if (buffers.empty()) return WrongBuffer(i, size, 0);
      each.push_back(buffers[0]);
      buffers.remove_prefix(1);
    }
  }
  if (offset != small.size() || !buffers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(small.size() - offset, " bytes and ",
                                                   buffers.size(), " buffers belong to no tensor"));
  }
  return each;
}

}  // namespace

absl::Status PackTensors(absl::Span<const Tensor> tensors, TensorColumns* columns,
                         std::vector<Buffer>* buffers) {
  std::vector<Buffer> each;
  each.reserve(tensors.size());
  PSD_RETURN_IF_ERROR(EncodeTensors(tensors, columns, &each));
  size_t small = SmallBytes(each);
  if (small > 0) buffers->push_back(PackSmall(each, small));
  for (Buffer& buffer : each) {
    if (buffer.size() > kSmallTensorBytes) buffers->push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> UnpackTensors(const TensorColumns& columns,
                                                  absl::Span<const Buffer> buffers) {
  PSD_ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, DecodeSpecs(columns));
  PSD_ASSIGN_OR_RETURN(std::vector<Buffer> each, SliceBuffers(specs, buffers));
  return DecodeTensors(std::move(specs), std::move(each));
}

}  // namespace psd::rref
