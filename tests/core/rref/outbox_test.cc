#include "core/rref/outbox.h"

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/rref/user_ledger.h"
#include "gtest/gtest.h"

namespace psd::rref {
namespace {

const absl::Time kStart = absl::UnixEpoch();

ForkRelease Release(uint64_t number, Incarnation owner = 7) {
  return {"owner0", owner, {1, number}, {2, number}};
}

TEST(Outbox, OneMessageAtATimeAndWhatComesMeanwhileGoesTogether) {
  Outbox outbox;
  EXPECT_FALSE(outbox.Next(kStart).has_value());
  outbox.Add(Release(1));
  const std::optional<Outbox::Message> first = outbox.Next(kStart);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->owner_incarnation, 7u);
  EXPECT_EQ(first->forks.value_counters(0), 1u);
  EXPECT_EQ(first->forks.fork_incarnations(0), 2u);
  for (uint64_t i = 2; i <= 4; ++i) outbox.Add(Release(i));
  EXPECT_FALSE(outbox.Next(kStart).has_value()) << "one is under way";
  EXPECT_EQ(outbox.size(), 4u);
  outbox.Answered(kStart);
  EXPECT_EQ(outbox.Next(kStart)->forks.fork_counters_size(), 3);
  outbox.Answered(kStart);
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, AMessageIsBoundedAndOfOneLifeOfTheOwner) {
  Outbox outbox;
  for (uint64_t i = 0; i < Outbox::kMaxPerMessage + 1; ++i) outbox.Add(Release(i));
  outbox.Add(Release(0, /*owner=*/8));
  const int full = Outbox::kMaxPerMessage;
  for (const auto& [owner, releases] : {std::pair(7, full), {7, 1}, {8, 1}}) {
    const std::optional<Outbox::Message> message = outbox.Next(kStart);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->owner_incarnation, static_cast<Incarnation>(owner));
    EXPECT_EQ(message->forks.fork_counters_size(), releases);
    outbox.Answered(kStart);
  }
}

TEST(Outbox, TheOwnerRestsInProportionToWhatAMessageTook) {
  Outbox outbox;
  outbox.Add(Release(1));
  outbox.Next(kStart);
  EXPECT_EQ(outbox.Answered(kStart + absl::Microseconds(300)),
            absl::Microseconds(300) * (1 / Outbox::kBusyShare - 1));
  outbox.Add(Release(2));
  outbox.Next(kStart);
  EXPECT_EQ(outbox.Answered(kStart + absl::Seconds(30)), Outbox::kLongestRest)
      << "sent again for a while";
}

}  // namespace
}  // namespace psd::rref
