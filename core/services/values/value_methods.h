#pragma once

// Declares the "value.*" methods.

#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

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
// The payload of the request has one tensor.
inline constexpr rpc::Declared<rpc::Beside<v1::AssignRequest>, v1::AssignReply> kValueAssign{
    {"value.assign", rpc::MethodKind::kMutation, rpc::RunsOn::kUserQueue}};
inline constexpr rpc::Declared<v1::ListRequest, v1::ListReply> kValueList{
    {"value.list", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};

}  // namespace psd::services
