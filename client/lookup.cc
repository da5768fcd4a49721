// Looks up rows of tables on any number of owners.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/worker_state.h"
#include "core/autograd/functions/row_repeats.h"
#include "core/autograd/variable.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/rref/by_owner.h"
#include "core/services/rows/rows_service.h"
#include "core/tensor/copy_to.h"

namespace psd {
namespace {

using Repeats = std::vector<std::shared_ptr<const RowRepeats>>;  // null: the query is sent as it is

// Removes repeated ids from the queries that have enough of them to be worth it. Returns, for each
// changed query, how to repeat its rows.
absl::StatusOr<Repeats> TakeRepeats(std::vector<RowsQuery>& queries) {
  Repeats repeats;
  for (RowsQuery& query : queries) {
    PSD_ASSIGN_OR_RETURN(auto found, RowRepeats::Find(query.ids));
    if (found != nullptr) query.ids = found->distinct();
    repeats.push_back(std::move(found));
  }
  return repeats;
}

// Groups the queries by the owner of their table.
absl::StatusOr<std::vector<rref::OwnerPart>> PartsOf(const std::vector<RowsQuery>& queries) {
  std::vector<RRef> tables;
  for (size_t i = 0; i < queries.size(); ++i) {
    if (!queries[i].table.valid()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the table of query ", i, " of ", queries.size(), " refers to nothing"));
    }
    tables.push_back(queries[i].table);
  }
  return rref::PartsByOwner(tables);
}

// Returns the rows on `device`, null for the host. Their gradients go to the same node, which takes
// those on a device too. Rows of a table that this worker has on a device are on that device at
// first, others on the host. Waits for devices. Errors: those of CopyTo.
absl::StatusOr<Variable> PlacedOn(Device* device, const Variable& rows) {
  if (!rows.ok() || rows.tensor().device() == device) return rows;
  PSD_ASSIGN_OR_RETURN(Tensor there, CopyTo(device, rows.tensor()));
  const Edge& edge = rows.gradient_edge();
  if (edge.node == nullptr) return Variable(std::move(there));
  return Variable::OfNode(std::move(there), edge.node, edge.input);
}

}  // namespace

absl::StatusOr<std::vector<Variable>> Worker::LookUpRows(const std::vector<RowsQuery>& queries,
                                                         const Context& context) {
  CallOptions options;
  options.context = &context;
  return LookUpRows(queries, options);
}

absl::StatusOr<std::vector<Variable>> Worker::LookUpRows(const std::vector<RowsQuery>& queries,
                                                         const CallOptions& options) {
  std::vector<RowsQuery> distinct = queries;
  PSD_ASSIGN_OR_RETURN(const Repeats repeats, TakeRepeats(distinct));
  auto rows = LookUpEach(distinct, options);
  const bool changed =
      std::any_of(repeats.begin(), repeats.end(), [](const auto& each) { return each != nullptr; });
  // Asks again with the caller's own queries, so that the error names the ids as the caller knows
  // them.
  if (changed && absl::IsInvalidArgument(rows.status())) return LookUpEach(queries, options);
  PSD_RETURN_IF_ERROR(rows.status());
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] == nullptr) continue;
    (*rows)[i] = RepeatRows((*rows)[i], repeats[i]);
    PSD_RETURN_IF_ERROR((*rows)[i].status());
  }
  return rows;
}

absl::StatusOr<std::vector<Variable>> Worker::LookUpEach(const std::vector<RowsQuery>& queries,
                                                         const CallOptions& options) {
  PSD_ASSIGN_OR_RETURN(const State::CallPlan plan, state_->Plan(options));
  PSD_ASSIGN_OR_RETURN(const std::vector<rref::OwnerPart> parts, PartsOf(queries));
  const auto ask = [&](const rref::OwnerPart& part) {
    return state_->runtime->rows().LookUp(part.owner, part.Of(queries), plan.context, plan.options);
  };
  PSD_ASSIGN_OR_RETURN(const Values values, rref::AskOwners<Value>(parts, ask).Wait());
  std::vector<Variable> rows;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto* variable = values[i].As<Variable>();
    if (variable == nullptr) {
      return absl::InternalError(absl::StrCat(queries[i].table.owner(), " answered a ",
                                              values[i].KindName(), " instead of rows"));
    }
    PSD_ASSIGN_OR_RETURN(Variable placed, PlacedOn(plan.device, *variable));
    rows.push_back(std::move(placed));
  }
  return rows;
}

}  // namespace psd
