// Client side of the checkpoint service.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/optim/owner/life_codec.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/value_codec.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/checkpoint_methods.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/store/value.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {
namespace {

using store::Value;

// Returns a destination for calls that leave something open at `owner`, which keeps it until the
// session with this worker ends.
rpc::Destination InSession(const std::string& owner) {
  return {owner, /*only_incarnation=*/0, /*session_bound=*/true};
}

absl::StatusOr<OwnerContents> DecodeDescription(const std::string& owner,
                                                const rpc::Payload& payload) {
  if (payload.buffers.size() != 1)
    return absl::InternalError(absl::StrCat(owner, " described itself in ", payload.buffers.size(),
                                            " buffers instead of one"));
  PSD_ASSIGN_OR_RETURN(const Buffer bytes, StableBytes(payload.buffers[0]));
  PSD_ASSIGN_OR_RETURN(auto message, rpc::ParseMessage<v1::OwnerContents>(
                                         bytes.view(), kCheckpointDescribe.info.name));
  return DecodeContents(message);
}

v1::ExportRequest EncodeItems(const std::vector<ExportItem>& items) {
  v1::ExportRequest message;
  for (const ExportItem& item : items) *message.add_items() = EncodeItem(item);
  return message;
}

absl::StatusOr<std::vector<ExportedItem>> DecodeItems(const v1::ExportReply& message,
                                                      const store::Values& values) {
  std::vector<ExportedItem> items;
  size_t next = 0;
  const auto take = [&]() -> absl::StatusOr<Tensor> {
    const auto* variable = next < values.size() ? values[next++].As<Variable>() : nullptr;
    if (variable == nullptr || !variable->ok())
      return absl::InternalError("checkpoint.export: the answer's parts do not match");
    return variable->tensor();
  };
  for (const v1::ExportedItem& each : message.items()) {
    ExportedItem& item = items.emplace_back();
    item.version = each.version();
    PSD_ASSIGN_OR_RETURN(item.elements, take());
    if (each.steps_size() != each.state_arrays_size())
      return absl::InternalError("checkpoint.export: the answer's parts do not match");
    for (int i = 0; i < each.steps_size(); ++i) {
      ExportedState& state = item.states.emplace_back();
      state.steps = each.steps(i);
      for (uint32_t k = 0; k < each.state_arrays(i); ++k) {
        PSD_ASSIGN_OR_RETURN(Tensor array, take());
        state.arrays.push_back(std::move(array));
      }
    }
  }
  return items;
}

// Returns the fields of a reply to "checkpoint.export".
absl::StatusOr<v1::ExportReply> ExportFields(const std::string& owner,
                                             const absl::StatusOr<rpc::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  const std::string* fields = reply->attachment(rpc::kFieldsTag);
  if (fields == nullptr)
    return absl::InternalError(absl::StrCat(owner, " exported without fields"));
  return rpc::ParseMessage<v1::ExportReply>(*fields, kCheckpointExport.info.name);
}

}  // namespace

Future<OwnerContents> CheckpointService::Describe(const std::string& owner,
                                                  const rpc::CallOptions& options) {
  return rpc::Ask(uses_.agent, kCheckpointDescribe, {owner}, Unit{}, options)
      .Then([owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<OwnerContents> {
        if (!reply.ok()) return reply.status();
        return DecodeDescription(owner, reply->payload);
      });
}

Future<Exported> CheckpointService::Export(const std::string& owner,
                                           const std::vector<ExportItem>& items,
                                           const rpc::CallOptions& options) {
  const size_t expected = items.size();
  return rpc::Ask(uses_.agent, kCheckpointExport, {owner}, EncodeItems(items), options)
      .Then([this, owner,
             expected](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Exported> {
        PSD_ASSIGN_OR_RETURN(v1::ExportReply message, ExportFields(owner, reply));
        PSD_ASSIGN_OR_RETURN(store::Values values, uses_.exchange.DecodeReply(nullptr, *reply));
        Exported exported;
        exported.steps_accepted = message.steps_accepted();
        PSD_ASSIGN_OR_RETURN(exported.items, DecodeItems(message, values));
        if (exported.items.size() == expected) return exported;
        return absl::InternalError(absl::StrCat(owner, " was asked for ", expected,
                                                " values and sent ", exported.items.size()));
      });
}

Future<Exported> CheckpointService::Hold(const std::string& owner, const ExportItem& item,
                                         GlobalId id, const rpc::CallOptions& options) {
  v1::ExportRequest message = EncodeItems({item});
  message.set_held_incarnation(id.incarnation);
  message.set_held_counter(id.counter);
  return rpc::Ask(uses_.agent, kCheckpointExport, InSession(owner), message, options)
      .Then([owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Exported> {
        PSD_ASSIGN_OR_RETURN(v1::ExportReply message, ExportFields(owner, reply));
        if (message.items_size() != 1)
          return absl::InternalError(
              absl::StrCat(owner, " holds another number of values than one"));
        return DecodeWithoutTensors(message);
      });
}

Future<FetchedPiece> CheckpointService::Fetch(const std::string& owner, GlobalId id,
                                              const PieceRange& range,
                                              const rpc::CallOptions& options) {
  return rpc::Ask(uses_.agent, kCheckpointFetch, InSession(owner), EncodePiece(id, range), options)
      .Then([owner, bytes = range.bytes](
                const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<FetchedPiece> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto message, rpc::ParseMessage<v1::PieceReply>(
                                               reply->payload.header, kCheckpointFetch.info.name));
        if (reply->payload.buffers.size() != 1 || reply->payload.buffers[0].size() != bytes)
          return absl::InternalError(
              absl::StrCat(owner, " sent another piece than it was asked for"));
        return FetchedPiece{reply->payload.buffers[0], message.steps_accepted()};
      });
}

Future<Unit> CheckpointService::Release(const std::string& owner, GlobalId id,
                                        const rpc::CallOptions& options) {
  return rpc::Ask(uses_.agent, kCheckpointRelease, InSession(owner), EncodePiece(id, {}), options);
}

Future<Unit> CheckpointService::MakeRoom(const std::string& owner, GlobalId id,
                                         const std::vector<checkpoint::TensorSpec>& arrays,
                                         const rpc::CallOptions& options) {
  v1::RoomRequest message;
  message.set_incarnation(id.incarnation);
  message.set_counter(id.counter);
  EncodeArrays(arrays, message);
  return rpc::Ask(uses_.agent, kCheckpointMakeRoom, InSession(owner), message, options);
}

Future<Unit> CheckpointService::Fill(const std::string& owner, GlobalId id, const PieceRange& range,
                                     Buffer bytes, const rpc::CallOptions& options) {
  rpc::Request request;
  request.payload = rpc::PlainPayload(EncodePiece(id, range));
  request.payload.buffers.push_back(std::move(bytes));
  return rpc::Ask(uses_.agent, kCheckpointFill, InSession(owner), std::move(request), options);
}

Future<Unit> CheckpointService::Check(const std::string& owner, const OwnerContents& wanted,
                                      const rpc::CallOptions& options) {
  return rpc::Ask(uses_.agent, kCheckpointCheck, {owner},
                  rpc::Bulk<v1::OwnerContents>{EncodeContents(wanted)}, options);
}

Future<Unit> CheckpointService::Import(const std::string& owner,
                                       const std::vector<ImportItem>& items,
                                       const std::vector<RestoredOptimizer>& optimizers,
                                       const rpc::CallOptions& options) {
  v1::ImportRequest fields;
  store::Values values;
  for (const ImportItem& item : items) {
    v1::ImportItem& each = *fields.add_items();
    each.set_name(item.name);
    each.set_first_row(item.first_row);
    each.set_room_incarnation(item.room.incarnation);
    each.set_room_counter(item.room.counter);
    each.set_load_incarnation(item.load.incarnation);
    each.set_load_counter(item.load.counter);
    const bool in_room = item.room.counter != 0;
    if (!in_room) values.emplace_back(item.elements);
    for (const ImportedState& state : item.states) {
      v1::ImportedState& message = *each.add_states();
      message.set_optimizer(state.optimizer);
      message.set_steps(state.steps);
      for (const std::string& slot : state.slots) message.add_slots(slot);
      if (in_room) continue;
      for (const Tensor& array : state.arrays) values.emplace_back(array);
    }
  }
  for (const RestoredOptimizer& optimizer : optimizers) {
    v1::RestoredOptimizer& message = *fields.add_optimizers();
    message.set_name(optimizer.name);
    message.set_steps_accepted(optimizer.steps_accepted);
    message.set_loss_scale(optimizer.loss_scale);
    message.set_good_steps(optimizer.good_steps);
    message.set_kept(optimizer.kept);
    message.set_judged_incarnation(optimizer.judged.incarnation);
    message.set_judged_counter(optimizer.judged.counter);
    optim::EncodeLife(optimizer.life, message);
  }
  auto request = uses_.exchange.EncodeRequest(kCheckpointImport.info.name, owner, values, nullptr);
  if (!request.ok()) return Future<Unit>::Ready(request.status());
  request->attachments.push_back(rpc::FieldsAttachment(fields));
  return rpc::Ask(uses_.agent, kCheckpointImport, {owner}, *std::move(request), options);
}

}  // namespace psd::services
