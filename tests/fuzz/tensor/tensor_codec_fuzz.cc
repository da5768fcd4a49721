// Makes tensor columns and payloads of arbitrary bytes. Decoded tensors must be usable, and must
// encode to columns with the same contents.
//
// An input has a byte with the number of runs; for each run one byte each for dtype, rank and
// payload size; a byte that decides whether there is one extent too many; the extents; for each run
// a byte for its length; and the payloads.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/tensor.h"
#include "core/tensor/tensor_codec.h"

namespace psd {
namespace {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  int64_t Extent() {
    // The number is mostly small, and sometimes arbitrary.
    const uint8_t first = Byte();
    if (first < 0xf0) return first % 7;
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Byte();
    return static_cast<int64_t>(value);
  }
  std::string Take(size_t count) {
    std::string taken;
    for (size_t i = 0; i < count; ++i) taken.push_back(static_cast<char>(Byte()));
    return taken;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

void Check(bool condition) {
  if (!condition) std::abort();
}

void UseAndEncodeAgain(const std::vector<Tensor>& tensors) {
  std::vector<FlatTensor> each;
  for (const Tensor& tensor : tensors) {
    Check(ops::Cast(tensor, DType::kF64).ok());
    each.push_back(Flat(tensor));
  }
  TensorColumns columns;
  EncodeRuns(each, &columns);
  auto runs = DecodeRuns(columns, tensors.size());
  Check(runs.ok());
  auto tensor = tensors.begin();
  for (const TensorRun& run : *runs) {
    for (size_t i = 0; i < run.count; ++i, ++tensor)
      Check(tensor->shape() == run.spec.shape && tensor->dtype() == run.spec.dtype);
  }
}

// Makes the tensors of all runs. Those of a run share the same bytes. Refused tensors are left out.
std::vector<Tensor> MakeTensors(const std::vector<TensorRun>& runs,
                                const std::vector<Buffer>& bytes) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = 0; j < runs[i].count; ++j) {
      auto tensor = DecodeTensor(runs[i].spec, bytes[i]);
      if (tensor.ok()) tensors.push_back(*std::move(tensor));
    }
  }
  return tensors;
}

}  // namespace
}  // namespace psd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  psd::Bytes bytes(data, size);
  psd::TensorColumns columns;
  std::vector<size_t> sizes;
  const int count = bytes.Byte() % 5;
  size_t dims = 0;
  for (int i = 0; i < count; ++i) {
    columns.dtypes.push_back(bytes.Byte() % 11);
    columns.ranks.push_back(bytes.Byte() % 20);
    sizes.push_back(bytes.Byte());
    dims += columns.ranks.back();
  }
  // One in eight gets a wrong number of extents.
  if (bytes.Byte() % 8 == 0) dims += 1;
  for (size_t i = 0; i < dims; ++i) columns.dims.push_back(bytes.Extent());
  size_t tensors = 0;
  for (int i = 0; i < count; ++i) {
    columns.counts.push_back(bytes.Byte() % 4);
    tensors += columns.counts.back();
  }
  std::vector<psd::Buffer> buffers;
  for (size_t payload : sizes) buffers.push_back(psd::Buffer::FromString(bytes.Take(payload)));
  auto runs = psd::DecodeRuns(columns, tensors);
  if (runs.ok()) psd::UseAndEncodeAgain(psd::MakeTensors(*runs, buffers));
  return 0;
}
