#pragma once

// Declares the "checkpoint.*" methods.

#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

// The reply is a v1::OwnerContents in the only buffer, which is memory in transit.
inline constexpr rpc::Declared<Unit, rpc::Contents> kCheckpointDescribe{
    {"checkpoint.describe", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<rpc::Bulk<v1::OwnerContents>, Unit> kCheckpointCheck{
    {"checkpoint.check", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor}};
// The reply has a v1::ExportReply in an attachment. Its payload has the copies, unless they are
// held.
inline constexpr rpc::Declared<v1::ExportRequest, rpc::Contents> kCheckpointExport{
    {"checkpoint.export", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor}};
// The payload of the request has the tensors, unless they are in a room.
inline constexpr rpc::Declared<rpc::Beside<v1::ImportRequest>, Unit> kCheckpointImport{
    {"checkpoint.import", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};
// The reply has a v1::PieceReply in the header and the piece in the only buffer.
inline constexpr rpc::Declared<v1::PieceRequest, rpc::Contents> kCheckpointFetch{
    {"checkpoint.fetch", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<v1::RoomRequest, Unit> kCheckpointMakeRoom{
    {"checkpoint.make_room", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};
// The request also has the piece, in the only buffer.
inline constexpr rpc::Declared<v1::PieceRequest, Unit> kCheckpointFill{
    {"checkpoint.fill", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<v1::PieceRequest, Unit> kCheckpointRelease{
    {"checkpoint.release", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};

}  // namespace psd::services
