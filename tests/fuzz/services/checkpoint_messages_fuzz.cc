// Decodes arbitrary bytes as the messages that a peer may send during a save or load. The first
// byte chooses the message, and the second one the contents of a piece. Pieces outside of their
// array are refused, and those inside are read back as they were written.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/tensor_file.h"
#include "core/checkpoint/xxh128.h"
#include "core/services/checkpoint/checkpoint_codec.h"
#include "core/services/checkpoint/transfer_table.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {
namespace {

void Check(bool condition) {
  if (!condition) std::abort();
}

Transfer NewTransfer() {
  return Transfer(Transfer::Direction::kIn,
                  {*Tensor::Zeros(Shape{5, 7}, DType::kF32), *Tensor::Zeros(Shape{0}, DType::kF64),
                   *Tensor::Zeros(Shape{3}, DType::kU8)});
}

void FetchPiece(const v1::PieceRequest& request) {
  const Transfer transfer = NewTransfer();
  const auto piece = transfer.Piece(request.array(), request.first_byte(), request.bytes());
  if (!piece.ok()) return;
  Check(piece->size() == request.bytes());
  for (const char byte : piece->view()) Check(byte == 0);
}

void FillPiece(const v1::PieceRequest& request, uint8_t filling) {
  Transfer transfer = NewTransfer();
  const Buffer bytes = Buffer::FromString(std::string(filling, static_cast<char>(filling)));
  if (!transfer.Fill(request.array(), request.first_byte(), bytes).ok()) return;
  const auto piece = transfer.Piece(request.array(), request.first_byte(), bytes.size());
  Check(piece.ok() && piece->view() == bytes.view());
}

void MakeRoom(const v1::RoomRequest& request) {
  const auto arrays = DecodeArrays(request);
  if (!arrays.ok()) return;
  v1::RoomRequest again;
  EncodeArrays(*arrays, again);
  const auto same = DecodeArrays(again);
  Check(same.ok() && same->size() == arrays->size());
}

void OpenSave(const v1::OpenSaveRequest& request) {
  const auto files = DecodeOwnFiles(request);
  if (!files.ok()) return;
  for (const checkpoint::FileSpec& file : files->files)
    checkpoint::FileBytes(file).status().IgnoreError();
  v1::OpenSaveRequest again;
  EncodeOwnFiles(*files, again);
  const auto same = DecodeOwnFiles(again);
  Check(same.ok() && same->files.size() == files->files.size());
}

void FinishSave(const v1::FinishSaveReply& reply) {
  const auto files = DecodeFinished(reply);
  if (!files.ok()) return;
  for (const checkpoint::SavedFile& file : *files) Check(checkpoint::IsXxh128(file.xxh128));
  Check(EncodeFinished(*files).files_size() == reply.files_size());
}

template <typename Message, typename Use>
void WithMessage(absl::string_view bytes, const Use& use) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) use(message);
}

}  // namespace
}  // namespace psd::services

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace psd::services;  // NOLINT: a fuzz target's one function
  namespace v1 = psd::v1;
  if (size < 2) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 6) {
    case 0:
      WithMessage<v1::PieceRequest>(bytes, [](const auto& request) { FetchPiece(request); });
      break;
    case 1:
      WithMessage<v1::PieceRequest>(bytes,
                                    [&](const auto& request) { FillPiece(request, data[1]); });
      break;
    case 2:
      WithMessage<v1::RoomRequest>(bytes, [](const auto& request) { MakeRoom(request); });
      break;
    case 3:
      WithMessage<v1::OpenSaveRequest>(bytes, [](const auto& request) { OpenSave(request); });
      break;
    case 4:
      WithMessage<v1::FinishSaveReply>(bytes, [](const auto& reply) { FinishSave(reply); });
      break;
    default:
      WithMessage<v1::OwnerContents>(
          bytes, [](const auto& contents) { DecodeContents(contents).status().IgnoreError(); });
  }
  return 0;
}
