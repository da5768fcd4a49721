#include "core/carrier/assembler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/carrier/bulk_queue.h"

namespace psd::carrier {
namespace {

constexpr size_t kPiece = kMinPieceBytes;

constexpr absl::Time kNow = absl::UnixEpoch();
constexpr absl::Duration kPatience = absl::Seconds(5);

WaitingRules Waiting() {
  return {std::make_shared<WaitingLine>(), kPatience};
}

Message LargeMessage() {
  Message message;
  message.header = "header";
  message.buffers = {Buffer::FromString(std::string(100'000, 'a')), Buffer(),
                     Buffer::FromString(std::string(10, 'b')),
                     Buffer::FromString(std::string(70'000, 'c'))};
  return message;
}

// Feeds the pieces that a BulkQueue sends into an assembler, as a link does.
class AssemblerTest : public testing::Test {
 protected:
  AssemblerTest() : queue_(kPiece) { queue_.set_peer_assembly_bytes(limits_.max_assembly_bytes); }

  static std::string Encode(const BulkQueue::Piece& piece) {
    FrameEncoder encoder;
    piece.Encode(&encoder);
    std::string wire;
    for (const Buffer& part : encoder.Take()) wire.append(part.view().data(), part.size());
    return wire;
  }

  absl::Status Feed(absl::string_view wire) {
    FrameDecoder decoder(ByteReader(absl::MakeConstSpan(&wire, 1)), limits_);
    while (true) {
      absl::StatusOr<std::optional<Frame>> frame = decoder.Next();
      if (!frame.ok()) return frame.status();
      if (!frame->has_value()) return absl::OkStatus();
      absl::Status status = std::holds_alternative<AnnounceFrame>(**frame)
                                ? assembler_.OnAnnounce(std::get<AnnounceFrame>(**frame))
                                : FeedPiece(std::get<PieceFrame>(**frame));
      if (!status.ok()) return status;
    }
  }

  absl::Status FeedPiece(const PieceFrame& piece) {
    EXPECT_NE(assembler_.FindRoom(piece.transfer, kNow).value_or(Assembler::Room::kNone),
              Assembler::Room::kNone);
    absl::StatusOr<Assembler::Slot> slot = assembler_.BeginPiece(piece);
    if (!slot.ok()) return slot.status();
    slot->Fill();
    std::optional<Assembler::Whole> whole = assembler_.EndPiece(*slot);
    if (whole.has_value()) whole_.push_back(std::move(whole->message));
    return absl::OkStatus();
  }

  absl::Status FeedPiece(uint64_t transfer, uint64_t offset, size_t size) {
    std::string bytes(size, 'x');
    absl::string_view chunk = bytes;
    return FeedPiece({transfer, offset, ByteReader(absl::MakeConstSpan(&chunk, 1))});
  }

  Limits limits_;
  const std::shared_ptr<MemoryAccount> account_ = MemoryAccount::Create(0, NewHeapAllocator());
  const WaitingRules rules_ = Waiting();
  Assembler assembler_{limits_, {account_, account_}, account_, rules_};
  BulkQueue queue_;
  std::vector<Message> whole_;
};

TEST_F(AssemblerTest, PiecesOverSeveralStreamsInAnyOrderMakeTheMessage) {
  queue_.Add(LargeMessage());
  std::vector<std::string> wires;
  for (size_t stream = 0; auto piece = queue_.Next(stream); stream = (stream + 1) % 3) {
    wires.push_back(Encode(*piece));
  }
  ASSERT_EQ(wires.size(), 3u);
  for (size_t i : {2, 0, 1}) ASSERT_TRUE(Feed(wires[i]).ok());
  ASSERT_EQ(whole_.size(), 1u);
  EXPECT_EQ(whole_[0].header, "header");
  ASSERT_EQ(whole_[0].buffers.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(whole_[0].buffers[i].view() == LargeMessage().buffers[i].view()) << i;
  }
  EXPECT_EQ(assembler_.transfers(), 0u);
  EXPECT_EQ(assembler_.assembly_bytes(), 0u);
}

TEST_F(AssemblerTest, WhatNoHonestPeerSendsIsRefused) {
  ASSERT_TRUE(assembler_.OnAnnounce({1, kPiece, {0, {kPiece + 10}}}).ok());
  EXPECT_FALSE(FeedPiece(2, 0, kPiece).ok()) << "unknown transfer";
  EXPECT_FALSE(FeedPiece(1, 5, kPiece).ok()) << "odd offset";
  EXPECT_FALSE(FeedPiece(1, 0, kPiece - 1).ok()) << "short piece";
  EXPECT_FALSE(FeedPiece(1, kPiece, 11).ok()) << "long last piece";
  EXPECT_FALSE(FeedPiece(1, 2 * kPiece, 1).ok()) << "past the end";
  EXPECT_FALSE(FeedPiece(1, ~uint64_t{0} / kPiece * kPiece, kPiece).ok()) << "far past the end";
  EXPECT_TRUE(FeedPiece(1, 0, kPiece).ok());
  EXPECT_FALSE(FeedPiece(1, 0, kPiece).ok()) << "twice";
  EXPECT_FALSE(assembler_.OnAnnounce({1, kPiece, {1, {kPiece + 10}}}).ok()) << "other words";
  EXPECT_TRUE(assembler_.OnAnnounce({1, kPiece, {0, {kPiece + 10}}}).ok());
  EXPECT_TRUE(FeedPiece(1, kPiece, 10).ok());
  EXPECT_EQ(whole_.size(), 1u);
  EXPECT_FALSE(FeedPiece(1, 0, kPiece).ok()) << "after the end";
}

TEST(Assembler, AssemblyIsBounded) {
  Limits limits;
  limits.max_assembly_bytes = 250'000;
  const auto account = MemoryAccount::Create(0, NewHeapAllocator());
  Assembler assembler(limits, {account, account}, account, Waiting());
  EXPECT_TRUE(assembler.OnAnnounce({1, kPiece, {0, {100'000}}}).ok());
  EXPECT_TRUE(assembler.OnAnnounce({2, kPiece, {0, {100'000}}}).ok());
  EXPECT_EQ(assembler.OnAnnounce({3, kPiece, {0, {100'000}}}).code(),
            absl::StatusCode::kInvalidArgument);
}

// Two links that receive into one budget of 8 MiB, of which transit may have 6.75 MiB.
class FullMemoryTest : public testing::Test {
 protected:
  // Returns the announcement of a message with one buffer.
  static AnnounceFrame Announce(uint64_t id, size_t header_bytes, size_t buffer_bytes) {
    return {id, kMaxPieceBytes, {header_bytes, {buffer_bytes}}};
  }
  bool FindsRoom(Assembler& assembler, uint64_t id, absl::Time now = kNow) {
    const absl::StatusOr<Assembler::Room> found = assembler.FindRoom(id, now);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.value_or(Assembler::Room::kNone) != Assembler::Room::kNone;
  }
  // Delivers the whole message in one piece.
  std::optional<Assembler::Whole> Bring(Assembler& assembler, uint64_t id, size_t bytes) {
    const std::string payload(bytes, 'x');
    const absl::string_view chunk = payload;
    auto slot = assembler.BeginPiece({id, 0, ByteReader(absl::MakeConstSpan(&chunk, 1))});
    EXPECT_TRUE(slot.ok()) << slot.status();
    slot->Fill();
    return assembler.EndPiece(*slot);
  }
  size_t used() const { return budget_->transit()->used_bytes(); }

  const std::shared_ptr<MemoryBudget> budget_ = MemoryBudget::Create(8 << 20);
  const ReceiveMemory memory_{budget_->transit(), budget_->transit()};
  const WaitingRules rules_ = Waiting();
  Assembler one_{Limits(), memory_, budget_->essential(), rules_};
  Assembler other_{Limits(), memory_, budget_->essential(), rules_};
};

constexpr size_t kMiB = size_t{1} << 20;

TEST_F(FullMemoryTest, AnAnnounceTakesNoMoreThanItsOwnBytes) {
  for (uint64_t id = 1; id <= 100; ++id) {
    ASSERT_TRUE(one_.OnAnnounce(Announce(id, 16 * kMiB, kMiB)).ok());
  }
  EXPECT_LT(used(), 100 * 1024u);
  one_.Clear();
  EXPECT_EQ(used(), 0u);
}

TEST_F(FullMemoryTest, WhatFindsNoRoomWaitsAndIsTakenWhenThereIsSome) {
  MemoryCharge full = *budget_->transit()->Charge(6 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1));
  EXPECT_FALSE(FindsRoom(one_, 1, kNow + kPatience - absl::Milliseconds(1)));
  full.reset();
  EXPECT_TRUE(FindsRoom(one_, 1, kNow + kPatience - absl::Milliseconds(1)));
  const auto whole = Bring(one_, 1, kMiB + 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_TRUE(whole->refused.ok());
  EXPECT_EQ(whole->message.buffers.at(0).size(), kMiB);
}

TEST_F(FullMemoryTest, WhatWaitsTooLongIsRefusedWithItsHeaderKept) {
  const MemoryCharge full = *budget_->transit()->Charge(6 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1));
  EXPECT_TRUE(FindsRoom(one_, 1, kNow + kPatience));
  const auto whole = Bring(one_, 1, kMiB + 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(whole->message.header, "xxxxxxxxxx");
  EXPECT_TRUE(whole->message.buffers.empty());
  EXPECT_EQ(used(), 6 * kMiB);
}

TEST_F(FullMemoryTest, WhatFitsNeverIsRefusedAtOnce) {
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, 9 * kMiB)).ok());
  EXPECT_TRUE(FindsRoom(one_, 1));
  const auto whole = Bring(one_, 1, 9 * kMiB + 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->refused.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FullMemoryTest, WhatWouldNotFitBesideTheValuesIsRefusedAtOnceAndKeepsNobodyBack) {
  MemoryCharge values = *budget_->hosted()->Charge(3 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, 4 * kMiB)).ok());
  EXPECT_TRUE(FindsRoom(one_, 1));
  const auto whole = Bring(one_, 1, 4 * kMiB + 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->refused.code(), absl::StatusCode::kResourceExhausted);
  values.reset();
  // A message that already waits is refused as soon as values leave no room for it.
  const MemoryCharge message = *budget_->transit()->Charge(3 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(2, 10, 4 * kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 2));
  values = *budget_->hosted()->Charge(3 * kMiB);
  EXPECT_TRUE(FindsRoom(one_, 2));
}

TEST_F(FullMemoryTest, MuchSmallerOnesPassWhoeverStillWaitsPatiently) {
  const MemoryCharge full = *budget_->transit()->Charge(4 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, 4 * kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1));
  ASSERT_TRUE(other_.OnAnnounce(Announce(1, 10, kMiB / 4)).ok());
  EXPECT_TRUE(FindsRoom(other_, 1));
  ASSERT_TRUE(other_.OnAnnounce(Announce(2, 10, kMiB / 4)).ok());
  EXPECT_FALSE(FindsRoom(other_, 2, kNow + kPatience / 2)) << "from now on all wait for the first";
  one_.Clear();
  EXPECT_TRUE(FindsRoom(other_, 2, kNow + kPatience / 2));
}

TEST_F(FullMemoryTest, WhoMayNotWaitPassesNobodyAndIsRefused) {
  const MemoryCharge full = *budget_->transit()->Charge(4 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, 4 * kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1));
  ASSERT_TRUE(other_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_TRUE(other_.FindRoom(1, kNow, /*may_wait=*/false).ok());
  const auto whole = Bring(other_, 1, kMiB + 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_NE(whole->refused.message().find("1 messages wait"), absl::string_view::npos)
      << whole->refused;
}

TEST_F(FullMemoryTest, TransfersOfOneLinkTakeMemoryInTheirOrder) {
  ASSERT_TRUE(one_.OnAnnounce(Announce(2, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 2)) << "the first has not come";
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 2));
  EXPECT_TRUE(FindsRoom(one_, 1));
  EXPECT_TRUE(FindsRoom(one_, 2));
  EXPECT_TRUE(Bring(one_, 1, kMiB + 10).has_value());
  EXPECT_EQ(one_.OnAnnounce(Announce(1, 10, kMiB)).code(), absl::StatusCode::kInvalidArgument)
      << "its number is used up";
}

TEST_F(FullMemoryTest, OneLinkTakesNoMoreThanHalfWhileOthersWait) {
  MemoryCharge full = *budget_->transit()->Charge(5 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  ASSERT_TRUE(FindsRoom(one_, 1));
  ASSERT_TRUE(other_.OnAnnounce(Announce(1, 10, 3 * kMiB)).ok());
  EXPECT_FALSE(FindsRoom(other_, 1));
  full.reset();
  ASSERT_TRUE(one_.OnAnnounce(Announce(2, 10, 3 * kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 2));
  EXPECT_TRUE(FindsRoom(other_, 1)) << "a link beyond its half keeps nobody back";
  EXPECT_FALSE(FindsRoom(one_, 2)) << "no room is left";
  other_.Clear();
  EXPECT_TRUE(FindsRoom(one_, 2)) << "nobody else waits";
}

TEST_F(FullMemoryTest, TheSenderIsToldOfRoomForTransfersThatMixAndForLongOnes) {
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_EQ(*one_.FindRoom(1, kNow), Assembler::Room::kThere) << "it is alone, and short";
  ASSERT_TRUE(one_.OnAnnounce(Announce(2, 10, kMiB)).ok());
  EXPECT_EQ(*one_.FindRoom(2, kNow), Assembler::Room::kFound);
  EXPECT_EQ(*one_.FindRoom(2, kNow), Assembler::Room::kThere) << "it was told";
  ASSERT_TRUE(other_.OnAnnounce({1, kMinPieceBytes, {10, {kMiB}}}).ok());
  EXPECT_EQ(*other_.FindRoom(1, kNow), Assembler::Room::kFound);
}

TEST_F(FullMemoryTest, NobodyOvertakesWhoWaits) {
  MemoryCharge full = *budget_->transit()->Charge(4 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, 4 * kMiB)).ok());
  ASSERT_TRUE(other_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1));
  EXPECT_FALSE(FindsRoom(other_, 1)) << "there is room for it, but one waits for more";
  full.reset();
  EXPECT_FALSE(FindsRoom(other_, 1));
  EXPECT_TRUE(FindsRoom(one_, 1));
  EXPECT_TRUE(FindsRoom(other_, 1));
}

TEST_F(FullMemoryTest, WhoEndsWaitsNoMore) {
  const MemoryCharge full = *budget_->transit()->Charge(4 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, 4 * kMiB)).ok());
  ASSERT_TRUE(other_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1));
  EXPECT_FALSE(FindsRoom(other_, 1));
  one_.Clear();
  EXPECT_TRUE(FindsRoom(other_, 1));
}

TEST_F(FullMemoryTest, AnAnnounceIsHeardWhereTransitIsFull) {
  const MemoryCharge full = *budget_->transit()->Charge(budget_->transit()->limit_bytes());
  EXPECT_TRUE(one_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1));
}

TEST_F(FullMemoryTest, AfterItsPatienceAMessageTriesOnceMoreWhoeverIsBeforeIt) {
  const MemoryCharge full = *budget_->transit()->Charge(4 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, 4 * kMiB)).ok());
  ASSERT_TRUE(other_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  EXPECT_FALSE(FindsRoom(one_, 1, kNow));
  EXPECT_FALSE(FindsRoom(other_, 1, kNow));
  EXPECT_TRUE(FindsRoom(other_, 1, kNow + kPatience));
  const auto whole = Bring(other_, 1, kMiB + 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_TRUE(whole->refused.ok()) << whole->refused;
}

TEST_F(FullMemoryTest, NobodyAnnouncesWithoutEnd) {
  for (uint64_t id = 1; id <= Assembler::kMaxTransfers; ++id) {
    ASSERT_TRUE(one_.OnAnnounce(Announce(id, 10, kMiB)).ok()) << id;
  }
  EXPECT_EQ(one_.OnAnnounce(Announce(Assembler::kMaxTransfers + 1, 10, kMiB)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(AssemblerTest, ATransferThatDoesNotMoveBetweenTwoLooksHasStalled) {
  ASSERT_TRUE(assembler_.OnAnnounce({1, kPiece, {0, {3 * kPiece}}}).ok());
  EXPECT_TRUE(assembler_.LookForStall().ok());
  ASSERT_TRUE(FeedPiece(1, 0, kPiece).ok());
  EXPECT_TRUE(assembler_.LookForStall().ok());
  EXPECT_EQ(assembler_.LookForStall().code(), absl::StatusCode::kDeadlineExceeded);
  assembler_.Clear();
  EXPECT_TRUE(assembler_.LookForStall().ok());
}

TEST_F(AssemblerTest, ATransferThatCrawlsWhileOthersNeedItsMemoryHasStalled) {
  constexpr size_t kPieces = 3 * Assembler::kMostLooks;
  ASSERT_TRUE(assembler_.OnAnnounce({1, kPiece, {0, {kPieces * kPiece}}}).ok());
  ASSERT_TRUE(FeedPiece(1, 0, kPiece).ok());
  EXPECT_TRUE(assembler_.LookForStall().ok());
  ASSERT_TRUE(FeedPiece(1, kPiece, kPiece).ok());
  EXPECT_TRUE(assembler_.LookForStall().ok()) << "nobody needs the memory";
  rules_.line->Leave(rules_.line->Join(kPiece, kNow));
  for (size_t i = 2; i <= 4; ++i) ASSERT_TRUE(FeedPiece(1, i * kPiece, kPiece).ok());
  EXPECT_TRUE(assembler_.LookForStall().ok());
  rules_.line->Leave(rules_.line->Join(kPiece, kNow));
  for (size_t i = 5; i <= 6; ++i) ASSERT_TRUE(FeedPiece(1, i * kPiece, kPiece).ok());
  const absl::Status stalled = assembler_.LookForStall();
  EXPECT_EQ(stalled.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(stalled.message().find("2 came since the last look, and 3 must come"),
            absl::string_view::npos)
      << stalled;
}

TEST_F(FullMemoryTest, WhoWaitsForMemoryHasNotStalled) {
  const MemoryCharge full = *budget_->transit()->Charge(6 * kMiB);
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, 10, kMiB)).ok());
  ASSERT_TRUE(one_.OnAnnounce(Announce(2, 10, kMiB)).ok());
  for (int look = 0; look < 5; ++look) {
    EXPECT_FALSE(FindsRoom(one_, 2));
    EXPECT_FALSE(FindsRoom(one_, 1));
    EXPECT_TRUE(one_.LookForStall().ok());
  }
}

TEST_F(FullMemoryTest, ATableOfManyBuffersIsCharged) {
  AnnounceFrame announce{1, kMaxPieceBytes, {10, std::vector<size_t>(100'000, 0)}};
  ASSERT_TRUE(one_.OnAnnounce(announce).ok());
  ASSERT_TRUE(FindsRoom(one_, 1));
  const auto whole = Bring(one_, 1, 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_GE(used(), 100'000 * sizeof(Buffer));
}

TEST_F(FullMemoryTest, OfALargeHeaderWithoutRoomTheBeginningIsKept) {
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, kMiB, 10)).ok());
  ASSERT_TRUE(FindsRoom(one_, 1)) << "it would take 64 MiB, so it is refused at once";
  const auto whole = Bring(one_, 1, kMiB + 10);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->refused.code(), absl::StatusCode::kResourceExhausted) << whole->refused;
  EXPECT_EQ(whole->message.header.size(), kKeptHeaderBytes);
  EXPECT_TRUE(whole->message.buffers.empty());
  EXPECT_EQ(used(), 0u);
}

TEST_F(FullMemoryTest, ALargeHeaderIsChargedUntilTheMessageGoes) {
  constexpr size_t kHeader = kMiB / 64;
  ASSERT_TRUE(one_.OnAnnounce(Announce(1, kHeader, kMiB)).ok());
  ASSERT_TRUE(FindsRoom(one_, 1));
  auto whole = Bring(one_, 1, kHeader + kMiB);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(used(), 2 * kMiB) << "64 bytes for each of the header";
  whole->message.buffers.clear();
  EXPECT_EQ(used(), kMiB);
  whole.reset();
  EXPECT_EQ(used(), 0u);
}

// Messages of `pieces` pieces each, which get the numbers 1, 2, 3, …
class TurnsTest : public testing::Test {
 protected:
  explicit TurnsTest(std::vector<size_t> pieces = {10, 3}) : queue_(kPiece) {
    queue_.set_peer_assembly_bytes(size_t{1} << 30);
    for (size_t count : pieces) {
      Message message;
      message.buffers.push_back(Buffer::FromString(std::string(count * kPiece, 'x')));
      queue_.Add(std::move(message));
    }
  }
  // Returns the number of the message whose next piece is sent on `stream`; 0 if there is none.
  uint64_t Next(size_t stream) {
    const auto piece = queue_.Next(stream);
    if (piece.has_value() && piece->frees.has_value()) freed_ = *piece->frees;
    return piece.has_value() ? piece->transfer : 0;
  }

  BulkQueue queue_;
  size_t freed_ = 99;
};

TEST_F(TurnsTest, MessagesThatHaveRoomTakeTurnsAndSmallOnesFinishFirst) {
  EXPECT_EQ(Next(0), 1u);
  EXPECT_EQ(Next(1), 1u) << "nobody has said that there is room for it";
  ASSERT_TRUE(queue_.OnRoom(1).ok());
  EXPECT_EQ(Next(0), 2u);
  ASSERT_TRUE(queue_.OnRoom(2).ok());
  std::vector<uint64_t> order;
  while (const uint64_t transfer = Next(0)) order.push_back(transfer);
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 1, 2, 1, 1, 1, 1, 1, 1}));
}

TEST_F(TurnsTest, AMessageThatMayWaitForRoomKeepsNoOtherBack) {
  EXPECT_EQ(Next(0), 1u);
  EXPECT_EQ(Next(1), 1u);
  ASSERT_TRUE(queue_.OnRoom(1).ok());
  EXPECT_EQ(Next(1), 2u);
  EXPECT_EQ(Next(1), 0u) << "what followed there might have to wait behind it";
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Next(0), 1u);
  EXPECT_EQ(freed_, 1u);
  EXPECT_EQ(Next(1), 2u) << "it is the last one, and needs no word any more";
  EXPECT_EQ(Next(0), 2u);
  EXPECT_TRUE(queue_.OnRoom(2).ok()) << "the word may come late";
  EXPECT_FALSE(queue_.OnRoom(3).ok());
}

TEST_F(TurnsTest, OnOneStreamMessagesFollowEachOther) {
  EXPECT_EQ(Next(0), 1u);
  ASSERT_TRUE(queue_.OnRoom(1).ok());
  for (int i = 0; i < 9; ++i) EXPECT_EQ(Next(0), 1u);
  EXPECT_EQ(Next(0), 2u);
}

TEST(BulkQueue, MessagesOfFewPiecesAreCutSmallerSoThatTheStreamsShareThem) {
  BulkQueue queue(size_t{1} << 20);
  queue.set_peer_assembly_bytes(size_t{1} << 30);
  const auto pieces = [&queue](size_t bytes) {
    Message message;
    message.buffers.push_back(Buffer::FromString(std::string(bytes, 'm')));
    queue.Add(std::move(message));
    std::vector<size_t> sizes;
    while (auto piece = queue.Next(sizes.size())) sizes.push_back(piece->bytes);
    return sizes;
  };
  constexpr size_t kKiB = 1 << 10;
  EXPECT_EQ(pieces(100 * kKiB), (std::vector<size_t>{64 * kKiB, 36 * kKiB}));
  EXPECT_EQ(pieces(2048 * kKiB), (std::vector<size_t>(4, 512 * kKiB)));
  EXPECT_EQ(pieces(8192 * kKiB), (std::vector<size_t>(8, 1024 * kKiB)));
}

TEST(BulkQueue, WaitsForAcksAtThePeersBound) {
  BulkQueue queue(kPiece);
  Message message;
  message.buffers.push_back(Buffer::FromString(std::string(kPiece, 'x')));
  queue.Add(message);
  EXPECT_FALSE(queue.Next(0).has_value()) << "the peer's bound is not known yet";
  queue.set_peer_assembly_bytes(AssemblyBytes(ShapeOf(message)));
  queue.Add(message);
  EXPECT_TRUE(queue.Next(0).has_value());
  EXPECT_FALSE(queue.Next(0).has_value());
  EXPECT_FALSE(queue.OnAck(2).ok());
  EXPECT_TRUE(queue.OnAck(1).ok());
  EXPECT_FALSE(queue.OnAck(1).ok());
  EXPECT_TRUE(queue.Next(0).has_value());
  EXPECT_TRUE(queue.empty());
}

TEST(MessageAssembly, SmallBuffersShareBlocks) {
  class Counting : public Allocator {
   public:
    absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
      ++count;
      return heap->Allocate(bytes);
    }
    int count = 0;
    std::shared_ptr<Allocator> heap = NewHeapAllocator();
  };
  const auto allocator = std::make_shared<Counting>();
  MessageShape shape{0, std::vector<size_t>(1000, 1000)};
  const auto account = MemoryAccount::Create(0, allocator->heap);
  auto assembly = MessageAssembly::Create(shape, {allocator, account});
  ASSERT_TRUE(assembly.ok());
  EXPECT_LE(allocator->count, 5);
}

}  // namespace
}  // namespace psd::carrier
