#include "core/services/rows/rows_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/sparse_leaf.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/exchange.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/authorize.h"
#include "core/store/rows.h"
#include "core/store/value.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/gather.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {
namespace {

using store::EntryPtr;
using store::Value;

// The payload of the request has the ids, one tensor for each table. The payload of the reply has
// the rows.
constexpr rpc::Declared<rpc::Beside<v1::FetchRequest>, rpc::Contents> kLookUp{
    {"rows.lookup", rpc::MethodKind::kRead, rpc::RunsOn::kCarrierThread}};

// A lookup of at most this many bytes of rows on the host is cheaper to run than to hand to another
// thread.
constexpr double kInlineBytes = 256 << 10;

// One table, and the ids to look up in it.
struct TableRead {
  EntryPtr entry;
  Tensor ids;
};

// A table that is read: rows, or one version of a dense parameter.
struct Table {
  LeafInfo leaf;
  bool requires_grad = false;
  std::shared_ptr<store::Rows> rows;
  Tensor dense;  // set if `rows` is null
};

// Errors: INVALID_ARGUMENT for a value that has no rows.
absl::StatusOr<Table> OpenTable(const store::Entry& entry) {
  Table table;
  table.rows = store::AsRows(entry.value);
  if (table.rows != nullptr) {
    table.leaf = {entry.id, table.rows->shape(), table.rows->dtype(), table.rows->version()};
    table.requires_grad = table.rows->requires_grad();
    return table;
  }
  if (entry.parameter == nullptr || entry.parameter->shape().rank() != 2) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat("it is a ", entry.KindName())),
                      "look up rows, or a parameter of two axes, and fetch others with ToHere");
  }
  PSD_ASSIGN_OR_RETURN(store::PinnedVersion pinned, entry.parameter->Pin());
  table.dense = std::move(pinned.tensor);
  table.leaf = {entry.id, table.dense.shape(), table.dense.dtype(), pinned.version};
  table.requires_grad = entry.parameter->requires_grad();
  return table;
}

// Checks that the rows fit into a message, before memory is allocated for them.
absl::Status CheckSize(const Table& table, const Tensor& ids, int64_t limit) {
  if (!ids.defined()) return absl::InvalidArgumentError("its ids are undefined");
  const int64_t row_bytes = table.leaf.shape[1] * static_cast<int64_t>(ItemSize(table.leaf.dtype));
  if (ids.NumElements() <= limit / std::max<int64_t>(row_bytes, 1)) return absl::OkStatus();
  return WithRemedy(absl::ResourceExhaustedError(
                        absl::StrCat(ids.NumElements(), " rows of ", row_bytes,
                                     " bytes exceed the limit of ", limit, " bytes per result")),
                    "ask for fewer at once");
}

absl::StatusOr<Value> ReadTable(const TableRead& read, bool record, int64_t limit,
                                const Helpers& helpers) {
  PSD_ASSIGN_OR_RETURN(Table table, OpenTable(*read.entry));
  PSD_RETURN_IF_ERROR(CheckSize(table, read.ids, limit));
  absl::StatusOr<Tensor> rows = table.rows != nullptr ? table.rows->Read(read.ids, helpers)
                                                      : ops::GatherRows(table.dense, read.ids);
  if (!rows.ok()) return rows.status();
  if (!record || !table.requires_grad) return Value(*std::move(rows));
  PSD_ASSIGN_OR_RETURN(Tensor ids, CopyTo(nullptr, read.ids));
  return Value(SparseLeaf(table.leaf, std::move(ids), *std::move(rows)));
}

absl::StatusOr<store::Values> ReadTables(const std::vector<TableRead>& reads, bool record,
                                         int64_t limit, const Helpers& helpers) {
  store::Values values;
  values.reserve(reads.size());
  for (const TableRead& read : reads) {
    absl::StatusOr<Value> value = ReadTable(read, record, limit, helpers);
    if (!value.ok())
      return Annotate(value.status(), absl::StrCat("looking up ", read.entry->Label()));
    values.push_back(*std::move(value));
  }
  return values;
}

// Returns about how many bytes the rows take. The values need not be tables.
double BytesOf(const std::vector<TableRead>& reads) {
  double bytes = 0;
  for (const TableRead& read : reads) {
    const auto rows = store::AsRows(read.entry->value);
    const store::Parameter* dense = read.entry->parameter.get();
    double row = sizeof(int64_t);
    if (rows != nullptr) row += static_cast<double>(rows->width() * ItemSize(rows->dtype()));
    if (dense != nullptr && dense->shape().rank() == 2)
      row += static_cast<double>(dense->shape()[1]) * static_cast<double>(ItemSize(dense->dtype()));
    bytes += row * static_cast<double>(read.ids.NumElements());
  }
  return bytes;
}

// Whether the carrier's thread may read the rows. It never waits for a device.
bool IsLight(const std::vector<TableRead>& reads) {
  return BytesOf(reads) <= kInlineBytes &&
         std::none_of(reads.begin(), reads.end(),
                      [](const TableRead& read) { return read.entry->on_device; });
}

// Finds the tables and ids of a request. Errors: INVALID_ARGUMENT, NOT_FOUND naming the id of a
// value.
absl::StatusOr<std::vector<TableRead>> FindTables(store::Store& store,
                                                  const v1::FetchRequest& tables,
                                                  const store::Values& ids) {
  if (tables.incarnations_size() != tables.counters_size() ||
      static_cast<size_t>(tables.counters_size()) != ids.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows.lookup: ", tables.incarnations_size(), " incarnations, ", tables.counters_size(),
        " counters and ", ids.size(), " tensors of ids; one of each per table"));
  }
  std::vector<TableRead> reads;
  reads.reserve(ids.size());
  for (int i = 0; i < tables.counters_size(); ++i) {
    PSD_ASSIGN_OR_RETURN(EntryPtr entry, store.Get({tables.incarnations(i), tables.counters(i)}));
    const auto* tensor = ids[static_cast<size_t>(i)].As<Variable>();
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("rows.lookup: the ids for ", entry->Label(),
                                                     " are a ",
                                                     ids[static_cast<size_t>(i)].KindName()));
    }
    reads.push_back({std::move(entry), tensor->tensor()});
  }
  return reads;
}

}  // namespace

RowsService::RowsService(Uses uses) : uses_(std::move(uses)) {
  rpc::Serve(uses_.agent, kLookUp, this, &RowsService::ServeLookUp);
}

absl::Status RowsService::ServeLookUp(const rpc::Answer<rpc::Contents>& answer,
                                      rpc::Beside<v1::FetchRequest> tables) {
  PSD_ASSIGN_OR_RETURN(const dist_autograd::Arguments arguments,
                       uses_.exchange.DecodeRequest(*answer.call()));
  PSD_ASSIGN_OR_RETURN(std::vector<TableRead> reads,
                       FindTables(uses_.store, tables.message, arguments.values));
  for (const TableRead& read : reads) {
    PSD_RETURN_IF_ERROR(rref::Authorize(uses_.agent.access(), rpc::AskerOf(*answer.call()),
                                        rpc::Right::kRead, *read.entry));
  }
  const bool light = IsLight(reads);
  rpc::RunBySize(uses_.executor, light, answer,
                 [this, call = answer.call(), context = arguments.context,
                  reads = std::move(reads)]() -> absl::StatusOr<rpc::Contents> {
                   PSD_ASSIGN_OR_RETURN(
                       const store::Values values,
                       ReadTables(reads, context != nullptr, uses_.program_limits.max_result_bytes,
                                  uses_.helpers));
                   return uses_.exchange.EncodeReply(*call, context, values);
                 });
  return absl::OkStatus();
}

Future<store::Values> RowsService::LookUp(const std::string& owner,
                                          const std::vector<RowsQuery>& queries,
                                          const dist_autograd::ContextPtr& context,
                                          const rpc::CallOptions& options) {
  std::vector<rref::RRef> tables;
  tables.reserve(queries.size());
  for (const RowsQuery& query : queries) tables.push_back(query.table);
  const bool here = owner == uses_.agent.self().name;
  const dist_autograd::ContextPtr recording = dist_autograd::RecordingContext(context);
  return uses_.creations.After<store::Values>(
      tables, options, [this, owner, queries, here, recording](const rpc::CallOptions& left) {
        return here ? Future<store::Values>::Ready(LookUpHere(queries, recording != nullptr))
                    : LookUpThere(owner, queries, recording, left);
      });
}

absl::StatusOr<store::Values> RowsService::LookUpHere(const std::vector<RowsQuery>& queries,
                                                      bool record) const {
  std::vector<TableRead> reads;
  reads.reserve(queries.size());
  for (const RowsQuery& query : queries) {
    PSD_ASSIGN_OR_RETURN(EntryPtr entry, query.table.local_entry());
    reads.push_back({std::move(entry), query.ids});
  }
  return ReadTables(reads, record, uses_.program_limits.max_result_bytes, uses_.helpers);
}

Future<store::Values> RowsService::LookUpThere(const std::string& owner,
                                               const std::vector<RowsQuery>& queries,
                                               const dist_autograd::ContextPtr& context,
                                               const rpc::CallOptions& options) {
  v1::FetchRequest tables;
  store::Values ids;
  for (const RowsQuery& query : queries) {
    absl::Status usable = uses_.rrefs.CheckUsable(query.table);
    if (!usable.ok()) return Future<store::Values>::Ready(usable);
    tables.add_incarnations(query.table.value_id().incarnation);
    tables.add_counters(query.table.value_id().counter);
    ids.emplace_back(query.ids);
  }
  auto request = uses_.exchange.EncodeRequest(kLookUp.info.name, owner, ids, context);
  if (!request.ok()) return Future<store::Values>::Ready(request.status());
  request->attachments.push_back(rpc::FieldsAttachment(tables));
  return rpc::Ask(uses_.agent, kLookUp, {owner, queries[0].table.body()->owner_incarnation()},
                  *std::move(request), options)
      .Then([this, owner, context,
             queries](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<store::Values> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(store::Values values, uses_.exchange.DecodeReply(context, *reply));
        if (values.size() == queries.size()) return values;
        return absl::InternalError(absl::StrCat(owner, " was asked for rows of ", queries.size(),
                                                " tables and sent ", values.size()));
      });
}

}  // namespace psd::services
