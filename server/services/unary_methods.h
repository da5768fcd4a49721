#pragma once

// The methods of the unary service, as its admission and its queues see them.

#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/session_types.h"

namespace psd::server {

inline constexpr rpc::MethodInfo kOpenSession{"OpenSession", rpc::MethodKind::kMutation,
                                              rpc::RunsOn::kExecutor};
// These three change only what the session holds, and may be repeated.
inline constexpr rpc::MethodInfo kRenewSession{"RenewSession", rpc::MethodKind::kRead,
                                               rpc::RunsOn::kExecutor};
inline constexpr rpc::MethodInfo kCloseSession{"CloseSession", rpc::MethodKind::kRead,
                                               rpc::RunsOn::kExecutor};
inline constexpr rpc::MethodInfo kReleaseContext{"ReleaseContext", rpc::MethodKind::kRead,
                                                 rpc::RunsOn::kExecutor};

inline constexpr rpc::MethodInfo kList{"List", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor};
inline constexpr rpc::MethodInfo kPull{"Pull", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor};
inline constexpr rpc::MethodInfo kStatus{"Status", rpc::MethodKind::kRead, rpc::RunsOn::kExecutor};

// The calls of the following methods have sequence numbers.
inline constexpr rpc::MethodInfo kGetOrCreateParameter{
    "GetOrCreateParameter", rpc::MethodKind::kMutation, rpc::RunsOn::kUserQueue};
inline constexpr rpc::MethodInfo kGetOrCreateOptimizer{
    "GetOrCreateOptimizer", rpc::MethodKind::kMutation, rpc::RunsOn::kUserQueue};
inline constexpr rpc::MethodInfo kDrop{"Drop", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor};
inline constexpr rpc::MethodInfo kNewContext{"NewContext", rpc::MethodKind::kMutation,
                                             rpc::RunsOn::kExecutor};
inline constexpr rpc::MethodInfo kPushGradient{"PushGradient", rpc::MethodKind::kMutation,
                                               rpc::RunsOn::kExecutor};
inline constexpr rpc::MethodInfo kStep{"Step", rpc::MethodKind::kMutation, rpc::RunsOn::kExecutor};

}  // namespace psd::server
