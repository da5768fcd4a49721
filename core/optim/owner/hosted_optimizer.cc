#include "core/optim/owner/hosted_optimizer.h"

#include <utility>

#include "core/base/status.h"

namespace psd::optim {

std::shared_ptr<OwnerOptimizer> OptimizerOf(const store::Entry& entry) {
  const auto* object = entry.value.As<std::shared_ptr<store::Object>>();
  return object == nullptr ? nullptr : std::dynamic_pointer_cast<OwnerOptimizer>(*object);
}

absl::Status DropNamed(store::Store& store, rref::RRefContext& rrefs, const std::string& name,
                       GlobalId only) {
  PSD_ASSIGN_OR_RETURN(store::EntryPtr entry, store.Lookup(name));
  const GlobalId dropped = only.IsNone() ? entry->id : only;
  // Trainers that still refer to an optimizer must not step it beside one that takes its name, so
  // its life ends before the name is free.
  if (const auto optimizer = OptimizerOf(*entry); optimizer != nullptr && entry->id == dropped)
    optimizer->EndLife();
  PSD_ASSIGN_OR_RETURN(entry, store.Drop(name, dropped));
  // Destroying this handle frees the value, unless there are other handles.
  rrefs.LocalRRef(std::move(entry));
  return absl::OkStatus();
}

}  // namespace psd::optim
