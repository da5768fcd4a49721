#include "client/zero/partition.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::zero {
namespace {

// Wide enough for the product of two loads, or of a load and a number of ranks.
__extension__ using Wide = __int128;

absl::Status CheckRanks(int ranks) {
  if (ranks >= 1 && ranks <= kMostRanks) return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat("a partition over ", ranks, " ranks")),
                    absl::StrCat("give a number of ranks from 1 to ", kMostRanks));
}

// Adds `load` to `*total`. `what` names the object that has the load.
absl::Status AddLoad(int64_t load, const std::string& what, int64_t* total) {
  if (load < 0)
    return absl::InvalidArgumentError(absl::StrCat(what, " has a negative load, ", load));
  if (load > kMostLoad - *total) {
    return absl::InvalidArgumentError(
        absl::StrCat("up to ", what, " the loads are more than ", kMostLoad, " in total"));
  }
  *total += load;
  return absl::OkStatus();
}

std::string NameOf(const char* container, size_t index, size_t parameter) {
  return absl::StrCat("parameter ", parameter, " of ", container, " ", index);
}

// Returns the rank of least load, the lowest of several, among those that `may_take` allows.
// Returns the number of ranks if it allows none.
template <typename MayTake>
size_t LeastLoaded(const std::vector<int64_t>& loads, const MayTake& may_take) {
  size_t least = loads.size();
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    if (may_take(rank) && (least == loads.size() || loads[rank] < loads[least])) least = rank;
  }
  return least;
}

struct LoadedPart {
  PartitionPart part;
  int64_t load = 0;
};

// Appends the parts of a parameter: one, unless its load is more than total / ranks and it may be
// cut.
void AppendParts(size_t index, const PartitionParameter& parameter, int64_t total, int ranks,
                 bool cut_huge, std::vector<LoadedPart>* parts) {
  int64_t count = 1;
  // The share is rounded up, so it is at least 1 if this parameter has any load.
  const int64_t share = (total + ranks - 1) / ranks;
  if (cut_huge && parameter.load > share) {
    const int64_t needed = (parameter.load + share - 1) / share;
    count = std::max<int64_t>(std::min(needed, parameter.rows), 1);
  }
  const auto row = [&](int64_t part) {
    return static_cast<int64_t>(Wide{parameter.rows} * part / count);
  };
  const auto load_before = [&](int64_t row) {
    if (parameter.rows == 0) return row == 0 ? int64_t{0} : parameter.load;
    return static_cast<int64_t>(Wide{parameter.load} * row / parameter.rows);
  };
  for (int64_t part = 0; part < count; ++part) {
    const int64_t first = row(part), end = row(part + 1);
    const int64_t load = count == 1 ? parameter.load : load_before(end) - load_before(first);
    parts->push_back({{index, first, end - first}, load});
  }
}

absl::Status CheckGroup(const PartitionGroup& group, size_t index, int64_t* total) {
  for (size_t i = 0; i < group.size(); ++i) {
    PSD_RETURN_IF_ERROR(AddLoad(group[i].load, NameOf("group", index, i), total));
    if (group[i].rows < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          NameOf("group", index, i), " has a negative number of rows, ", group[i].rows));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> SizesOf(const std::vector<Bucket>& buckets, int64_t* total) {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const int64_t before = *total;
    for (size_t j = 0; j < buckets[i].size(); ++j)
      PSD_RETURN_IF_ERROR(AddLoad(buckets[i][j], NameOf("bucket", i, j), total));
    sizes.push_back(*total - before);
  }
  return sizes;
}

// Gives the pieces of buckets to ranks.
class PieceGiver {
 public:
  PieceGiver(int ranks, const ShardBucketsOptions& options)
      : several_(options.several_pieces_per_rank),
        loads_(static_cast<size_t>(ranks)),
        given_(static_cast<size_t>(ranks)) {}

  absl::Status Give(const BucketPiece& piece, int64_t elements) {
    size_t rank = LeastLoaded(loads_, [&](size_t each) {
      return given_[each].empty() || given_[each].back().bucket != piece.bucket;
    });
    if (rank == loads_.size()) {
      if (!several_) return TooManyPieces(piece);
      rank = LeastLoaded(loads_, [](size_t) { return true; });
    }
    loads_[rank] += elements;
    given_[rank].push_back(piece);
    return absl::OkStatus();
  }
  BucketPartition Take() { return std::move(given_); }

 private:
  absl::Status TooManyPieces(const BucketPiece& piece) const {
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat(
            "bucket ", piece.bucket, " has more than ", loads_.size(),
            " pieces, one for each rank; the next one begins at parameter ", piece.first)),
        "allow several pieces per rank, or make the buckets smaller");
  }

  const bool several_;
  std::vector<int64_t> loads_;
  BucketPartition given_;
};

}  // namespace

absl::StatusOr<Partition> MakePartition(const std::vector<PartitionGroup>& groups, int ranks,
                                        const PartitionOptions& options) {
  PSD_RETURN_IF_ERROR(CheckRanks(ranks));
  Partition partition;
  partition.loads.resize(static_cast<size_t>(ranks));
  partition.parts.assign(static_cast<size_t>(ranks), std::vector<RankGroup>(groups.size()));
  int64_t total = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    PSD_RETURN_IF_ERROR(CheckGroup(groups[g], g, &total));
    std::vector<LoadedPart> parts;
    for (size_t i = 0; i < groups[g].size(); ++i)
      AppendParts(i, groups[g][i], total, ranks, options.cut_huge, &parts);
    std::stable_sort(parts.begin(), parts.end(),
                     [](const LoadedPart& a, const LoadedPart& b) { return a.load > b.load; });
    for (const LoadedPart& part : parts) {
      const size_t rank = LeastLoaded(partition.loads, [](size_t) { return true; });
      partition.loads[rank] += part.load;
      partition.parts[rank][g].push_back(part.part);
    }
  }
  return partition;
}

absl::StatusOr<BucketPartition> WholeBuckets(const std::vector<Bucket>& buckets, int ranks) {
  PSD_RETURN_IF_ERROR(CheckRanks(ranks));
  int64_t total = 0;
  PSD_RETURN_IF_ERROR(SizesOf(buckets, &total));
  BucketPartition given(static_cast<size_t>(ranks));
  for (size_t i = 0; i < buckets.size(); ++i)
    given[i % given.size()].push_back({i, 0, buckets[i].size()});
  return given;
}

absl::StatusOr<BucketPartition> ShardBuckets(const std::vector<Bucket>& buckets, int ranks,
                                             const ShardBucketsOptions& options) {
  PSD_RETURN_IF_ERROR(CheckRanks(ranks));
  int64_t total = 0;
  PSD_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, SizesOf(buckets, &total));
  std::vector<size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] < sizes[b]; });
  PieceGiver giver(ranks, options);
  for (size_t index : order) {
    const Bucket& bucket = buckets[index];
    size_t first = 0;
    int64_t gathered = 0;
    for (size_t j = 0; j < bucket.size(); ++j) {
      // Compares with T = total / ranks without a fraction.
      if (Wide{gathered + bucket[j]} * ranks >= total && j > first) {
        PSD_RETURN_IF_ERROR(giver.Give({index, first, j - first}, gathered));
        first = j;
        gathered = 0;
      }
      gathered += bucket[j];
    }
    if (first < bucket.size())
      PSD_RETURN_IF_ERROR(giver.Give({index, first, bucket.size() - first}, gathered));
  }
  return giver.Take();
}

}  // namespace psd::zero
