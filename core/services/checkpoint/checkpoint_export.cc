#include "core/services/checkpoint/checkpoint_export.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/authorize.h"
#include "core/services/checkpoint/owner_contents.h"

namespace psd::services {
namespace {

using checkpoint::TensorSpec;
using optim::OwnerOptimizer;
using optim::SteppedParameter;
using store::EntryPtr;

// Requires: the parameter's write claim is held.
absl::Status CopyState(const SteppedParameter& stepped, const Rows& rows, Outbound& out,
                       v1::ExportedItem& item) {
  const std::vector<TensorSpec> specs = DescribeState(stepped);
  const std::vector<optim::StateArray> arrays = stepped.state();
  item.add_steps(static_cast<uint64_t>(stepped.steps()));
  item.add_state_arrays(static_cast<uint32_t>(arrays.size()));
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Shape shape =
        rows.table == nullptr ? specs[i].shape : checkpoint::WithRows(specs[i].shape, rows.count);
    PSD_ASSIGN_OR_RETURN(Tensor copy, Tensor::Empty(shape, specs[i].dtype, out.memory.get()));
    PSD_RETURN_IF_ERROR(CopyBytes(nullptr, copy.mutable_raw_data(), arrays[i].device,
                                  arrays[i].data + rows.Offset(arrays[i].bytes), copy.NumBytes()));
    out.values.emplace_back(std::move(copy));
  }
  return absl::OkStatus();
}

// Requires: the value's write claim is held if the value can change.
absl::Status CopyElements(const Outgoing& from, Outbound& out, v1::ExportedItem& item) {
  if (from.rows.table != nullptr) {
    const store::Rows& table = *from.rows.table;
    PSD_ASSIGN_OR_RETURN(Tensor copy,
                         Tensor::Empty(checkpoint::WithRows(table.shape(), from.rows.count),
                                       table.dtype(), out.memory.get()));
    PSD_RETURN_IF_ERROR(table.ReadElements(from.rows.Offset(table.bytes()), copy.mutable_raw_data(),
                                           copy.NumBytes()));
    item.set_version(table.version());
    out.values.emplace_back(std::move(copy));
  } else if (from.entry->parameter != nullptr) {
    PSD_ASSIGN_OR_RETURN(auto pinned, from.entry->parameter->Pin());
    item.set_version(pinned.version);
    PSD_ASSIGN_OR_RETURN(Tensor elements, pinned.tensor.ToHost(out.memory.get()));
    out.values.emplace_back(std::move(elements));
  } else {
    out.values.push_back(from.entry->value);
  }
  return absl::OkStatus();
}

// Finds the value and the states that `item` names, and checks that the caller may save the value
// and the optimizers that have the states. Errors: NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED.
absl::StatusOr<Outgoing> FindItem(rpc::Access& access, store::Store& store,
                                  const rpc::ServerCall& call, const v1::ExportItem& item) {
  const rpc::Asker asker = rpc::AskerOf(call);
  Outgoing found;
  PSD_ASSIGN_OR_RETURN(found.entry, store.Get({item.incarnation(), item.counter()}));
  PSD_RETURN_IF_ERROR(rref::Authorize(access, asker, rpc::Right::kSave, *found.entry));
  PSD_ASSIGN_OR_RETURN(found.rows, RowsOf(*found.entry, item.first_row(), item.rows()));
  if (item.optimizer_incarnations_size() != item.optimizer_counters_size())
    return absl::InvalidArgumentError("checkpoint.export: ids of optimizers are incomplete");
  for (int i = 0; i < item.optimizer_counters_size(); ++i) {
    PSD_ASSIGN_OR_RETURN(EntryPtr entry,
                         store.Get({item.optimizer_incarnations(i), item.optimizer_counters(i)}));
    PSD_RETURN_IF_ERROR(rref::Authorize(access, asker, rpc::Right::kSave, *entry));
    std::shared_ptr<OwnerOptimizer> optimizer = optim::OptimizerOf(*entry);
    if (optimizer == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry->Label(), " is ", entry->KindName(), ", not an optimizer"));
    }
    PSD_ASSIGN_OR_RETURN(SteppedParameter * stepped, FindStepped(*optimizer, *found.entry));
    found.optimizers.push_back(std::move(optimizer));
    found.states.push_back(stepped);
  }
  return found;
}

// Refuses to copy state that a load has begun to change.
absl::Status CheckLoaded(const Outgoing& from) {
  for (const std::shared_ptr<OwnerOptimizer>& optimizer : from.optimizers) {
    if (optimizer->life().stage != optim::LifeStage::kLoading) continue;
    return WithRemedy(absl::FailedPreconditionError("a load of its optimizer has not finished"),
                      "save when it has");
  }
  return absl::OkStatus();
}

// Copies a value with its state. Requires: the value's write claim is held if the value can change.
// Errors: RESOURCE_EXHAUSTED; FAILED_PRECONDITION while the value is being loaded.
absl::Status CopyItem(const Outgoing& from, Outbound& out) {
  v1::ExportedItem& item = *out.reply.add_items();
  absl::Status copied = CheckLoaded(from);
  if (copied.ok()) copied = CopyElements(from, out, item);
  for (const SteppedParameter* stepped : from.states)
    if (copied.ok()) copied = CopyState(*stepped, from.rows, out, item);
  return Annotate(copied, from.entry->Label());
}

}  // namespace

void WithWriteClaims(store::Store& store, Executor& executor, std::vector<GlobalId> ids,
                     const rpc::CallPtr& call, std::function<absl::Status()> work,
                     std::function<void(const absl::Status&)> done) {
  store::WriteClaims& claims = store.write_claims();
  claims.Claim(std::move(ids), [&executor, &claims, call, work = std::move(work),
                                done = std::move(done)](store::WriteClaims::ClaimId claim) {
    // The claim is granted on the thread of the step before. Copying there would delay that step's
    // answer.
    absl::Status queued =
        executor.SubmitAs(rpc::LabelOf(WorkLabel::Kind::kOwn, *call), [&claims, work, done, claim] {
          const absl::Status worked = work();
          claims.Release(claim);
          done(worked);
        });
    if (queued.ok()) return;
    claims.Release(claim);
    done(queued);
  });
}

absl::StatusOr<std::shared_ptr<Outbound>> FindItems(rpc::Access& access, store::Store& store,
                                                    const rpc::ServerCall& call,
                                                    const ExportItems& items) {
  auto out = std::make_shared<Outbound>();
  for (const v1::ExportItem& item : items) {
    PSD_ASSIGN_OR_RETURN(Outgoing found, FindItem(access, store, call, item));
    out->items.push_back(std::move(found));
  }
  return out;
}

void CopyOut(store::Store& store, Executor& executor, const rpc::CallPtr& call,
             const std::shared_ptr<Outbound>& out,
             std::function<void(absl::StatusOr<Outbound*>)> done) {
  std::vector<GlobalId> ids;
  for (const Outgoing& item : out->items) {
    if (item.entry->parameter != nullptr || item.rows.table != nullptr)
      ids.push_back(item.entry->id);
  }
  WithWriteClaims(
      store, executor, std::move(ids), call,
      [call, out]() -> absl::Status {
        if (call->cancelled()) return absl::CancelledError("cancelled before the copies");
        for (const Outgoing& item : out->items) PSD_RETURN_IF_ERROR(CopyItem(item, *out));
        return absl::OkStatus();
      },
      [&store, out, done = std::move(done)](const absl::Status& copied) {
        if (!copied.ok()) return done(copied);
        out->reply.set_steps_accepted(StepsAccepted(store));
        done(out.get());
      });
}

absl::StatusOr<std::vector<Tensor>> DenseCopies(const Outbound& out) {
  std::vector<Tensor> arrays;
  for (const store::Value& value : out.values) {
    const auto* variable = value.As<Variable>();
    if (variable == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("only tensors are copied out, not ", value.KindName()));
    }
    PSD_ASSIGN_OR_RETURN(const Tensor here, variable->tensor().ToHost());
    PSD_ASSIGN_OR_RETURN(Tensor dense, here.Contiguous());
    arrays.push_back(std::move(dense));
  }
  return arrays;
}

}  // namespace psd::services
