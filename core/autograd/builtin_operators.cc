#include "core/autograd/builtin_operators.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/creation_scope.h"
#include "core/autograd/functions/functions.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/random.h"
#include "core/tensor/ops/shape_ops.h"

namespace psd {
namespace {

using Inputs = absl::Span<const Variable* const>;
using Shapes = absl::Span<const Shape* const>;
using ShapeOr = absl::StatusOr<Shape>;
using List = std::vector<int64_t>;

// The next functions read attributes by name. Requires: CheckCall has accepted the attributes.
int64_t Int(const Attributes& attributes, absl::string_view name, int64_t otherwise = 0) {
  auto found = attributes.find(name);
  return found == attributes.end() ? otherwise : std::get<int64_t>(found->second);
}

double Double(const Attributes& attributes, absl::string_view name) {
  const AttributeValue& value = attributes.find(name)->second;
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  return std::get<double>(value);
}

const List& IntList(const Attributes& attributes, absl::string_view name) {
  return std::get<List>(attributes.find(name)->second);
}

bool Has(const Attributes& attributes, absl::string_view name) {
  return attributes.find(name) != attributes.end();
}

DType DTypeAttribute(const Attributes& attributes) {
  return static_cast<DType>(Int(attributes, "dtype", static_cast<int64_t>(DType::kF32)));
}

Variable ToVariable(absl::StatusOr<Tensor> tensor) {
  if (!tensor.ok()) return Variable::Invalid(tensor.status());
  return Variable(*std::move(tensor));
}

absl::Status Unfit(Shapes shapes) {
  std::string list;
  for (const Shape* shape : shapes)
    absl::StrAppend(&list, list.empty() ? "" : ", ", shape->ToString());
  return absl::InvalidArgumentError(absl::StrCat("shapes ", list, " do not fit each other"));
}

absl::StatusOr<int> AxisOf(const Shape& shape, int64_t axis) {
  const int64_t rank = shape.rank();
  if (axis >= -rank && axis < rank) return static_cast<int>(axis < 0 ? axis + rank : axis);
  return absl::InvalidArgumentError(
      absl::StrCat("axis ", axis, " does not exist in shape ", shape.ToString()));
}

// ---- Shapes of results -------------------------------------------------------------------------

ShapeOr SameShape(Shapes inputs, const Attributes&) {
  return *inputs[0];
}
ShapeOr ScalarShape(Shapes, const Attributes&) {
  return ShapeOr(absl::in_place);  // a scalar
}
ShapeOr PairShape(Shapes inputs, const Attributes&) {
  return BroadcastShapes(*inputs[0], *inputs[1]);
}
ShapeOr GivenShape(Shapes, const Attributes& attributes) {
  return Shape::Checked(IntList(attributes, "shape"));
}

ShapeOr MatmulShape(Shapes inputs, const Attributes&) {
  const Shape& a = *inputs[0];
  const Shape& b = *inputs[1];
  if (a.rank() != 2 || b.rank() != 2 || a[1] != b[0]) return Unfit(inputs);
  const int64_t extents[] = {a[0], b[1]};
  return Shape::Checked(extents);
}

ShapeOr LinearShape(Shapes inputs, const Attributes&) {
  const Shape& x = *inputs[0];
  const Shape& w = *inputs[1];
  if (x.rank() != 2 || w.rank() != 2 || x[1] != w[1]) return Unfit(inputs);
  const int64_t extents[] = {x[0], w[0]};
  return Shape::Checked(extents);
}

// The extent over which Matmul and Linear sum.
int64_t SharedExtent(Shapes inputs) {
  return (*inputs[0])[1];
}

ShapeOr EmbeddingShape(Shapes inputs, const Attributes&) {
  if (inputs[0]->rank() != 2) return Unfit(inputs);
  Strides extents(inputs[1]->extents().begin(), inputs[1]->extents().end());
  extents.push_back((*inputs[0])[1]);
  return Shape::Checked(extents);
}

ShapeOr ReducedShape(Shapes inputs, const Attributes& attributes) {
  if (!Has(attributes, "axis")) return ScalarShape(inputs, attributes);
  PSD_ASSIGN_OR_RETURN(int axis, AxisOf(*inputs[0], Int(attributes, "axis")));
  Strides extents(inputs[0]->extents().begin(), inputs[0]->extents().end());
  if (Int(attributes, "keepdim") != 0) {
    extents[axis] = 1;
  } else {
    extents.erase(extents.begin() + axis);
  }
  return Shape::Checked(extents);
}

ShapeOr ReshapedShape(Shapes inputs, const Attributes& attributes) {
  List extents = IntList(attributes, "shape");
  // An extent of -1 is computed from the others, so that the number of elements stays the same.
  auto open = std::find(extents.begin(), extents.end(), -1);
  if (open != extents.end()) {
    *open = 1;
    PSD_ASSIGN_OR_RETURN(Shape rest, Shape::Checked(extents));
    *open = inputs[0]->NumElements() / std::max<int64_t>(rest.NumElements(), 1);
  }
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  if (shape.NumElements() == inputs[0]->NumElements()) return shape;
  return absl::InvalidArgumentError(absl::StrCat("shape ", inputs[0]->ToString(), " with ",
                                                 inputs[0]->NumElements(),
                                                 " elements does not fit ", shape.ToString()));
}

ShapeOr TransposedShape(Shapes inputs, const Attributes& attributes) {
  PSD_ASSIGN_OR_RETURN(int axis0, AxisOf(*inputs[0], Int(attributes, "axis0")));
  PSD_ASSIGN_OR_RETURN(int axis1, AxisOf(*inputs[0], Int(attributes, "axis1")));
  Strides extents(inputs[0]->extents().begin(), inputs[0]->extents().end());
  std::swap(extents[axis0], extents[axis1]);
  return Shape::Checked(extents);
}

ShapeOr SlicedShape(Shapes inputs, const Attributes& attributes) {
  PSD_ASSIGN_OR_RETURN(int axis, AxisOf(*inputs[0], Int(attributes, "axis")));
  const int64_t begin = Int(attributes, "begin");
  const int64_t end = Int(attributes, "end");
  if (begin < 0 || begin > end || end > (*inputs[0])[axis]) {
    return absl::InvalidArgumentError(absl::StrCat("[", begin, ", ", end, ") is no part of axis ",
                                                   axis, " of shape ", inputs[0]->ToString()));
  }
  Strides extents(inputs[0]->extents().begin(), inputs[0]->extents().end());
  extents[axis] = end - begin;
  return Shape::Checked(extents);
}

ShapeOr ConcatenatedShape(Shapes inputs, const Attributes& attributes) {
  std::vector<Shape> shapes;
  for (const Shape* input : inputs) shapes.push_back(*input);
  return ops::ConcatShape(shapes, Int(attributes, "axis"));
}

ShapeOr BroadcastShape(Shapes inputs, const Attributes& attributes) {
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(IntList(attributes, "shape")));
  PSD_ASSIGN_OR_RETURN(Shape both, BroadcastShapes(*inputs[0], shape));
  if (both == shape) return shape;
  return Unfit({inputs[0], &shape});
}

// ---- Rows of the table -------------------------------------------------------------------------

using Run = std::function<Variable(Inputs, const Attributes&)>;
using OutputShape = std::function<ShapeOr(Shapes, const Attributes&)>;

AttributeSpec ShapeAttribute() {
  return {"shape", AttributeType::kIntList};
}
AttributeSpec AxisAttribute() {
  return {"axis", AttributeType::kInt};
}

OperatorSpec Row(std::string name, int inputs, std::vector<AttributeSpec> attributes,
                 OutputShape shape, Run run) {
  return {std::move(name), inputs, inputs, std::move(attributes), std::move(shape), std::move(run)};
}

OperatorSpec UnaryRow(std::string name, Variable (*function)(const Variable&)) {
  return Row(std::move(name), 1, {}, SameShape,
             [function](Inputs inputs, const Attributes&) { return function(*inputs[0]); });
}

OperatorSpec BinaryRow(std::string name, Variable (*function)(const Variable&, const Variable&),
                       OutputShape shape = PairShape) {
  return Row(
      std::move(name), 2, {}, std::move(shape),
      [function](Inputs inputs, const Attributes&) { return function(*inputs[0], *inputs[1]); });
}

OperatorSpec ScalarRow(std::string name, Variable (*function)(const Variable&, double)) {
  return Row(std::move(name), 1, {{"value", AttributeType::kDouble}}, SameShape,
             [function](Inputs inputs, const Attributes& attributes) {
               return function(*inputs[0], Double(attributes, "value"));
             });
}

OperatorSpec ReversedScalarRow(std::string name, Variable (*function)(double, const Variable&)) {
  return Row(std::move(name), 1, {{"value", AttributeType::kDouble}}, SameShape,
             [function](Inputs inputs, const Attributes& attributes) {
               return function(Double(attributes, "value"), *inputs[0]);
             });
}

OperatorSpec ReduceRow(std::string name, Variable (*all)(const Variable&),
                       Variable (*along)(const Variable&, int64_t, bool)) {
  return Row(std::move(name), 1,
             {{"axis", AttributeType::kInt, false}, {"keepdim", AttributeType::kInt, false}},
             ReducedShape, [all, along](Inputs inputs, const Attributes& attributes) {
               if (!Has(attributes, "axis")) return all(*inputs[0]);
               return along(*inputs[0], Int(attributes, "axis"), Int(attributes, "keepdim") != 0);
             });
}

// An operator without inputs that creates a tensor of the shape in the attribute "shape". Floating
// tensors are in memory of the device of the CreationScope, and others, such as ids and labels, on
// the host.
OperatorSpec CreationRow(
    std::string name, std::vector<AttributeSpec> attributes,
    std::function<absl::StatusOr<Tensor>(const Shape&, const Attributes&, Allocator*)> create) {
  attributes.push_back(ShapeAttribute());
  attributes.push_back({"dtype", AttributeType::kInt, false});
  return Row(std::move(name), 0, std::move(attributes), GivenShape,
             [create](Inputs, const Attributes& attributes) {
               ShapeOr shape = GivenShape({}, attributes);
               if (!shape.ok()) return Variable::Invalid(shape.status());
               Device* const device = IsFloating(DTypeAttribute(attributes))
                                          ? CreationScope::CurrentDevice()
                                          : nullptr;
               return ToVariable(create(*shape, attributes, MemoryOf(device)));
             });
}

// ---- The table ---------------------------------------------------------------------------------

void AddArithmetic(std::vector<OperatorSpec>& table) {
  table.push_back(BinaryRow("add", Add));
  table.push_back(BinaryRow("sub", Sub));
  table.push_back(BinaryRow("mul", Mul));
  table.push_back(BinaryRow("div", Div));
  table.push_back(ScalarRow("add_scalar", Add));
  table.push_back(ScalarRow("sub_scalar", Sub));
  table.push_back(ReversedScalarRow("rsub_scalar", Sub));
  table.push_back(ScalarRow("mul_scalar", Mul));
  table.push_back(ScalarRow("div_scalar", Div));
  table.push_back(ReversedScalarRow("rdiv_scalar", Div));
  table.push_back(BinaryRow("matmul", Matmul, MatmulShape));
  table.back().depth = SharedExtent;
  table.push_back(BinaryRow("embedding", Embedding, EmbeddingShape));
  table.push_back({"linear", 2, 3, {}, LinearShape, [](Inputs inputs, const Attributes&) {
                     return inputs.size() == 2 ? Linear(*inputs[0], *inputs[1])
                                               : Linear(*inputs[0], *inputs[1], *inputs[2]);
                   }});
  table.back().depth = SharedExtent;
}

void AddFunctions(std::vector<OperatorSpec>& table) {
  table.push_back(UnaryRow("neg", Neg));
  table.push_back(UnaryRow("relu", Relu));
  table.push_back(UnaryRow("sigmoid", Sigmoid));
  table.push_back(UnaryRow("tanh", Tanh));
  table.push_back(UnaryRow("exp", Exp));
  table.push_back(UnaryRow("log", Log));
  table.push_back(UnaryRow("sqrt", Sqrt));
  table.push_back(UnaryRow("softmax", Softmax));
  table.push_back(UnaryRow("log_softmax", LogSoftmax));
  table.push_back(ReduceRow("sum", Sum, Sum));
  table.push_back(ReduceRow("mean", Mean, Mean));
  table.push_back(BinaryRow("cross_entropy", CrossEntropy, ScalarShape));
  table.push_back(BinaryRow("mse", Mse, ScalarShape));
  table.push_back(Row("detach", 1, {}, SameShape,
                      [](Inputs inputs, const Attributes&) { return inputs[0]->Detach(); }));
}

void AddShapes(std::vector<OperatorSpec>& table) {
  table.push_back(Row("reshape", 1, {ShapeAttribute()}, ReshapedShape,
                      [](Inputs inputs, const Attributes& attributes) {
                        return Reshape(*inputs[0], IntList(attributes, "shape"));
                      }));
  table.push_back(
      Row("transpose", 1, {{"axis0", AttributeType::kInt}, {"axis1", AttributeType::kInt}},
          TransposedShape, [](Inputs inputs, const Attributes& attributes) {
            return Transpose(*inputs[0], Int(attributes, "axis0"), Int(attributes, "axis1"));
          }));
  table.push_back(Row(
      "slice", 1, {AxisAttribute(), {"begin", AttributeType::kInt}, {"end", AttributeType::kInt}},
      SlicedShape, [](Inputs inputs, const Attributes& attributes) {
        return Slice(*inputs[0], Int(attributes, "axis"), Int(attributes, "begin"),
                     Int(attributes, "end"));
      }));
  table.push_back({"concat",
                   1,
                   OperatorSpec::kAnyNumber,
                   {AxisAttribute()},
                   ConcatenatedShape,
                   [](Inputs inputs, const Attributes& attributes) {
                     return Concat(inputs, Int(attributes, "axis"));
                   }});
  table.push_back(Row("broadcast_to", 1, {ShapeAttribute()}, BroadcastShape,
                      [](Inputs inputs, const Attributes& attributes) {
                        ShapeOr shape = GivenShape({}, attributes);
                        if (!shape.ok()) return Variable::Invalid(shape.status());
                        return BroadcastTo(*inputs[0], *shape);
                      }));
  table.push_back(Row("cast", 1, {{"dtype", AttributeType::kInt}}, SameShape,
                      [](Inputs inputs, const Attributes& attributes) {
                        return Cast(*inputs[0], DTypeAttribute(attributes));
                      }));
}

void AddCreation(std::vector<OperatorSpec>& table) {
  table.push_back(CreationRow(
      "zeros", {}, [](const Shape& shape, const Attributes& attributes, Allocator* memory) {
        return Tensor::Zeros(shape, DTypeAttribute(attributes), memory);
      }));
  table.push_back(CreationRow(
      "full", {{"value", AttributeType::kDouble}},
      [](const Shape& shape, const Attributes& attributes, Allocator* memory) {
        return Tensor::Full(shape, DTypeAttribute(attributes), Double(attributes, "value"), memory);
      }));
  table.push_back(CreationRow(
      "uniform",
      {{"low", AttributeType::kDouble},
       {"high", AttributeType::kDouble},
       {"seed", AttributeType::kInt}},
      [](const Shape& shape, const Attributes& attributes, Allocator* memory) {
        return ops::Uniform(shape, Double(attributes, "low"), Double(attributes, "high"),
                            static_cast<uint64_t>(Int(attributes, "seed")),
                            DTypeAttribute(attributes), memory);
      }));
  table.push_back(CreationRow(
      "normal",
      {{"mean", AttributeType::kDouble},
       {"deviation", AttributeType::kDouble},
       {"seed", AttributeType::kInt}},
      [](const Shape& shape, const Attributes& attributes, Allocator* memory) {
        return ops::Normal(shape, Double(attributes, "mean"), Double(attributes, "deviation"),
                           static_cast<uint64_t>(Int(attributes, "seed")),
                           DTypeAttribute(attributes), memory);
      }));
}

}  // namespace

std::vector<OperatorSpec> BuiltinOperators() {
  std::vector<OperatorSpec> table;
  AddArithmetic(table);
  AddFunctions(table);
  AddShapes(table);
  AddCreation(table);
  return table;
}

}  // namespace psd
