#pragma once

// A received message whose buffers lie in memory of its sender.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/sealed_memory.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/lending/note_box.h"
#include "core/carrier/shm/lending/quota.h"

namespace psd::carrier {

// A segment of the other end, mapped for reading. Its mapping is counted in two quotas. Shared by
// the link and the messages that lie in it.
class PeerMapping {
 public:
  // Requires: Take was called on both quotas, which the destructor gives back.
  PeerMapping(MemoryMapping memory, std::shared_ptr<Quota> of_peer,
              std::shared_ptr<Quota> of_carrier);
  ~PeerMapping();
  PeerMapping(const PeerMapping&) = delete;
  PeerMapping& operator=(const PeerMapping&) = delete;

  std::byte* data() const { return memory_.data(); }
  size_t bytes() const { return memory_.size(); }

 private:
  MemoryMapping memory_;
  const std::shared_ptr<Quota> of_peer_;
  const std::shared_ptr<Quota> of_carrier_;
};

// Returns a mapping that `unmapper` removes after its last reference has gone. The thread of the
// last reference may be one that others wait for, and the system needs up to 0.2 s for each GiB.
// If `unmapper` refuses, that thread removes the mapping. Requires: as for PeerMapping.
std::shared_ptr<const PeerMapping> ShareMapping(MemoryMapping memory,
                                                std::shared_ptr<Quota> of_peer,
                                                std::shared_ptr<Quota> of_carrier,
                                                std::shared_ptr<Executor> unmapper);

// Where a lent buffer lies. Null: in the frame.
using Mappings = std::vector<std::shared_ptr<const PeerMapping>>;

// Returns about how many bytes this process needs to keep a lent message of so many buffers,
// besides the message itself.
size_t BorrowingBytes(size_t buffers);

// Replaces those buffers of `message` that were lent by slices of their mappings, with the place
// kForeignPlace. They keep `charge`. When the last of them goes, on any thread, `notes` gets a note
// that the lease is returned. Requires: `mappings` has an entry for each buffer, and the buffers
// lie inside them.
void Borrow(Message& message, uint64_t lease, const std::vector<LentBuffer>& buffers,
            Mappings mappings, MemoryCharge charge, std::shared_ptr<NoteBox> notes);

// Leaves a note that the lease is returned.
void Return(uint64_t lease, NoteBox& notes);

}  // namespace psd::carrier
