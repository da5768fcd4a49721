#pragma once

// Spreads the parameters of a model over owners by their bytes, so that nobody has to assign layers
// to owners by hand.
//
//   psd::ParameterSpec weight;
//   weight.name = "layer1/weight";
//   weight.shape = {4096, 784};
//   weight.create = [](const psd::Shape& shape, int64_t first_row) {
//     return psd::Uniform(shape, -0.03, 0.03, /*seed=*/first_row);
//   };
//   psd::PlaceOptions options;
//   options.optimizer = psd::Adam{};
//   PSD_ASSIGN_OR_RETURN(psd::PlacedModel model,
//                        psd::Place(*worker, {weight, …}, {"owner0", "owner1"}, options));
//   PSD_ASSIGN_OR_RETURN(auto optimizer, psd::DistributedOptimizer::Create(
//                                            *worker, "main", options.optimizer, model.parts()));
//   …
//   PSD_ASSIGN_OR_RETURN(auto parameters, model.ToHere(context));  // one variable for each spec

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd {

// A parameter that is to be placed.
struct ParameterSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  // Returns the program that makes the parameter, or some of its rows if it is cut. The program
  // makes a tensor of `shape` whose first row is row `first_row` of the parameter. If the seed
  // depends on first_row, parts do not get equal elements.
  std::function<Program(const Shape& shape, int64_t first_row)> create;
  bool requires_grad = true;
  // If true, it is an embedding table of two axes (CreateOptions::rows).
  bool rows = false;
};

struct PlaceOptions {
  // The optimizers that will step the parameters and the tables. Their state counts as well. If a
  // type is empty, no state counts.
  OptimizerSpec optimizer;
  OptimizerSpec table_optimizer;
  // Whether a parameter that takes more than an owner's fair share (all bytes divided by the number
  // of owners) is cut by rows into several values on different owners. They have the names
  // "NAME[first:end]". If false, every parameter is one value.
  bool cut_huge = true;
};

// Some rows of a parameter, as one value on one owner.
struct PlacedPart {
  RRef value;
  std::string owner;
  int64_t first_row = 0;
  int64_t rows = 0;  // of the whole parameter if it was not cut; 1 for a scalar
};

struct PlacedParameter {
  ParameterSpec spec;
  std::vector<PlacedPart> parts;  // in the order of rows; one if the parameter was not cut
};

// The ids of rows of one parameter.
struct PlacedQuery {
  size_t parameter = 0;  // its index among the specs
  Tensor ids;            // i64, any shape, each in [0, rows of the parameter)
};

// Parameters on owners. Thread-safe. The worker must outlive it.
class PlacedModel {
 public:
  // The parameters in the order of the specs.
  const std::vector<PlacedParameter>& parameters() const { return parameters_; }
  // The parts of parameters, or of tables, that require grad, for DistributedOptimizer::Create.
  // Built-in optimizers step the parts of a parameter to the same elements as the whole, except
  // with stochastic_rounding.
  std::vector<RRef> parts() const { return Parts(/*tables=*/false, /*grad_only=*/true); }
  std::vector<RRef> tables() const { return Parts(/*tables=*/true, /*grad_only=*/true); }

  // Fetches all parameters as Worker::ToHere does, one variable for each spec that is no table. The
  // parts of a parameter are put together, which copies them; gradients go back to each part.
  // Errors: those of Worker::ToHere; FAILED_PRECONDITION naming a part that has another shape than
  // its spec says.
  absl::StatusOr<std::vector<Variable>> ToHere(const Context& context) const;
  // As above, but without a context: the variables are constants.
  absl::StatusOr<std::vector<Variable>> ToHere(const CallOptions& options = {}) const;

  // Fetches rows of tables, or of parameters of two axes, as Worker::LookUpRows does. The ids are
  // those of the whole parameter.
  // Errors: those of Worker::LookUpRows; INVALID_ARGUMENT naming the parameter and the first id
  // that is out of its range.
  absl::StatusOr<std::vector<Variable>> LookUpRows(const std::vector<PlacedQuery>& queries,
                                                   const Context& context) const;
  absl::StatusOr<std::vector<Variable>> LookUpRows(const std::vector<PlacedQuery>& queries,
                                                   const CallOptions& options = {}) const;

  // Replaces the elements of parameter `index`. Errors: those of Worker::Assign; INVALID_ARGUMENT
  // for another shape or dtype, or an index that is out of range. If the parameter was cut, its
  // parts change one after the other, and some of them may have changed when an error is returned.
  absl::Status Assign(size_t index, const Tensor& elements) const;

 private:
  friend absl::StatusOr<PlacedModel> Place(Worker& worker, std::vector<ParameterSpec> specs,
                                           std::vector<std::string> owners,
                                           const PlaceOptions& options);
  explicit PlacedModel(Worker& worker) : worker_(&worker) {}
  std::vector<RRef> Parts(bool tables, bool grad_only) const;
  absl::StatusOr<std::vector<Variable>> PutTogether(std::vector<Variable> parts) const;

  Worker* worker_;
  std::vector<PlacedParameter> parameters_;
};

// Creates each parameter on one of `owners`, or gets a reference to it if it exists. What an owner
// takes is balanced: for each parameter its bytes, twice if it requires grad and is no table (the
// version that is read and the one that is written), and its optimizer's state. The partition is
// that of client/zero/partition.h over the owners in the order of their names. It depends on
// nothing but the arguments, so all trainers that give the same specs, owners and options get the
// same values. If `owners` is empty, all owners of the job are taken (Worker::JobOwners).
//
// Errors: those of Worker::GetOrCreate; INVALID_ARGUMENT naming the parameter or the owner for a
// name or an owner that is given twice, a spec without a create function, a table without two axes,
// and what the optimizer cannot step; FAILED_PRECONDITION if the job has no owner; UNAVAILABLE
// naming an owner of the job that is absent. Parameters that were created before an error stay.
absl::StatusOr<PlacedModel> Place(Worker& worker, std::vector<ParameterSpec> specs,
                                  std::vector<std::string> owners = {},
                                  const PlaceOptions& options = {});

}  // namespace psd
