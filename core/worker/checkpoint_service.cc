// The owner's end.
#include "core/worker/checkpoint_service.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/rref/value_codec.h"
#include "core/store/rows.h"
#include "core/worker/checkpoint_codec.h"
#include "core/worker/message_io.h"
#include "core/worker/owner_contents.h"
#include "core/worker/runtime.h"
#include "core/worker/value_service.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::worker {
namespace {

using checkpoint::TensorSpec;
using optim::OwnerOptimizer;
using optim::SteppedParameter;
using store::EntryPtr;
using store::Value;

// ---- out

// Some rows of a table.
struct Rows {
  std::shared_ptr<store::Rows> table;  // null: no rows, but the whole of a value
  int64_t first = 0;
  int64_t count = 0;

  // The part of an array with so many bytes for all rows.
  size_t Offset(size_t bytes) const { return bytes / NumRows() * static_cast<size_t>(first); }
  size_t NumRows() const { return table == nullptr ? 1 : static_cast<size_t>(table->NumRows()); }
};

absl::StatusOr<Rows> RowsOf(const store::Entry& entry, int64_t first, int64_t count) {
  Rows rows{store::AsRows(entry.value), first, count};
  if (rows.table == nullptr ? first == 0 && count == 0
                            : first >= 0 && count > 0 && count <= rows.table->NumRows() - first)
    return rows;
  return absl::InvalidArgumentError(absl::StrCat(entry.Label(), " is ", entry.KindName(),
                                                 ", and has no ", count, " rows from ", first));
}

// A value that is to be copied out, and the copy.
struct Outgoing {
  EntryPtr entry;
  Rows rows;
  std::vector<std::shared_ptr<OwnerOptimizer>> optimizers;
  std::vector<SteppedParameter*> states;  // the entry, as each of the optimizers steps it
};

// The copies of one request. Shared by the steps of its serving, one at a time.
struct Outbound {
  std::vector<Outgoing> items;
  absl::Status status;
  Values values;
  v1::ExportReply reply;
};

// How `optimizer` steps `entry`. Errors: NOT_FOUND.
absl::StatusOr<SteppedParameter*> FindStepped(const OwnerOptimizer& optimizer,
                                              const store::Entry& entry) {
  const std::optional<size_t> index = optimizer.table().Find(entry.id);
  if (index.has_value()) return &optimizer.table()[*index];
  return absl::NotFoundError(
      absl::StrCat(entry.Label(), " is no parameter of ", optimizer.TypeName()));
}

absl::StatusOr<Outgoing> FindItem(store::Store& store, const v1::ExportItem& item) {
  Outgoing found;
  PSD_ASSIGN_OR_RETURN(found.entry, store.Get({item.incarnation(), item.counter()}));
  PSD_ASSIGN_OR_RETURN(found.rows, RowsOf(*found.entry, item.first_row(), item.rows()));
  if (item.optimizer_incarnations_size() != item.optimizer_counters_size())
    return absl::InvalidArgumentError("checkpoint.export: ids of optimizers are incomplete");
  for (int i = 0; i < item.optimizer_counters_size(); ++i) {
    PSD_ASSIGN_OR_RETURN(EntryPtr entry,
                         store.Get({item.optimizer_incarnations(i), item.optimizer_counters(i)}));
    std::shared_ptr<OwnerOptimizer> optimizer = OptimizerOf(*entry);
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

// With the claim of the parameter.
absl::Status CopyState(const SteppedParameter& stepped, const Rows& rows, Outbound& out,
                       v1::ExportedItem& item) {
  const std::vector<TensorSpec> specs = DescribeState(stepped);
  const std::vector<optim::StateArray> arrays = stepped.state();
  item.add_steps(static_cast<uint64_t>(stepped.steps()));
  item.add_state_arrays(static_cast<uint32_t>(arrays.size()));
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Shape shape =
        rows.table == nullptr ? specs[i].shape : checkpoint::WithRows(specs[i].shape, rows.count);
    PSD_ASSIGN_OR_RETURN(Tensor copy, Tensor::Empty(shape, specs[i].dtype));
    std::memcpy(copy.mutable_raw_data(), arrays[i].data + rows.Offset(arrays[i].bytes),
                copy.NumBytes());
    out.values.emplace_back(std::move(copy));
  }
  return absl::OkStatus();
}

// With the claim of the value, if it changes.
absl::Status CopyElements(const Outgoing& from, Outbound& out, v1::ExportedItem& item) {
  if (from.rows.table != nullptr) {
    const store::Rows& table = *from.rows.table;
    PSD_ASSIGN_OR_RETURN(
        Tensor copy,
        Tensor::Empty(checkpoint::WithRows(table.shape(), from.rows.count), table.dtype()));
    std::memcpy(copy.mutable_raw_data(), table.elements() + from.rows.Offset(table.bytes()),
                copy.NumBytes());
    item.set_version(table.version());
    out.values.emplace_back(std::move(copy));
  } else if (from.entry->parameter != nullptr) {
    PSD_ASSIGN_OR_RETURN(auto pinned, from.entry->parameter->Pin());
    item.set_version(pinned.version);
    out.values.emplace_back(std::move(pinned.tensor));
  } else {
    out.values.push_back(from.entry->value);
  }
  return absl::OkStatus();
}

absl::Status CopyItem(const Outgoing& from, Outbound& out) {
  v1::ExportedItem& item = *out.reply.add_items();
  absl::Status copied = CopyElements(from, out, item);
  for (const SteppedParameter* stepped : from.states)
    if (copied.ok()) copied = CopyState(*stepped, from.rows, out, item);
  return Annotate(copied, from.entry->Label());
}

// ---- in

// A value that replaces another, and its state.
struct Incoming {
  EntryPtr entry;  // null: made anew
  Rows rows;
  std::string name;
  Tensor elements;
  struct State {
    std::shared_ptr<OwnerOptimizer> optimizer;
    SteppedParameter* stepped = nullptr;
    int64_t steps = 0;
    std::vector<Tensor> arrays;
  };
  std::vector<State> states;
};

struct Inbound {
  std::vector<Incoming> items;
  struct Restored {
    std::shared_ptr<OwnerOptimizer> optimizer;
    uint64_t steps_accepted = 0;
    double loss_scale = 0;
  };
  std::vector<Restored> optimizers;
  absl::Status status;
};

// Takes the tensors of a request one after the other.
class TensorReader {
 public:
  explicit TensorReader(const Values& values) : values_(values) {}
  absl::StatusOr<Tensor> Next() {
    if (next_ == values_.size())
      return absl::InvalidArgumentError("checkpoint.import: tensors are missing");
    const auto* variable = values_[next_++].As<Variable>();
    if (variable == nullptr || !variable->ok())
      return absl::InvalidArgumentError("checkpoint.import: a value is no tensor");
    return variable->tensor();
  }
  bool AtEnd() const { return next_ == values_.size(); }

 private:
  const Values& values_;
  size_t next_ = 0;
};

absl::StatusOr<std::shared_ptr<OwnerOptimizer>> LookupOptimizer(store::Store& store,
                                                                const std::string& name) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, store.Lookup(name));
  std::shared_ptr<OwnerOptimizer> optimizer = OptimizerOf(*entry);
  if (optimizer != nullptr) return optimizer;
  return absl::FailedPreconditionError(
      absl::StrCat(entry->Label(), " is ", entry->KindName(), ", not an optimizer"));
}

absl::StatusOr<Incoming::State> DecodeState(store::Store& store, const store::Entry& entry,
                                            const Rows& rows, const v1::ImportedState& message,
                                            TensorReader& tensors) {
  Incoming::State state;
  PSD_ASSIGN_OR_RETURN(state.optimizer, LookupOptimizer(store, message.optimizer()));
  PSD_ASSIGN_OR_RETURN(state.stepped, FindStepped(*state.optimizer, entry));
  if (message.steps() > uint64_t{INT64_MAX})
    return absl::InvalidArgumentError(absl::StrCat(entry.Label(), ": too many steps"));
  state.steps = static_cast<int64_t>(message.steps());
  const std::vector<TensorSpec> expected = DescribeState(*state.stepped);
  if (static_cast<int>(expected.size()) != message.slots_size()) {
    return absl::FailedPreconditionError(absl::StrCat(entry.Label(), " has ", expected.size(),
                                                      " state arrays in '", message.optimizer(),
                                                      "', not ", message.slots_size()));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    PSD_ASSIGN_OR_RETURN(Tensor array, tensors.Next());
    TensorSpec want = expected[i];
    if (rows.table != nullptr) want.shape = checkpoint::WithRows(want.shape, rows.count);
    if (message.slots(static_cast<int>(i)) != want.name || array.dtype() != want.dtype ||
        array.shape() != want.shape) {
      return absl::FailedPreconditionError(
          absl::StrCat("the state '", want.name, "' of ", entry.Label(), " is ",
                       DTypeName(want.dtype), want.shape.ToString(), ", not '",
                       message.slots(static_cast<int>(i)), "' ", array.ToString()));
    }
    state.arrays.push_back(std::move(array));
  }
  return state;
}

absl::StatusOr<Incoming> DecodeItem(store::Store& store, const v1::ImportItem& message,
                                    TensorReader& tensors) {
  Incoming item;
  item.name = message.name();
  PSD_ASSIGN_OR_RETURN(item.elements, tensors.Next());
  auto entry = store.Lookup(item.name);
  if (entry.ok()) item.entry = *std::move(entry);
  const auto table = item.entry == nullptr ? nullptr : store::AsRows(item.entry->value);
  if (table == nullptr && (item.entry == nullptr || item.entry->parameter == nullptr)) {
    if (message.states_size() == 0 && message.first_row() == 0) return item;
    return absl::FailedPreconditionError(
        absl::StrCat("'", item.name, "' is no parameter here, but state or rows come with it"));
  }
  const DType dtype = table != nullptr ? table->dtype() : item.entry->parameter->dtype();
  Shape shape = table != nullptr ? table->shape() : item.entry->parameter->shape();
  const bool some = table != nullptr && item.elements.rank() == 2;
  PSD_ASSIGN_OR_RETURN(
      item.rows, RowsOf(*item.entry, message.first_row(), some ? item.elements.shape()[0] : 0));
  if (some) shape = checkpoint::WithRows(shape, item.rows.count);
  if (item.elements.dtype() != dtype || item.elements.shape() != shape) {
    return absl::FailedPreconditionError(absl::StrCat(
        item.entry->Label(), " is ", item.entry->KindName(), ", not ", item.elements.ToString()));
  }
  for (const v1::ImportedState& state : message.states()) {
    PSD_ASSIGN_OR_RETURN(Incoming::State decoded,
                         DecodeState(store, *item.entry, item.rows, state, tensors));
    item.states.push_back(std::move(decoded));
  }
  return item;
}

absl::StatusOr<std::shared_ptr<Inbound>> DecodeImport(store::Store& store,
                                                      const v1::ImportRequest& message,
                                                      const Values& values) {
  auto import = std::make_shared<Inbound>();
  TensorReader tensors(values);
  for (const v1::ImportItem& item : message.items()) {
    PSD_ASSIGN_OR_RETURN(Incoming decoded, DecodeItem(store, item, tensors));
    import->items.push_back(std::move(decoded));
  }
  if (!tensors.AtEnd())
    return absl::InvalidArgumentError("checkpoint.import: the request has tensors for no value");
  for (const v1::RestoredOptimizer& restored : message.optimizers()) {
    PSD_ASSIGN_OR_RETURN(auto optimizer, LookupOptimizer(store, restored.name()));
    if (!std::isfinite(restored.loss_scale()) || restored.loss_scale() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", restored.name(), "' with the loss scale ", restored.loss_scale()));
    }
    import->optimizers.push_back(
        {std::move(optimizer), restored.steps_accepted(), restored.loss_scale()});
  }
  return import;
}

void WriteRows(const Rows& rows, const Tensor& elements) {
  std::vector<int64_t> ids(static_cast<size_t>(rows.count));
  std::iota(ids.begin(), ids.end(), rows.first);
  rows.table->Write(ids, elements.raw_data());
  rows.table->FinishUpdate();
}

bool Changes(const Incoming& item) {
  return item.entry != nullptr && (item.entry->parameter != nullptr || item.rows.table != nullptr);
}

// With the claim of the value. Requires: Changes(item).
absl::Status Replace(const Incoming& item) {
  const Rows& rows = item.rows;
  if (rows.table != nullptr) {
    WriteRows(rows, item.elements);
  } else {
    auto version = item.entry->parameter->Assign(item.elements);
    if (!version.ok()) return Annotate(version.status(), item.entry->Label());
  }
  for (const Incoming::State& state : item.states) {
    const std::vector<optim::StateArray> arrays = state.stepped->state();
    for (size_t i = 0; i < arrays.size(); ++i) {
      std::memcpy(arrays[i].data + rows.Offset(arrays[i].bytes), state.arrays[i].raw_data(),
                  state.arrays[i].NumBytes());
    }
    state.stepped->set_steps(state.steps);
    // Looks at all of the state: once, after the last rows.
    if (rows.table == nullptr || rows.first + rows.count == rows.table->NumRows())
      state.stepped->StateReplaced();
  }
  return absl::OkStatus();
}

}  // namespace

CheckpointService::CheckpointService(Runtime& runtime) : runtime_(runtime) {
  auto add = [&](const char* name, rpc::MethodKind kind,
                 void (CheckpointService::*serve)(const CallPtr&)) {
    runtime_.RegisterMethod({name, kind, rpc::RunsOn::kExecutor,
                             [this, serve](CallPtr call) { (this->*serve)(call); }});
  };
  add("checkpoint.describe", rpc::MethodKind::kRead, &CheckpointService::ServeDescribe);
  add("checkpoint.check", rpc::MethodKind::kRead, &CheckpointService::ServeCheck);
  add("checkpoint.export", rpc::MethodKind::kRead, &CheckpointService::ServeExport);
  add("checkpoint.import", rpc::MethodKind::kMutation, &CheckpointService::ServeImport);
}

void CheckpointService::ServeDescribe(const CallPtr& call) {
  rpc::Payload payload;
  payload.buffers.push_back(
      Buffer::FromString(EncodeContents(DescribeContents(runtime_.store())).SerializeAsString()));
  call->Reply(std::move(payload));
}

void CheckpointService::ServeCheck(const CallPtr& call) {
  if (call->payload().buffers.size() != 1)
    return call->Reply(absl::InvalidArgumentError("checkpoint.check: one buffer is expected"));
  auto message = ParseMessage<v1::OwnerContents>(std::string(call->payload().buffers[0].view()),
                                                 call->method());
  if (!message.ok()) return call->Reply(message.status());
  auto wanted = DecodeContents(*message);
  if (!wanted.ok()) return call->Reply(wanted.status());
  absl::Status checked = CheckContents(runtime_.store(), runtime_.optimizers(), *wanted);
  if (!checked.ok()) return call->Reply(checked);
  call->Reply(rpc::Payload{});
}

void CheckpointService::WithClaims(std::vector<GlobalId> ids, const CallPtr& call,
                                   std::function<void()> work, std::function<void()> done) {
  runtime_.store().write_claims().Claim(
      std::move(ids), [this, call, work = std::move(work),
                       done = std::move(done)](store::WriteClaims::ClaimId claim) {
        // Not on the thread of the step before it, whose answer would wait for the copies.
        absl::Status queued = runtime_.executor().Submit([this, work, done, claim] {
          work();
          runtime_.store().write_claims().Release(claim);
          done();
        });
        if (queued.ok()) return;
        runtime_.store().write_claims().Release(claim);
        call->Reply(queued);
      });
}

void CheckpointService::ServeExport(const CallPtr& call) {
  auto request = ParseMessage<v1::ExportRequest>(call->payload().header, call->method());
  if (!request.ok()) return call->Reply(request.status());
  auto out = std::make_shared<Outbound>();
  std::vector<GlobalId> ids;
  for (const v1::ExportItem& item : request->items()) {
    auto found = FindItem(runtime_.store(), item);
    if (!found.ok()) return call->Reply(found.status());
    if (found->entry->parameter != nullptr || found->rows.table != nullptr)
      ids.push_back(found->entry->id);
    out->items.push_back(*std::move(found));
  }
  WithClaims(
      std::move(ids), call,
      [call, out] {
        if (call->cancelled()) out->status = absl::CancelledError("cancelled before the copies");
        for (const Outgoing& item : out->items)
          if (out->status.ok()) out->status = CopyItem(item, *out);
      },
      [this, call, out] {
        if (!out->status.ok()) return call->Reply(out->status);
        out->reply.set_steps_accepted(StepsAccepted(runtime_.store()));
        auto payload = rref::EncodeValues(
            out->values, [](const store::RemoteReference&) -> absl::StatusOr<rref::ForkData> {
              return absl::InternalError("only tensors are copied out");
            });
        call->Reply(std::move(payload), {FieldsAttachment(out->reply)});
      });
}

void CheckpointService::ServeImport(const CallPtr& call) {
  auto fields = ParseFields<v1::ImportRequest>(*call);
  if (!fields.ok()) return call->Reply(fields.status());
  auto arguments = DecodeRequest(runtime_, *call);
  if (!arguments.ok()) return call->Reply(arguments.status());
  auto import = DecodeImport(runtime_.store(), *fields, arguments->values);
  if (!import.ok()) return call->Reply(import.status());
  if (!call->BeginApply()) return call->Reply(absl::CancelledError("cancelled before the import"));
  std::vector<GlobalId> ids;
  for (const Incoming& item : (*import)->items)
    if (Changes(item)) ids.push_back(item.entry->id);
  WithClaims(
      std::move(ids), call,
      [this, in = *import] {
        for (const Incoming& item : in->items) {
          if (!in->status.ok()) return;
          in->status = Changes(item) ? Replace(item) : MakeValue(item.name, item.elements);
        }
        for (const Inbound::Restored& each : in->optimizers)
          each.optimizer->Restore(each.steps_accepted, each.loss_scale);
      },
      [call, in = *import] {
        if (!in->status.ok()) return call->Reply(in->status);
        call->Reply(rpc::Payload{});
      });
}

absl::Status CheckpointService::MakeValue(const std::string& name, const Tensor& elements) {
  store::Store& store = runtime_.store();
  if (store.Lookup(name).ok()) PSD_RETURN_IF_ERROR(runtime_.values().DropHere(name));
  return store.GetOrCreate(name, {}, [&] { return absl::StatusOr<Value>(Value(elements)); })
      .Wait()
      .status();
}

}  // namespace psd::worker
