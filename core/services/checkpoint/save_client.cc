// Client side of the save service.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/rpc/message_io.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/save_service.h"

namespace psd::services {
namespace {

template <typename Message>
Message WithId(GlobalId id) {
  Message message;
  message.set_incarnation(id.incarnation);
  message.set_counter(id.counter);
  return message;
}

rpc::Request Bound(rpc::Request request) {
  request.session_bound = true;
  return request;
}

absl::StatusOr<v1::ExportReply> ParseWritten(const absl::StatusOr<rpc::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  return rpc::ParseMessage<v1::ExportReply>(reply->payload.header, "save.write");
}

}  // namespace

Future<SaveService::Opened> SaveService::Open(const std::string& owner, GlobalId id,
                                              const OwnFiles& files,
                                              const rpc::CallOptions& options) {
  auto message = WithId<v1::OpenSaveRequest>(id);
  EncodeOwnFiles(files, message);
  rpc::Request request;
  request.method = "save.open";
  request.payload.buffers.push_back(Buffer::FromString(message.SerializeAsString()));
  return uses_.agent.StartCall(owner, Bound(std::move(request)), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Opened> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(
            auto answer, rpc::ParseMessage<v1::OpenSaveReply>(reply->payload.header, "save.open"));
        return Opened{answer.here(), answer.why_not(), answer.steps_accepted()};
      });
}

Future<Exported> SaveService::Write(const std::string& owner, GlobalId id, uint64_t number,
                                    const std::vector<ExportItem>& items,
                                    const rpc::CallOptions& options) {
  auto message = WithId<v1::WriteSaveRequest>(id);
  message.set_number(number);
  for (const ExportItem& item : items) *message.add_items() = EncodeItem(item);
  return uses_.agent.StartCall(owner, Bound(rpc::PlainRequest("save.write", message)), options)
      .reply()
      .Then([owner, expected = items.size()](
                const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Exported> {
        PSD_ASSIGN_OR_RETURN(v1::ExportReply written, ParseWritten(reply));
        Exported exported = DecodeWithoutTensors(written);
        if (exported.items.size() == expected) return exported;
        return absl::InternalError(absl::StrCat(owner, " was asked for ", expected,
                                                " values and wrote ", exported.items.size()));
      });
}

Future<FetchedPiece> SaveService::WritePiece(const std::string& owner, GlobalId id, uint64_t number,
                                             GlobalId held, const PieceRange& range, size_t file,
                                             const rpc::CallOptions& options) {
  auto message = WithId<v1::WriteSaveRequest>(id);
  message.set_number(number);
  *message.mutable_piece() = EncodePiece(held, range);
  message.set_piece_file(static_cast<uint32_t>(file));
  return uses_.agent.StartCall(owner, Bound(rpc::PlainRequest("save.write", message)), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<FetchedPiece> {
        PSD_ASSIGN_OR_RETURN(v1::ExportReply written, ParseWritten(reply));
        return FetchedPiece{{}, written.steps_accepted()};
      });
}

Future<std::vector<checkpoint::SavedFile>> SaveService::Finish(const std::string& owner,
                                                               GlobalId id, uint64_t number,
                                                               const std::vector<StepCount>& counts,
                                                               const rpc::CallOptions& options) {
  using Files = std::vector<checkpoint::SavedFile>;
  auto message = WithId<v1::FinishSaveRequest>(id);
  message.set_number(number);
  for (const StepCount& count : counts) {
    message.add_count_files(static_cast<uint32_t>(count.file));
    message.add_counts(count.steps);
  }
  rpc::Request request = rpc::PlainRequest("save.finish", message);
  return uses_.agent.StartCall(owner, Bound(std::move(request)), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Files> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto answer, rpc::ParseMessage<v1::FinishSaveReply>(
                                              reply->payload.header, "save.finish"));
        return DecodeFinished(answer);
      });
}

Future<Unit> SaveService::Close(const std::string& owner, GlobalId id,
                                const rpc::CallOptions& options) {
  return uses_.agent
      .StartCall(owner, Bound(rpc::PlainRequest("save.close", WithId<v1::WriteSaveRequest>(id))),
                 options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) { return reply.status(); });
}

}  // namespace psd::services
