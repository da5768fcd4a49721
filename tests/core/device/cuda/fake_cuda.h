#pragma once

// A runtime of CUDA without GPUs: it defines the functions of cuda_runtime_api.h that
// core/device/cuda calls. A test links it instead of the real one.
//
// Streams do their work only when somebody waits for it, one operation at a time, so a missing wait
// is a wrong result. Memory that was freed in stream order is filled with kFreed. Copies read their
// source when they run, also memory that is not pinned, as CUDA may do. Pools take a multiple of
// kFakePoolUnit bytes for each block. A call for a stream or an event of a device that is not the
// current one of the thread fails.
//
// fake_cuda_pools.cc is the part of it for pools. fake_cublas_lt.cc is a library for
// products that goes with it, and fake_nccl.cc one for groups.

#include <cstddef>
#include <functional>
#include <string>

struct CUstream_st;  // *cudaStream_t

namespace psd::testing {

inline constexpr unsigned char kFreed = 0xdd;
inline constexpr size_t kFakePoolUnit = 512;

struct FakeMachine {
  int driver_version = 13000;
  int count_error = 0;
  int device_count = 2;
  int major = 9;
  bool has_memory_pools = true;
  int pool_handle_types = 1;              // cudaMemHandleTypePosixFileDescriptor
  size_t memory_bytes = size_t{1} << 20;  // of each device
};

// Starts anew. Requires: no device is open.
void ResetFakeCuda(const FakeMachine& machine = {});

// The memory of each device becomes smaller.
void ShrinkFakeMachine(size_t memory_bytes);

// Lets the next call of `function`, of CUDA, cublasLt or NCCL, return `error` and do nothing.
void FailNextCall(const std::string& function, int error);

// Calls `then`, which calls nothing of CUDA, during the next call of CUDA's `function`.
void DuringNextCall(const std::string& function, std::function<void()> then);

// How often `function`, of cublasLt or NCCL, has been called.
int FakeCalls(const std::string& function);

// Lets the next operation that `device` runs fail. Every call that concerns the device returns
// `error` from then on.
void FailNextOperation(int device, int error);

// How many objects of CUDA exist that were not destroyed: streams, events, pools, and blocks of
// pinned memory. A stream that was destroyed before its work was done counts too.
int LivingFakeObjects();

// How many blocks have been imported and not freed, in stream order.
int LivingFakeImports();

// Adds an operation to a stream of the thread's current device. When its turn comes it is tried
// until `attempt`, which calls nothing of CUDA, returns true; those who wait for the stream wait
// meanwhile. Returns an error of CUDA, or 0.
int AddFakeAttempt(CUstream_st* stream, std::function<bool()> attempt);
// Operations that have returned false are tried again.
void RetryFakeAttempts();

// While NCCL's `function` is held, the fake says that it is under way and does nothing.
void HoldFakeCalls(const std::string& function, bool held);
bool IsHeldFakeCall(const std::string& function);

// For the fakes of libraries. BeginFakeCall counts a call, and returns the error that was asked for
// by FailNextCall, or 0. CountFakeObjects adds to LivingFakeObjects.
int BeginFakeCall(const std::string& function);
void CountFakeObjects(int more);

}  // namespace psd::testing
