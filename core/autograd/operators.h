#pragma once

// Operators by name, for programs that arrive as data. An operator has an arity and attributes, a
// function that computes the shape of its result in advance, and the function that runs it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/autograd/attributes.h"
#include "core/autograd/variable.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd {

enum class AttributeType { kInt, kDouble, kIntList };

struct AttributeSpec {
  std::string name;
  AttributeType type;  // an int64_t is accepted for kDouble too
  bool required = true;
};

// One operator. A value; immutable once registered.
struct OperatorSpec {
  static constexpr int kAnyNumber = -1;

  std::string name;  // lower case, with underscores: "cross_entropy"
  int min_inputs = 0;
  int max_inputs = 0;  // or kAnyNumber
  std::vector<AttributeSpec> attributes;
  // Returns the shape that the result of `run` will have. Requires: CheckCall is OK.
  std::function<absl::StatusOr<Shape>(absl::Span<const Shape* const> inputs, const Attributes&)>
      output_shape;
  std::function<Variable(absl::Span<const Variable* const> inputs, const Attributes&)> run;
  // Returns how many multiplications each element of the result takes. Set for products of
  // matrices, null for operators that take about one operation per element. Requires:
  // `output_shape` is OK for these inputs.
  std::function<int64_t(absl::Span<const Shape* const> inputs)> depth = nullptr;
};

// Checks the number of inputs and the attributes of a call.
// Errors: INVALID_ARGUMENT, naming the operator, for a wrong number of inputs, an attribute that is
// unknown (naming the nearest known one), missing or of another type, and an unknown dtype number.
absl::Status CheckCall(const OperatorSpec& spec, size_t inputs, const Attributes& attributes);

// Returns the size in bytes of the result's elements, without running anything. Requires: CheckCall
// is OK.
// Errors: those of invalid inputs; INVALID_ARGUMENT for shapes that do not fit.
absl::StatusOr<int64_t> OutputBytes(const OperatorSpec& spec,
                                    absl::Span<const Variable* const> inputs,
                                    const Attributes& attributes);

// Returns a rough measure of the time that the operator takes, without running anything: the number
// of elements of its inputs, plus those of its result times its depth. At most kMaxOperatorWork.
inline constexpr int64_t kMaxOperatorWork = int64_t{1} << 40;
int64_t OperatorWork(const OperatorSpec& spec, absl::Span<const Shape* const> inputs,
                     const Shape& output);

// The operators that a worker's programs may use. Immutable; thread-safe.
class OperatorRegistry {
 public:
  // The operators that are part of psd, with (inputs) and {attributes}:
  //
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

  // Returns the operator `op`, which lives as long as the registry. Errors: INVALID_ARGUMENT for an
  // unknown operator, naming the nearest known one.
  absl::StatusOr<const OperatorSpec*> Find(absl::string_view op) const;

  // Returns the shape of the result from the shapes of the inputs, without running anything.
  // Errors: those of Find and CheckCall; INVALID_ARGUMENT for shapes that do not fit.
  absl::StatusOr<Shape> OutputShape(absl::string_view op, absl::Span<const Shape> inputs,
                                    const Attributes& attributes) const;

  // Runs the operator `op`. Errors are in the result: those of Find, of CheckCall and of the
  // operator.
  Variable Run(absl::string_view op, absl::Span<const Variable> inputs,
               const Attributes& attributes) const;

  // Returns the names of all operators, sorted.
  std::vector<std::string> Names() const;

 private:
  std::map<std::string, OperatorSpec, std::less<>> operators_;
};

}  // namespace psd
