#include "core/carrier/shm/lending/lease_book.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/carrier/shm/lending/limits.h"
#include "core/carrier/shm/lending/quota.h"

namespace psd::carrier {
namespace {

Loan LoanOf(const std::string& header, size_t bytes) {
  Loan loan;
  loan.message.header = header;
  loan.bytes = bytes;
  return loan;
}

TEST(LeaseBook, ALeaseEndsOnce) {
  LeaseBook book(std::make_shared<Quota>(SIZE_MAX, 1000));
  const uint64_t first = book.Reserve(600).value();
  const uint64_t second = book.Reserve(400).value();
  EXPECT_NE(first, second);
  EXPECT_EQ(book.Find(first), nullptr);
  EXPECT_EQ(book.Take(first).status().code(), absl::StatusCode::kInvalidArgument)
      << "it has a place, and is not out";
  EXPECT_EQ(book.bytes(), 0u);
  EXPECT_EQ(book.loans(), 2u);
  book.Add(first, LoanOf("first", 600));
  book.Add(second, LoanOf("second", 400));
  ASSERT_NE(book.Find(first), nullptr);
  EXPECT_EQ(book.Find(first)->message.header, "first");
  EXPECT_EQ(book.Take(second)->message.header, "second");
  EXPECT_EQ(book.Take(second).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(book.Take(99).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(book.bytes(), 600u);
  EXPECT_EQ(book.loans(), 1u);
}

TEST(LeaseBook, BytesAreBounded) {
  LeaseBook book(std::make_shared<Quota>(SIZE_MAX, 1000));
  EXPECT_FALSE(book.Reserve(1001).has_value());
  EXPECT_FALSE(book.Reserve(SIZE_MAX).has_value());
  ASSERT_TRUE(book.Reserve(999).has_value());
  EXPECT_FALSE(book.Reserve(2).has_value());
  EXPECT_TRUE(book.Reserve(1).has_value());
  EXPECT_FALSE(book.Reserve(1).has_value());
  book.GiveBack(999);
  const uint64_t lease = book.Reserve(999).value();
  book.Add(lease, LoanOf("", 999));
  EXPECT_FALSE(book.Reserve(1).has_value());
  ASSERT_TRUE(book.Take(lease).ok());
  EXPECT_TRUE(book.Reserve(999).has_value());
}

TEST(LeaseBook, LinksToOneProcessShareItsQuota) {
  const auto quota = std::make_shared<Quota>(SIZE_MAX, 1000);
  LeaseBook book(quota);
  LeaseBook other(quota);
  const uint64_t lease = book.Reserve(600).value();
  book.Add(lease, LoanOf("", 600));
  EXPECT_FALSE(other.Reserve(600).has_value());
  EXPECT_EQ(other.bytes(), 0u);
  EXPECT_EQ(book.TakeAll().size(), 1u);
  EXPECT_TRUE(other.Reserve(1000).has_value());
}

TEST(LeaseBook, LeasesAreBounded) {
  LeaseBook book(std::make_shared<Quota>(SIZE_MAX, SIZE_MAX));
  for (size_t i = 0; i < kMaxLeases; ++i) {
    const auto lease = book.Reserve(1);
    ASSERT_TRUE(lease.has_value());
    book.Add(*lease, LoanOf("", 1));
  }
  EXPECT_FALSE(book.Reserve(1).has_value());
  EXPECT_EQ(book.TakeAll().size(), kMaxLeases);
  EXPECT_EQ(book.bytes(), 0u);
  EXPECT_TRUE(book.Reserve(1).has_value());
}

}  // namespace
}  // namespace psd::carrier
