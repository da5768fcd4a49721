#pragma once

// Spreads parameters over ranks, or over owners. Pure functions of their arguments: every rank
// computes the same partition without asking the others.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace psd::zero {

// The most ranks, and the largest load of all parameters together.
inline constexpr int kMostRanks = 65'536;
inline constexpr int64_t kMostLoad = int64_t{1} << 60;

// A parameter as the partition sees it.
struct PartitionParameter {
  // The load by which the ranks are balanced. PyTorch's ZeroRedundancyOptimizer uses the number of
  // elements, and also counts frozen parameters. The bytes of optimizer state balance memory
  // instead; a frozen parameter then has load 0.
  int64_t load = 0;
  // The extent of its first axis; 1 for a scalar. With PartitionOptions::cut_huge the parameter may
  // be cut between rows. Every row has an equal share of the load.
  int64_t rows = 1;
};

using PartitionGroup = std::vector<PartitionParameter>;

struct PartitionOptions {
  // If false, a parameter is never split, as in PyTorch, so one that is larger than a rank's fair
  // share makes its rank the fullest. The fair share is the sum of the loads of this group and of
  // those before it, divided by the number of ranks. If true, a parameter whose load exceeds the
  // fair share is first cut by rows into the fewest nearly equal parts that do not exceed it, with
  // at least one row in each.
  bool cut_huge = false;
};

// A parameter, or some rows of it.
struct PartitionPart {
  size_t parameter = 0;  // its index in its group
  int64_t first_row = 0;
  int64_t rows = 0;  // all rows of the parameter, unless it was cut

  friend bool operator==(const PartitionPart& a, const PartitionPart& b) {
    return a.parameter == b.parameter && a.first_row == b.first_row && a.rows == b.rows;
  }
};

// The parts of one group that one rank has, in the order in which they were given to it.
using RankGroup = std::vector<PartitionPart>;

struct Partition {
  std::vector<std::vector<RankGroup>> parts;  // by rank, then by group; a group may be empty
  std::vector<int64_t> loads;                 // by rank
};

// The sorted greedy partition. For each group in order, its parameters are sorted by load, largest
// first, with equal loads in their original order. Each is given to the rank with the least load;
// of several, to the lowest rank. Loads carry over from group to group, so adding a group later
// does not move the earlier ones.
// Errors: INVALID_ARGUMENT for a number of ranks outside of 1 to kMostRanks, a negative load or
// number of rows, and loads above kMostLoad in total, naming the group and the parameter.
absl::StatusOr<Partition> MakePartition(const std::vector<PartitionGroup>& groups, int ranks,
                                        const PartitionOptions& options = {});

// ---- buckets of data parallelism

// A bucket is given by the number of elements of each of its parameters, in order.
using Bucket = std::vector<int64_t>;

// The parameters [first, first + count) of a bucket.
struct BucketPiece {
  size_t bucket = 0;
  size_t first = 0;
  size_t count = 0;

  friend bool operator==(const BucketPiece& a, const BucketPiece& b) {
    return a.bucket == b.bucket && a.first == b.first && a.count == b.count;
  }
};

// The pieces of each rank, in the order in which they were given to it.
using BucketPartition = std::vector<std::vector<BucketPiece>>;

// Gives the whole bucket i to rank i mod `ranks`.
// Errors: INVALID_ARGUMENT as MakePartition.
absl::StatusOr<BucketPartition> WholeBuckets(const std::vector<Bucket>& buckets, int ranks);

struct ShardBucketsOptions {
  // If true, a bucket may be cut into more pieces than there are ranks, and a rank may then have
  // several of them.
  bool several_pieces_per_rank = false;
};

// Cuts buckets into pieces of about the size of a rank's fair share T, which is the number of all
// elements divided by `ranks`. The buckets are taken by size, smallest first, with equal sizes in
// their original order. Within a bucket, parameters are gathered in order; a piece ends before the
// parameter with which it would reach T. Each piece is given to the rank with the least load, the
// lowest of several, among the ranks that have no piece of this bucket yet. No piece spans buckets.
// Errors: INVALID_ARGUMENT as MakePartition; FAILED_PRECONDITION for a bucket that must be cut into
// more pieces than there are ranks, unless the options allow several for each.
absl::StatusOr<BucketPartition> ShardBuckets(const std::vector<Bucket>& buckets, int ranks,
                                             const ShardBucketsOptions& options = {});

}  // namespace psd::zero
