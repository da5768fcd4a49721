#include "client/place.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/runtime_of.h"
#include "client/zero/partition.h"
#include "core/base/collect.h"
#include "core/base/future.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/rpc/registrar/peer_directory.h"
#include "core/runtime/runtime.h"
#include "core/services/values/value_service.h"
#include "core/tensor/ops/shape_ops.h"

namespace psd {
namespace {

// The most creations under way at once. An owner lets at most 5,000 of one session wait.
constexpr size_t kMostCreations = 512;

int64_t RowsOf(const Shape& shape) {
  return shape.rank() == 0 ? 1 : shape[0];
}

// Returns the shape of some rows. Requires: `shape` has rows, unless all of it is meant.
Shape ShapeOfRows(const Shape& shape, int64_t rows) {
  if (rows == RowsOf(shape)) return shape;
  std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[0] = rows;
  return *Shape::Checked(extents);  // no more than the checked shape
}

std::string NameOfPart(const ParameterSpec& spec, int64_t first_row, int64_t rows) {
  if (rows == RowsOf(spec.shape)) return spec.name;
  return absl::StrCat(spec.name, "[", first_row, ":", first_row + rows, "]");
}

// Checks that no part of a parameter has the name of another parameter.
absl::Status CheckPartNames(const std::vector<PlacedParameter>& parameters) {
  std::set<std::string> names;
  for (const PlacedParameter& parameter : parameters) {
    for (const PlacedPart& part : parameter.parts) {
      std::string name = NameOfPart(parameter.spec, part.first_row, part.rows);
      if (!names.insert(name).second) {
        return WithRemedy(
            absl::InvalidArgumentError(absl::StrCat(
                "a part of a parameter and another parameter are both called '", name, "'")),
            "rename one of the parameters");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSpecs(const std::vector<ParameterSpec>& specs) {
  std::set<std::string> names;
  for (const ParameterSpec& spec : specs) {
    if (!names.insert(spec.name).second) {
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                            "two of the parameters to place are called '", spec.name, "'")),
                        "give each a name of its own");
    }
    if (spec.create == nullptr) {
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat("the parameter '", spec.name,
                                                                "' has no ParameterSpec::create")),
                        "set it to a function that returns a creation program");
    }
    if (spec.rows && spec.shape.rank() != 2) {
      return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                            "the table '", spec.name, "' has the shape ", spec.shape.ToString())),
                        "give it two axes, rows and width");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ChooseOwners(Worker& worker,
                                                      std::vector<std::string> owners) {
  if (owners.empty()) {
    PSD_ASSIGN_OR_RETURN(const std::vector<OwnerAddress> known, worker.JobOwners());
    for (const OwnerAddress& owner : known) {
      if (owner.address.empty()) {
        return WithRemedy(
            absl::UnavailableError(absl::StrCat("the owner ", owner.name, " of the job is absent")),
            "bring it back, or name the owners to use");
      }
      owners.push_back(owner.name);
    }
  }
  std::sort(owners.begin(), owners.end());
  const auto twice = std::adjacent_find(owners.begin(), owners.end());
  if (twice != owners.end())
    return absl::InvalidArgumentError(absl::StrCat("the owner ", *twice, " is named twice"));
  if (!owners.empty()) return owners;
  return WithRemedy(absl::FailedPreconditionError("the job has no owner to place parameters on"),
                    "start a psd without registrar_only");
}

using OptimizerPtr = std::unique_ptr<optim::FunctionalOptimizer>;

// Returns null if no optimizer state counts.
absl::StatusOr<OptimizerPtr> MakeOptimizer(const OptimizerSpec& spec) {
  if (spec.type.empty()) return OptimizerPtr();
  return optim::OptimizerRegistry::Builtin().Create(spec);
}

// Returns the bytes that one row of a parameter takes on its owner.
absl::StatusOr<size_t> RowBytes(const ParameterSpec& spec, size_t width,
                                const optim::FunctionalOptimizer* optimizer) {
  size_t bytes = width * ItemSize(spec.dtype) * (spec.requires_grad && !spec.rows ? 2 : 1);
  if (optimizer == nullptr || !spec.requires_grad) return bytes;
  if (!spec.rows) {
    PSD_RETURN_IF_ERROR(Annotate(optimizer->CheckDType(spec.dtype), spec.name));
    for (const optim::StateSlot& slot : optimizer->Slots(spec.dtype))
      bytes += width * ItemSize(slot.dtype);
    return bytes;
  }
  if (optimizer->rows() == nullptr) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("the table '", spec.name, "' cannot be stepped by ",
                                                optimizer->spec().type)),
        "set PlaceOptions::table_optimizer to an optimizer of rows, such as sgd or adagrad");
  }
  for (const optim::RowSlot& slot : optimizer->rows()->Slots(spec.dtype))
    bytes += (slot.one_per_row ? 1 : width) * ItemSize(slot.slot.dtype);
  return bytes;
}

// Returns the bytes that each parameter takes on its owner.
absl::StatusOr<zero::PartitionGroup> LoadsOf(const std::vector<ParameterSpec>& specs,
                                             const PlaceOptions& options) {
  PSD_ASSIGN_OR_RETURN(const OptimizerPtr dense, MakeOptimizer(options.optimizer));
  PSD_ASSIGN_OR_RETURN(const OptimizerPtr sparse, MakeOptimizer(options.table_optimizer));
  zero::PartitionGroup group;
  for (const ParameterSpec& spec : specs) {
    const int64_t rows = RowsOf(spec.shape);
    const int64_t width = rows == 0 ? 0 : spec.shape.NumElements() / rows;
    PSD_ASSIGN_OR_RETURN(const size_t row_bytes, RowBytes(spec, static_cast<size_t>(width),
                                                          spec.rows ? sparse.get() : dense.get()));
    if (rows != 0 && static_cast<int64_t>(row_bytes) > zero::kMostLoad / rows) {
      return absl::InvalidArgumentError(absl::StrCat(
          spec.name, " ", spec.shape.ToString(), " takes more than ", zero::kMostLoad, " bytes"));
    }
    group.push_back({rows * static_cast<int64_t>(row_bytes), rows});
  }
  return group;
}

// Lists the parts of each parameter, which have no values yet.
std::vector<PlacedParameter> Distribute(std::vector<ParameterSpec> specs,
                                        const std::vector<std::string>& owners,
                                        const zero::Partition& partition) {
  std::vector<PlacedParameter> parameters;
  for (ParameterSpec& spec : specs) parameters.push_back({std::move(spec), {}});
  for (size_t owner = 0; owner < owners.size(); ++owner) {
    for (const zero::PartitionPart& part : partition.parts[owner][0])
      parameters[part.parameter].parts.push_back({{}, owners[owner], part.first_row, part.rows});
  }
  for (PlacedParameter& parameter : parameters) {
    std::sort(parameter.parts.begin(), parameter.parts.end(),
              [](const PlacedPart& a, const PlacedPart& b) { return a.first_row < b.first_row; });
  }
  return parameters;
}

// Creates or finds the values of all parts.
class Creator {
 public:
  explicit Creator(Worker& worker) : worker_(worker) { call_.timeout = worker.default_timeout(); }

  absl::Status Create(std::vector<PlacedParameter>& parameters) {
    for (PlacedParameter& parameter : parameters) {
      for (PlacedPart& part : parameter.parts) {
        Begin(parameter.spec, part);
        if (begun_.size() == kMostCreations) PSD_RETURN_IF_ERROR(Finish());
      }
    }
    return Finish();
  }

 private:
  void Begin(const ParameterSpec& spec, PlacedPart& part) {
    const std::string name = NameOfPart(spec, part.first_row, part.rows);
    const Program create = spec.create(ShapeOfRows(spec.shape, part.rows), part.first_row);
    using Hosted = services::ValueService::Hosted;
    values_.push_back(&part.value);
    begun_.push_back(RuntimeOf(worker_)
                         .values()
                         .GetOrCreate(part.owner, name, create, spec.requires_grad, call_,
                                      spec.rows ? Hosted::kRows : Hosted::kTensor)
                         .Then([what = absl::StrCat(name, " on ", part.owner)](
                                   const absl::StatusOr<RRef>& made) -> absl::StatusOr<RRef> {
                           if (made.ok()) return made;
                           return Annotate(made.status(), what);
                         }));
  }

  absl::Status Finish() {
    const auto made = CollectAll(begun_);
    PSD_RETURN_IF_ERROR(made.Wait());
    for (size_t i = 0; i < values_.size(); ++i) *values_[i] = (*made.Wait())[i];
    begun_.clear();
    values_.clear();
    return absl::OkStatus();
  }

  Worker& worker_;
  rpc::CallOptions call_;
  std::vector<Future<RRef>> begun_;
  std::vector<RRef*> values_;  // where the results go
};

}  // namespace

std::vector<RRef> PlacedModel::Parts(bool tables, bool grad_only) const {
  std::vector<RRef> values;
  for (const PlacedParameter& parameter : parameters_) {
    if (parameter.spec.rows != tables || (grad_only && !parameter.spec.requires_grad)) continue;
    for (const PlacedPart& part : parameter.parts) values.push_back(part.value);
  }
  return values;
}

absl::StatusOr<std::vector<Variable>> PlacedModel::ToHere(const Context& context) const {
  PSD_ASSIGN_OR_RETURN(std::vector<Variable> parts, worker_->ToHere(Parts(false, false), context));
  return PutTogether(std::move(parts));
}

absl::StatusOr<std::vector<Variable>> PlacedModel::ToHere(const CallOptions& options) const {
  PSD_ASSIGN_OR_RETURN(Values fetched, worker_->ToHere(Parts(false, false), options));
  std::vector<Variable> parts;
  for (Value& value : fetched) {
    auto* variable = value.As<Variable>();
    if (variable == nullptr)
      return absl::FailedPreconditionError(absl::StrCat(value.KindName(), " is no parameter"));
    parts.push_back(std::move(*variable));
  }
  return PutTogether(std::move(parts));
}

absl::StatusOr<std::vector<Variable>> PlacedModel::PutTogether(std::vector<Variable> parts) const {
  std::vector<Variable> whole;
  auto next = parts.begin();
  for (const PlacedParameter& parameter : parameters_) {
    const ParameterSpec& spec = parameter.spec;
    if (spec.rows) continue;
    const auto first = next;
    for (const PlacedPart& part : parameter.parts) {
      const Shape expected = ShapeOfRows(spec.shape, part.rows);
      if (next->tensor().shape() != expected) {
        return WithRemedy(
            absl::FailedPreconditionError(absl::StrCat(
                NameOfPart(spec, part.first_row, part.rows), " on ", part.owner, " has the shape ",
                next->tensor().shape().ToString(), ", not ", expected.ToString())),
            "let ParameterSpec::create make a tensor of the shape that it is given");
      }
      ++next;
    }
    whole.push_back(parameter.parts.size() == 1
                        ? std::move(*first)
                        : Concat(absl::Span<const Variable>(&*first, parameter.parts.size()), 0));
  }
  return whole;
}

absl::Status PlacedModel::Assign(size_t index, const Tensor& elements) const {
  if (index >= parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", index, " of a model with ", parameters_.size()));
  }
  const auto& [spec, parts] = parameters_[index];
  if (elements.shape() != spec.shape || elements.dtype() != spec.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.name, " is ", DTypeName(spec.dtype), spec.shape.ToString(), ", not ",
                     DTypeName(elements.dtype()), elements.shape().ToString()));
  }
  if (parts.size() == 1) return worker_->Assign(parts[0].value, elements).status();
  for (const PlacedPart& part : parts) {
    PSD_ASSIGN_OR_RETURN(const Tensor rows,
                         ops::Slice(elements, 0, part.first_row, part.first_row + part.rows));
    PSD_RETURN_IF_ERROR(worker_->Assign(part.value, rows));
  }
  return absl::OkStatus();
}

absl::StatusOr<PlacedModel> Place(Worker& worker, std::vector<ParameterSpec> specs,
                                  std::vector<std::string> owners, const PlaceOptions& options) {
  PSD_RETURN_IF_ERROR(CheckSpecs(specs));
  PSD_ASSIGN_OR_RETURN(owners, ChooseOwners(worker, std::move(owners)));
  PSD_ASSIGN_OR_RETURN(const zero::PartitionGroup loads, LoadsOf(specs, options));
  PSD_ASSIGN_OR_RETURN(
      const zero::Partition partition,
      zero::MakePartition({loads}, static_cast<int>(owners.size()), {options.cut_huge}));
  // The worker may never have met an owner of the job.
  for (const std::string& owner : owners)
    PSD_RETURN_IF_ERROR(RuntimeOf(worker).peers().MakeKnown(owner).Wait());
  PlacedModel model(worker);
  model.parameters_ = Distribute(std::move(specs), owners, partition);
  PSD_RETURN_IF_ERROR(CheckPartNames(model.parameters_));
  PSD_RETURN_IF_ERROR(Creator(worker).Create(model.parameters_));
  return model;
}

}  // namespace psd
