#pragma once

// Declares the "optimizer.*" methods.

#include "core/base/future.h"
#include "core/rpc/declared_method.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

// The reply is a v1::ReferenceReply (see Exchange::ReferenceReply).
inline constexpr rpc::Declared<v1::CreateOptimizerRequest, rpc::Contents> kOptimizerCreate{
    {"optimizer.create", rpc::MethodKind::kMutation, rpc::RunsOn::kUserQueue}};
inline constexpr rpc::Declared<v1::PartRequest, v1::PartReply> kOptimizerPart{
    {"optimizer.part", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::PrepareRequest, v1::PrepareReply> kOptimizerPrepare{
    {"optimizer.prepare", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::StepRequest, v1::StepReply> kOptimizerStep{
    {"optimizer.step", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::TurnRequest, v1::TurnReply> kOptimizerTakeTurn{
    {"optimizer.take_turn", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::TurnRequest, Unit> kOptimizerEndTurn{
    {"optimizer.end_turn", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::OptionsRequest, v1::OptionsReply> kOptimizerOptions{
    {"optimizer.options", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::SetOptionsRequest, v1::OptionsReply> kOptimizerSetOptions{
    {"optimizer.set_options", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};
inline constexpr rpc::Declared<v1::LeaveOptimizerRequest, Unit> kOptimizerLeave{
    {"optimizer.leave", rpc::MethodKind::kMutation, rpc::RunsOn::kCarrierThread}};

}  // namespace psd::services
