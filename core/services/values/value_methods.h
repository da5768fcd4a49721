#pragma once

// Declares the "value.*" methods.

#include <cstddef>
#include <cstdint>

#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

// The tag of the attachment v1::LeftOut of an answer to "value.fetch".
inline constexpr uint32_t kLeftOutTag = 4;
// Larger parameters on devices are left out of the answer. A piece has at most this many bytes.
inline constexpr size_t kPieceBytes = size_t{1} << 20;
// The number of pieces that are fetched at the same time. While one is sent, the next ones are
// copied from the device.
inline constexpr size_t kPiecesUnderWay = 3;

// The replies of the next two methods are v1::ReferenceReply (see Exchange::ReferenceReply).
inline constexpr rpc::Declared<v1::GetOrCreateRequest, rpc::Contents> kValueGetOrCreate{
    {"value.get_or_create", rpc::MethodKind::kMutation, rpc::RunsOn::kUserQueue}};
inline constexpr rpc::Declared<v1::NameRequest, rpc::Contents> kValueLookup{
    {"value.lookup", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};

inline constexpr rpc::Declared<v1::NameRequest, Unit> kValueDrop{
    {"value.drop", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
// The reply has the values, and v1::FetchedVersions in an attachment if versions were asked for.
inline constexpr rpc::Declared<v1::FetchRequest, rpc::Contents> kValueFetch{
    {"value.fetch", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
// The next two are for values that an answer to "value.fetch" has left out (kLeftOutTag). The reply
// to the first has the bytes.
inline constexpr rpc::Declared<v1::PullPieceRequest, rpc::Contents> kValuePiece{
    {"value.piece", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<v1::PullEnd, Unit> kValueEndPull{
    {"value.end_pull", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
// The payload of the request has one tensor.
inline constexpr rpc::Declared<rpc::Beside<v1::AssignRequest>, v1::AssignReply> kValueAssign{
    {"value.assign", rpc::MethodKind::kMutation, rpc::RunsOn::kUserQueue}};
inline constexpr rpc::Declared<v1::ListRequest, v1::ListReply> kValueList{
    {"value.list", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};

}  // namespace psd::services
