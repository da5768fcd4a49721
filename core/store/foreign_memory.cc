#include "core/store/foreign_memory.h"

#include <memory>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "core/autograd/edge.h"
#include "core/autograd/variable.h"
#include "core/base/memory_place.h"
#include "core/base/status.h"
#include "core/tensor/sparse_tensor.h"
#include "core/tensor/tensor.h"

namespace psd::store {
namespace {

bool IsForeign(const Tensor& tensor) {
  return tensor.place().kind() == MemoryPlace::Kind::kForeign;
}

bool HasForeign(const Value& value) {
  bool found = false;
  value
      .ForEachTensor([&found](const Tensor& tensor) {
        found |= IsForeign(tensor);
        return absl::OkStatus();
      })
      .IgnoreError();
  return found;
}

// Copies each kind of value that may have tensors.
struct Copier {
  template <typename T>
  absl::StatusOr<Value> operator()(const T&) const {
    return value;
  }
  absl::StatusOr<Value> operator()(const Variable& variable) const {
    if (!variable.ok()) return value;
    PSD_ASSIGN_OR_RETURN(Tensor tensor, Own(variable.tensor()));
    const Edge& edge = variable.gradient_edge();
    return Value(Variable::OfNode(std::move(tensor), edge.node, edge.input));
  }
  absl::StatusOr<Value> operator()(const std::shared_ptr<const SparseTensor>& sparse) const {
    PSD_ASSIGN_OR_RETURN(const Tensor indices, Own(sparse->indices()));
    PSD_ASSIGN_OR_RETURN(const Tensor values, Own(sparse->values()));
    PSD_ASSIGN_OR_RETURN(SparseTensor copy, SparseTensor::Create(sparse->shape(), indices, values));
    return Value(std::move(copy));
  }
  absl::StatusOr<Value> operator()(const std::shared_ptr<const Value::List>& list) const {
    Value::List items;
    items.reserve(list->size());
    for (const Value& item : *list) {
      PSD_ASSIGN_OR_RETURN(Value copy, Copy(item));
      items.push_back(std::move(copy));
    }
    return Value::OfList(std::move(items));
  }
  absl::StatusOr<Value> operator()(const std::shared_ptr<const Value::Map>& map) const {
    Value::Map items;
    items.reserve(map->size());
    for (const auto& [key, item] : *map) {
      PSD_ASSIGN_OR_RETURN(Value copy, Copy(item));
      items.emplace_back(key, std::move(copy));
    }
    return Value::OfMap(std::move(items));
  }

  absl::StatusOr<Value> Copy(const Value& item) const {
    return std::visit(Copier{item, memory}, item.variant());
  }
  absl::StatusOr<Tensor> Own(const Tensor& tensor) const {
    if (!IsForeign(tensor)) return tensor;
    return tensor.Clone(tensor.NumBytes() >= kMovableBytes ? &memory : nullptr);
  }

  const Value& value;
  MemoryAccount& memory;
};

}  // namespace

absl::StatusOr<Value> CopyForeignMemory(Value value, MemoryAccount& memory) {
  if (!HasForeign(value)) return value;
  return std::visit(Copier{value, memory}, value.variant());
}

}  // namespace psd::store
