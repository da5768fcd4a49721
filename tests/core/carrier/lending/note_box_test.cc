#include "core/carrier/shm/lending/note_box.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "core/carrier/shm/lending/borrowed_message.h"

namespace psd::carrier {
namespace {

// Takes the notes when the poller calls.
class Taker : public Watched {
 public:
  explicit Taker(NoteBox& box) : box_(box) {}
  bool OnWake(bool) override { return false; }
  void OnCall() override {
    const NoteBox::Notes notes = box_.TakeAll();
    for (const uint64_t lease : notes.returned) sum += lease;
    taken += static_cast<int>(notes.returned.size());
  }
  Look OnLook(bool) override { return Look::kAsleep; }
  bool IsCalled() const override { return !box_.empty(); }

  std::atomic<int> taken{0};
  std::atomic<uint64_t> sum{0};

 private:
  NoteBox& box_;
};

TEST(NoteBox, EveryNoteWakesThePollerOrIsTakenWithTheOneBefore) {
  constexpr int kThreads = 3;
  constexpr int kEach = 20'000;
  auto poller = *ShmPoller::Create("a test");
  NoteBox box(poller->bell());
  const auto taker = std::make_shared<Taker>(box);
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd first(sockets[0]);
  const UniqueFd second(sockets[1]);
  ASSERT_TRUE(poller->Add(first.get(), taker).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 1; i <= kEach; ++i) {
        Return(static_cast<uint64_t>(i), box);
        if (i % 64 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Nothing else wakes the poller.
  while (taker->taken < kThreads * kEach) std::this_thread::yield();
  EXPECT_EQ(taker->sum, uint64_t{kThreads} * kEach * (kEach + 1) / 2);
  EXPECT_TRUE(box.empty());
  poller->Stop();
}

TEST(NoteBox, NotesTellLeasesFromSegmentsAndMayOutliveThePoller) {
  auto poller = *ShmPoller::Create("a test");
  NoteBox box(poller->bell());
  poller.reset();
  Return(7, box);
  box.Gone(8);
  Return(9, box);
  NoteBox::Notes notes = box.TakeAll();
  std::sort(notes.returned.begin(), notes.returned.end());
  EXPECT_EQ(notes.returned, (std::vector<uint64_t>{7, 9}));
  EXPECT_EQ(notes.gone, (std::vector<uint64_t>{8}));
  EXPECT_TRUE(box.empty());
  Return(10, box);  // freed with the box
}

}  // namespace
}  // namespace psd::carrier
