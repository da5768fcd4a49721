#include "core/store/on_device.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/variable.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/store/rows.h"
#include "core/tensor/copy_to.h"

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

absl::StatusOr<Tensor> OnDevice(const Tensor& tensor, Device* device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return CopyTo(device, tensor);
}

absl::StatusOr<Value> OnDevice(const Value& value, Device* device) {
  if (const auto* variable = value.As<Variable>()) {
    if (!variable->ok() || variable->tensor().device() == device) return value;
    if (variable->requires_grad()) {
      return WithRemedy(absl::UnimplementedError(absl::StrCat(
                            "a tensor with a history on ", DeviceName(variable->tensor().device()),
                            " is wanted on ", DeviceName(device))),
                        "ask for it where it is");
    }
    PSD_ASSIGN_OR_RETURN(Tensor tensor, OnDevice(variable->tensor(), device));
    return Value(std::move(tensor));
  }
  if (const Value::List* list = value.AsList()) {
    Value::List items;
    items.reserve(list->size());
    for (const Value& item : *list) {
      PSD_ASSIGN_OR_RETURN(items.emplace_back(), OnDevice(item, device));
    }
    return Value::OfList(std::move(items));
  }
  if (const Value::Map* map = value.AsMap()) {
    Value::Map items;
    items.reserve(map->size());
    for (const auto& [key, item] : *map) {
      PSD_ASSIGN_OR_RETURN(Value moved, OnDevice(item, device));
      items.emplace_back(key, std::move(moved));
    }
    return Value::OfMap(std::move(items));
  }
  return value;
}

}  // namespace psd::store
