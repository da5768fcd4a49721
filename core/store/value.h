#pragma once

// The values that an owner hosts, and that calls take and return.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"
#include "core/tensor/sparse_tensor.h"

namespace psd::store {

// An object of a registered type: an optimizer, or a user's own. Thread-safe.
class Object {
 public:
  virtual ~Object() = default;
  // Returns the name of the type for listings and errors: "optimizer/adam", "replay_buffer".
  virtual std::string TypeName() const = 0;
};

// A counted reference to a value on another worker. The store only keeps it alive; core/rref
// implements it.
class RemoteReference : public std::enable_shared_from_this<RemoteReference> {
 public:
  virtual ~RemoteReference() = default;
  virtual GlobalId value_id() const = 0;
  virtual const std::string& owner() const = 0;
};

// Limits on nesting and size, checked where values come from outside.
inline constexpr int kMaxValueDepth = 16;
inline constexpr size_t kMaxValueItems = size_t{1} << 20;

// One value of any of the kinds below. Copies share large contents. Thread-compatible.
class Value {
 public:
  using List = std::vector<Value>;
  // Sorted by key, keys unique.
  using Map = std::vector<std::pair<std::string, Value>>;
  using Variant = std::variant<std::monostate, bool, int64_t, double, std::string, Variable,
                               std::shared_ptr<const RemoteReference>, std::shared_ptr<const List>,
                               std::shared_ptr<const Map>, std::shared_ptr<Object>,
                               std::shared_ptr<const SparseTensor>>;

  // Defined out of line, because a third of all files include this and the code of a variant
  // compiles slowly.
  Value() noexcept;                                 // the empty result
  Value(bool v);                                    // NOLINT: values convert
  Value(int64_t v);                                 // NOLINT
  Value(int v);                                     // NOLINT
  Value(double v);                                  // NOLINT
  Value(std::string v);                             // NOLINT
  Value(const char* v);                             // NOLINT
  Value(Variable v);                                // NOLINT
  Value(Tensor v);                                  // NOLINT
  Value(std::shared_ptr<const RemoteReference> v);  // NOLINT
  Value(std::shared_ptr<Object> v);                 // NOLINT
  Value(SparseTensor v);                            // NOLINT
  Value(const Value& other);
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other);
  Value& operator=(Value&& other) noexcept;
  ~Value();
  static Value OfList(List items);
  // Makes a map with the items sorted by key. If keys are equal, the last item stays.
  static Value OfMap(Map items);

  bool IsNone() const { return std::holds_alternative<std::monostate>(variant_); }
  template <typename T>
  const T* As() const {
    return std::get_if<T>(&variant_);
  }
  template <typename T>
  T* As() {
    return std::get_if<T>(&variant_);
  }
  const List* AsList() const;
  const Map* AsMap() const;
  const SparseTensor* AsSparse() const;
  const Variant& variant() const { return variant_; }

  // Returns the bytes of its elements, strings and items. Objects count as 0, because they have
  // charges of their own.
  size_t NumBytes() const;

  // Calls `visit` with each tensor in the value, until an error, which is returned.
  absl::Status ForEachTensor(absl::FunctionRef<absl::Status(const Tensor&)> visit) const;

  // Returns "none", "bool", "int", "float", "string", "tensor f32[2, 3]", "sparse f32[9, 3] of 2
  // entries", "list of 3" or "optimizer/adam".
  std::string KindName() const;

 private:
  Variant variant_;
};

// The arguments or results of a call.
using Values = std::vector<Value>;

}  // namespace psd::store
