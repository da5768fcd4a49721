#include "core/autograd/operators.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/builtin_operators.h"
#include "core/base/nearest_name.h"
#include "core/base/status.h"

namespace psd {
namespace {

absl::string_view TypeName(AttributeType type) {
  switch (type) {
    case AttributeType::kInt:
      return "an integer";
    case AttributeType::kDouble:
      return "a number";
    case AttributeType::kIntList:
      return "a list of integers";
  }
  return "";
}

bool HasType(const AttributeValue& value, AttributeType type) {
  switch (type) {
    case AttributeType::kInt:
      return std::holds_alternative<int64_t>(value);
    case AttributeType::kDouble:
      return !std::holds_alternative<std::vector<int64_t>>(value);
    case AttributeType::kIntList:
      return std::holds_alternative<std::vector<int64_t>>(value);
  }
  return false;
}

absl::Status CheckArity(const OperatorSpec& spec, size_t inputs) {
  const bool enough = inputs >= static_cast<size_t>(spec.min_inputs);
  const bool any = spec.max_inputs == OperatorSpec::kAnyNumber;
  if (enough && (any || inputs <= static_cast<size_t>(spec.max_inputs))) return absl::OkStatus();
  const std::string wanted = any ? absl::StrCat("at least ", spec.min_inputs)
                             : spec.min_inputs == spec.max_inputs
                                 ? absl::StrCat(spec.min_inputs)
                                 : absl::StrCat(spec.min_inputs, " to ", spec.max_inputs);
  return absl::InvalidArgumentError(
      absl::StrCat("operator '", spec.name, "' takes ", wanted, " inputs, not ", inputs));
}

const AttributeSpec* FindAttribute(const OperatorSpec& spec, absl::string_view name) {
  for (const AttributeSpec& attribute : spec.attributes)
    if (attribute.name == name) return &attribute;
  return nullptr;
}

absl::Status CheckAttribute(const OperatorSpec& spec, absl::string_view name,
                            const AttributeValue& value) {
  const AttributeSpec* attribute = FindAttribute(spec, name);
  if (attribute == nullptr) {
    NearestNameFinder finder(name);
    for (const AttributeSpec& known : spec.attributes) finder.Consider(known.name);
    return absl::InvalidArgumentError(absl::StrCat("operator '", spec.name, "' has no attribute '",
                                                   name, "'", DidYouMean(finder.nearest())));
  }
  if (HasType(value, attribute->type)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("operator '", spec.name, "': attribute '", name,
                                                 "' must be ", TypeName(attribute->type)));
}

absl::Status CheckDType(const OperatorSpec& spec, const Attributes& attributes) {
  const auto given = attributes.find("dtype");
  if (given == attributes.end()) return absl::OkStatus();
  const int64_t number = std::get<int64_t>(given->second);
  if (number >= 0 && IsValidDType(static_cast<uint64_t>(number))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("operator '", spec.name, "': dtype number ",
                                                 number, " is unknown; known are 1 to 8"));
}

// Returns the dtype of the result: the attribute "dtype" if there is one, otherwise the dtype of
// the first input, or f32 if there are no inputs.
DType OutputDType(absl::Span<const Variable* const> inputs, const Attributes& attributes) {
  const auto given = attributes.find("dtype");
  if (given != attributes.end()) return static_cast<DType>(std::get<int64_t>(given->second));
  return inputs.empty() ? DType::kF32 : inputs[0]->dtype();
}

template <typename T>
std::vector<const T*> PointersTo(absl::Span<const T> values) {
  std::vector<const T*> pointers;
  pointers.reserve(values.size());
  for (const T& value : values) pointers.push_back(&value);
  return pointers;
}

// Requires: CheckCall is OK.
absl::StatusOr<Shape> OutputShapeOf(const OperatorSpec& spec, absl::Span<const Shape* const> inputs,
                                    const Attributes& attributes) {
  absl::StatusOr<Shape> shape = spec.output_shape(inputs, attributes);
  if (shape.ok()) return shape;
  return Annotate(shape.status(), absl::StrCat("operator '", spec.name, "'"));
}

}  // namespace

absl::Status CheckCall(const OperatorSpec& spec, size_t inputs, const Attributes& attributes) {
  PSD_RETURN_IF_ERROR(CheckArity(spec, inputs));
  for (const auto& [name, value] : attributes)
    PSD_RETURN_IF_ERROR(CheckAttribute(spec, name, value));
  for (const AttributeSpec& attribute : spec.attributes) {
    if (!attribute.required || attributes.find(attribute.name) != attributes.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("operator '", spec.name,
                                                   "' needs the attribute '", attribute.name, "', ",
                                                   TypeName(attribute.type)));
  }
  return CheckDType(spec, attributes);
}

absl::StatusOr<int64_t> OutputBytes(const OperatorSpec& spec,
                                    absl::Span<const Variable* const> inputs,
                                    const Attributes& attributes) {
  absl::InlinedVector<const Shape*, 4> shapes;
  for (const Variable* input : inputs) {
    if (!input->ok()) return input->status();
    shapes.push_back(&input->shape());
  }
  PSD_ASSIGN_OR_RETURN(const Shape shape, OutputShapeOf(spec, shapes, attributes));
  return shape.NumElements() * static_cast<int64_t>(ItemSize(OutputDType(inputs, attributes)));
}

int64_t OperatorWork(const OperatorSpec& spec, absl::Span<const Shape* const> inputs,
                     const Shape& output) {
  // Doubles do not overflow here, and the result need not be exact.
  auto work = static_cast<double>(output.NumElements());
  if (spec.depth != nullptr) work *= static_cast<double>(spec.depth(inputs));
  for (const Shape* input : inputs) work += static_cast<double>(input->NumElements());
  return static_cast<int64_t>(std::min(work, static_cast<double>(kMaxOperatorWork)));
}

std::shared_ptr<const OperatorRegistry> OperatorRegistry::Builtin() {
  return std::make_shared<const OperatorRegistry>(BuiltinOperators());
}

OperatorRegistry::OperatorRegistry(std::vector<OperatorSpec> operators) {
  for (OperatorSpec& spec : operators) {
    std::string name = spec.name;
    const bool added = operators_.emplace(name, std::move(spec)).second;
    PSD_CHECK(added, absl::StrCat("operator '", name, "' is registered twice"));
  }
}

absl::StatusOr<const OperatorSpec*> OperatorRegistry::Find(absl::string_view op) const {
  auto found = operators_.find(op);
  if (found != operators_.end()) return &found->second;
  NearestNameFinder finder(op);
  for (const auto& [name, spec] : operators_) finder.Consider(name);
  return absl::InvalidArgumentError(
      absl::StrCat("operator '", op, "' is unknown", DidYouMean(finder.nearest())));
}

absl::StatusOr<Shape> OperatorRegistry::OutputShape(absl::string_view op,
                                                    absl::Span<const Shape> inputs,
                                                    const Attributes& attributes) const {
  PSD_ASSIGN_OR_RETURN(const OperatorSpec* spec, Find(op));
  PSD_RETURN_IF_ERROR(CheckCall(*spec, inputs.size(), attributes));
  return OutputShapeOf(*spec, PointersTo(inputs), attributes);
}

Variable OperatorRegistry::Run(absl::string_view op, absl::Span<const Variable> inputs,
                               const Attributes& attributes) const {
  absl::StatusOr<const OperatorSpec*> spec = Find(op);
  if (!spec.ok()) return Variable::Invalid(spec.status());
  absl::Status status = CheckCall(**spec, inputs.size(), attributes);
  if (!status.ok()) return Variable::Invalid(std::move(status));
  return (*spec)->run(PointersTo(inputs), attributes);
}

std::vector<std::string> OperatorRegistry::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, spec] : operators_) names.push_back(name);
  return names;
}

}  // namespace psd
