// The part of the fake of fake_cuda.h in which pools are made and shared. Blocks of a shareable
// pool are in memory files, and an import maps such a file again, so an imported block has an
// address of its own. A process can import its own pool here, and so be both sides.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/core/device/cuda/fake_cuda.h"
#include "tests/core/device/cuda/fake_cuda_state.h"

namespace psd::testing {
namespace {

// What the descriptor of a pool holds.
struct PoolFile {
  char magic[8] = {'f', 'a', 'k', 'e', 'p', 'o', 'o', 'l'};
  int pool = 0;
};
// What CUDA exports of a block.
struct BlockName {
  char magic[8] = {'f', 'a', 'k', 'e', 'b', 'l', 'o', 'k'};
  const void* address = nullptr;
};
static_assert(sizeof(BlockName) <= sizeof(cudaMemPoolPtrExportData));

std::shared_ptr<void> MapFakeFile(int file, size_t bytes, int protection) {
  void* const memory = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::abort();
  return std::shared_ptr<void>(memory, [bytes](void* mapped) { munmap(mapped, bytes); });
}

}  // namespace

FakeBlock NewSharedFakeBlock(size_t size, int device, int pool) {
  const int file = memfd_create("fake block", MFD_CLOEXEC);
  if (ftruncate(file, static_cast<off_t>(size)) != 0) std::abort();
  const std::shared_ptr<void> mapped = MapFakeFile(file, size, PROT_READ | PROT_WRITE);
  std::shared_ptr<void> memory(mapped.get(), [mapped, file](void*) { close(file); });
  auto* const begin = static_cast<unsigned char*>(memory.get());
  FakeBlock block(std::move(memory), begin, size, device, pool);
  block.file = file;
  return block;
}

int LivingFakeImports() {
  int imports = 0;
  CallFake("a look at the imports", [&] {
    for (const auto& [address, block] : FakeBlocks()) imports += block.imports;
    return cudaSuccess;
  });
  return imports;
}

}  // namespace psd::testing

namespace fake = psd::testing;

extern "C" {

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  return fake::CallFakeOn("cudaMemPoolCreate", properties->location.id, [&] {
    static int shared_pools = 0;
    *pool = fake::NewFakePool();
    if (properties->handleTypes == cudaMemHandleTypePosixFileDescriptor)
      (*pool)->shared = ++shared_pools;
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return fake::CallFakeOn("cudaMemPoolDestroy", pool->device, [] {
    fake::EndFakePool();
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr /*attribute*/,
                                    void* /*value*/) {
  return fake::CallFakeOn("cudaMemPoolSetAttribute", pool->device, [] { return cudaSuccess; });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t /*bytes*/) {
  return fake::CallFakeOn("cudaMemPoolTrimTo", pool->device, [] { return cudaSuccess; });
}

// ---- sharing

cudaError_t cudaMemPoolExportToShareableHandle(void* handle, cudaMemPool_t pool,
                                               cudaMemAllocationHandleType type, unsigned flags) {
  return fake::CallFakeOn("cudaMemPoolExportToShareableHandle", pool->device, [&] {
    if (pool->shared == 0 || pool->imported || flags != 0 ||
        type != cudaMemHandleTypePosixFileDescriptor)
      return cudaErrorInvalidValue;
    const int file = memfd_create("fake pool", MFD_CLOEXEC);
    fake::PoolFile content;
    content.pool = pool->shared;
    if (write(file, &content, sizeof(content)) != sizeof(content)) return cudaErrorMemoryAllocation;
    *static_cast<int*>(handle) = file;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t* pool, void* handle,
                                                 cudaMemAllocationHandleType type, unsigned flags) {
  return fake::CallFake("cudaMemPoolImportFromShareableHandle", [&] {
    const auto file = static_cast<int>(reinterpret_cast<uintptr_t>(handle));
    fake::PoolFile content;
    content.magic[0] = 0;
    if (type != cudaMemHandleTypePosixFileDescriptor || flags != 0 ||
        pread(file, &content, sizeof(content), 0) != sizeof(content) ||
        std::memcmp(content.magic, fake::PoolFile().magic, sizeof(content.magic)) != 0)
      return cudaErrorInvalidValue;
    *pool = fake::NewFakePool();
    (*pool)->shared = content.pool;
    (*pool)->imported = true;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* accesses,
                                 size_t count) {
  return fake::CallFakeOn("cudaMemPoolSetAccess", pool->device, [&] {
    if (count != 1 || accesses->location.type != cudaMemLocationTypeDevice ||
        accesses->location.id != pool->device)
      return cudaErrorInvalidValue;
    pool->read_only = accesses->flags == cudaMemAccessFlagsProtRead;
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolExportPointer(cudaMemPoolPtrExportData* data, void* address) {
  return fake::CallFake("cudaMemPoolExportPointer", [&] {
    const auto found = fake::FakeBlocks().find(address);
    if (found == fake::FakeBlocks().end() || found->second.pool() == 0 || found->second.freed)
      return cudaErrorInvalidValue;
    fake::BlockName name;
    name.address = address;
    std::memset(data->reserved, 0, sizeof(data->reserved));
    std::memcpy(data->reserved, &name, sizeof(name));
    return cudaSuccess;
  });
}

// CUDA does not say what a second import of a block does before the first one is freed. Here it is
// an error.
cudaError_t cudaMemPoolImportPointer(void** address, cudaMemPool_t pool,
                                     cudaMemPoolPtrExportData* data) {
  return fake::CallFakeOn("cudaMemPoolImportPointer", pool->device, [&] {
    fake::BlockName name;
    std::memcpy(&name, data->reserved, sizeof(name));
    const auto found = fake::FakeBlocks().find(name.address);
    if (std::memcmp(name.magic, fake::BlockName().magic, sizeof(name.magic)) != 0 ||
        found == fake::FakeBlocks().end())
      return cudaErrorInvalidValue;
    fake::FakeBlock& original = found->second;
    if (!pool->imported || original.pool() != pool->shared || original.file < 0 || original.freed ||
        original.imports > 0)
      return cudaErrorInvalidValue;
    std::shared_ptr<void> memory = fake::MapFakeFile(
        original.file, original.size(), pool->read_only ? PROT_READ : PROT_READ | PROT_WRITE);
    *address = memory.get();
    auto* const begin = static_cast<unsigned char*>(*address);
    fake::FakeBlock imported(std::move(memory), begin, original.size(), pool->device,
                             original.pool());
    imported.original = &original;
    ++original.imports;
    fake::FakeBlocks().insert_or_assign(*address, std::move(imported));
    return cudaSuccess;
  });
}

}  // extern "C"
