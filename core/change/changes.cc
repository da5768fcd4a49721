#include "core/change/changes.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/change/creation.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/store/changing.h"
#include "core/store/parameter.h"
#include "core/store/rows.h"
#include "core/store/write_claims.h"

namespace psd::change {
namespace {

using optim::OwnerOptimizer;
using store::Changing;
using store::EntryPtr;

absl::Status WriteRows(Changing changing, store::Rows& table, int64_t first,
                       const Tensor& elements) {
  std::vector<int64_t> ids(static_cast<size_t>(elements.shape()[0]));
  std::iota(ids.begin(), ids.end(), first);
  PSD_RETURN_IF_ERROR(table.Write(changing, ids, elements.raw_data()));
  table.FinishUpdate(changing);
  return absl::OkStatus();
}

// Writes `elements` to the array of state, on whichever device it is, from byte `offset` on.
absl::Status WriteState(const optim::StateArray& array, size_t offset, const Tensor& elements) {
  return CopyBytes(array.device, array.data + offset, nullptr, elements.raw_data(),
                   elements.NumBytes());
}

}  // namespace

// ---- names

Future<EntryPtr> Changes::Apply(CreateValue change) {
  if (change.id.IsNone()) change.id = uses_.store.NewId();
  store::CreateOptions options;
  options.id = change.id;
  options.requires_grad = change.requires_grad && !change.rows;  // rows keep their own flag
  if (!change.rows) options.device = change.device;              // rows are made where they stay
  options.fresh = change.program != nullptr && Initializes(change.program->program());
  return uses_.store.GetOrCreate(
      Changing(), change.name, options,
      [&] { return MakeValue(change, uses_.store, uses_.program_limits, uses_.memory); },
      [&](const EntryPtr& entry) {
        if (change.device == kAutoDevice) change.device = std::string(DeviceName(entry->device()));
        AwaitEndsOfNames();
        Append(&change);
      });
}

Future<EntryPtr> Changes::Apply(CreateOptimizer change, const Made& made) {
  if (change.id.IsNone()) change.id = uses_.store.NewId();
  const bool named = !change.name.empty();
  bool described = false;
  const auto create = [&]() -> absl::StatusOr<store::Value> {
    PSD_ASSIGN_OR_RETURN(
        std::shared_ptr<OwnerOptimizer> optimizer,
        OwnerOptimizer::Create(change.groups, change.settings, uses_.optimizers, uses_.store, *this,
                               uses_.helpers, uses_.large_steps, {change.id, named},
                               uses_.completions));
    PSD_RETURN_IF_ERROR(
        optimizer->Apply(Changing(), optim::LifeChange{optimizer.get(), change.life, {}}));
    described = optimizer->described();
    if (made != nullptr) made(optimizer);
    return store::Value(std::shared_ptr<store::Object>(std::move(optimizer)));
  };
  if (named) {
    store::CreateOptions options;
    options.id = change.id;
    options.creation = change.creation;
    return uses_.store.GetOrCreate(Changing(), change.name, options, create, [&](const EntryPtr&) {
      AwaitEndsOfNames();
      Append(&change);
    });
  }
  // A private optimizer may be recorded after it is hosted, because trainers learn its id only
  // after that.
  absl::StatusOr<store::Value> value = create();
  if (!value.ok()) return Future<EntryPtr>::Ready(value.status());
  absl::StatusOr<EntryPtr> entry =
      uses_.store.Put(change.id, *std::move(value), /*requires_grad=*/false);
  if (entry.ok() && described) Append(&change);
  return Future<EntryPtr>::Ready(std::move(entry));
}

absl::Status Changes::Apply(const DropName& change) {
  // Trainers that still refer to an optimizer must not step it while another one has its name. So
  // its life ends before the name becomes free.
  if (const auto optimizer = optim::OptimizerOf(*change.entry); optimizer != nullptr)
    optimizer->EndLife(Changing());
  MutexLock lock(names_mutex_);
  PSD_RETURN_IF_ERROR(uses_.store.Drop(Changing(), change.name, change.entry->id).status());
  Append(&change);
  return absl::OkStatus();
}

absl::Status Changes::Drop(rref::RRefContext& rrefs, const std::string& name, GlobalId only) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, uses_.store.Lookup(name));
  if (!only.IsNone() && entry->id != only) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", name, "' is the name of another value than ", only.ToString(), " now"));
  }
  PSD_RETURN_IF_ERROR(Apply(DropName{name, entry}));
  // Destroying this handle frees the value, unless there are other handles.
  rrefs.LocalRRef(std::move(entry));
  return absl::OkStatus();
}

// ---- contents

absl::Status Changes::Apply(AssignValue& change) {
  store::Entry const& entry = *change.entry;
  const std::shared_ptr<store::Rows> rows = store::AsRows(entry.value);
  if (entry.parameter == nullptr && rows == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(entry.Label(), " is a ", entry.KindName(),
                     ", and only parameters and tables of rows can be assigned to"));
  }
  const absl::StatusOr<uint64_t> version =
      rows != nullptr ? rows->Assign(Changing(), change.elements)
                      : entry.parameter->Assign(Changing(), change.elements);
  if (!version.ok()) return Annotate(version.status(), entry.Label());
  change.version = *version;
  if (!entry.name.empty()) Append(&change);
  return absl::OkStatus();
}

void Changes::Assign(const EntryPtr& entry, Tensor elements,
                     absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done) {
  store::WriteClaims& claims = uses_.store.write_claims();
  claims.Claim({entry->id}, [this, &claims, change = AssignValue{entry, std::move(elements)},
                             done = std::move(done)](store::WriteClaims::ClaimId claim) mutable {
    const absl::Status assigned = Apply(change);
    claims.Release(claim);
    done(assigned.ok() ? absl::StatusOr<uint64_t>(change.version) : assigned);
  });
}

absl::Status Changes::Apply(const LoadValue& change) {
  const store::Entry& entry = *change.entry;
  const std::shared_ptr<store::Rows> rows = store::AsRows(entry.value);
  if (rows != nullptr) {
    const absl::Status written = WriteRows(Changing(), *rows, change.first_row, change.elements);
    PSD_RETURN_IF_ERROR(Annotate(written, entry.Label()));
  } else if (change.elements.defined()) {
    const auto version = entry.parameter->Assign(Changing(), change.elements);
    if (!version.ok()) return Annotate(version.status(), entry.Label());
  }
  const size_t all_rows = rows != nullptr ? static_cast<size_t>(rows->NumRows()) : 1;
  for (const LoadValue::State& state : change.states) {
    const std::vector<optim::StateArray> arrays = state.stepped->state();
    for (size_t i = 0; i < arrays.size(); ++i) {
      const size_t offset = arrays[i].bytes / all_rows * static_cast<size_t>(change.first_row);
      PSD_RETURN_IF_ERROR(Annotate(WriteState(arrays[i], offset, state.arrays[i]), entry.Label()));
    }
    state.stepped->set_steps(Changing(), state.steps);
  }
  Append(&change);
  return absl::OkStatus();
}

// ---- optimizers

absl::Status Changes::Apply(optim::StepChange& change) {
  PSD_RETURN_IF_ERROR(change.optimizer->Apply(Changing(), change));
  const bool complete = change.under_way.written.event == nullptr;
  if (complete && change.optimizer->described()) Append(&change);
  return absl::OkStatus();
}

absl::Status Changes::Complete(optim::StepChange& change, absl::Status passed) {
  PSD_RETURN_IF_ERROR(change.optimizer->Complete(Changing(), change, std::move(passed)));
  if (change.optimizer->described()) Append(&change);
  return absl::OkStatus();
}

absl::Status Changes::Apply(optim::OptionsChange& change) {
  PSD_RETURN_IF_ERROR(change.optimizer->Apply(Changing(), change));
  if (change.optimizer->described()) Append(&change);
  return absl::OkStatus();
}

absl::Status Changes::Apply(optim::LifeChange& change) {
  PSD_RETURN_IF_ERROR(change.optimizer->Apply(Changing(), change));
  if (change.optimizer->described()) Append(&change);
  return absl::OkStatus();
}

}  // namespace psd::change
