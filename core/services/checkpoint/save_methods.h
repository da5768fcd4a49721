#pragma once

// Declares the "save.*" methods.

#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

inline constexpr rpc::Declared<rpc::Bulk<v1::OpenSaveRequest>, v1::OpenSaveReply> kSaveOpen{
    {"save.open", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<v1::WriteSaveRequest, v1::ExportReply> kSaveWrite{
    {"save.write", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<v1::FinishSaveRequest, v1::FinishSaveReply> kSaveFinish{
    {"save.finish", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};
inline constexpr rpc::Declared<v1::WriteSaveRequest, Unit> kSaveClose{
    {"save.close", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor}};

}  // namespace psd::services
