#include "core/device/cuda/nccl_collectives.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/executor.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/nccl.h"

namespace psd::cuda {
namespace {

static_assert(DeviceCollectives::kIdBytes == NCCL_UNIQUE_ID_BYTES);

ncclDataType_t TypeOf(DeviceElement element) {
  switch (element) {
    case DeviceElement::kI32:
      return ncclInt32;
    case DeviceElement::kI64:
      return ncclInt64;
    case DeviceElement::kF16:
      return ncclFloat16;
    case DeviceElement::kBF16:
      return ncclBfloat16;
    case DeviceElement::kF32:
      return ncclFloat32;
    case DeviceElement::kF64:
      return ncclFloat64;
  }
  PSD_CHECK(false, "an unknown element of devices");
}

ncclRedOp_t OperationOf(DeviceReduction reduction) {
  switch (reduction) {
    case DeviceReduction::kSum:
      return ncclSum;
    case DeviceReduction::kMean:
      return ncclAvg;
    case DeviceReduction::kMin:
      return ncclMin;
    case DeviceReduction::kMax:
      return ncclMax;
  }
  PSD_CHECK(false, "an unknown reduction of devices");
}

}  // namespace

// NCCL allows no two calls for one communicator at the same time, so each is made under the lock.
// They do not wait. Only CommAbort, which comes last, waits until the device has left its kernels.
class NcclCollectives::Communicator : public DeviceCommunicator {
 public:
  Communicator(std::shared_ptr<CudaDevice> device, NcclCollectives& owner, CudaStream& stream,
               std::shared_ptr<const Nccl> nccl)
      : device_(std::move(device)), owner_(owner), stream_(stream), nccl_(std::move(nccl)) {}
  ~Communicator() override {
    Abort();
    owner_.GiveStream(&stream_);
  }

  absl::Status Connect(const std::string& id, int rank, int ranks) {
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof(unique));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return Call("ncclCommInitRankConfig", [&]() PSD_NO_THREAD_SAFETY_ANALYSIS {
      return nccl_->CommInitRankConfig(&comm_, ranks, unique, rank, &config);
    });
  }

  Stream& stream() override { return stream_; }

  absl::Status AllReduce(const std::byte* in, std::byte* out, size_t count, DeviceElement element,
                         DeviceReduction reduction) override {
    return Add("ncclAllReduce", [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_->AllReduce(in, out, count, TypeOf(element), OperationOf(reduction), comm,
                              stream);
    });
  }
  absl::Status ReduceScatter(const std::byte* in, std::byte* out, size_t count,
                             DeviceElement element, DeviceReduction reduction) override {
    return Add("ncclReduceScatter", [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_->ReduceScatter(in, out, count, TypeOf(element), OperationOf(reduction), comm,
                                  stream);
    });
  }
  absl::Status AllGather(const std::byte* in, std::byte* out, size_t bytes) override {
    return Add("ncclAllGather", [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_->AllGather(in, out, bytes, ncclUint8, comm, stream);
    });
  }
  absl::Status Gather(const std::byte* in, std::byte* out, size_t bytes, int root) override {
    // Only the root's result is used, but NCCL can be told to refuse null pointers.
    void* const result = out != nullptr ? out : const_cast<std::byte*>(in);
    return Add("ncclGather", [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_->Gather(in, result, bytes, ncclUint8, root, comm, stream);
    });
  }
  absl::Status Broadcast(const std::byte* in, std::byte* out, size_t bytes, int root) override {
    return Add("ncclBroadcast", [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl_->Broadcast(in, out, bytes, ncclUint8, root, comm, stream);
    });
  }

  absl::StatusOr<bool> IsReady() override {
    MutexLock lock(mutex_);
    PSD_RETURN_IF_ERROR(Allowed());
    PSD_RETURN_IF_ERROR(device_->context().Enter());
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_->CommGetAsyncError(comm_, &state);
    PSD_RETURN_IF_ERROR(Check(asked, "ncclCommGetAsyncError"));
    PSD_RETURN_IF_ERROR(Check(state, "work that was added earlier"));
    const bool ready = state == ncclSuccess;
    finished_ |= ready && finishing_;
    return ready;
  }

  absl::Status Finish() override {
    return Call("ncclCommFinalize", [&]() PSD_NO_THREAD_SAFETY_ANALYSIS {
      const ncclResult_t begun = nccl_->CommFinalize(comm_);
      finishing_ = begun == ncclSuccess || begun == ncclInProgress;
      return begun;
    });
  }

  void Abort() override {
    ncclComm_t comm = nullptr;
    bool finished = false;
    {
      MutexLock lock(mutex_);
      aborted_ = true;
      comm = std::exchange(comm_, nullptr);
      finished = finished_;
    }
    // Without the lock, because this may wait for the device. The memory of a lost device's
    // communicator ends with the process.
    const ScopedBlocking blocking;
    if (comm != nullptr && device_->context().Enter().ok())
      finished ? nccl_->CommDestroy(comm) : nccl_->CommAbort(comm);
  }

 private:
  absl::Status Allowed() const PSD_REQUIRES(mutex_) {
    if (!aborted_) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("the communicator of ", device_->name(), " has ended"));
  }

  absl::Status Add(absl::string_view operation,
                   absl::FunctionRef<ncclResult_t(ncclComm_t, cudaStream_t)> add) {
    return Call(operation,
                [&]() PSD_NO_THREAD_SAFETY_ANALYSIS { return add(comm_, stream_.handle()); });
  }

  absl::Status Call(absl::string_view operation, absl::FunctionRef<ncclResult_t()> call) {
    MutexLock lock(mutex_);
    PSD_RETURN_IF_ERROR(Allowed());
    PSD_RETURN_IF_ERROR(device_->context().Enter());
    return Check(call(), operation);
  }

  // NCCL does not say whether the device is lost, so CUDA is asked. Requires: the device is the
  // current one.
  absl::Status Check(ncclResult_t result, absl::string_view operation) PSD_REQUIRES(mutex_) {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    PSD_RETURN_IF_ERROR(device_->context().Probe(stream_.handle(), operation));
    return absl::InternalError(
        absl::StrCat(operation, " failed on ", device_->name(), ": ", nccl_->GetErrorString(result),
                     " (", static_cast<int>(result), "), ", nccl_->GetLastError(comm_)));
  }

  const std::shared_ptr<CudaDevice> device_;  // kept alive by its communicators
  NcclCollectives& owner_;                    // a part of the device
  CudaStream& stream_;
  const std::shared_ptr<const Nccl> nccl_;  // shared with the owner

  Mutex mutex_;  // leaf
  bool aborted_ PSD_GUARDED_BY(mutex_) = false;
  ncclComm_t comm_ PSD_GUARDED_BY(mutex_) = nullptr;
  bool finishing_ PSD_GUARDED_BY(mutex_) = false;
  bool finished_ PSD_GUARDED_BY(mutex_) = false;
};

std::unique_ptr<DeviceCollectives> NewNcclCollectives(CudaDevice& device, std::string file) {
  return std::make_unique<NcclCollectives>(device, std::move(file));
}

NcclCollectives::NcclCollectives(CudaDevice& device, std::string file)
    : device_(device), file_(std::move(file)) {}

NcclCollectives::~NcclCollectives() = default;

absl::StatusOr<std::string> NcclCollectives::Library() {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<const Nccl> nccl, Load());
  return absl::StrCat("NCCL ", NcclVersionText(nccl->version));
}

absl::StatusOr<std::string> NcclCollectives::Identity() {
  CudaContext& context = device_.context();
  PSD_RETURN_IF_ERROR(context.Enter());
  cudaDeviceProp properties = {};
  PSD_RETURN_IF_ERROR(context.Check(cudaGetDeviceProperties(&properties, context.index()),
                                    "cudaGetDeviceProperties"));
  return absl::BytesToHexString(
      absl::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)));
}

absl::StatusOr<std::string> NcclCollectives::NewId() {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<const Nccl> nccl, Load());
  PSD_RETURN_IF_ERROR(device_.context().Enter());
  ncclUniqueId unique;
  const ncclResult_t made = nccl->GetUniqueId(&unique);
  if (made != ncclSuccess)
    return absl::InternalError(absl::StrCat("ncclGetUniqueId failed on ", device_.name(), ": ",
                                            nccl->GetErrorString(made), " (",
                                            static_cast<int>(made), ")"));
  return std::string(unique.internal, sizeof(unique.internal));
}

absl::StatusOr<std::shared_ptr<DeviceCommunicator>> NcclCollectives::Connect(const std::string& id,
                                                                             int rank, int ranks) {
  PSD_CHECK(id.size() == kIdBytes, "the id of a communicator has another size");
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<const Nccl> nccl, Load());
  PSD_ASSIGN_OR_RETURN(CudaStream* const stream, TakeStream());
  const auto communicator =
      std::make_shared<Communicator>(device_.shared_from_this(), *this, *stream, std::move(nccl));
  PSD_RETURN_IF_ERROR(communicator->Connect(id, rank, ranks));
  return communicator;
}

absl::StatusOr<std::shared_ptr<const Nccl>> NcclCollectives::Load() {
  {
    MutexLock lock(mutex_);
    if (nccl_ != nullptr) return nccl_;
  }
  // Two threads may load it at once; then both get the same library.
  PSD_ASSIGN_OR_RETURN(const Nccl loaded, LoadNccl(device_.name(), file_));
  MutexLock lock(mutex_);
  if (nccl_ == nullptr) nccl_ = std::make_shared<const Nccl>(loaded);
  return nccl_;
}

absl::StatusOr<CudaStream*> NcclCollectives::TakeStream() {
  {
    MutexLock lock(mutex_);
    if (!spare_streams_.empty()) {
      CudaStream* const stream = spare_streams_.back();
      spare_streams_.pop_back();
      return stream;
    }
  }
  PSD_ASSIGN_OR_RETURN(Stream* const stream, device_.AddStream());
  return static_cast<CudaStream*>(stream);
}

void NcclCollectives::GiveStream(CudaStream* stream) {
  MutexLock lock(mutex_);
  spare_streams_.push_back(stream);
}

}  // namespace psd::cuda
