#pragma once

// What the files of the fake of fake_cuda.h share.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

struct CUmemPoolHandle_st {
  int device = 0;
  int shared = 0;  // a number if the pool is shareable, or if it was imported; that of its original
  bool imported = false;
  bool read_only = false;
};

namespace psd::testing {

// A block of memory. Aligned as memory of CUDA is.
class FakeBlock {
 public:
  FakeBlock(size_t size, size_t alignment, int device) : size_(size), device_(device) {
    const std::shared_ptr<unsigned char[]> bytes(new unsigned char[size + alignment]);
    begin_ = bytes.get() + alignment - reinterpret_cast<uintptr_t>(bytes.get()) % alignment;
    memory_ = bytes;
  }
  // A block in `memory`, of the pool with the number `pool`.
  FakeBlock(std::shared_ptr<void> memory, unsigned char* begin, size_t size, int device, int pool)
      : memory_(std::move(memory)), begin_(begin), size_(size), device_(device), pool_(pool) {}

  unsigned char* begin() const { return begin_; }
  size_t size() const { return size_; }
  int device() const { return device_; }
  int pool() const { return pool_; }

  bool freed = false;             // in stream order
  int file = -1;                  // the memory file of a block in a shareable pool
  int imports = 0;                // how many imported blocks have its bytes
  FakeBlock* original = nullptr;  // of an imported block

  // Later accesses end the process. For imported blocks.
  void Unmap() { memory_.reset(); }

 private:
  std::shared_ptr<void> memory_;
  unsigned char* begin_ = nullptr;
  size_t size_ = 0;
  int device_ = 0;
  int pool_ = 0;
};

// Calls `act` as `function` of CUDA on the thread's current device, under the lock of the fake,
// unless the function is to fail.
cudaError_t CallFake(const char* function, const std::function<cudaError_t()>& act);

// As CallFake, for an object of `device`, which must be the current one.
cudaError_t CallFakeOn(const char* function, int device, const std::function<cudaError_t()>& act);

// The next three are for `act`. All blocks by address; freed ones stay.
std::map<const void*, FakeBlock>& FakeBlocks();
// Returns a new pool of the thread's current device.
cudaMemPool_t NewFakePool();
// A pool was destroyed.
void EndFakePool();

// Returns a block of `size` bytes of a shareable pool.
FakeBlock NewSharedFakeBlock(size_t size, int device, int pool);

}  // namespace psd::testing
