// Large messages of several links that share a small budget. A BulkQueue sends to an Assembler over
// streams, each of which may be left unread.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/assembler.h"
#include "core/carrier/bulk_queue.h"
#include "core/carrier/frame.h"
#include "core/carrier/waiting_line.h"

namespace psd::carrier {
namespace {

constexpr size_t kPiece = kMinPieceBytes;
constexpr size_t kStreams = 4;
constexpr size_t kMessages = 30;  // of each link
constexpr absl::Time kNow = absl::UnixEpoch();

size_t Draw(std::mt19937& random, size_t least, size_t most) {
  return std::uniform_int_distribution<size_t>(least, most)(random);
}

// One link, whose sender and receiver take small steps. No part is faster than another: the next
// step is drawn at random.
class SimulatedLink {
 public:
  SimulatedLink(const Buffer& bytes, const MemoryBudget& budget, const WaitingRules& rules,
                std::mt19937& random)
      : random_(random),
        bytes_(bytes),
        assembler_(Limits(), {budget.transit(), budget.transit()}, budget.essential(), rules) {
    queue_.set_peer_assembly_bytes(size_t{1} << 30);
    for (size_t i = 0; i < kMessages; ++i) {
      Message message;
      // The size is a few pieces, or nearly all memory.
      const size_t size = Draw(random, 0, 1) == 0
                              ? Draw(random, kPiece + 1, 4 * kPiece)
                              : Draw(random, bytes.size() / 16 * 15, bytes.size());
      message.buffers.push_back(bytes.Slice(0, size));
      queue_.Add(std::move(message));
    }
  }

  bool done() const { return arrived_ == kMessages && held_.empty(); }
  // Returns whether anything happened.
  bool Step() {
    const size_t stream = Draw(random_, 0, kStreams - 1);
    switch (Draw(random_, 0, 3)) {
      case 0:
        return Send(stream);
      case 1:
        return Receive(stream);
      case 2:
        return Hear();
      default:
        if (held_.empty()) return false;
        held_.pop_front();
        return true;
    }
  }

 private:
  // A connection holds two pieces.
  bool Send(size_t stream) {
    if (streams_[stream].size() >= 2) return false;
    auto piece = queue_.Next(stream);
    if (!piece.has_value()) return false;
    streams_[stream].push_back(*std::move(piece));
    return true;
  }
  bool Receive(size_t stream) {
    if (streams_[stream].empty()) return false;
    const BulkQueue::Piece& piece = streams_[stream].front();
    if (piece.announce) {
      EXPECT_TRUE(
          assembler_.OnAnnounce({piece.transfer, piece.piece_bytes, ShapeOf(*piece.message)}).ok());
    }
    const auto room = assembler_.FindRoom(piece.transfer, kNow);
    EXPECT_TRUE(room.ok()) << room.status();
    if (*room == Assembler::Room::kNone) return false;
    if (*room == Assembler::Room::kFound) words_.push_back({piece.transfer, /*room=*/true});
    const absl::string_view payload = bytes_.view().substr(0, piece.bytes);
    auto slot = assembler_.BeginPiece(
        {piece.transfer, piece.cursor.offset, ByteReader(absl::MakeConstSpan(&payload, 1))});
    EXPECT_TRUE(slot.ok()) << slot.status();
    slot->Fill();
    auto whole = assembler_.EndPiece(*slot);
    if (whole.has_value()) {
      EXPECT_TRUE(whole->refused.ok()) << whole->refused;
      words_.push_back({piece.transfer, /*room=*/false});
      held_.push_back(std::move(whole->message));
      ++arrived_;
    }
    streams_[stream].pop_front();
    return true;
  }
  bool Hear() {
    if (words_.empty()) return false;
    const Word word = words_.front();
    words_.pop_front();
    EXPECT_TRUE((word.room ? queue_.OnRoom(word.transfer) : queue_.OnAck(word.transfer)).ok());
    return true;
  }

  struct Word {
    uint64_t transfer;
    bool room;  // otherwise it is an acknowledgement
  };

  std::mt19937& random_;
  const Buffer bytes_;
  BulkQueue queue_{kPiece};
  std::deque<BulkQueue::Piece> streams_[kStreams];
  Assembler assembler_;
  std::deque<Word> words_;  // on their way to the sender
  std::deque<Message> held_;
  size_t arrived_ = 0;
};

TEST(MixedTransfers, NoOneWaitsForEver) {
  const auto budget = MemoryBudget::Create(size_t{4} << 20);
  const size_t largest = budget->transit()->limit_bytes() - (size_t{1} << 10);
  const Buffer bytes = Buffer::FromString(std::string(largest, 'x'));
  for (unsigned seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    const WaitingRules rules{std::make_shared<WaitingLine>(), absl::InfiniteDuration()};
    std::vector<std::unique_ptr<SimulatedLink>> links;
    for (unsigned i = 0; i <= seed % 3; ++i)
      links.push_back(std::make_unique<SimulatedLink>(bytes, *budget, rules, random));
    const auto all_done = [&] {
      return std::all_of(links.begin(), links.end(), [](const auto& link) { return link->done(); });
    };
    // The number of fruitless steps after which it is practically certain that no step is possible.
    constexpr int kFruitless = 10'000;
    int fruitless = 0;
    while (!all_done() && fruitless < kFruitless) {
      fruitless = links[Draw(random, 0, links.size() - 1)]->Step() ? 0 : fruitless + 1;
    }
    EXPECT_TRUE(all_done()) << "seed " << seed;
    links.clear();
    EXPECT_EQ(budget->transit()->used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace psd::carrier
