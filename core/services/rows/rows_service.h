#pragma once

// Lookups of rows on other workers: sends ids and gets rows back.

#include <memory>
#include <string>
#include <vector>

#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/parallel_for.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/exchange.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/creation_gate.h"
#include "core/rref/rref_context.h"
#include "core/services/rows/rows_query.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::v1 {
class FetchRequest;
}  // namespace psd::v1

namespace psd::services {

// Client and server side of the "rows.lookup" method. Thread-safe.
class RowsService {
 public:
  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    rref::RRefContext& rrefs;
    rref::CreationGate& creations;
    dist_autograd::Exchange& exchange;
    Executor& executor;
    Helpers helpers;  // large lookups are divided among them
    const program::ProgramLimits& program_limits;
  };

  // Registers the methods. The agent must not have started.
  explicit RowsService(Uses uses);

  // Returns for each query a tensor [the extents of its ids, width], by one exchange with `owner`.
  // Tables under creation are waited for. Each row is read whole. Within a context, gradients of
  // rows of tables that require grad go back to the owner, as sparse gradients.
  // Requires: there is at least one query, and `owner` owns all tables.
  // Errors: INVALID_ARGUMENT (a value that has no rows; ids that are not i64 or are out of range,
  // naming the table, the id and the number of rows); RESOURCE_EXHAUSTED (more rows than
  // ProgramLimits::max_result_bytes); those of a call.
  Future<store::Values> LookUp(const std::string& owner, const std::vector<RowsQuery>& queries,
                               const dist_autograd::ContextPtr& context,
                               const rpc::CallOptions& options);

 private:
  absl::StatusOr<store::Values> LookUpHere(const std::vector<RowsQuery>& queries,
                                           bool record) const;
  Future<store::Values> LookUpThere(const std::string& owner, const std::vector<RowsQuery>& queries,
                                    const dist_autograd::ContextPtr& context,
                                    const rpc::CallOptions& options);
  absl::Status ServeLookUp(const rpc::Answer<rpc::Contents>& answer,
                           rpc::Beside<v1::FetchRequest> tables);

  const Uses uses_;
};

}  // namespace psd::services
