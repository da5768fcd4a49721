#pragma once

// The parameters of a trainer that holds a copy of the whole model, as each rank of data
// parallelism does.
//
//   psd::ReplicaParameter weight;
//   weight.name = "layer1/weight";
//   weight.elements = initial;                       // the same on all ranks
//   PSD_ASSIGN_OR_RETURN(psd::Replica model, psd::Replica::Create(*worker, {weight, …}));
//   PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
//   PSD_ASSIGN_OR_RETURN(auto parameters, model.Variables(context));
//   PSD_RETURN_IF_ERROR(context.Backward({Loss(parameters, batch)}));

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "client/context.h"
#include "client/ddp/buffer_groups.h"
#include "client/worker.h"
#include "core/autograd/variable.h"
#include "core/rref/rref.h"
#include "core/tensor/tensor.h"

namespace psd {

// A parameter of a new replica.
struct ReplicaParameter {
  std::string name;  // unique among the values of the worker
  Tensor elements;   // of its first version; a floating dtype
  // If false, no gradients are collected for it, and no optimizer steps it.
  bool requires_grad = true;
  // If true, its gradients are not averaged: it belongs to an expert of a mixture, and every rank
  // has another expert.
  bool expert = false;
  // The device of the worker (WorkerOptions::devices) that holds the parameter, for example
  // "cuda:0", "cpu", or "auto", as in CreateOptions. If it is empty, the device given to Create
  // holds the parameter, or else that of `elements`. Other ranks may hold it elsewhere.
  std::string device = {};
};

// Parameters that the trainer itself hosts, as named values of its worker. Reading one copies
// nothing, and gradients stay in this process. Copies of a Replica are handles to the same
// parameters. When the last handle is destroyed, their names are dropped. Thread-safe, but no other
// call may run at the same time as SetFrozen. The worker must outlive it.
class Replica {
 public:
  // `device` holds the parameters that name none themselves.
  // Errors: INVALID_ARGUMENT naming the parameter, for one that is not floating, a name that is not
  // allowed, or a device that the worker does not have, naming those that it has; ALREADY_EXISTS
  // for a name that the worker has, or that is given twice; RESOURCE_EXHAUSTED; those of the
  // devices. After an error none of the parameters exists.
  static absl::StatusOr<Replica> Create(Worker& worker, std::vector<ReplicaParameter> parameters,
                                        const std::string& device = "");

  // The number of parameters. They are numbered from 0 in the order of Create.
  size_t size() const;
  const std::string& name(size_t index) const;
  // The shape, dtype, marks and device of each parameter. `requires_grad` is false while it is
  // frozen.
  const std::vector<ReplicatedParameter>& parameters() const;
  // References to the parameters, for example for a DistributedOptimizer of this trainer alone.
  const std::vector<RRef>& values() const;
  Worker& worker() const;

  // Returns the parameters as they are at one moment: leaves whose gradients `context` collects,
  // and constants for those that are frozen or require no grad. Each is on its parameter's device.
  // Errors: those of Worker::ToHere.
  absl::StatusOr<std::vector<Variable>> Variables(const Context& context) const;
  // Returns the elements of all parameters as they are at one moment, each on its parameter's
  // device. Later steps do not change the result.
  absl::StatusOr<std::vector<Tensor>> Elements() const;
  // The same for the parameters with these numbers. Requires: each of `indices` is below size().
  absl::StatusOr<std::vector<Tensor>> Elements(const std::vector<size_t>& indices) const;
  // Replaces elements. Each pair has the number of a parameter and its next version, which is
  // copied to the parameter's device. The parameters change one after the other.
  // Errors: INVALID_ARGUMENT naming the parameter, for another shape or dtype or a number that is
  // out of range, before anything has changed; RESOURCE_EXHAUSTED; those of the devices.
  absl::Status Assign(std::vector<std::pair<size_t, Tensor>> elements);

  // Freezes a parameter that requires grad, or thaws it. All ranks must do the same. Contexts that
  // use a frozen parameter collect no gradient for it. A gradient that was collected before stays
  // in its context, but AllReduceGradients and ZeroRedundancyOptimizer::Step leave the parameter
  // and its state as they are. Errors: INVALID_ARGUMENT for a number that is out of range or a
  // parameter that requires no grad.
  absl::Status SetFrozen(size_t index, bool frozen);

  // Returns the gradients that `context` has collected for the parameters so far, in their order,
  // dense, on the devices of the parameters; undefined for a parameter without one.
  // Errors: FAILED_PRECONDITION for a context that cannot be used; RESOURCE_EXHAUSTED; those of the
  // devices.
  absl::StatusOr<std::vector<Tensor>> Gradients(const Context& context) const;
  // Puts `gradients`, which has an element for each parameter, in the place of those that `context`
  // has collected, on the devices of the parameters; an undefined one leaves its parameter's as it
  // is.
  // Errors: INVALID_ARGUMENT naming the parameter whose gradient has another shape or dtype;
  // FAILED_PRECONDITION for a context that cannot be used, and if a backward adds gradients at the
  // same time; RESOURCE_EXHAUSTED; those of the devices. Nothing has changed then.
  absl::Status SetGradients(const Context& context, const std::vector<Tensor>& gradients) const;

  // Gives all ranks of the group the elements that rank `root` has, except those of experts. It is
  // meant for replicas that began differently, and for the survivors of a group that was built
  // again. All ranks call it alike. If it succeeds on one rank, all ranks have the elements.
  // Errors: INVALID_ARGUMENT for a rank that is out of range, a label that is too long or a
  // parameter of 4 GiB or more; FAILED_PRECONDITION if parameters that share a device on one rank
  // do not on another; the errors of Group's calls and of Assign. After the last two the group has
  // failed, and some ranks may have the new elements.
  absl::Status Synchronize(Group& group, int root, const CollectiveOptions& options = {});

 private:
  friend class BufferedDataParallel;
  struct State;
  struct Leaves;
  // The gradients that a context had at one moment.
  struct Collected {
    std::vector<Tensor> gradients;         // as Gradients() returns them
    std::shared_ptr<const Leaves> leaves;  // as the context had them
  };
  // Errors: those of Gradients.
  absl::StatusOr<Collected> Collect(const Context& context) const;
  // As SetGradients, for the context that `before` was collected from. Errors: as SetGradients;
  // FAILED_PRECONDITION if a backward has added gradients since.
  absl::Status Replace(const Collected& before, const std::vector<Tensor>& gradients) const;
  absl::Status TakeFrom(Group& group, int root, const CollectiveOptions& options);
  explicit Replica(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;  // shared by all handles
};

}  // namespace psd
