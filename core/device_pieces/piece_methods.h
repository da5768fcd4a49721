#pragma once

// Declares the methods by which a worker asks for what a message has left out.

#include <cstddef>
#include <cstdint>

#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_pieces {

// The tag of the attachment v1::LeftOut of an answer to "value.fetch", or of gradients.
inline constexpr uint32_t kLeftOutTag = 4;
// Larger tensors on devices may be left out of a message. A piece has at most this many bytes.
inline constexpr size_t kPieceBytes = size_t{1} << 20;
// The number of pieces of a message that are fetched at the same time. While one is sent, the next
// ones are copied from the device.
inline constexpr size_t kPiecesUnderWay = 3;
// If answers are slow, there are more of them: at most this for all values that a worker fetches,
// and again for all gradients. So one message can fill a link of 10 Gbit/s whose round trip takes
// 10 ms.
inline constexpr size_t kMorePieces = 9;

// The reply has the bytes.
inline constexpr rpc::Declared<v1::PullPieceRequest, rpc::Contents> kValuePiece{
    {"value.piece", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<v1::PullEnd, Unit> kValueEndPull{
    {"value.end_pull", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};

}  // namespace psd::device_pieces
