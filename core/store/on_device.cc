#include "core/store/on_device.h"

#include <memory>

#include "absl/status/status.h"
#include "core/store/rows.h"
#include "core/tensor/tensor.h"

namespace psd::store {

bool IsOnDevice(const Value& value) {
  if (const std::shared_ptr<Rows> rows = AsRows(value); rows != nullptr)
    return rows->device() != nullptr;
  bool found = false;
  value
      .ForEachTensor([&found](const Tensor& tensor) {
        found |= tensor.defined() && !tensor.OnHost();
        return absl::OkStatus();
      })
      .IgnoreError();
  return found;
}

}  // namespace psd::store
