// Looks up rows of parameters that may be cut by rows.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/place.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"

namespace psd {
namespace {

// One query of the caller, split into a query for each part of the parameter that has some of the
// rows. `first` and `count` say which of all split queries these are. For each id of the caller's
// query, `places` holds the index of its row among the rows that the split queries return. If
// `places` is undefined, there is one split query, and its result is the answer.
struct SplitQuery {
  size_t first = 0;
  size_t count = 0;
  Tensor places;
};

class Splitter {
 public:
  explicit Splitter(const std::vector<PlacedParameter>& parameters) : parameters_(parameters) {}

  absl::Status Add(const PlacedQuery& query) {
    if (query.parameter >= parameters_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a query of parameter ", query.parameter,
                                                     " of a model with ", parameters_.size()));
    }
    const PlacedParameter& parameter = parameters_[query.parameter];
    split_.push_back({queries_.size(), 1, {}});
    // The owner checks the ids of a parameter that was not cut, and those of another dtype.
    const bool whole = parameter.parts.size() == 1 || !query.ids.defined() ||
                       query.ids.dtype() != DType::kI64 || query.ids.NumElements() == 0;
    if (!whole) return Split(parameter, query.ids);
    queries_.push_back({parameter.parts[0].value, query.ids});
    return absl::OkStatus();
  }

  const std::vector<RowsQuery>& queries() const { return queries_; }

  // Puts the rows of the queries together.
  std::vector<Variable> Merge(std::vector<Variable> rows) const {
    std::vector<Variable> merged;
    for (const SplitQuery& split : split_) {
      if (!split.places.defined()) {
        merged.push_back(std::move(rows[split.first]));
        continue;
      }
      const Variable all =
          Concat(absl::Span<const Variable>(rows.data() + split.first, split.count), 0);
      merged.push_back(Embedding(all, Variable(split.places)));
    }
    return merged;
  }

 private:
  // Returns the part that has the row. Requires: a row of the parameter.
  static size_t PartOf(const std::vector<PlacedPart>& parts, int64_t row) {
    const auto after =
        std::upper_bound(parts.begin(), parts.end(), row,
                         [](int64_t id, const PlacedPart& part) { return id < part.first_row; });
    return static_cast<size_t>(after - parts.begin()) - 1;
  }

  absl::Status Split(const PlacedParameter& parameter, const Tensor& given) {
    const std::vector<PlacedPart>& parts = parameter.parts;
    PSD_ASSIGN_OR_RETURN(const Tensor ids, given.Contiguous());
    const absl::Span<const int64_t> rows(ids.data<int64_t>(),
                                         static_cast<size_t>(ids.NumElements()));
    std::vector<std::vector<int64_t>> of_part(parts.size());
    std::vector<size_t> part_of;
    part_of.reserve(rows.size());
    const int64_t end = parts.back().first_row + parts.back().rows;
    for (int64_t row : rows) {
      if (row < 0 || row >= end) {
        return absl::InvalidArgumentError(
            absl::StrCat("row ", row, " of ", parameter.spec.name, ", which has ", end, " rows"));
      }
      const size_t part = PartOf(parts, row);
      part_of.push_back(part);
      of_part[part].push_back(row - parts[part].first_row);
    }
    SplitQuery& split = split_.back();
    split.count = 0;
    std::vector<int64_t> next_place(parts.size());
    int64_t before = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto count = static_cast<int64_t>(of_part[i].size());
      next_place[i] = before;
      before += count;
      if (count == 0) continue;
      ++split.count;
      queries_.push_back({parts[i].value, Tensor::Of<int64_t>({count}, std::move(of_part[i]))});
    }
    std::vector<int64_t> places;
    places.reserve(rows.size());
    for (size_t part : part_of) places.push_back(next_place[part]++);
    split.places = Tensor::Of<int64_t>(ids.shape(), std::move(places));
    return absl::OkStatus();
  }

  const std::vector<PlacedParameter>& parameters_;
  std::vector<RowsQuery> queries_;
  std::vector<SplitQuery> split_;
};

}  // namespace

absl::StatusOr<std::vector<Variable>> PlacedModel::LookUpRows(
    const std::vector<PlacedQuery>& queries, const Context& context) const {
  CallOptions options;
  options.context = &context;
  return LookUpRows(queries, options);
}

absl::StatusOr<std::vector<Variable>> PlacedModel::LookUpRows(
    const std::vector<PlacedQuery>& queries, const CallOptions& options) const {
  Splitter splitter(parameters_);
  for (const PlacedQuery& query : queries) PSD_RETURN_IF_ERROR(splitter.Add(query));
  PSD_ASSIGN_OR_RETURN(std::vector<Variable> rows,
                       worker_->LookUpRows(splitter.queries(), options));
  std::vector<Variable> merged = splitter.Merge(std::move(rows));
  for (const Variable& variable : merged) PSD_RETURN_IF_ERROR(variable.status());
  return merged;
}

}  // namespace psd
