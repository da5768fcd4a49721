#include "core/carrier/shm/lending/borrowed_message.h"

#include <deque>
#include <utility>

namespace psd::carrier {
namespace {

class ForeignBlock : public Block {
 public:
  ForeignBlock(std::byte* data, size_t size) : Block(data, size, kForeignPlace) {}
};

// What the buffers of one message keep alive together.
class Lease {
 public:
  Lease(uint64_t id, Mappings mappings, MemoryCharge charge, std::shared_ptr<NoteBox> notes)
      : charge_(std::move(charge)),
        note_(std::make_unique<Note>(Note{Note::Kind::kReturned, id})),
        mappings_(std::move(mappings)),
        notes_(std::move(notes)) {}
  ~Lease() {
    mappings_.clear();
    notes_->Leave(std::move(note_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const Block* AddBlock(size_t buffer, const LentBuffer& lent) {
    return &blocks_.emplace_back(mappings_[buffer]->data() + lent.offset, lent.bytes);
  }

 private:
  const MemoryCharge charge_;  // for all of this
  std::unique_ptr<Note> note_;
  Mappings mappings_;
  std::deque<ForeignBlock> blocks_;       // never moved
  const std::shared_ptr<NoteBox> notes_;  // shared with the link
};

}  // namespace

PeerMapping::PeerMapping(MemoryMapping memory, std::shared_ptr<Quota> of_peer,
                         std::shared_ptr<Quota> of_carrier)
    : memory_(std::move(memory)),
      of_peer_(std::move(of_peer)),
      of_carrier_(std::move(of_carrier)) {}

PeerMapping::~PeerMapping() {
  const size_t bytes = memory_.size();
  memory_ = MemoryMapping();
  of_peer_->Give(bytes);
  of_carrier_->Give(bytes);
}

std::shared_ptr<const PeerMapping> ShareMapping(MemoryMapping memory,
                                                std::shared_ptr<Quota> of_peer,
                                                std::shared_ptr<Quota> of_carrier,
                                                std::shared_ptr<Executor> unmapper) {
  auto mapping = std::make_unique<const PeerMapping>(std::move(memory), std::move(of_peer),
                                                     std::move(of_carrier));
  return {mapping.release(), [unmapper = std::move(unmapper)](const PeerMapping* last) {
            auto owned = std::unique_ptr<const PeerMapping>(last);
            unmapper->Submit([owned = std::move(owned)]() mutable { owned.reset(); }).IgnoreError();
          }};
}

size_t BorrowingBytes(size_t buffers) {
  return buffers * (sizeof(LentBuffer) + sizeof(Mappings::value_type) + sizeof(ForeignBlock));
}

void Borrow(Message& message, uint64_t lease, const std::vector<LentBuffer>& buffers,
            Mappings mappings, MemoryCharge charge, std::shared_ptr<NoteBox> notes) {
  const auto shared =
      std::make_shared<Lease>(lease, std::move(mappings), std::move(charge), std::move(notes));
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].segment == 0) continue;
    const Block* const block = shared->AddBlock(i, buffers[i]);
    message.buffers[i] = Buffer(shared, block->data(), block->size(), block);
  }
}

void Return(uint64_t lease, NoteBox& notes) {
  notes.Leave(std::make_unique<Note>(Note{Note::Kind::kReturned, lease}));
}

}  // namespace psd::carrier
