// Client side of the save service.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/rpc/declared_method.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/save_methods.h"
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

// A save lasts as long as the session that opened it.
rpc::Destination InSession(const std::string& owner) {
  return {owner, /*only_incarnation=*/0, /*session_bound=*/true};
}

}  // namespace

Future<SaveService::Opened> SaveService::Open(const std::string& owner, GlobalId id,
                                              const OwnFiles& files,
                                              const rpc::CallOptions& options) {
  rpc::Bulk<v1::OpenSaveRequest> request{WithId<v1::OpenSaveRequest>(id)};
  EncodeOwnFiles(files, request.message);
  return rpc::Ask(uses_.agent, kSaveOpen, InSession(owner), request, options)
      .Then([](const absl::StatusOr<v1::OpenSaveReply>& reply) -> absl::StatusOr<Opened> {
        if (!reply.ok()) return reply.status();
        return Opened{reply->here(), reply->why_not(), reply->steps_accepted()};
      });
}

Future<Exported> SaveService::Write(const std::string& owner, GlobalId id, uint64_t number,
                                    const std::vector<ExportItem>& items,
                                    const rpc::CallOptions& options) {
  auto message = WithId<v1::WriteSaveRequest>(id);
  message.set_number(number);
  for (const ExportItem& item : items) *message.add_items() = EncodeItem(item);
  return rpc::Ask(uses_.agent, kSaveWrite, InSession(owner), message, options)
      .Then([owner, expected = items.size()](
                const absl::StatusOr<v1::ExportReply>& written) -> absl::StatusOr<Exported> {
        if (!written.ok()) return written.status();
        Exported exported = DecodeWithoutTensors(*written);
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
  return rpc::Ask(uses_.agent, kSaveWrite, InSession(owner), message, options)
      .Then([](const absl::StatusOr<v1::ExportReply>& written) -> absl::StatusOr<FetchedPiece> {
        if (!written.ok()) return written.status();
        return FetchedPiece{{}, written->steps_accepted()};
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
  return rpc::Ask(uses_.agent, kSaveFinish, InSession(owner), message, options)
      .Then([](const absl::StatusOr<v1::FinishSaveReply>& reply) -> absl::StatusOr<Files> {
        if (!reply.ok()) return reply.status();
        return DecodeFinished(*reply);
      });
}

Future<Unit> SaveService::Close(const std::string& owner, GlobalId id,
                                const rpc::CallOptions& options) {
  return rpc::Ask(uses_.agent, kSaveClose, InSession(owner), WithId<v1::WriteSaveRequest>(id),
                  options);
}

}  // namespace psd::services
