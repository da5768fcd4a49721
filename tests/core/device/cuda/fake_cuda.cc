#include "tests/core/device/cuda/fake_cuda.h"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/core/device/cuda/fake_cuda_state.h"

// An operation of a stream is a function, a wait for a point in the work of another stream, or an
// attempt, which is repeated until it returns true.
struct Operation {
  std::function<void()> run;
  CUstream_st* other = nullptr;
  size_t position = 0;
  std::function<bool()> attempt = nullptr;
};
struct CUstream_st {
  int device = 0;
  std::vector<Operation> operations;
  size_t done = 0;
};
struct CUevent_st {
  int device = 0;
  CUstream_st* stream = nullptr;
  size_t position = 0;
};

namespace psd::testing {
namespace {

struct FakeDevice {
  cudaError_t sticky = cudaSuccess;
  cudaError_t fails_next = cudaSuccess;
  size_t used_bytes = 0;  // in stream order
};

size_t PoolBytes(size_t bytes) {
  return (bytes + kFakePoolUnit - 1) / kFakePoolUnit * kFakePoolUnit;
}

std::mutex mutex;
FakeMachine machine;
std::map<int, FakeDevice> devices;
std::map<std::string, int> fails_next_call;
std::map<std::string, std::function<void()>> during_next_call;
std::map<std::string, int> calls;  // of the libraries
std::set<std::string> held;        // functions of NCCL
// An operation was done, or may succeed now. Used with `mutex`.
std::condition_variable_any moved;
// Freed ones stay, so that no address is used twice.
std::map<const void*, FakeBlock> blocks;
std::map<const void*, FakeBlock> pinned;
// Objects stay until the next ResetFakeCuda, because a lost device's are never destroyed.
std::vector<std::unique_ptr<CUstream_st>> streams;
std::vector<std::unique_ptr<CUevent_st>> events;
std::vector<std::unique_ptr<CUmemPoolHandle_st>> pools;
int living = 0;
thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t Returned(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Returns the error that the call of `function` is to return; 0 for none.
int TakeFault(const std::string& function) {
  const auto fault = fails_next_call.find(function);
  if (fault == fails_next_call.end()) return 0;
  const int error = fault->second;
  fails_next_call.erase(fault);
  return error;
}

// Calls `act`, which returns an error, unless `function` is to fail or the device is lost.
template <typename Act>
cudaError_t Call(const char* function, int device, const Act& act) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto asked = during_next_call.extract(function)) asked.mapped()();
  if (const int error = TakeFault(function); error != 0)
    return Returned(static_cast<cudaError_t>(error));
  if (devices[device].sticky != cudaSuccess) return Returned(devices[device].sticky);
  return Returned(act());
}
// As Call, for a stream or event of `device`, which must be the current one.
template <typename Act>
cudaError_t CallOn(const char* function, int device, const Act& act) {
  return Call(function, device,
              [&] { return device == current ? act() : cudaErrorInvalidResourceHandle; });
}

bool RunTo(CUstream_st* stream, size_t position);

// Returns false if the operation cannot be done yet.
bool RunOne(CUstream_st* stream) {
  const Operation operation = stream->operations[stream->done];
  if (operation.other != nullptr) {
    if (!RunTo(operation.other, operation.position)) return false;
  } else if (FakeDevice& device = devices[stream->device]; device.fails_next != cudaSuccess) {
    device.sticky = device.fails_next;
  } else if (device.sticky == cudaSuccess && operation.attempt) {
    if (!operation.attempt()) return false;
  } else if (device.sticky == cudaSuccess) {
    operation.run();
  }
  ++stream->done;
  moved.notify_all();
  return true;
}

bool RunTo(CUstream_st* stream, size_t position) {
  while (stream->done < position)
    if (!RunOne(stream)) return false;
  return true;
}

void Append(CUstream_st* stream, std::function<void()> run) {
  stream->operations.push_back({std::move(run), nullptr, 0, nullptr});
}

// Releases the lock while it waits for another stream's operation.
cudaError_t WaitFor(CUstream_st* stream, size_t position) {
  while (!RunTo(stream, position)) moved.wait(mutex);
  return devices[stream->device].sticky;
}

cudaError_t Copy(void* to, const void* from, size_t bytes, CUstream_st* stream) {
  Append(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

void FreeInStreamOrder(FakeBlock& block) {
  block.freed = true;
  if (block.original != nullptr) {
    --block.original->imports;
    block.Unmap();
    return;
  }
  std::memset(block.begin(), kFreed, block.size());
  devices[block.device()].used_bytes -= PoolBytes(block.size());
}

}  // namespace

cudaError_t CallFake(const char* function, const std::function<cudaError_t()>& act) {
  return Call(function, current, act);
}

cudaError_t CallFakeOn(const char* function, int device, const std::function<cudaError_t()>& act) {
  return CallOn(function, device, act);
}

std::map<const void*, FakeBlock>& FakeBlocks() {
  return blocks;
}

cudaMemPool_t NewFakePool() {
  pools.push_back(std::make_unique<CUmemPoolHandle_st>());
  pools.back()->device = current;
  ++living;
  return pools.back().get();
}

void EndFakePool() {
  --living;
}

void ResetFakeCuda(const FakeMachine& next) {
  const std::lock_guard<std::mutex> lock(mutex);
  machine = next;
  devices.clear();
  fails_next_call.clear();
  during_next_call.clear();
  calls.clear();
  held.clear();
  blocks.clear();
  pinned.clear();
  streams.clear();
  events.clear();
  pools.clear();
  living = 0;
}

void ShrinkFakeMachine(size_t memory_bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  machine.memory_bytes = memory_bytes;
}

void FailNextCall(const std::string& function, int error) {
  const std::lock_guard<std::mutex> lock(mutex);
  fails_next_call[function] = error;
}

void DuringNextCall(const std::string& function, std::function<void()> then) {
  const std::lock_guard<std::mutex> lock(mutex);
  during_next_call[function] = std::move(then);
}

int FakeCalls(const std::string& function) {
  const std::lock_guard<std::mutex> lock(mutex);
  return calls[function];
}

int BeginFakeCall(const std::string& function) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++calls[function];
  return TakeFault(function);
}

int AddFakeAttempt(CUstream_st* stream, std::function<bool()> attempt) {
  return CallOn("an attempt", stream->device, [&] {
    Operation operation;
    operation.attempt = std::move(attempt);
    stream->operations.push_back(std::move(operation));
    return cudaSuccess;
  });
}

void RetryFakeAttempts() {
  const std::lock_guard<std::mutex> lock(mutex);
  moved.notify_all();
}

void HoldFakeCalls(const std::string& function, bool hold) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (hold) held.insert(function);
  if (!hold) held.erase(function);
}

bool IsHeldFakeCall(const std::string& function) {
  const std::lock_guard<std::mutex> lock(mutex);
  return held.count(function) > 0;
}

void CountFakeObjects(int more) {
  const std::lock_guard<std::mutex> lock(mutex);
  living += more;
}

void FailNextOperation(int device, int error) {
  const std::lock_guard<std::mutex> lock(mutex);
  devices[device].fails_next = static_cast<cudaError_t>(error);
}

int LivingFakeObjects() {
  const std::lock_guard<std::mutex> lock(mutex);
  return living;
}

}  // namespace psd::testing

namespace fake = psd::testing;

extern "C" {

const char* cudaGetErrorName(cudaError_t /*error*/) {
  return "cudaErrorOfTheFake";
}
const char* cudaGetErrorString(cudaError_t /*error*/) {
  return "an error of the fake";
}
cudaError_t cudaGetLastError() {
  return std::exchange(fake::last_error, cudaSuccess);
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = fake::machine.driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::machine.device_count;
  return fake::Returned(static_cast<cudaError_t>(fake::machine.count_error));
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? fake::machine.major
           : attribute == cudaDevAttrMemoryPoolsSupported ? fake::machine.has_memory_pools
           : attribute == cudaDevAttrMemoryPoolSupportedHandleTypes
               ? fake::machine.pool_handle_types
               : 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return fake::Call("cudaGetDeviceProperties", device, [&] {
    std::memset(properties->uuid.bytes, 0x10 + device, sizeof(properties->uuid.bytes));
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return fake::Call("cudaSetDevice", device, [&] {
    fake::current = device;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return fake::Call("cudaDeviceSynchronize", fake::current, [] {
    for (size_t i = 0; i < fake::streams.size(); ++i) {
      CUstream_st* const stream = fake::streams[i].get();
      if (stream->device == fake::current) fake::WaitFor(stream, stream->operations.size());
    }
    return fake::devices[fake::current].sticky;
  });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return fake::Call("cudaMemGetInfo", fake::current, [&] {
    *total = fake::machine.memory_bytes;
    *free = *total - fake::devices[fake::current].used_bytes;
    return cudaSuccess;
  });
}

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return fake::Call("cudaStreamCreateWithFlags", fake::current, [&] {
    fake::streams.push_back(std::make_unique<CUstream_st>());
    *stream = fake::streams.back().get();
    (*stream)->device = fake::current;
    ++fake::living;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return fake::CallOn("cudaStreamDestroy", stream->device, [&] {
    if (stream->done == stream->operations.size()) --fake::living;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return fake::CallOn("cudaStreamQuery", stream->device, [&] {
    return stream->done < stream->operations.size() ? cudaErrorNotReady : cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return fake::CallOn("cudaStreamSynchronize", stream->device,
                      [&] { return fake::WaitFor(stream, stream->operations.size()); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return fake::CallOn("cudaStreamWaitEvent", stream->device, [&] {
    const cudaError_t other = fake::devices[event->device].sticky;
    if (other != cudaSuccess) return other;
    stream->operations.push_back({nullptr, event->stream, event->position, nullptr});
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return fake::Call("cudaEventCreateWithFlags", fake::current, [&] {
    fake::events.push_back(std::make_unique<CUevent_st>());
    *event = fake::events.back().get();
    (*event)->device = fake::current;
    ++fake::living;
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return fake::CallOn("cudaEventDestroy", event->device, [] {
    --fake::living;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return fake::CallOn("cudaEventRecord", stream->device, [&] {
    if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
    event->stream = stream;
    event->position = stream->operations.size();
    return cudaSuccess;
  });
}
// A thread that asks again and again sees the event pass.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return fake::CallOn("cudaEventQuery", event->device, [&] {
    if (event->stream->done >= event->position) return fake::devices[event->device].sticky;
    fake::RunOne(event->stream);  // if it can be done
    return cudaErrorNotReady;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return fake::CallOn("cudaEventSynchronize", event->device,
                      [&] { return fake::WaitFor(event->stream, event->position); });
}

// As CUDA, the function calls nothing of CUDA.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return fake::CallOn("cudaLaunchHostFunc", stream->device, [&] {
    fake::Append(stream, [=] { function(argument); });
    return cudaSuccess;
  });
}

// ---- memory

cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return fake::CallOn("cudaMallocFromPoolAsync", stream->device, [&] {
    fake::FakeDevice& device = fake::devices[stream->device];
    if (pool->device != stream->device || pool->imported) return cudaErrorInvalidValue;
    if (device.used_bytes + fake::PoolBytes(bytes) > fake::machine.memory_bytes)
      return cudaErrorMemoryAllocation;
    device.used_bytes += fake::PoolBytes(bytes);
    fake::FakeBlock block = pool->shared != 0
                                ? fake::NewSharedFakeBlock(bytes, stream->device, pool->shared)
                                : fake::FakeBlock(bytes, fake::kFakePoolUnit, stream->device);
    *address = block.begin();
    fake::blocks.insert_or_assign(*address, std::move(block));
    return cudaSuccess;
  });
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return fake::CallOn("cudaFreeAsync", stream->device, [&] {
    const auto found = fake::blocks.find(address);
    if (found == fake::blocks.end()) return cudaErrorInvalidValue;
    fake::Append(stream, [&block = found->second] { fake::FreeInStreamOrder(block); });
    return cudaSuccess;
  });
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned /*flags*/) {
  return fake::Call("cudaHostAlloc", fake::current, [&] {
    fake::FakeBlock block(bytes, 4096, fake::current);
    *address = block.begin();
    fake::pinned.emplace(*address, std::move(block));
    ++fake::living;
    return cudaSuccess;
  });
}
cudaError_t cudaFreeHost(void* address) {
  return fake::Call("cudaFreeHost", fake::current, [&] {
    if (fake::pinned.erase(address) == 0) return cudaErrorInvalidValue;
    --fake::living;
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  return fake::CallOn("cudaMemcpyAsync", stream->device,
                      [&] { return fake::Copy(to, from, bytes, stream); });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int /*to_device*/, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  return fake::CallOn("cudaMemcpyPeerAsync", stream->device, [&] {
    const cudaError_t other = fake::devices[from_device].sticky;
    return other != cudaSuccess ? other : fake::Copy(to, from, bytes, stream);
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return fake::CallOn("cudaMemsetAsync", stream->device, [&] {
    fake::Append(stream, [=] { std::memset(to, value, bytes); });
    return cudaSuccess;
  });
}

}  // extern "C"
