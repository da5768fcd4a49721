#pragma once

// Operators by name, for programs that arrive as data: arity, attributes, the size of the result
// before anything runs, and the function.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd {

using AttributeValue = std::variant<int64_t, double, std::vector<int64_t>>;
// By name, in order. Truth is an int64_t, 0 or 1; a dtype its number (core/tensor/dtype.h).
using Attributes = std::map<std::string, AttributeValue, std::less<>>;

enum class AttributeType { kInt, kDouble, kIntList };

struct AttributeSpec {
  std::string name;
  AttributeType type;  // where kDouble is wanted, an int64_t will do
  bool required = true;
};

// One operator. A value; immutable once registered.
struct OperatorSpec {
  static constexpr int kAnyNumber = -1;

  std::string name;  // lower case, with underscores: "cross_entropy"
  int min_inputs = 0;
  int max_inputs = 0;  // or kAnyNumber
  std::vector<AttributeSpec> attributes;
  // The shape that `run` will give. Called with arity and attributes checked.
  std::function<absl::StatusOr<Shape>(absl::Span<const Shape* const> inputs, const Attributes&)>
      output_shape;
  std::function<Variable(absl::Span<const Variable* const> inputs, const Attributes&)> run;
  // How many elements of the inputs each element of the result is made of, where that is more than
  // one of each. Null: one of each. Called as `output_shape`, and only if that gave a shape.
  std::function<int64_t(absl::Span<const Shape* const> inputs)> depth = nullptr;
};

// Errors: INVALID_ARGUMENT naming the operator for a wrong number of inputs, an attribute that is
// unknown (and the nearest known), missing or of another type, or a number that is no dtype's.
absl::Status CheckCall(const OperatorSpec& spec, size_t inputs, const Attributes& attributes);

// The bytes of the result's elements, without running anything. Requires: CheckCall says yes.
// Errors: those of invalid inputs; INVALID_ARGUMENT for shapes that do not fit.
absl::StatusOr<int64_t> OutputBytes(const OperatorSpec& spec,
                                    absl::Span<const Variable* const> inputs,
                                    const Attributes& attributes);

// How much the operator does, without running anything: the elements of its inputs, and those that
// its result is made of. A rough measure of its time. Saturates at kMaxOperatorWork.
inline constexpr int64_t kMaxOperatorWork = int64_t{1} << 40;
int64_t OperatorWork(const OperatorSpec& spec, absl::Span<const Shape* const> inputs,
                     const Shape& output);

// All operators that a worker's programs may use. Immutable; thread-safe.
class OperatorRegistry {
 public:
  // Arithmetic   add sub mul div (two tensors); add_scalar sub_scalar rsub_scalar mul_scalar
  //              div_scalar rdiv_scalar {value}; neg
  // Functions    relu sigmoid tanh exp log sqrt softmax log_softmax
  // Products     matmul (a, b); linear (x, w) or (x, w, b)
  // Rows         embedding (weight, ids)
  // Sums         sum mean {axis?, keepdim?}
  // Losses       cross_entropy (logits, labels); mse (a, b)
  // Shapes       reshape {shape}; transpose {axis0, axis1}; slice {axis, begin, end};
  //              concat (any number) {axis}; broadcast_to {shape}
  // Other        cast {dtype}; detach
  // Creation     zeros {shape, dtype?}; full {shape, value, dtype?};
  //              uniform {shape, low, high, seed, dtype?};
  //              normal {shape, mean, deviation, seed, dtype?}       dtype: f32 unless given
  static std::shared_ptr<const OperatorRegistry> Builtin();

  explicit OperatorRegistry(std::vector<OperatorSpec> operators);

  // Errors: INVALID_ARGUMENT naming the operator and the nearest known one. The pointer lives as
  // long as the registry.
  absl::StatusOr<const OperatorSpec*> Find(absl::string_view op) const;

  // The shape of the result, from the shapes of the inputs, without running anything.
  // Errors: those of CheckCall; INVALID_ARGUMENT for shapes that do not fit.
  absl::StatusOr<Shape> OutputShape(absl::string_view op, absl::Span<const Shape> inputs,
                                    const Attributes& attributes) const;

  // Runs it. Errors travel in the result: those of CheckCall, and what the operator says.
  Variable Run(absl::string_view op, absl::Span<const Variable> inputs,
               const Attributes& attributes) const;

  // All names, in order.
  std::vector<std::string> Names() const;

 private:
  std::map<std::string, OperatorSpec, std::less<>> operators_;
};

}  // namespace psd
