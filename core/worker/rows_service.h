#pragma once

// Rows between workers: ids there, rows back.

#include <memory>
#include <string>
#include <vector>

#include "core/base/future.h"
#include "core/rpc/rpc_agent.h"
#include "core/worker/exchange.h"
#include "core/worker/rows_query.h"

namespace psd::worker {

// Both ends of "rows.lookup". Thread-safe.
class RowsService {
 public:
  // Registers the method; `runtime` outlives the service and has not started.
  explicit RowsService(Runtime& runtime);

  // For each query a tensor [the extents of its ids, width]. All tables are `owner`'s: one
  // exchange. Tables under creation are waited for. Each row is whole; within a context those of
  // tables that require grad lead back to their owner, where gradients arrive as sparse ones.
  // Errors: INVALID_ARGUMENT (no table of rows; ids that are not i64 or out of range: names table,
  // id and number of rows), RESOURCE_EXHAUSTED (rows beyond ProgramLimits::max_result_bytes), and
  // those of a call.
  Future<Values> LookUp(const std::string& owner, const std::vector<RowsQuery>& queries,
                        const ContextPtr& context, const rpc::CallOptions& options);

 private:
  absl::StatusOr<Values> LookUpHere(const std::vector<RowsQuery>& queries, bool record) const;
  Future<Values> LookUpThere(const std::string& owner, const std::vector<RowsQuery>& queries,
                             const ContextPtr& context, const rpc::CallOptions& options);
  void ServeLookUp(const std::shared_ptr<rpc::ServerCall>& call);

  Runtime& runtime_;
};

}  // namespace psd::worker
