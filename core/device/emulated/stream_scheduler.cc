#include "core/device/emulated/stream_scheduler.h"

#include <algorithm>
#include <utility>

#include "core/base/executor.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/base/tsan.h"
#include "core/device/emulated/quiet_lock.h"

namespace psd::emulated {
namespace {

// The scheduler whose operations or completions this thread runs. Null for all other threads.
thread_local const StreamScheduler* working_for = nullptr;

}  // namespace

absl::StatusOr<QuietPtr<StreamScheduler>> StreamScheduler::Create(uint64_t seed) {
  QuietPtr<StreamScheduler> scheduler(std::shared_ptr<StreamScheduler>(new StreamScheduler(seed)));
  PSD_ASSIGN_OR_RETURN(scheduler->completion_thread_,
                       StartThread("a thread for completions of emulated devices",
                                   [raw = scheduler.get()] { raw->RunCompletions(); }));
  return scheduler;
}

StreamScheduler::StreamScheduler(uint64_t seed) : restless_(seed != 0), random_(seed) {}

StreamScheduler::~StreamScheduler() {
  WaitForAll();
  std::vector<std::thread*> threads = {&completion_thread_};
  {
    QuietLock lock(mutex_);
    stopping_ = true;
    progress_.NotifyAll();
    for (const std::unique_ptr<Queue>& queue : queues_) {
      queue->turn.NotifyAll();
      threads.push_back(&queue->thread);
    }
  }
  for (std::thread* thread : threads)
    if (thread->joinable()) thread->join();
}

absl::StatusOr<uint32_t> StreamScheduler::AddStream() {
  uint32_t stream = 0;
  Queue* queue = nullptr;
  {
    QuietLock lock(mutex_);
    stream = static_cast<uint32_t>(queues_.size());
    queue = queues_.emplace_back(std::make_unique<Queue>()).get();
  }
  // Without its thread the stream stays empty, so nobody waits for it.
  PSD_ASSIGN_OR_RETURN(queue->thread,
                       StartThread("a thread for an emulated stream",
                                   [this, stream, queue] { RunStream(stream, *queue); }));
  return stream;
}

StreamPoint StreamScheduler::Add(uint32_t stream, absl::AnyInvocable<void()> run,
                                 std::vector<StreamPoint> after) {
  auto operation = std::make_unique<Operation>();
  operation->run = std::move(run);
  operation->after = std::move(after);
  PSD_TSAN_RELEASE(operation.get());
  QuietLock lock(mutex_);
  Queue& queue = *queues_[stream];
  for (const StreamPoint& point : operation->after)
    PSD_CHECK(point.position <= queues_[point.stream]->added, "a stream waits for work to come");
  queue.operations.push_back(std::move(operation));
  ++queue.added;
  CountChained();
  Choose();
  return {stream, queue.added};
}

void StreamScheduler::WaitForRoom(uint32_t stream) {
  if (working_for == this) return;
  StreamPoint room{stream, 0};
  {
    QuietLock lock(mutex_);
    const Queue& queue = *queues_[stream];
    if (queue.operations.size() < kMostQueued) return;
    room.position = queue.added - kMostQueued / 2;
  }
  Wait(room);
}

std::vector<StreamPoint> StreamScheduler::Done() const {
  QuietLock lock(mutex_);
  std::vector<StreamPoint> done;
  for (uint32_t stream = 0; stream < queues_.size(); ++stream)
    done.push_back({stream, queues_[stream]->passed});
  return done;
}

size_t StreamScheduler::waiting() const {
  QuietLock lock(mutex_);
  return waiting_;
}

bool StreamScheduler::passed(StreamPoint point) const {
  QuietLock lock(mutex_);
  return HasPassed(point);
}

void StreamScheduler::Demand(StreamPoint point) {
  QuietLock lock(mutex_);
  DemandLocked(point);
}

void StreamScheduler::Wait(StreamPoint point) {
  CheckMayWait();
  if (passed(point)) return;
  const ScopedBlocking blocking;
  QuietLock lock(mutex_);
  WaitLocked(point);
}

void StreamScheduler::WaitForAll() {
  CheckMayWait();
  std::vector<Queue*> queues;
  {
    QuietLock lock(mutex_);
    uint64_t chained = 0;
    do {
      chained = chained_;
      std::vector<StreamPoint> ends;
      for (uint32_t stream = 0; stream < queues_.size(); ++stream) {
        ends.push_back({stream, queues_[stream]->added});
        DemandLocked(ends.back());
      }
      for (const StreamPoint& end : ends) WaitLocked(end);
      WaitForCompletions(next_completion_);
    } while (chained != chained_);
    for (const std::unique_ptr<Queue>& queue : queues_) queues.push_back(queue.get());
  }
  for (Queue* queue : queues) PSD_TSAN_ACQUIRE(queue);
  PSD_TSAN_ACQUIRE(&completions_);
}

void StreamScheduler::WaitForCompletions(uint64_t end) {
  const auto called = [&]() PSD_REQUIRES(mutex_) {
    return (completions_.empty() || completions_.front()->number >= end) &&
           (!completing_.has_value() || *completing_ >= end);
  };
  ++waiting_;
  while (!called()) progress_.Wait(mutex_);
  --waiting_;
}

void StreamScheduler::CountChained() {
  if (working_for == this) ++chained_;
}

void StreamScheduler::OnPassed(StreamPoint point, absl::AnyInvocable<void()> then) {
  auto completion = std::make_unique<Completion>(Completion{0, point, std::move(then)});
  PSD_TSAN_RELEASE(completion.get());
  QuietLock lock(mutex_);
  completion->number = next_completion_++;
  completions_.push_back(std::move(completion));
  CountChained();
  DemandLocked(point);
  progress_.NotifyAll();
}

void StreamScheduler::CallBehind(const std::vector<uint32_t>& streams,
                                 absl::AnyInvocable<void()> then) {
  struct Call {
    size_t left;  // how many streams have not come to their point; for the completion thread
    absl::AnyInvocable<void()> then;
  };
  const QuietPtr<Call> call(std::shared_ptr<Call>(new Call{streams.size(), std::move(then)}));
  // No stream waits for another one here, because that would hide missing events.
  std::vector<StreamPoint> points;
  for (const uint32_t stream : streams)
    points.push_back(Add(stream, [call] { PSD_TSAN_RELEASE(call.get()); }));
  for (const StreamPoint& point : points) {
    OnPassed(point, [call] {
      PSD_TSAN_ACQUIRE(call.get());
      if (--call->left > 0) return;
      // An operation that has ended may still hold the call, but nothing of what it keeps.
      absl::AnyInvocable<void()> now = std::move(call->then);
      now();
    });
  }
}

uint64_t StreamScheduler::Draw() {
  QuietLock lock(mutex_);
  return random_();
}

void StreamScheduler::RunStream(uint32_t stream, Queue& queue) {
  working_for = this;
  while (true) {
    std::unique_ptr<Operation> operation;
    {
      QuietLock lock(mutex_);
      while (turn_ != stream && !stopping_) queue.turn.Wait(mutex_);
      if (turn_ != stream) return;
      operation = std::move(queue.operations.front());
      queue.operations.pop_front();
    }
    PSD_TSAN_ACQUIRE(operation.get());
    operation->run();
    operation.reset();
    PSD_TSAN_RELEASE(&queue);
    QuietLock lock(mutex_);
    ++queue.passed;
    turn_.reset();
    progress_.NotifyAll();
    Choose();
  }
}

void StreamScheduler::RunCompletions() {
  working_for = this;
  while (true) {
    std::unique_ptr<Completion> next;
    {
      QuietLock lock(mutex_);
      while (next == nullptr) {
        auto ready = completions_.begin();
        while (ready != completions_.end() && !HasPassed((*ready)->point)) ++ready;
        if (ready != completions_.end()) {
          next = std::move(*ready);
          completions_.erase(ready);
          completing_ = next->number;
        } else if (stopping_) {
          return;
        } else {
          progress_.Wait(mutex_);
        }
      }
    }
    PSD_TSAN_ACQUIRE(next.get());
    next->then();
    next.reset();
    PSD_TSAN_RELEASE(&completions_);
    QuietLock lock(mutex_);
    completing_.reset();
    progress_.NotifyAll();
  }
}

bool StreamScheduler::HasPassed(StreamPoint point) const {
  return queues_[point.stream]->passed >= point.position;
}

void StreamScheduler::DemandLocked(StreamPoint point) {
  Queue& queue = *queues_[point.stream];
  PSD_CHECK(point.position <= queue.added, "somebody waits for work that was not added");
  queue.demanded = std::max(queue.demanded, point.position);
  Choose();
}

void StreamScheduler::CheckMayWait() const {
  PSD_CHECK(working_for != this,
            "an operation or a completion of an emulated device waits for the device, or drops the "
            "last reference to it");
}

void StreamScheduler::WaitLocked(StreamPoint point) {
  DemandLocked(point);
  ++waiting_;
  while (!HasPassed(point)) progress_.Wait(mutex_);
  --waiting_;
}

void StreamScheduler::Choose() {
  if (turn_.has_value()) return;
  std::vector<bool> seen(queues_.size(), false);
  std::vector<uint32_t> ready;
  for (uint32_t stream = 0; stream < queues_.size(); ++stream)
    if (queues_[stream]->passed < queues_[stream]->demanded) FindNeeded(stream, seen, ready);
  if (ready.empty()) return;
  if (restless_ && random_() % 2 == 0) {
    ready.clear();
    for (uint32_t stream = 0; stream < queues_.size(); ++stream) {
      const Queue& queue = *queues_[stream];
      if (!queue.operations.empty() && !IsBlocked(queue)) ready.push_back(stream);
    }
  }
  turn_ = ready[random_() % ready.size()];
  queues_[*turn_]->turn.NotifyAll();
}

bool StreamScheduler::IsBlocked(const Queue& queue) const {
  for (const StreamPoint& point : queue.operations.front()->after)
    if (!HasPassed(point)) return true;
  return false;
}

void StreamScheduler::FindNeeded(uint32_t stream, std::vector<bool>& seen,
                                 std::vector<uint32_t>& ready) const {
  if (seen[stream]) return;
  seen[stream] = true;
  const Queue& queue = *queues_[stream];
  if (!IsBlocked(queue)) {
    ready.push_back(stream);
    return;
  }
  for (const StreamPoint& point : queue.operations.front()->after)
    if (!HasPassed(point)) FindNeeded(point.stream, seen, ready);
}

}  // namespace psd::emulated
