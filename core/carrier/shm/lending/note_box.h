#pragma once

// Notes for the thread of a link, from threads that may hold any lock.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/shared_segment.h"
#include "core/carrier/shm/poller.h"

namespace psd::carrier {

// Says that a lease has ended, or that a segment of this process is gone.
struct Note {
  enum class Kind { kReturned, kGone };
  Kind kind = Kind::kReturned;
  uint64_t id = 0;  // of the lease or the segment
  Note* next = nullptr;
};

// Collects notes until a thread of the link takes them. Shared by the link and the leases that it
// has received, which may outlive it. Thread-safe; leaving a note takes no lock and does not wait.
class NoteBox : public SegmentWatcher {
 public:
  // `bell` wakes the poller of the link.
  explicit NoteBox(std::shared_ptr<PollerBell> bell) : bell_(std::move(bell)) {}
  ~NoteBox() override;
  NoteBox(const NoteBox&) = delete;
  NoteBox& operator=(const NoteBox&) = delete;

  void Leave(std::unique_ptr<Note> note);
  void Gone(uint64_t segment) override;

  bool empty() const { return last_.load(std::memory_order_relaxed) == nullptr; }

  struct Notes {
    std::vector<uint64_t> returned;  // leases
    std::vector<uint64_t> gone;      // segments
  };
  Notes TakeAll();

 private:
  const std::shared_ptr<PollerBell> bell_;  // shared with the poller
  std::atomic<Note*> last_{nullptr};        // owned; each note points to the one before it
};

}  // namespace psd::carrier
