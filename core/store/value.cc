#include "core/store/value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::store {
namespace {

struct KindNamer {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(bool) const { return "bool"; }
  std::string operator()(int64_t) const { return "int"; }
  std::string operator()(double) const { return "float"; }
  std::string operator()(const std::string&) const { return "string"; }
  std::string operator()(const Variable& variable) const {
    if (!variable.ok()) return "failed tensor";
    return absl::StrCat("tensor ", variable.tensor().ToString());
  }
  std::string operator()(const std::shared_ptr<const RemoteReference>&) const { return "rref"; }
  std::string operator()(const std::shared_ptr<const Value::List>& list) const {
    return absl::StrCat("list of ", list->size());
  }
  std::string operator()(const std::shared_ptr<const Value::Map>& map) const {
    return absl::StrCat("map of ", map->size());
  }
  std::string operator()(const std::shared_ptr<Object>& object) const { return object->TypeName(); }
  std::string operator()(const std::shared_ptr<const SparseTensor>& sparse) const {
    return sparse->ToString();
  }
};

struct ByteCounter {
  template <typename T>
  size_t operator()(const T&) const {
    return 0;  // stored in the value itself, or an object, which has charges of its own
  }
  size_t operator()(const std::string& text) const { return text.size(); }
  size_t operator()(const Variable& variable) const {
    return variable.ok() ? variable.tensor().NumBytes() : 0;
  }
  size_t operator()(const std::shared_ptr<const SparseTensor>& sparse) const {
    return sparse->NumBytes();
  }
  size_t operator()(const std::shared_ptr<const Value::List>& list) const {
    size_t bytes = list->size() * sizeof(Value);
    for (const Value& item : *list) bytes += item.NumBytes();
    return bytes;
  }
  size_t operator()(const std::shared_ptr<const Value::Map>& map) const {
    size_t bytes = map->size() * sizeof(Value::Map::value_type);
    for (const auto& [key, item] : *map) bytes += key.size() + item.NumBytes();
    return bytes;
  }
};

struct TensorVisitor {
  template <typename T>
  absl::Status operator()(const T&) const {
    return absl::OkStatus();
  }
  absl::Status operator()(const Variable& variable) const {
    return variable.ok() ? visit(variable.tensor()) : absl::OkStatus();
  }
  absl::Status operator()(const std::shared_ptr<const SparseTensor>& sparse) const {
    PSD_RETURN_IF_ERROR(visit(sparse->indices()));
    return visit(sparse->values());
  }
  absl::Status operator()(const std::shared_ptr<const Value::List>& list) const {
    for (const Value& item : *list) PSD_RETURN_IF_ERROR(item.ForEachTensor(visit));
    return absl::OkStatus();
  }
  absl::Status operator()(const std::shared_ptr<const Value::Map>& map) const {
    for (const auto& [key, item] : *map) PSD_RETURN_IF_ERROR(item.ForEachTensor(visit));
    return absl::OkStatus();
  }

  absl::FunctionRef<absl::Status(const Tensor&)> visit;
};

}  // namespace

Value::Value() noexcept = default;
Value::Value(bool v) : variant_(v) {}
Value::Value(int64_t v) : variant_(v) {}
Value::Value(int v) : variant_(int64_t{v}) {}
Value::Value(double v) : variant_(v) {}
Value::Value(std::string v) : variant_(std::move(v)) {}
Value::Value(const char* v) : variant_(std::string(v)) {}
Value::Value(Variable v) : variant_(std::move(v)) {}
Value::Value(Tensor v) : variant_(Variable(std::move(v))) {}
Value::Value(std::shared_ptr<const RemoteReference> v) : variant_(std::move(v)) {}
Value::Value(std::shared_ptr<Object> v) : variant_(std::move(v)) {}
Value::Value(SparseTensor v) : variant_(std::make_shared<const SparseTensor>(std::move(v))) {}
Value::Value(const Value& other) = default;
Value::Value(Value&& other) noexcept = default;
Value& Value::operator=(const Value& other) = default;
Value& Value::operator=(Value&& other) noexcept = default;
Value::~Value() = default;

Value Value::OfList(List items) {
  Value value;
  value.variant_ = std::make_shared<const List>(std::move(items));
  return value;
}

Value Value::OfMap(Map items) {
  const auto key_less = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(items.begin(), items.end(), key_less);
  Map unique;
  unique.reserve(items.size());
  for (auto& item : items) {
    if (!unique.empty() && unique.back().first == item.first) {
      unique.back() = std::move(item);
    } else {
      unique.push_back(std::move(item));
    }
  }
  Value value;
  value.variant_ = std::make_shared<const Map>(std::move(unique));
  return value;
}

const Value::List* Value::AsList() const {
  const auto* list = As<std::shared_ptr<const List>>();
  return list == nullptr ? nullptr : list->get();
}

const Value::Map* Value::AsMap() const {
  const auto* map = As<std::shared_ptr<const Map>>();
  return map == nullptr ? nullptr : map->get();
}

const SparseTensor* Value::AsSparse() const {
  const auto* sparse = As<std::shared_ptr<const SparseTensor>>();
  return sparse == nullptr ? nullptr : sparse->get();
}

size_t Value::NumBytes() const {
  return std::visit(ByteCounter{}, variant_);
}

absl::Status Value::ForEachTensor(absl::FunctionRef<absl::Status(const Tensor&)> visit) const {
  return std::visit(TensorVisitor{visit}, variant_);
}

std::string Value::KindName() const {
  return std::visit(KindNamer{}, variant_);
}

}  // namespace psd::store
