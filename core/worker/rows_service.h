#pragma once

// Lookups of rows on other workers: sends ids and gets rows back.

#include <memory>
#include <string>
#include <vector>

#include "core/base/future.h"
#include "core/rpc/rpc_agent.h"
#include "core/worker/exchange.h"
#include "core/worker/rows_query.h"

namespace psd::worker {

// Client and server side of the "rows.lookup" method. Thread-safe.
class RowsService {
 public:
  // Registers the method. `runtime` must outlive the service and must not have started.
  explicit RowsService(Runtime& runtime);

  // Returns for each query a tensor [the extents of its ids, width], by one exchange with `owner`.
  // Tables under creation are waited for. Each row is read whole. Within a context, gradients of
  // rows of tables that require grad go back to the owner, as sparse gradients.
  // Requires: there is at least one query, and `owner` owns all tables.
  // Errors: INVALID_ARGUMENT (a value that has no rows; ids that are not i64 or are out of range,
  // naming the table, the id and the number of rows); RESOURCE_EXHAUSTED (more rows than
  // ProgramLimits::max_result_bytes); those of a call.
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
