// Measures how often the carrier holds a large payload in memory.
//
// The test counts the bytes that go through operator new in this process, and the bytes that the
// receiving carrier's Allocator hands out. operator new is used by psd and by the C++ part of gRPC.
// The core of gRPC allocates its slices with malloc, which is not counted. The Allocator uses
// malloc as well, so its blocks are counted only once.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "core/base/buffer.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "tests/core/carrier/recorder.h"

namespace {
std::atomic<size_t> g_new_bytes{0};

void* CountedNew(size_t bytes) {
  g_new_bytes += bytes;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
}  // namespace

void* operator new(size_t bytes) {
  return CountedNew(bytes);
}
void* operator new[](size_t bytes) {
  return CountedNew(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return CountedNew(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return CountedNew(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace psd::carrier {
namespace {

constexpr size_t kPayloadBytes = size_t{64} << 20;

class CountingAllocator : public Allocator {
 public:
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    ++blocks;
    total_bytes += bytes;
    return heap_->Allocate(bytes);
  }
  std::atomic<size_t> blocks{0};
  std::atomic<size_t> total_bytes{0};

 private:
  const std::shared_ptr<Allocator> heap_ = NewHeapAllocator();
};

std::shared_ptr<Carrier> MakeCarrier(std::shared_ptr<Allocator> allocator) {
  GrpcCarrierOptions options;
  options.allocator = std::move(allocator);
  options.keepalive_time = absl::Seconds(20);
  options.keepalive_timeout = absl::Seconds(20);
  return *NewGrpcCarrier(options);
}

TEST(GrpcCopies, ALargePayloadIsAllocatedOnceByTheReceiverAndNeverByTheSender) {
  auto sending = std::make_shared<CountingAllocator>();
  auto receiving = std::make_shared<CountingAllocator>();
  std::shared_ptr<Carrier> server = MakeCarrier(receiving);
  auto far = std::make_shared<Recorder>();
  auto address = server->Listen("127.0.0.1:0", [far](std::shared_ptr<Link> link) {
    far->SetLink(std::move(link));
    return far;
  });
  ASSERT_TRUE(address.ok()) << address.status();
  std::shared_ptr<Carrier> client = MakeCarrier(sending);
  auto near = std::make_shared<Recorder>();
  auto link = ConnectAndWait(*client, *address, near);
  ASSERT_TRUE(link.ok()) << link.status();

  auto block = NewHeapAllocator()->Allocate(kPayloadBytes);
  ASSERT_TRUE(block.ok());
  Message message;
  message.header = "tensor";
  message.buffers.push_back(Buffer(*block));
  size_t new_before = g_new_bytes;
  ASSERT_TRUE((*link)->Send(std::move(message)).ok());
  ASSERT_TRUE(far->WaitForMessages(1));

  EXPECT_EQ(far->TakeMessages()[0].buffers[0].size(), kPayloadBytes);
  EXPECT_LT(g_new_bytes - new_before, kPayloadBytes / 16)
      << "bytes through operator new, both ends";
  EXPECT_EQ(sending->total_bytes, 0u);
  EXPECT_EQ(receiving->blocks, 1u);
  EXPECT_EQ(receiving->total_bytes, kPayloadBytes);
  client->Shutdown();
  server->Shutdown();
  near->SetLink(nullptr);
  far->SetLink(nullptr);
}

}  // namespace
}  // namespace psd::carrier
