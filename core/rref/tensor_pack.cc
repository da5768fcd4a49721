#include "core/rref/tensor_pack.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/base/memory_budget.h"
#include "core/base/memory_scope.h"
#include "core/base/result_memory.h"
#include "core/base/status.h"
#include "core/rref/value_format.h"

namespace psd::rref {
namespace {

size_t AlignUp(size_t offset) {
  return (offset + kSmallTensorAlignment - 1) / kSmallTensorAlignment * kSmallTensorAlignment;
}

bool IsSmall(size_t bytes) {
  return bytes > 0 && bytes <= kSmallTensorBytes;
}

size_t SmallBytes(absl::Span<const FlatTensor> tensors) {
  size_t bytes = 0;
  for (const FlatTensor& tensor : tensors)
    if (IsSmall(tensor.bytes)) bytes = AlignUp(bytes) + tensor.bytes;
  return bytes;
}

// Collects the elements of small tensors, one after the other, in one block. A large block is
// charged to the thread's MemoryScope, and a process of the same host can read it where it is; a
// small one is charged by the link that sends it.
class SmallBlock {
 public:
  // Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<SmallBlock> Create(size_t bytes) {
    if (bytes < kMovableBytes) return SmallBlock(FromHeap(bytes), bytes, nullptr);
    MemoryAccount* const memory = MemoryScope::Current();
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block, memory != nullptr
                                                           ? memory->Allocate(bytes)
                                                           : ResultMemory()->Allocate(bytes));
    const Block* const identity = block.get();
    std::byte* const data = block->data();
    return SmallBlock(std::shared_ptr<std::byte>(std::move(block), data), bytes, identity);
  }

  void Append(const std::byte* data, size_t size) {
    const size_t start = AlignUp(end_);
    if (start > end_) std::memset(bytes_.get() + end_, 0, start - end_);
    std::memcpy(bytes_.get() + start, data, size);
    end_ = start + size;
  }
  Buffer Take() {
    const std::byte* const data = bytes_.get();
    return Buffer(std::move(bytes_), data, size_, block_);
  }

 private:
  SmallBlock(std::shared_ptr<std::byte> bytes, size_t size, const Block* block)
      : size_(size), bytes_(std::move(bytes)), block_(block) {}

  static std::shared_ptr<std::byte> FromHeap(size_t bytes) {
    return {static_cast<std::byte*>(operator new (bytes, std::align_val_t{kBlockAlignment})),
            [](std::byte* data) { operator delete (data, std::align_val_t{kBlockAlignment}); }};
  }

  size_t size_;
  std::shared_ptr<std::byte> bytes_;  // shared with the buffer that it becomes
  const Block* block_;                // which `bytes_` keeps alive; null: none
  size_t end_ = 0;
};

// Copies small tensors into one buffer. For each other tensor, share(number) returns the buffer.
// Errors: RESOURCE_EXHAUSTED.
absl::Status Pack(absl::Span<const FlatTensor> tensors, absl::FunctionRef<Buffer(size_t)> share,
                  TensorColumns* columns, std::vector<Buffer>* buffers) {
  const size_t small_bytes = SmallBytes(tensors);
  PSD_ASSIGN_OR_RETURN(SmallBlock small, SmallBlock::Create(small_bytes));
  EncodeRuns(tensors, columns);
  std::vector<Buffer> large;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const FlatTensor& tensor = tensors[i];
    if (IsSmall(tensor.bytes)) {
      small.Append(tensor.data, tensor.bytes);
    } else if (tensor.bytes > 0) {
      large.push_back(share(i));
    }
  }
  if (small_bytes > 0) buffers->push_back(small.Take());
  for (Buffer& buffer : large) buffers->push_back(std::move(buffer));
  return absl::OkStatus();
}

bool Stays(const Tensor& tensor, const Device* device) {
  return device != nullptr && tensor.device() == device && tensor.IsContiguous() &&
         tensor.NumBytes() > kSmallTensorBytes;
}

absl::Status WrongBuffer(size_t need, size_t have) {
  return absl::InvalidArgumentError(
      absl::StrCat("needs ", need, " bytes, of which ", have, " arrived"));
}

// Hands out the buffers that arrived, tensor by tensor.
class BufferCutter {
 public:
  explicit BufferCutter(absl::Span<const Buffer> buffers) : large_(buffers) {}

  // Takes the first buffer as the one with the small tensors. Errors: INVALID_ARGUMENT if there is
  // none.
  absl::Status OpenSmall() {
    if (large_.empty()) {
      return absl::InvalidArgumentError("the buffer of small tensors is missing");
    }
    small_ = large_[0];
    large_.remove_prefix(1);
    return absl::OkStatus();
  }

  struct SmallRun {
    Buffer bytes;  // one tensor every AlignUp(size) bytes
    size_t count = 0;
  };
  // Returns the bytes of the next `count` small tensors of `size` bytes each, or of fewer if there
  // are not enough bytes.
  SmallRun NextSmall(size_t size, size_t count) {
    const size_t left = SmallLeft();
    if (left < size) return {};
    const size_t step = AlignUp(size);
    count = std::min(count, 1 + (left - size) / step);
    const size_t start = AlignUp(end_);
    const size_t bytes = (count - 1) * step + size;
    end_ = start + bytes;
    return {small_.Slice(start, bytes), count};
  }
  size_t SmallLeft() const {
    const size_t start = AlignUp(end_);
    return start > small_.size() ? 0 : small_.size() - start;
  }

  // Returns the bytes of the next tensor that is not small.
  absl::StatusOr<Buffer> NextLarge(size_t size) {
    if (size == 0) return Buffer();
    if (large_.empty()) return WrongBuffer(size, 0);
    Buffer next = large_[0];
    large_.remove_prefix(1);
    return next;
  }

  absl::Status CheckAllTaken() const {
    if (end_ == small_.size() && large_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(small_.size() - end_, " bytes and ",
                                                   large_.size(), " buffers belong to no tensor"));
  }

 private:
  Buffer small_;
  size_t end_ = 0;  // the end of the bytes that were taken from small_
  absl::Span<const Buffer> large_;
};

absl::Status AppendSmall(const TensorRun& run, BufferCutter& buffers,
                         std::vector<Tensor>* tensors) {
  const size_t size = run.spec.bytes;
  const BufferCutter::SmallRun arrived = buffers.NextSmall(size, run.count);
  PSD_RETURN_IF_ERROR(
      DecodeTensors(run.spec, arrived.bytes, AlignUp(size), arrived.count, tensors));
  return arrived.count == run.count ? absl::OkStatus() : WrongBuffer(size, buffers.SmallLeft());
}

// Appends the tensors of a run. On an error, `tensors` ends with the tensor before the wrong one.
absl::Status AppendRun(const TensorRun& run, BufferCutter& buffers, std::vector<Tensor>* tensors) {
  if (IsSmall(run.spec.bytes)) return AppendSmall(run, buffers, tensors);
  for (size_t i = 0; i < run.count; ++i) {
    PSD_ASSIGN_OR_RETURN(Buffer bytes, buffers.NextLarge(run.spec.bytes));
    PSD_ASSIGN_OR_RETURN(Tensor tensor, DecodeTensor(run.spec, std::move(bytes)));
    tensors->push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PackTensors(absl::Span<const Tensor* const> tensors, TensorColumns* columns,
                         std::vector<Buffer>* buffers, const Device* stays_on) {
  PSD_RETURN_IF_ERROR(CheckSendable(tensors));
  std::vector<FlatTensor> flat;
  flat.reserve(tensors.size());
  absl::flat_hash_map<size_t, Tensor> copies;  // contiguous copies on the host, by number
  for (const Tensor* tensor : tensors) {
    if (tensor->IsContiguous() && tensor->OnHost()) {
      flat.push_back(Flat(*tensor));
    } else if (Stays(*tensor, stays_on)) {
      flat.push_back({&tensor->shape(), tensor->address(), tensor->NumBytes(), tensor->dtype(),
                      tensor->block()});
    } else {
      PSD_ASSIGN_OR_RETURN(Tensor copy, tensor->OnHost() ? tensor->Clone() : tensor->ToHost());
      flat.push_back(Flat(copy));
      flat.back().shape = &tensor->shape();
      copies.emplace(flat.size() - 1, std::move(copy));
    }
  }
  const auto share = [&](size_t number) {
    const auto copy = copies.find(number);
    return (copy == copies.end() ? *tensors[number] : copy->second).AsBuffer();
  };
  return Pack(flat, share, columns, buffers);
}

absl::Status PackFlatTensors(absl::Span<const FlatTensor> tensors,
                             const std::shared_ptr<const void>& owner, TensorColumns* columns,
                             std::vector<Buffer>* buffers) {
  const auto share = [&](size_t number) {
    const FlatTensor& tensor = tensors[number];
    return Buffer(owner, tensor.data, tensor.bytes, tensor.block);
  };
  return Pack(tensors, share, columns, buffers);
}

absl::StatusOr<std::vector<Tensor>> UnpackTensors(const TensorColumns& columns, size_t count,
                                                  absl::Span<const Buffer> buffers) {
  PSD_ASSIGN_OR_RETURN(const std::vector<TensorRun> runs, DecodeRuns(columns, count));
  BufferCutter cutter(buffers);
  if (std::any_of(runs.begin(), runs.end(),
                  [](const TensorRun& run) { return IsSmall(run.spec.bytes); })) {
    PSD_RETURN_IF_ERROR(cutter.OpenSmall());
  }
  std::vector<Tensor> tensors;
  tensors.reserve(count);
  for (const TensorRun& run : runs) {
    const absl::Status appended = AppendRun(run, cutter, &tensors);
    if (!appended.ok()) return Annotate(appended, absl::StrCat("tensor ", tensors.size()));
  }
  PSD_RETURN_IF_ERROR(cutter.CheckAllTaken());
  return tensors;
}

}  // namespace psd::rref
