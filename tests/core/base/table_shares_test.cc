#include "core/base/table_shares.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/status.h"

namespace psd {
namespace {

std::string Peer(int host, int port = 1) {
  return absl::StrCat("ipv4:10.0.0.", host, ":", port);
}

// Takes places for `peer` until one is refused, and returns how many it got.
size_t TakeAll(TableShares& shares, const std::string& peer) {
  size_t taken = 0;
  for (; shares.Check(peer).ok(); ++taken) shares.Take(peer);
  return taken;
}

TEST(TableSharesTest, NobodyIsLimitedWhileHalfIsFree) {
  TableShares shares(100);
  for (int port = 0; port < 50; ++port) {
    ASSERT_TRUE(shares.Check(Peer(1, port)).ok());
    shares.Take(Peer(1, port));
  }
  EXPECT_TRUE(shares.Check(Peer(1, 7)).ok());
}

TEST(TableSharesTest, WhoFillsItLeavesRoomForOthers) {
  TableShares shares(4096);
  EXPECT_EQ(TakeAll(shares, Peer(1)), 2049u);
  for (int host = 2; host < 10; ++host) {
    ASSERT_TRUE(shares.Check(Peer(host)).ok()) << host;
    TakeAll(shares, Peer(host));
  }
  EXPECT_TRUE(shares.Check(Peer(10)).ok()) << "a host that holds nothing finds a place";
}

TEST(TableSharesTest, AnotherConnectionOfAHostFindsWhatOneMayNotTake) {
  TableShares shares(4096);
  for (int i = 0; i < 2000; ++i) shares.Take(Peer(1));
  for (int i = 0; i < 1000; ++i) shares.Take(Peer(2, 1));
  const absl::Status refused = shares.Check(Peer(2, 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("the connection from ipv4:10.0.0.2:1"), std::string::npos)
      << refused;
  EXPECT_EQ(GetDetail(refused)->remedy, "close some, or wait for leases to end");
  EXPECT_TRUE(shares.Check(Peer(2, 2)).ok());
}

TEST(TableSharesTest, AHostMayExchangeAPlaceOfItsOwn) {
  TableShares shares(10);
  TakeAll(shares, Peer(1));
  EXPECT_TRUE(shares.CheckExchange(Peer(1, 1), Peer(1, 2)).ok());
  EXPECT_FALSE(shares.CheckExchange(Peer(2), Peer(1)).ok());
  EXPECT_TRUE(shares.CheckExchange(Peer(1), Peer(2)).ok());
}

TEST(TableSharesTest, ReleasedPlacesCountNoLonger) {
  TableShares shares(10);
  EXPECT_EQ(TakeAll(shares, Peer(1)), 6u);
  for (int i = 0; i < 6; ++i) shares.Release(Peer(1));
  EXPECT_EQ(TakeAll(shares, Peer(1)), 6u);
}

TEST(TableSharesTest, AFullTableIsFullForAll) {
  TableShares shares(3);
  for (int host = 0; host < 3; ++host) {
    ASSERT_TRUE(shares.Check(Peer(host)).ok());
    shares.Take(Peer(host));
  }
  EXPECT_EQ(shares.Check(Peer(9)).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace psd
