// An NCCL without GPUs, as a library that a test loads instead of the real one. Its ranks are
// threads of one process. It goes with the fake of CUDA's runtime (fake_cuda.h), which the test
// exports to it (-rdynamic): operations are work of the fake's streams, and an operation of one
// rank is done when those of all ranks have their turn.
//
// It never blocks. A call takes effect only when somebody has asked twice whether it has, so work
// that relies on it too early comes before it in the stream. Sums begin with the last rank, whose
// bits differ from those that psd computes itself.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/device/cuda/fake_cuda.h"

namespace {

using psd::testing::BeginFakeCall;
using psd::testing::IsHeldFakeCall;

enum class Kind { kAllReduce, kReduceScatter, kAllGather, kGather, kBroadcast };

// What one rank gives to an operation.
struct Part {
  Kind kind = Kind::kAllReduce;
  const unsigned char* in = nullptr;
  unsigned char* out = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t reduction = ncclSum;
  int root = 0;

  bool Agrees(const Part& other) const {
    return kind == other.kind && count == other.count && type == other.type &&
           reduction == other.reduction && root == other.root;
  }
};

// One operation of all ranks.
struct Round {
  std::map<int, Part> arrived;  // by rank
  bool done = false;
};

// The ranks of one communicator.
struct Clique {
  int ranks = 0;
  int joined = 0;
  int finalized = 0;
  std::map<size_t, Round> rounds;
};

std::mutex mutex;  // taken under the lock of the fake of CUDA, never the other way round
std::map<std::string, std::shared_ptr<Clique>> cliques;  // by id
int made_ids = 0;

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclFloat64:
      return 8;
    default:
      return 0;  // not known to the fake
  }
}

// The upper half of a float. Rounds towards zero.
struct Bfloat16 {
  Bfloat16(float number) { std::memcpy(this, reinterpret_cast<const char*>(&number) + 2, 2); }
  operator float() const {
    float number = 0;
    std::memcpy(reinterpret_cast<char*>(&number) + 2, this, 2);
    return number;
  }
  uint16_t bits;
};

template <typename T>
void Reduce(const std::map<int, Part>& parts, size_t offset, size_t count, unsigned char* to) {
  const ncclRedOp_t reduction = parts.begin()->second.reduction;
  for (size_t i = 0; i < count; ++i) {
    T result = 0;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      T next = 0;
      std::memcpy(&next, part->second.in + (offset + i) * sizeof(T), sizeof(T));
      if (part == parts.rbegin()) {
        result = next;
      } else if (reduction == ncclMin || reduction == ncclMax) {
        result = (next < result) == (reduction == ncclMin) ? next : result;
      } else {
        result = static_cast<T>(result + next);
      }
    }
    if (reduction == ncclAvg) result = static_cast<T>(result / static_cast<T>(parts.size()));
    std::memcpy(to + i * sizeof(T), &result, sizeof(T));
  }
}

void ReduceAs(const std::map<int, Part>& parts, size_t offset, size_t count, unsigned char* to) {
  switch (parts.begin()->second.type) {
    case ncclInt32:
      return Reduce<int32_t>(parts, offset, count, to);
    case ncclInt64:
      return Reduce<int64_t>(parts, offset, count, to);
    case ncclFloat16:
      return Reduce<_Float16>(parts, offset, count, to);
    case ncclBfloat16:
      return Reduce<Bfloat16>(parts, offset, count, to);
    case ncclFloat32:
      return Reduce<float>(parts, offset, count, to);
    case ncclFloat64:
      return Reduce<double>(parts, offset, count, to);
    default:
      return;
  }
}

// Returns the bytes that the rank gets.
std::vector<unsigned char> ResultOf(const std::map<int, Part>& parts, int rank) {
  const Part& own = parts.at(rank);
  const size_t bytes = own.count * SizeOf(own.type);
  std::vector<unsigned char> result;
  switch (own.kind) {
    case Kind::kAllReduce:
    case Kind::kReduceScatter: {
      result.resize(bytes);
      const size_t skipped =
          own.kind == Kind::kReduceScatter ? own.count * static_cast<size_t>(rank) : 0;
      ReduceAs(parts, skipped, own.count, result.data());
      break;
    }
    case Kind::kGather:
      if (rank != own.root) break;
      [[fallthrough]];
    case Kind::kAllGather:
      for (const auto& [from, part] : parts) result.insert(result.end(), part.in, part.in + bytes);
      break;
    case Kind::kBroadcast:
      result.assign(parts.at(own.root).in, parts.at(own.root).in + bytes);
      break;
  }
  return result;
}

// Ranks that call different things get no sensible result, as with the real library.
void Compute(Round& round) {
  std::map<int, std::vector<unsigned char>> results;
  for (const auto& [rank, part] : round.arrived) {
    if (!part.Agrees(round.arrived.begin()->second)) return;
    results[rank] = ResultOf(round.arrived, rank);
  }
  for (const auto& [rank, bytes] : results)
    if (!bytes.empty()) std::memcpy(round.arrived[rank].out, bytes.data(), bytes.size());
}

}  // namespace

// One rank's handle. Its operations in streams share it.
struct FakeRank {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool aborted = false;
  bool finalizing = false;
  size_t operations = 0;
  int asked = 0;                                      // since the last call
  std::vector<std::function<ncclResult_t()>> to_add;  // to the stream, when asked twice
};
struct ncclComm {
  std::shared_ptr<FakeRank> own;
};

namespace {

ncclResult_t Begin(const char* function) {
  return static_cast<ncclResult_t>(BeginFakeCall(function));
}

// Tries to do the rank's part of an operation.
bool Try(FakeRank& rank, size_t number, const Part& part) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (rank.aborted) return true;
  Round& round = rank.clique->rounds[number];
  round.arrived.emplace(rank.rank, part);
  if (!round.done && static_cast<int>(round.arrived.size()) == rank.clique->ranks) {
    Compute(round);
    round.done = true;
  }
  return round.done;
}

ncclResult_t Add(const char* function, ncclComm_t comm, cudaStream_t stream, const Part& part) {
  const ncclResult_t status = Begin(function);
  if (status != ncclSuccess) return status;
  const std::lock_guard<std::mutex> lock(mutex);
  FakeRank& own = *comm->own;
  if (SizeOf(part.type) == 0 || own.finalizing) return ncclInvalidArgument;
  if (!own.to_add.empty() || own.clique->joined < own.clique->ranks) return ncclInvalidUsage;
  own.asked = 0;
  own.to_add.push_back([own = comm->own, number = own.operations++, part, stream] {
    const int added = psd::testing::AddFakeAttempt(
        stream, [own, number, part] { return Try(*own, number, part); });
    return added == 0 ? ncclSuccess : ncclUnhandledCudaError;
  });
  return ncclInProgress;
}

const unsigned char* Bytes(const void* address) {
  return static_cast<const unsigned char*>(address);
}
unsigned char* Bytes(void* address) {
  return static_cast<unsigned char*>(address);
}

ncclResult_t End(ncclComm_t comm) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (comm->own->aborted) return ncclInvalidArgument;
    comm->own->aborted = true;
    comm->own->to_add.clear();
    // The memory of a rank that is gone may be freed, so nobody reads it any more.
    for (auto& [number, round] : comm->own->clique->rounds)
      if (!round.done) round.arrived.erase(comm->own->rank);
    if (!std::exchange(comm->own->finalizing, true)) ++comm->own->clique->finalized;
  }
  delete comm;
  psd::testing::CountFakeObjects(-1);
  psd::testing::RetryFakeAttempts();
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const int other = BeginFakeCall("ncclGetVersion");
  *version = other != 0 ? other : NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t /*result*/) {
  return "an error of the fake";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return "which says no more";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const ncclResult_t status = Begin("ncclGetUniqueId");
  if (status != ncclSuccess) return status;
  const std::lock_guard<std::mutex> lock(mutex);
  std::memset(id->internal, 0, sizeof(id->internal));
  ++made_ids;
  std::memcpy(id->internal + 64, &made_ids, sizeof(made_ids));
  cliques[std::string(id->internal, sizeof(id->internal))] = std::make_shared<Clique>();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const ncclResult_t status = Begin("ncclCommInitRankConfig");
  if (status != ncclSuccess) return status;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto clique = cliques.find(std::string(id.internal, sizeof(id.internal)));
  if (clique == cliques.end() || rank < 0 || rank >= ranks || config->blocking != 0)
    return ncclInvalidArgument;
  auto own = std::make_shared<FakeRank>();
  own->clique = clique->second;
  own->rank = rank;
  own->clique->ranks = ranks;
  ++own->clique->joined;
  *comm = new ncclComm{std::move(own)};
  psd::testing::CountFakeObjects(1);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = Begin("ncclCommGetAsyncError");
  if (*state != ncclSuccess) return ncclSuccess;
  *state = ncclInProgress;
  if (IsHeldFakeCall("ncclCommGetAsyncError")) return ncclSuccess;
  std::vector<std::function<ncclResult_t()>> to_add;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    FakeRank& own = *comm->own;
    if (own.clique->joined < own.clique->ranks) return ncclSuccess;
    if (own.finalizing && own.clique->finalized < own.clique->ranks) return ncclSuccess;
    if (++own.asked < 2) return ncclSuccess;
    to_add.swap(own.to_add);
  }
  *state = ncclSuccess;
  for (const auto& add : to_add) *state = add();
  psd::testing::RetryFakeAttempts();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const ncclResult_t status = Begin("ncclCommFinalize");
  if (status != ncclSuccess) return status;
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::exchange(comm->own->finalizing, true)) return ncclInvalidUsage;
  ++comm->own->clique->finalized;
  comm->own->asked = 0;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Begin("ncclCommDestroy");
  return End(comm);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Begin("ncclCommAbort");
  return End(comm);
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclAllReduce", comm, stream,
             {Kind::kAllReduce, Bytes(in), Bytes(out), count, type, reduction, 0});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclReduceScatter", comm, stream,
             {Kind::kReduceScatter, Bytes(in), Bytes(out), count, type, reduction, 0});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclAllGather", comm, stream,
             {Kind::kAllGather, Bytes(in), Bytes(out), count, type, ncclSum, 0});
}
ncclResult_t ncclGather(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclGather", comm, stream,
             {Kind::kGather, Bytes(in), Bytes(out), count, type, ncclSum, root});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclBroadcast", comm, stream,
             {Kind::kBroadcast, Bytes(in), Bytes(out), count, type, ncclSum, root});
}

}  // extern "C"
