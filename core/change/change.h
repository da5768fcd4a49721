#pragma once

// The changes of what an owner hosts under names, as plain records.
//
// A change has all its inputs resolved: the same changes, applied in the same order to the same
// contents, give the same bits on the same instruction set and devices. Its tensors are on the
// host, but a worker without a journal may also assign elements that are on a device; applying it
// copies their elements to the place of the changed value. A change is made once
// it is certain that it will be applied: after the caller's session has allowed it for the last
// time, and, for a change of a parameter, while the parameter's write claim is held. Changes of one
// parameter, of one name and of one optimizer are ordered, and a journal sees them in this order.
// Other changes may come in any order.
//
// Named contents are the values and optimizers that were created with a name. They still count
// after the name was dropped, as long as somebody can change them. Steps of any optimizer on such
// values are described too, even of a private one. These are not described:
// - anonymous values and steps of them: nobody can find them after a restart;
// - contexts, the gradients in them, and references;
// - objects of user types, and values that code of the owner's own process creates;
// - waiting steps, turns, and the members of a round: trainers ask for these again.
//
// A load is described by the contents that it brings to this owner, not yet by the save's name and
// checksum.

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/base/ids.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/optimizer_change.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/owner/parameter_groups.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/store/store.h"
#include "core/tensor/tensor.h"

namespace psd::change {

// A new named value.
struct CreateValue {
  GlobalId id;  // no id until it is applied for the first time
  std::string name;
  // Makes the value. A random operator in it has its seed as an attribute. If null, `elements` are
  // the value.
  std::shared_ptr<const program::CheckedProgram> program;  // shared with the call that brought it
  Tensor elements;                                         // the value, if there is no program
  bool rows = false;                                       // whether it is an embedding table
  bool requires_grad = false;
  // The name of the owner's device that holds it; empty means "cpu". kAutoDevice
  // (core/base/device.h) is replaced by the name of the device that was chosen when it is applied.
  std::string device = {};
};

// A new optimizer.
struct CreateOptimizer {
  GlobalId id;       // no id until it is applied for the first time
  std::string name;  // empty: a private optimizer
  // A text of the options that all creators must give alike; see store::CreateOptions.
  std::string creation;
  std::vector<optim::ParameterGroup> groups;  // with all options
  optim::OptimizerSettings settings;
  optim::OptimizerLife life;  // the life in which it begins
};

// The end of a name. If an optimizer has the name, its life ends too.
struct DropName {
  std::string name;
  store::EntryPtr entry;  // the entry that has the name
};

// New contents for a parameter, or for all rows of a table.
struct AssignValue {
  store::EntryPtr entry;
  Tensor elements;
  uint64_t version = 0;  // the number of the new version; set when the change is applied
};

// A value, or some rows of a table, that a load replaces, together with its state in optimizers.
struct LoadValue {
  struct State {
    std::shared_ptr<optim::OwnerOptimizer> optimizer;
    optim::SteppedParameter* stepped = nullptr;  // the value as one of the optimizer's parameters
    int64_t steps = 0;
    std::vector<Tensor> arrays;  // in the order of SteppedParameter::state
  };
  store::EntryPtr entry;
  // The first row, for a table; `elements` and the arrays, all packed, have the same number of
  // rows.
  int64_t first_row = 0;
  // Undefined if only the states are replaced, which a parameter allows and a table does not. The
  // parameter then keeps its version.
  Tensor elements = {};
  std::vector<State> states = {};
};

// Points to a change of any kind.
using Change = std::variant<const CreateValue*, const CreateOptimizer*, const DropName*,
                            const AssignValue*, const LoadValue*, const optim::StepChange*,
                            const optim::OptionsChange*, const optim::LifeChange*>;

}  // namespace psd::change
